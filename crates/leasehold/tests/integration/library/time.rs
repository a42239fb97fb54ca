//! Time in tests: a frozen clock that the test advances, and waits on the real clock with a
//! timeout.

use std::time::Duration;

use leasehold::clock::ManualClock;
use leasehold::{Builder, Guard, Locks, ReleaseOutcome};

use crate::{LONG_TTL, TEST_TIMEOUT};

/// The TTL of most tests.
pub(crate) const TTL: Duration = Duration::from_secs(30);

/// The drift margin that the memory engine deducts from every lease.
pub(crate) const DRIFT: Duration = Duration::from_millis(5);

/// Opens `url` on the real clock, with leases that outlast the test.
pub(crate) async fn open_with_long_ttl(url: &str) -> Locks {
    Locks::builder().ttl(LONG_TTL).open(url).await.unwrap()
}

/// A builder of locks on this frozen clock, with [`TTL`].
pub(crate) fn builder_with_clock(clock: &ManualClock) -> Builder {
    Locks::builder().clock(clock.clock()).ttl(TTL)
}

/// `memory:` on a frozen clock, with [`TTL`].
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

/// Advances a frozen clock, and lets every task run until all are idle.
pub(crate) async fn advance(clock: &ManualClock, by: Duration) {
    run_until_idle().await;
    clock.advance(by);
    run_until_idle().await;
}

/// Advances a frozen clock by `by` in steps of `step`, and lets the tasks run after each.
pub(crate) async fn advance_in_steps(clock: &ManualClock, by: Duration, step: Duration) {
    let mut left = by;
    while !left.is_zero() {
        let next_step = left.min(step);
        advance(clock, next_step).await;
        left -= next_step;
    }
}

/// Waits on the real clock until `condition` holds; panics after [`TEST_TIMEOUT`].
#[cfg(feature = "nightly")]
pub(crate) async fn wait_until(description: &str, mut condition: impl FnMut() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(tokio::time::timeout(TEST_TIMEOUT, waiting).await.is_ok(), "not within {TEST_TIMEOUT:?}: {description}");
}

/// Awaits a future on the real clock; panics after [`TEST_TIMEOUT`].
pub(crate) async fn within_timeout<F: Future>(description: &str, future: F) -> F::Output {
    match tokio::time::timeout(TEST_TIMEOUT, future).await {
        Ok(output) => output,
        Err(_) => panic!("not within {TEST_TIMEOUT:?}: {description}"),
    }
}

/// Polls a future once; `true` if it is still pending.
pub(crate) async fn is_pending<F: Future>(future: &mut std::pin::Pin<Box<F>>) -> bool {
    std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

/// Releases a lock that must still be held.
pub(crate) async fn release_held(guard: Guard) {
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
}
