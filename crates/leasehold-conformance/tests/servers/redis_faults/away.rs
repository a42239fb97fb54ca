//! The server is away: each caller hears it, in words that help and give no secret away; and all is well when it is back.

use std::time::Duration;

use leasehold::{Error, ErrorKind, Locks};
use leasehold_conformance::world::{LONG, SOON};
use leasehold_testbed::redis::Redis;
use leasehold_testbed::{Data, Proxy, eventually};
use tokio::time::timeout;

use crate::redis_faults::site::{Site, give_back, until_empty};

const WAIT: Duration = Duration::from_millis(300);
/// A TTL whose calls are short. Nothing is held under it.
const TTL: Duration = Duration::from_secs(1);
const SECRET: &str = "hunter2secret";

/// The error of a server that is away is about what is wrong.
fn check(error: &Error, address: &str) {
    assert!([ErrorKind::Unavailable, ErrorKind::Timeout].contains(&error.kind()), "{error:?}");
    let text = error.to_string();
    assert!(!text.contains("somebody else holds it"), "nobody knows that: {text}");
    assert!(text.contains(address), "it does not say which server: {text}");
    for shown in [text, format!("{error:?}"), format!("{error:#?}")] {
        assert!(!shown.contains(SECRET), "{shown}");
    }
}

/// Waits for a call that must come to an end.
async fn ends<T>(call: impl Future<Output = T>) -> T {
    timeout(SOON, call).await.expect("an end")
}

/// Asks in all ways for a lock of a server that is away. The TTL of the wait is so long that it is not what ends it.
async fn all_end(locks: &Locks, address: &str) {
    for name in ["free", "held"] {
        let error = ends(locks.mutex(name).ttl(LONG).wait(WAIT).lock()).await.expect_err("nobody answers");
        check(&error, address);
        let error = ends(locks.mutex(name).try_lock()).await.expect_err("nobody answers");
        check(&error, address);
        let error = ends(locks.inspect(name)).await.expect_err("nobody answers");
        check(&error, address);
    }
}

/// Everything works again, with the same client.
async fn all_works_again(locks: &Locks) {
    eventually(SOON, || async { locks.inspect("free").await.map(drop) }).await;
    for name in ["free", "held"] {
        give_back(locks.mutex(name).ttl(LONG).wait(SOON).lock().await.expect("the lock")).await;
    }
    until_empty(locks).await;
}

