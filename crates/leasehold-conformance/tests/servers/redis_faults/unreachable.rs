//! The server is unreachable: each caller gets an error that names the server but no secret, and
//! calls work again afterwards.

use std::time::Duration;

use leasehold::{Error, ErrorKind, Locks};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT, patient_url};
use leasehold_testbed::redis::Redis;
use leasehold_testbed::{Data, Proxy, eventually};
use tokio::time::timeout;

use crate::redis_faults::fixture::{Fixture, release, until_empty};

const WAIT: Duration = Duration::from_millis(300);
/// A short TTL, which bounds each call. No lock is held with it.
const TTL: Duration = Duration::from_secs(1);
const SECRET: &str = "hunter2secret";

/// Checks that the error reports an unreachable server.
fn assert_unreachable_error(error: &Error, address: &str) {
    assert!([ErrorKind::Unavailable, ErrorKind::Timeout].contains(&error.kind()), "{error:?}");
    let text = error.to_string();
    assert!(!text.contains("another claim holds it"), "the error claims a holder: {text}");
    assert!(text.contains(address), "the error does not name the server: {text}");
    for shown in [text, format!("{error:?}"), format!("{error:#?}")] {
        assert!(!shown.contains(SECRET), "{shown}");
    }
}

/// Waits for a call that must return.
async fn within_bound<T>(call: impl Future<Output = T>) -> T {
    timeout(TEST_TIMEOUT, call).await.expect("the call returns")
}

/// Makes every kind of call to an unreachable server. The wait's TTL is so long that it does not
/// end the wait.
async fn assert_every_call_fails(locks: &Locks, address: &str) {
    for name in ["free", "held"] {
        let error = within_bound(locks.mutex(name).ttl(LONG_TTL).timeout(WAIT).lock())
            .await
            .expect_err("the server is unreachable");
        assert_unreachable_error(&error, address);
        let error = within_bound(locks.mutex(name).try_lock()).await.expect_err("the server is unreachable");
        assert_unreachable_error(&error, address);
        let error = within_bound(locks.inspect(name)).await.expect_err("the server is unreachable");
        assert_unreachable_error(&error, address);
    }
}

