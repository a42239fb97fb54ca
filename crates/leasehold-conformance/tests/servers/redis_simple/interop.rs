//! One lock shared by redis-py and leasehold.

use std::path::Path;
use std::time::Duration;

use leasehold::clock::ManualClock;
use leasehold::{ErrorKind, Locks, LostReason, ReleaseOutcome};
use leasehold_conformance::actor_process::ActorProcess;
use leasehold_conformance::protocol::LockRequest;
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::redis::{Reply, RespClient};
use leasehold_testbed::{Proxy, eventually};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::python::{RedisPyProcess, TIMEOUT};
use super::{our_client, our_client_with_clock, server};
use crate::redis_faults::manual_time::{ManualTime, pass_and_renew};

/// A TTL that the test waits out.
const SHORT: Duration = Duration::from_secs(1);

/// Waits for the lock in the background.
fn waiter(locks: &Locks, name: &str) -> JoinHandle<leasehold::Result<leasehold::Guard>> {
    let mutex = locks.mutex(name).timeout(TEST_TIMEOUT);
    tokio::spawn(async move { mutex.lock().await })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_py_lock_excludes_us_until_it_is_released() {
    let mut python = RedisPyProcess::start(server().await);
    let locks = our_client(&server().await.url(), LONG_TTL).await;
    for lasts in [Some(TIMEOUT), None] {
        assert!(python.try_acquire("theirs", lasts).await);
        assert!(locks.mutex("theirs").try_lock().await.expect("an answer").is_none());
        let short = locks.mutex("theirs").timeout(Duration::from_millis(300)).lock().await;
        assert_eq!(short.expect_err("the lock is held").kind(), ErrorKind::Timeout);
        let waiter = waiter(&locks, "theirs");
        assert!(python.owned("theirs").await, "leasehold's attempts do not affect its lock");
        assert!(!waiter.is_finished());
        assert_eq!(python.release("theirs").await, "released");
        let guard = timeout(TEST_TIMEOUT, waiter)
            .await
            .expect("the waiter gets the lock")
            .expect("no panic")
            .expect("the lock");
        assert!(!python.try_acquire("theirs", lasts).await, "leasehold holds it now");
        assert_eq!(guard.release().await.expect("a release"), ReleaseOutcome::Released);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_lock_excludes_redis_py_until_it_is_released() {
    let time = ManualTime::new();
    let server = time.redis_config().start().await.expect("a server");
    let (mut python, mut patient) = (RedisPyProcess::start(&server), RedisPyProcess::start(&server));
    let locks = our_client_with_clock(&server.url(), LONG_TTL, time.clients_clock()).await;
    let guard = locks.mutex("ours").lock().await.expect("a lock");
    assert!(!python.try_acquire("ours", Some(TIMEOUT)).await);
    patient.begin_acquire("ours").await;
    // For more than one TTL, redis-py sees the renewed lock as held.
    for _ in 0..5 {
        pass_and_renew([&guard], |by| time.advance(by)).await;
        assert!(!python.try_acquire("ours", Some(TIMEOUT)).await);
    }
    assert!(guard.is_held());
    assert_eq!(guard.release().await.expect("a release"), ReleaseOutcome::Released);
    assert_eq!(patient.receive().await, true);
    assert!(locks.mutex("ours").try_lock().await.expect("an answer").is_none(), "redis-py holds it now");
    assert_eq!(patient.release("ours").await, "released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_program_releases_the_others_lock() {
    let mut python = RedisPyProcess::start(server().await);
    let locks = our_client(&server().await.url(), LONG_TTL).await;
    assert!(python.try_acquire("late", Some(0.3)).await);
    let guard = waiter(&locks, "late").await.expect("no panic").expect("the lock after redis-py's timeout");
    assert_eq!(python.release("late").await, "LockNotOwnedError");
    assert!(guard.is_held() && !python.try_acquire("late", Some(TIMEOUT)).await, "leasehold still holds it");
    assert_eq!(guard.release().await.expect("a release"), ReleaseOutcome::Released);

    let network = Proxy::start(server().await.addr()).await.expect("a proxy");
    let proxied = our_client(&format!("redis://{}/", network.addr()), LONG_TTL).await;
    // A slow server may not reply within so short a TTL; the client then retries.
    let guard = eventually(TEST_TIMEOUT, || async { proxied.mutex("late").ttl(SHORT).lock().await }).await;
    network.freeze(true);
    python.begin_acquire("late").await;
    assert_eq!(python.receive().await, true, "leasehold's lease has expired");
    assert!(!guard.is_held());
    network.freeze(false);
    assert!(matches!(guard.release().await, Ok(ReleaseOutcome::AlreadyLost(_))));
    proxied.close().await.expect("a closed client");
    assert!(python.owned("late").await, "leasehold's delayed requests do not affect redis-py's lock");
    assert_eq!(python.release("late").await, "released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_a_killed_program_is_free_after_its_ttl() {
    let time = ManualTime::new();
    let server = time.redis_config().start().await.expect("a server");
    let (mut dies, mut lives) = (RedisPyProcess::start(&server), RedisPyProcess::start(&server));
    let locks = our_client(&server.url(), LONG_TTL).await;
    assert!(dies.try_acquire("dead", Some(TIMEOUT)).await);
    dies.kill();
    assert!(locks.mutex("dead").try_lock().await.expect("an answer").is_none());
    time.advance(LONG_TTL + Duration::from_secs(1));
    let guard = waiter(&locks, "dead").await.expect("no panic").expect("the lock of the killed process");
    assert_eq!(guard.release().await.expect("a release"), ReleaseOutcome::Released);

    let url = format!("{}?protocol=simple", server.url());
    let mut actor = ActorProcess::open(Path::new(env!("CARGO_BIN_EXE_leasehold-actor")), &url, LONG_TTL).await;
    actor.acquire(LockRequest::exclusive("dead")).await;
    assert!(!lives.try_acquire("dead", Some(TIMEOUT)).await);
    actor.process().sigkill().expect("a killed process");
    time.advance(LONG_TTL + Duration::from_secs(1));
    lives.begin_acquire("dead").await;
    assert_eq!(lives.receive().await, true);
    assert_eq!(lives.release("dead").await, "released");
}

/// The key is the lock name, with the configured prefix if any, and holds a string that expires, as
/// in the textbook.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_is_that_of_the_textbook_lock() {
    let mut resp = RespClient::connect(server().await.addr()).await.expect("a connection");
    let url = format!("{}?protocol=simple&prefix=app:", server().await.url());
    let prefixed = Locks::builder().ttl(LONG_TTL).open(&url).await.expect("the server");
    let bare = our_client(&server().await.url(), LONG_TTL).await;
    let mut python = RedisPyProcess::start(server().await);
    for (locks, key) in [(&bare, "key {with} braces"), (&prefixed, "app:key {with} braces")] {
        let guard = locks.mutex("key {with} braces").lock().await.expect("a lock");
        assert_eq!(resp.command(&["TYPE", key]).await.expect("a reply"), Reply::Simple("string".to_owned()));
        let Reply::Integer(left) = resp.command(&["PTTL", key]).await.expect("a reply") else { panic!("no number") };
        assert!(left > 0 && left <= i64::try_from(LONG_TTL.as_millis()).expect("a TTL"), "{left}");
        assert!(!python.try_acquire(key, Some(TIMEOUT)).await);
        assert_eq!(guard.release().await.expect("a release"), ReleaseOutcome::Released);
        assert_eq!(resp.command(&["EXISTS", key]).await.expect("a reply"), Reply::Integer(0), "the key is deleted");
        assert!(python.try_acquire(key, Some(TIMEOUT)).await);
        assert!(locks.mutex("key {with} braces").try_lock().await.expect("an answer").is_none());
        assert_eq!(python.release(key).await, "released");
    }
}

/// Another program deletes or overwrites the lock: the holder learns of it at the next renewal and
/// leaves the new value alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_was_deleted_or_taken_over_is_lost() {
    let mut resp = RespClient::connect(server().await.addr()).await.expect("a connection");
    let manual_clock = ManualClock::running();
    let locks = our_client_with_clock(&server().await.url(), LONG_TTL, manual_clock.clock()).await;
    for words in [&["DEL", "robbed"][..], &["SET", "robbed", "mine", "PX", "600000"]] {
        resp.command(&["DEL", "robbed"]).await.expect("a reply");
        let guard = locks.mutex("robbed").lock().await.expect("a lock");
        resp.command(words).await.expect("a reply");
        manual_clock.advance(LONG_TTL / 3);
        let reason = timeout(TEST_TIMEOUT, guard.lost()).await.expect("the holder learns of the loss");
        assert_eq!(reason, LostReason::Revoked);
        drop(guard);
    }
    locks.close().await.expect("a closed client");
    assert_eq!(resp.command(&["GET", "robbed"]).await.expect("a reply"), Reply::Bulk("mine".to_owned()));
}

/// The lock name is the key of unrelated data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_no_lock_is_left_alone() {
    let mut resp = RespClient::connect(server().await.addr()).await.expect("a connection");
    resp.command(&["HSET", "cart", "apples", "3"]).await.expect("a reply");
    let locks = our_client(&server().await.url(), LONG_TTL).await;
    let error = locks.mutex("cart").timeout(TEST_TIMEOUT).lock().await.expect_err("the key is not a lock");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("another program") && !error.is_retryable(), "{error}");
    locks.close().await.expect("a closed client");
    assert_eq!(resp.command(&["HGET", "cart", "apples"]).await.expect("a reply"), Reply::Bulk("3".to_owned()));
}
