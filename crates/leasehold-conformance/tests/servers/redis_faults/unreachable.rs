//! The server is away: each caller hears it, in words that help and give no secret away; and all is well when it is back.

use std::time::Duration;

use leasehold::{Error, ErrorKind, Locks};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT, patient_url};
use leasehold_testbed::redis::Redis;
use leasehold_testbed::{Data, Proxy, eventually};
use tokio::time::timeout;

use crate::redis_faults::fixture::{Fixture, release, until_empty};

const WAIT: Duration = Duration::from_millis(300);
/// A TTL whose calls are short. Nothing is held under it.
const TTL: Duration = Duration::from_secs(1);
const SECRET: &str = "hunter2secret";

/// The error of a server that is away is about what is wrong.
fn assert_unreachable_error(error: &Error, address: &str) {
    assert!([ErrorKind::Unavailable, ErrorKind::Timeout].contains(&error.kind()), "{error:?}");
    let text = error.to_string();
    assert!(!text.contains("somebody else holds it"), "nobody knows that: {text}");
    assert!(text.contains(address), "it does not say which server: {text}");
    for shown in [text, format!("{error:?}"), format!("{error:#?}")] {
        assert!(!shown.contains(SECRET), "{shown}");
    }
}

/// Waits for a call that must come to an end.
async fn within_bound<T>(call: impl Future<Output = T>) -> T {
    timeout(TEST_TIMEOUT, call).await.expect("an end")
}

/// Asks in all ways for a lock of a server that is away. The TTL of the wait is so long that it is not what ends it.
async fn assert_every_call_fails(locks: &Locks, address: &str) {
    for name in ["free", "held"] {
        let error =
            within_bound(locks.mutex(name).ttl(LONG_TTL).timeout(WAIT).lock()).await.expect_err("nobody answers");
        assert_unreachable_error(&error, address);
        let error = within_bound(locks.mutex(name).try_lock()).await.expect_err("nobody answers");
        assert_unreachable_error(&error, address);
        let error = within_bound(locks.inspect(name)).await.expect_err("nobody answers");
        assert_unreachable_error(&error, address);
    }
}

/// Everything works again, with the same client.
async fn assert_every_call_works(locks: &Locks) {
    eventually(TEST_TIMEOUT, || async { locks.inspect("free").await.map(drop) }).await;
    for name in ["free", "held"] {
        release(locks.mutex(name).ttl(LONG_TTL).timeout(TEST_TIMEOUT).lock().await.expect("the lock")).await;
    }
    until_empty(locks).await;
}

