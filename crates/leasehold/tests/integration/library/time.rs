//! Waiting in tests: a manual clock advances only by the test, and every wait on the real clock has
//! a bound.

use std::time::Duration;

use leasehold::clock::ManualClock;
use leasehold::{Builder, Guard, Locks, ReleaseOutcome};

use crate::{LONG_TTL, TEST_TIMEOUT};

/// The TTL of most tests.
pub(crate) const TTL: Duration = Duration::from_secs(30);

/// What the memory engine deducts from every lease.
pub(crate) const DRIFT: Duration = Duration::from_millis(5);

/// Opens `url` on the real clock, with leases that outlast the test.
pub(crate) async fn open_with_long_ttl(url: &str) -> Locks {
    Locks::builder().ttl(LONG_TTL).open(url).await.unwrap()
}

/// Locks on a frozen clock.
pub(crate) fn builder_with_clock(clock: &ManualClock) -> Builder {
    Locks::builder().clock(clock.clock()).ttl(TTL)
}

/// `memory:` on a frozen clock.
pub(crate) async fn locks_on_manual_clock() -> (ManualClock, Locks) {
    let manual_clock = ManualClock::new();
    let locks = builder_with_clock(&manual_clock).open("memory:").await.unwrap();
    (manual_clock, locks)
}

/// Lets every task of this (current-thread) runtime run until all are idle.
pub(crate) async fn run_until_idle() {
    for _ in 0..60 {
        tokio::task::yield_now().await;
    }
}

/// Advances time and lets all tasks react.
pub(crate) async fn advance(clock: &ManualClock, by: Duration) {
    run_until_idle().await;
    clock.advance(by);
    run_until_idle().await;
}

/// Advances time in steps, as real time passes.
pub(crate) async fn advance_in_steps(clock: &ManualClock, by: Duration, step: Duration) {
    let mut left = by;
    while !left.is_zero() {
        let now = left.min(step);
        advance(clock, now).await;
        left -= now;
    }
}

/// Waits on the real clock until `condition` holds.
#[cfg(feature = "nightly")]
pub(crate) async fn wait_until(description: &str, mut condition: impl FnMut() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(tokio::time::timeout(TEST_TIMEOUT, waiting).await.is_ok(), "not within {TEST_TIMEOUT:?}: {description}");
}

/// Awaits an event that must happen, on the real clock.
pub(crate) async fn within_timeout<F: Future>(description: &str, future: F) -> F::Output {
    match tokio::time::timeout(TEST_TIMEOUT, future).await {
        Ok(output) => output,
        Err(_) => panic!("not within {TEST_TIMEOUT:?}: {description}"),
    }
}

/// Polls once; `true` if the future is still pending.
pub(crate) async fn is_pending<F: Future>(future: &mut std::pin::Pin<Box<F>>) -> bool {
    std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

/// Releases a lock that must still be held.
pub(crate) async fn release_held(guard: Guard) {
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
}
