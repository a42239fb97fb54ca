//! Waiting in tests: on a manual clock nothing happens without the test, on the real one every wait
//! has a bound.

use std::time::Duration;

use leasehold::clock::ManualClock;
use leasehold::{Builder, Guard, Locks, Outcome};

use crate::{BOUND, LASTING};

/// The TTL of most tests.
pub(crate) const TTL: Duration = Duration::from_secs(30);

/// What the memory engine deducts from every lease.
pub(crate) const DRIFT: Duration = Duration::from_millis(5);

/// Opens `url` on the real clock, with leases that outlast the test.
pub(crate) async fn lasting(url: &str) -> Locks {
    Locks::builder().ttl(LASTING).open(url).await.unwrap()
}

/// Locks on a clock that stands still.
pub(crate) fn on(hand: &ManualClock) -> Builder {
    Locks::builder().clock(hand.clock()).ttl(TTL)
}

/// `memory:` on a clock that stands still.
pub(crate) async fn still() -> (ManualClock, Locks) {
    let hand = ManualClock::new();
    let locks = on(&hand).open("memory:").await.unwrap();
    (hand, locks)
}

/// Lets every task of this (current-thread) runtime run until all are idle.
pub(crate) async fn quiet() {
    for _ in 0..60 {
        tokio::task::yield_now().await;
    }
}

/// Advances time and lets all tasks react.
pub(crate) async fn pass(hand: &ManualClock, by: Duration) {
    quiet().await;
    hand.advance(by);
    quiet().await;
}

/// Advances time in steps, as real time passes.
pub(crate) async fn walk(hand: &ManualClock, by: Duration, step: Duration) {
    let mut left = by;
    while !left.is_zero() {
        let now = left.min(step);
        pass(hand, now).await;
        left -= now;
    }
}

/// Waits on the real clock until `condition` holds.
#[cfg(feature = "nightly")]
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(tokio::time::timeout(BOUND, waiting).await.is_ok(), "not within {BOUND:?}: {what}");
}

/// Awaits an event that must happen, on the real clock.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(BOUND, future).await {
        Ok(output) => output,
        Err(_) => panic!("not within {BOUND:?}: {what}"),
    }
}

/// Polls once; `true` if the future is still pending.
pub(crate) async fn pending<F: Future>(future: &mut std::pin::Pin<Box<F>>) -> bool {
    std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

/// Releases a lock that must still be held.
pub(crate) async fn give_back(guard: Guard) {
    assert_eq!(guard.release().await.unwrap(), Outcome::Released);
}
