//! More lines that are slow, silent, cut or mute, and callers that go away.

use std::time::Duration;

use leasehold::Token;
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::{Proxy, eventually};
use tokio::time::timeout;

use crate::redlock_faults::fixture::{Fixture, LASTING, Rng};
use crate::redlock_faults::proxied_connections::{assert_failed_attempt_leaves_nothing, assert_free_on_all_nodes};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_frozen_connections_leave_no_claims() {
    assert_failed_attempt_leaves_nothing(0..3, |line| line.freeze(true), |line| line.freeze(false)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_slow_connections_leave_no_claims() {
    // There and back takes longer than a node is waited for.
    let slow = Duration::from_millis(600);
    assert_failed_attempt_leaves_nothing(0..3, |line| line.delay(slow), |line| line.delay(Duration::ZERO)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_lost_replies_leave_no_claims() {
    assert_failed_attempt_leaves_nothing(0..3, |line| line.drop_replies(true), |line| line.drop_replies(false)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_refused_connections_leave_no_claims() {
    let bad = |line: &Proxy| {
        line.refuse(true);
        line.cut();
    };
    assert_failed_attempt_leaves_nothing(0..3, bad, |line| line.refuse(false)).await;
}

/// Callers go away at any moment of their attempt, on lines that are slow to different degrees.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_attempts_leave_no_claims() {
    let site = Fixture::shared().await;
    let other = site.locks().await;
    let (locks, proxies) = site.proxied_locks(LASTING, "node-timeout=40ms&connect-timeout=2s").await;
    let mut rng = Rng(Rng::seed());
    let mut last = Token(0);
    for _ in 0..4 {
        for line in &proxies {
            line.delay(Duration::from_millis([0, 0, 5, 15, 30][rng.below(5) as usize]));
        }
        for _ in 0..25 {
            let patience = Duration::from_micros(rng.below(60_000));
            match timeout(patience, locks.mutex("a").lock()).await {
                Ok(guard) => drop(guard.expect("the lock")),
                Err(_) => continue,
            }
        }
        proxies.iter().for_each(|line| line.delay(Duration::ZERO));
        eventually(TEST_TIMEOUT, || locks.flush()).await;
        last = assert_free_on_all_nodes(&site, &other, "a", last).await;
    }
}