async fn site() -> Site {
    Site::of(Redis::new().password(SECRET)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_ends_the_wait() {
    let mut site = site().await;
    let locks = site.locks(TTL).await;
    drop(locks.mutex("held").ttl(LONG).lock().await.expect("a lock"));
    let address = site.server.addr().to_string();
    site.server.kill().expect("a killed server");
    all_end(&locks, &address).await;
    site.server.restart(Data::Wipe).await.expect("a restarted server");
    all_works_again(&locks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_ends_the_wait() {
    let mut site = site().await;
    let locks = site.locks(TTL).await;
    let held = locks.mutex("held").ttl(LONG).lock().await.expect("a lock");
    let address = site.server.addr().to_string();
    site.server.pause().expect("a paused server");
    all_end(&locks, &address).await;
    site.server.resume().expect("a running server");
    assert!(held.is_held());
    give_back(held).await;
    all_works_again(&locks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_refuses_ends_the_wait() {
    let site = site().await;
    let proxy = Proxy::start(site.server.addr()).await.expect("a proxy");
    let url = format!("redis://:{SECRET}@{}/", proxy.addr());
    let locks = Locks::builder().ttl(TTL).open(&url).await.expect("a client");
    proxy.refuse(true);
    proxy.cut();
    all_end(&locks, &proxy.addr().to_string()).await;
    proxy.refuse(false);
    all_works_again(&locks).await;
}

/// A caller that waits for ever waits over a short absence, and is told of one that is longer than a TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_ever_outlasts_an_absence_shorter_than_its_ttl() {
    let mut site = Site::new().await;
    let locks = site.locks(LONG).await;
    site.server.kill().expect("a killed server");
    let patient = tokio::spawn({
        let mutex = locks.mutex("a");
        async move { mutex.lock().await }
    });
    let hasty = locks.mutex("a").ttl(Duration::from_secs(1));
    let error = ends(hasty.lock()).await.expect_err("nobody answers for a whole TTL");
    check(&error, &site.server.addr().to_string());
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    site.server.restart(Data::Wipe).await.expect("a restarted server");
    give_back(ends(patient).await.expect("no panic").expect("the lock")).await;
}

/// Opening fails, and says why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opening_says_what_is_wrong_without_the_password() {
    let mut site = site().await;
    let address = site.server.addr();
    let open = |url: String| async move { Locks::open(&url).await.map(drop).expect_err("it cannot be opened") };
    let wrong = open(format!("redis://:{SECRET}x@{address}/")).await;
    assert_eq!(wrong.kind(), ErrorKind::Denied, "{wrong}");
    let user = open(format!("redis://nobody:{SECRET}@{address}/")).await;
    assert_eq!(user.kind(), ErrorKind::Denied, "{user}");
    let none = open(format!("redis://{address}/")).await;
    assert_eq!(none.kind(), ErrorKind::Denied, "{none}");
    let bad = open(format!("redis://:{SECRET}@{address}/?colour={SECRET}")).await;
    assert_eq!(bad.kind(), ErrorKind::InvalidUrl, "{bad}");
    site.server.pause().expect("a paused server");
    let silent = ends(open(format!("redis://:{SECRET}@{address}/?connect-timeout=500ms"))).await;
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
async fn nothing_that_is_shown_has_the_password() {
    let site = site().await;
    let locks = site.locks(LONG).await;
    let engine = site.engine().await;
    let guard = locks.mutex("a").lock().await.expect("a lock");
    let mut shown = vec![format!("{locks:?}"), locks.url(), format!("{guard:?}"), format!("{engine:?}")];
    shown.extend([format!("{engine:#?}"), engine.url(), format!("{:?}", locks.inspect("a").await.expect("a view"))]);
    for shown in shown {
        assert!(!shown.contains(SECRET), "{shown}");
    }
    give_back(guard).await;
}

/// A server that changes its password while we are connected: the error says so, also without it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_changes_is_told() {
    let site = site().await;
    let (locks, mut hand) = (site.locks(TTL).await, site.by_hand().await);
    for words in
        [&["AUTH", SECRET][..], &["CONFIG", "SET", "requirepass", "another"], &["CLIENT", "KILL", "TYPE", "pubsub"]]
    {
        let answer = hand.command(words).await.expect("an answer");
        assert!(!matches!(answer, leasehold_testbed::redis::Reply::Error(_)), "{answer:?}");
    }
    let error = eventually(SOON, || async {
        match locks.mutex("a").try_lock().await {
            Err(error) if error.kind() == ErrorKind::Denied => Ok(error),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains(SECRET) && shown.contains(&site.server.addr().to_string()), "{shown}");
    hand.command(&["CONFIG", "SET", "requirepass", SECRET]).await.expect("an answer");
    all_works_again(&locks).await;
}

/// A password with letters that end it in a URL unless they are escaped: whatever the error says, it does not repeat it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_should_have_been_escaped_is_not_repeated() {
    for letter in ["/", "?", "#", "@", ":", ",", "%", "&", "="] {
        let url = format!("redis://:hunter{letter}rabbit@127.0.0.1:1/");
        let shown = match Locks::open(&url).await {
            Ok(_) => panic!("nobody is there"),
            Err(error) => format!("{error} {error:?}"),
        };
        assert!(!shown.contains("hunter") && !shown.contains("rabbit"), "{letter}: {shown}");
    }
}
