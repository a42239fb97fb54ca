//! More connections that are slow, frozen, cut or lossy, and cancelled callers.

use std::time::Duration;

use leasehold::Token;
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::{Proxy, eventually};
use tokio::time::timeout;

use crate::redlock_faults::fixture::{Fixture, LASTING, Rng, ShiftedClock};
use crate::redlock_faults::proxied_connections::{assert_failed_attempt_leaves_nothing, assert_free_on_all_nodes};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_frozen_connections_leave_no_claims() {
    assert_failed_attempt_leaves_nothing(0..3, |proxy| proxy.freeze(true), |proxy| proxy.freeze(false)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_slow_connections_leave_no_claims() {
    // A round trip takes longer than the node timeout.
    let slow = Duration::from_millis(600);
    assert_failed_attempt_leaves_nothing(0..3, |proxy| proxy.delay(slow), |proxy| proxy.delay(Duration::ZERO)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_lost_replies_leave_no_claims() {
    assert_failed_attempt_leaves_nothing(0..3, |proxy| proxy.drop_replies(true), |proxy| proxy.drop_replies(false))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_refused_connections_leave_no_claims() {
    let bad = |proxy: &Proxy| {
        proxy.refuse(true);
        proxy.cut();
    };
    assert_failed_attempt_leaves_nothing(0..3, bad, |proxy| proxy.refuse(false)).await;
}

/// Callers are cancelled at random points of their attempt, on connections with different delays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_attempts_leave_no_claims() {
    let fixture = Fixture::shared().await;
    let ahead = ShiftedClock::new();
    let other = fixture.locks_with_clock(&ahead).await;
    let (locks, proxies) = fixture.proxied_locks(LASTING, "node-timeout=40ms&connect-timeout=2s").await;
    let mut rng = Rng(Rng::seed());
    let mut last = Token(0);
    for _ in 0..4 {
        for proxy in &proxies {
            proxy.delay(Duration::from_millis([0, 0, 5, 15, 30][rng.below(5) as usize]));
        }
        for _ in 0..25 {
            let patience = Duration::from_micros(rng.below(60_000));
            match timeout(patience, locks.mutex("a").lock()).await {
                Ok(guard) => drop(guard.expect("the lock")),
                Err(_) => continue,
            }
        }
        proxies.iter().for_each(|proxy| proxy.delay(Duration::ZERO));
        eventually(TEST_TIMEOUT, || locks.flush()).await;
        last = assert_free_on_all_nodes(&fixture, (&other, &ahead), "a", last).await;
    }
}
