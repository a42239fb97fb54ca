//! Servers that hang (SIGSTOP) and go on: who hangs is waited for once, and takes part again afterwards.

use std::time::Duration;

use leasehold_conformance::world::SOON;
use tokio::time::Instant;

use crate::redlock_faults::site::{Site, give_back, guard, held_beyond, lock, spawn_lock};

const TTL: Duration = Duration::from_secs(5);
/// With a TTL of ten seconds, a node's answer is waited for so long.
const NODE_TIMEOUT: Duration = Duration::from_secs(1);
const CYCLES: u32 = 12;

/// A cycle that waited for who hangs would take a second at least.
async fn costs_one_node_timeout(hang: &[usize]) {
    let mut site = Site::new().await;
    let locks = site.locks_with(Duration::from_secs(10), "node-timeout=1s").await;
    let other = site.locks_with(Duration::from_secs(10), "node-timeout=1s").await;
    give_back(lock(&locks, "a").await).await;
    site.pause(hang);
    let start = Instant::now();
    let first = lock(&locks, "a").await;
    // One who does not get it asks all, once.
    assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
    give_back(first).await;
    give_back(lock(&other, "a").await).await;
    assert!(start.elapsed() < NODE_TIMEOUT * 4, "{:?}", start.elapsed());
    // By now both clients know.
    site.until_claims("a", 0, SOON).await;
    let start = Instant::now();
    for _ in 0..CYCLES {
        let held = lock(&locks, "a").await;
        assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
        give_back(held).await;
    }
    assert!(start.elapsed() < NODE_TIMEOUT * CYCLES / 2, "{CYCLES} cycles took {:?}", start.elapsed());
    site.resume(hang);
    // It was told of all these claims and of their ends, each in time or later.
    site.until_claims("a", 0, Duration::from_secs(5)).await;
    let held = lock(&locks, "a").await;
    site.until_claims("a", 1, SOON).await;
    give_back(held).await;
    site.until_claims("a", 0, SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_who_hangs_is_waited_for_once() {
    costs_one_node_timeout(&[1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_who_hang_are_waited_for_once() {
    costs_one_node_timeout(&[0, 4]).await;
}

/// A holder goes on through hanging servers, with somebody who waits, and so do the waiter and the servers afterwards.
async fn holds_through(hang: &[usize]) {
    let mut site = Site::new().await;
    let (locks, other) = (site.locks(TTL).await, site.locks(TTL).await);
    let held = lock(&locks, "a").await;
    let waits = spawn_lock(&other, "a");
    site.pause(hang);
    held_beyond(&held, locks.clock().now().after(TTL * 4 / 3)).await;
    // Taken while they hang.
    let late = lock(&locks, "late").await;
    assert!(!waits.is_finished(), "somebody else got it");
    site.resume(hang);
    // Its records have ended there meanwhile; a renewal brings them back, and nothing of the waiter's attempts is left.
    held_beyond(&held, locks.clock().now().after(TTL)).await;
    site.until_claims("late", 1, SOON).await;
    site.pause(hang);
    let token = held.token();
    give_back(held).await;
    let next = guard(waits).await;
    assert!(next.token() > token);
    held_beyond(&next, locks.clock().now().after(TTL)).await;
    site.resume(hang);
    give_back(late).await;
    site.until_claims("a", 1, SOON).await;
    give_back(next).await;
    for name in ["a", "late"] {
        site.until_claims(name, 0, SOON).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_goes_on_while_one_hangs() {
    holds_through(&[2]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_goes_on_while_two_hang() {
    holds_through(&[1, 3]).await;
}

/// Three hang: no majority, said within the caller's wait; and nothing of it is left when they go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_who_hang_end_the_wait_in_time_and_keep_nothing() {
    let mut site = Site::new().await;
    let ttl = TTL * 12;
    let locks = site.locks_with(ttl, "node-timeout=100ms").await;
    give_back(lock(&locks, "a").await).await;
    site.pause(&[0, 1, 2]);
    for _ in 0..3 {
        let start = Instant::now();
        let error = locks.mutex("a").try_lock().await.expect_err("no majority");
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        let text = error.to_string();
        assert!(text.contains("3 of 5 nodes must answer, and 3 did not"), "{text}");
    }
    let error = locks.mutex("a").wait(Duration::from_millis(500)).lock().await.expect_err("no majority");
    assert!(error.to_string().contains("3 of 5 nodes must answer"), "{error}");
    site.until_claims("a", 0, SOON).await;
    site.resume(&[0, 1, 2]);
    // Long before the TTL would end them.
    site.until_claims("a", 0, SOON).await;
    let held = lock(&locks, "a").await;
    site.until_claims("a", 1, ttl / 3 + SOON).await;
    give_back(held).await;
    site.until_claims("a", 0, SOON).await;
}
