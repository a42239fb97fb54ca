//! More lines that are slow, silent, cut or mute, and callers that go away.

use std::time::Duration;

use leasehold::Token;
use leasehold_conformance::world::SOON;
use leasehold_testbed::{Proxy, eventually};
use tokio::time::timeout;

use crate::redlock_faults::lines::{a_failed_attempt_leaves_nothing, all_free};
use crate::redlock_faults::site::{Dice, LASTING, Site};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_silent_lines_leave_nothing() {
    a_failed_attempt_leaves_nothing(0..3, |line| line.freeze(true), |line| line.freeze(false)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_slow_lines_leave_nothing() {
    // There and back takes longer than a node is waited for.
    let slow = Duration::from_millis(600);
    a_failed_attempt_leaves_nothing(0..3, |line| line.delay(slow), |line| line.delay(Duration::ZERO)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_lost_replies_leave_nothing() {
    a_failed_attempt_leaves_nothing(0..3, |line| line.drop_replies(true), |line| line.drop_replies(false)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_refused_lines_leave_nothing() {
    let bad = |line: &Proxy| {
        line.refuse(true);
        line.cut();
    };
    a_failed_attempt_leaves_nothing(0..3, bad, |line| line.refuse(false)).await;
}

/// Callers go away at any moment of their attempt, on lines that are slow to different degrees.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_go_away_leave_nothing() {
    let site = Site::shared().await;
    let other = site.locks().await;
    let (locks, proxies) = site.proxied(LASTING, "node-timeout=40ms&connect-timeout=2s").await;
    let mut dice = Dice(Dice::seed());
    let mut last = Token(0);
    for _ in 0..4 {
        for line in &proxies {
            line.delay(Duration::from_millis([0, 0, 5, 15, 30][dice.below(5) as usize]));
        }
        for _ in 0..25 {
            let patience = Duration::from_micros(dice.below(60_000));
            match timeout(patience, locks.mutex("a").lock()).await {
                Ok(guard) => drop(guard.expect("the lock")),
                Err(_) => continue,
            }
        }
        proxies.iter().for_each(|line| line.delay(Duration::ZERO));
        eventually(SOON, || locks.settle()).await;
        last = all_free(&site, &other, "a", last).await;
    }
}