/// Asserts that the client acquires and releases locks again, once the server is reachable.
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
    let mut fixture = fixture().await;
    let locks = fixture.locks(TTL).await;
    drop(locks.mutex("held").ttl(LONG_TTL).lock().await.expect("a lock"));
    let address = fixture.server.addr().to_string();
    fixture.server.kill().expect("a killed server");
    assert_every_call_fails(&locks, &address).await;
    fixture.server.restart(Data::Wipe).await.expect("a restarted server");
    assert_every_call_works(&locks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_when_the_server_hangs() {
    let mut fixture = fixture().await;
    let locks = fixture.locks(TTL).await;
    let held = locks.mutex("held").ttl(LONG_TTL).lock().await.expect("a lock");
    let address = fixture.server.addr().to_string();
    fixture.server.pause().expect("a paused server");
    assert_every_call_fails(&locks, &address).await;
    fixture.server.resume().expect("a running server");
    assert!(held.is_held());
    release(held).await;
    assert_every_call_works(&locks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_when_the_port_refuses_connections() {
    let fixture = fixture().await;
    let proxy = Proxy::start(fixture.server.addr()).await.expect("a proxy");
    let url = format!("redis://:{SECRET}@{}/", proxy.addr());
    let locks = Locks::builder().ttl(TTL).open(&patient_url(&url)).await.expect("a client");
    proxy.refuse(true);
    proxy.cut();
    assert_every_call_fails(&locks, &proxy.addr().to_string()).await;
    proxy.refuse(false);
    assert_every_call_works(&locks).await;
}

/// An unlimited wait outlasts a short outage, and fails when an outage exceeds its TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unlimited_wait_outlasts_an_outage_shorter_than_its_ttl() {
    let mut fixture = Fixture::new().await;
    let locks = fixture.locks(LONG_TTL).await;
    fixture.server.kill().expect("a killed server");
    let patient = tokio::spawn({
        let mutex = locks.mutex("a");
        async move { mutex.lock().await }
    });
    let hasty = locks.mutex("a").ttl(Duration::from_secs(1));
    let error = within_bound(hasty.lock()).await.expect_err("the server is unreachable for a whole TTL");
    assert_unreachable_error(&error, &fixture.server.addr().to_string());
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    fixture.server.restart(Data::Wipe).await.expect("a restarted server");
    release(within_bound(patient).await.expect("no panic").expect("the lock")).await;
}

/// Opening fails with an error that names the cause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_error_names_the_cause_but_not_the_password() {
    let mut fixture = fixture().await;
    let address = fixture.server.addr();
    let open =
        |url: String| async move { Locks::open(&patient_url(&url)).await.map(drop).expect_err("the open must fail") };
    let wrong = open(format!("redis://:{SECRET}x@{address}/")).await;
    assert_eq!(wrong.kind(), ErrorKind::Denied, "{wrong}");
    let user = open(format!("redis://unknown:{SECRET}@{address}/")).await;
    assert_eq!(user.kind(), ErrorKind::Denied, "{user}");
    let none = open(format!("redis://{address}/")).await;
    assert_eq!(none.kind(), ErrorKind::Denied, "{none}");
    let bad = open(format!("redis://:{SECRET}@{address}/?colour={SECRET}")).await;
    assert_eq!(bad.kind(), ErrorKind::InvalidUrl, "{bad}");
    fixture.server.pause().expect("a paused server");
    let hung = within_bound(open(format!("redis://:{SECRET}@{address}/?connect-timeout=500ms"))).await;
    fixture.server.kill().expect("a killed server");
    let refused = open(format!("redis://:{SECRET}@{address}/")).await;
    for error in [&hung, &refused] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    for error in [&wrong, &user, &none, &hung, &refused] {
        assert!(error.to_string().contains(&address.to_string()), "the error does not name the server: {error}");
    }
    for error in [wrong, user, none, bad, hung, refused] {
        for shown in [error.to_string(), format!("{error:?}"), format!("{error:#?}")] {
            assert!(!shown.contains(SECRET), "{shown}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_output_shows_the_password() {
    let fixture = fixture().await;
    let locks = fixture.locks(LONG_TTL).await;
    let engine = fixture.engine().await;
    let guard = locks.mutex("a").lock().await.expect("a lock");
    let mut shown = vec![format!("{locks:?}"), locks.url(), format!("{guard:?}"), format!("{engine:?}")];
    shown.extend([format!("{engine:#?}"), engine.url(), format!("{:?}", locks.inspect("a").await.expect("a view"))]);
    for shown in shown {
        assert!(!shown.contains(SECRET), "{shown}");
    }
    release(guard).await;
}

/// The password changes while a client is connected: the error reports it without showing the
/// password.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_password_is_an_error() {
    let fixture = fixture().await;
    let (locks, mut raw) = (fixture.locks(TTL).await, fixture.raw_connection().await);
    for words in
        [&["AUTH", SECRET][..], &["CONFIG", "SET", "requirepass", "another"], &["CLIENT", "KILL", "TYPE", "pubsub"]]
    {
        let answer = raw.command(words).await.expect("an answer");
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
    assert!(!shown.contains(SECRET) && shown.contains(&fixture.server.addr().to_string()), "{shown}");
    raw.command(&["CONFIG", "SET", "requirepass", SECRET]).await.expect("an answer");
    assert_every_call_works(&locks).await;
}

/// A password with characters that need escaping in a URL: no error repeats it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unescaped_password_is_not_repeated_in_the_error() {
    for letter in ["/", "?", "#", "@", ":", ",", "%", "&", "="] {
        let url = format!("redis://:hunter{letter}rabbit@127.0.0.1:1/");
        let shown = match Locks::open(&url).await {
            Ok(_) => panic!("no server runs here"),
            Err(error) => format!("{error} {error:?}"),
        };
        assert!(!shown.contains("hunter") && !shown.contains("rabbit"), "{letter}: {shown}");
    }
}
