//! Two redis-py processes and two leasehold clients contend for one lock around a non-atomic
//! counter.

use leasehold::{Locks, ReleaseOutcome};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::redis::{Reply, RespClient};
use tokio::task::JoinSet;

use super::python::RedisPyProcess;
use super::{our_client, server};

const ROUNDS: u32 = if cfg!(feature = "nightly") { 50 } else { 15 };
const CONTENDERS: u32 = 4;

async fn read_counter(resp: &mut RespClient, key: &str) -> u32 {
    match resp.command(&["GET", key]).await.expect("a reply") {
        Reply::Bulk(text) => text.parse().expect("a number"),
        _ => 0,
    }
}

/// Increments the counter repeatedly with GET and SET, which only a lock makes atomic.
async fn increment_repeatedly(locks: Option<Locks>, name: &str, key: &str) {
    let mut resp = RespClient::connect(server().await.addr()).await.expect("a connection");
    for _ in 0..ROUNDS {
        let guard = match &locks {
            Some(locks) => Some(locks.mutex(name).timeout(TEST_TIMEOUT).lock().await.expect("the lock")),
            None => None,
        };
        let value = read_counter(&mut resp, key).await + 1;
        resp.command(&["SET", key, &value.to_string()]).await.expect("a reply");
        if let Some(guard) = guard {
            assert_eq!(guard.release().await.expect("a release"), ReleaseOutcome::Released);
        }
    }
}

/// Runs all four clients concurrently and returns the final count.
async fn count_concurrently(name: &'static str, key: &'static str, locked: bool) -> u32 {
    let mut pythons = [RedisPyProcess::start(server().await), RedisPyProcess::start(server().await)];
    for python in &mut pythons {
        python.begin_count(name, key, ROUNDS, locked).await;
    }
    let mut clients = JoinSet::new();
    for _ in 0..2 {
        let locks = if locked { Some(our_client(&server().await.url(), LONG_TTL).await) } else { None };
        clients.spawn(increment_repeatedly(locks, name, key));
    }
    clients.join_all().await;
    for python in &mut pythons {
        assert_eq!(python.receive().await, "done");
    }
    read_counter(&mut RespClient::connect(server().await.addr()).await.expect("a connection"), key).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_update_is_lost_between_redis_py_and_us() {
    assert_eq!(count_concurrently("battle", "counter", true).await, CONTENDERS * ROUNDS);
}

/// The control: without the lock the counter does lose updates.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_lock_updates_are_lost() {
    let mut right = 0;
    for rounds in 1..=20 {
        right = count_concurrently("unused", "control", false).await;
        if right < rounds * CONTENDERS * ROUNDS {
            return;
        }
    }
    panic!("{right} is correct after 20 rounds: these counters do not need a lock");
}