async fn fixture() -> Fixture {
    Fixture::with_config(Redis::new().password(SECRET)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_when_the_server_is_killed() {
    let mut site = fixture().await;
    let locks = site.locks(TTL).await;
    drop(locks.mutex("held").ttl(LONG_TTL).lock().await.expect("a lock"));
    let address = site.server.addr().to_string();
    site.server.kill().expect("a killed server");
    assert_every_call_fails(&locks, &address).await;
    site.server.restart(Data::Wipe).await.expect("a restarted server");
    assert_every_call_works(&locks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_when_the_server_hangs() {
    let mut site = fixture().await;
    let locks = site.locks(TTL).await;
    let held = locks.mutex("held").ttl(LONG_TTL).lock().await.expect("a lock");
    let address = site.server.addr().to_string();
    site.server.pause().expect("a paused server");
    assert_every_call_fails(&locks, &address).await;
    site.server.resume().expect("a running server");
    assert!(held.is_held());
    release(held).await;
    assert_every_call_works(&locks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_when_the_port_refuses_connections() {
    let site = fixture().await;
    let proxy = Proxy::start(site.server.addr()).await.expect("a proxy");
    let url = format!("redis://:{SECRET}@{}/", proxy.addr());
    let locks = Locks::builder().ttl(TTL).open(&patient_url(&url)).await.expect("a client");
    proxy.refuse(true);
    proxy.cut();
    assert_every_call_fails(&locks, &proxy.addr().to_string()).await;
    proxy.refuse(false);
    assert_every_call_works(&locks).await;
}

/// A caller that waits for ever waits over a short absence, and is told of one that is longer than a TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_wait_outlasts_an_outage_shorter_than_its_ttl() {
    let mut site = Fixture::new().await;
    let locks = site.locks(LONG_TTL).await;
    site.server.kill().expect("a killed server");
    let patient = tokio::spawn({
        let mutex = locks.mutex("a");
        async move { mutex.lock().await }
    });
    let hasty = locks.mutex("a").ttl(Duration::from_secs(1));
    let error = within_bound(hasty.lock()).await.expect_err("nobody answers for a whole TTL");
    assert_unreachable_error(&error, &site.server.addr().to_string());
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    site.server.restart(Data::Wipe).await.expect("a restarted server");
    release(within_bound(patient).await.expect("no panic").expect("the lock")).await;
}

/// Opening fails, and says why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_error_names_the_cause_but_not_the_password() {
    let mut site = fixture().await;
    let address = site.server.addr();
    let open =
        |url: String| async move { Locks::open(&patient_url(&url)).await.map(drop).expect_err("it cannot be opened") };
    let wrong = open(format!("redis://:{SECRET}x@{address}/")).await;
    assert_eq!(wrong.kind(), ErrorKind::Denied, "{wrong}");
    let user = open(format!("redis://nobody:{SECRET}@{address}/")).await;
    assert_eq!(user.kind(), ErrorKind::Denied, "{user}");
    let none = open(format!("redis://{address}/")).await;
    assert_eq!(none.kind(), ErrorKind::Denied, "{none}");
    let bad = open(format!("redis://:{SECRET}@{address}/?colour={SECRET}")).await;
    assert_eq!(bad.kind(), ErrorKind::InvalidUrl, "{bad}");
    site.server.pause().expect("a paused server");
    let silent = within_bound(open(format!("redis://:{SECRET}@{address}/?connect-timeout=500ms"))).await;
    site.server.kill().expect("a killed server");
    let refused = open(format!("redis://:{SECRET}@{address}/")).await;
    for away in [&silent, &refused] {
        assert_eq!(away.kind(), ErrorKind::Unavailable, "{away}");
    }
    for error in [&wrong, &user, &none, &silent, &refused] {
        assert!(error.to_string().contains(&address.to_string()), "it does not say which server: {error}");
    }
    for error in [wrong, user, none, bad, silent, refused] {
        for shown in [error.to_string(), format!("{error:?}"), format!("{error:#?}")] {
            assert!(!shown.contains(SECRET), "{shown}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_output_shows_the_password() {
    let site = fixture().await;
    let locks = site.locks(LONG_TTL).await;
    let engine = site.engine().await;
    let guard = locks.mutex("a").lock().await.expect("a lock");
    let mut shown = vec![format!("{locks:?}"), locks.url(), format!("{guard:?}"), format!("{engine:?}")];
    shown.extend([format!("{engine:#?}"), engine.url(), format!("{:?}", locks.inspect("a").await.expect("a view"))]);
    for shown in shown {
        assert!(!shown.contains(SECRET), "{shown}");
    }
    release(guard).await;
}

/// A server that changes its password while we are connected: the error says so, also without it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_password_is_an_error() {
    let site = fixture().await;
    let (locks, mut hand) = (site.locks(TTL).await, site.raw_connection().await);
    for words in
        [&["AUTH", SECRET][..], &["CONFIG", "SET", "requirepass", "another"], &["CLIENT", "KILL", "TYPE", "pubsub"]]
    {
        let answer = hand.command(words).await.expect("an answer");
        assert!(!matches!(answer, leasehold_testbed::redis::Reply::Error(_)), "{answer:?}");
    }
    let error = eventually(TEST_TIMEOUT, || async {
        match locks.mutex("a").try_lock().await {
            Err(error) if error.kind() == ErrorKind::Denied => Ok(error),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains(SECRET) && shown.contains(&site.server.addr().to_string()), "{shown}");
    hand.command(&["CONFIG", "SET", "requirepass", SECRET]).await.expect("an answer");
    assert_every_call_works(&locks).await;
}

/// A password with letters that end it in a URL unless they are escaped: whatever the error says, it does not repeat it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unescaped_password_is_not_repeated_in_the_error() {
    for letter in ["/", "?", "#", "@", ":", ",", "%", "&", "="] {
        let url = format!("redis://:hunter{letter}rabbit@127.0.0.1:1/");
        let shown = match Locks::open(&url).await {
            Ok(_) => panic!("nobody is there"),
            Err(error) => format!("{error} {error:?}"),
        };
        assert!(!shown.contains("hunter") && !shown.contains("rabbit"), "{letter}: {shown}");
    }
}
