//! A client clock that a test moves ahead: what is due after a third of a TTL is due at once, while
//! server clocks stay.

use std::time::Duration;

use leasehold::clock::{Clock, ManualClock};
use leasehold::{Guard, Locks, LostReason};
use leasehold_conformance::test_context::{TEST_TIMEOUT, patient_url};
use leasehold_testbed::{eventually, try_eventually};
use tokio::time::timeout;

/// Timeout for a renewal before the clock is moved on.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(2);
/// Runs with the machine's clock, plus an offset that the test advances. A call in flight during a
/// jump seems to have taken that long, and without a queue a waiter's back-off grows accordingly.
pub(crate) struct ShiftedClock {
    clock: ManualClock,
}

impl ShiftedClock {
    pub(crate) fn new() -> Self {
        Self { clock: ManualClock::running() }
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock.clock()
    }

    /// A client that uses this clock.
    pub(crate) async fn open_locks(&self, url: &str, ttl: Duration) -> Locks {
        Locks::builder().ttl(ttl).clock(self.clock()).open(&patient_url(url)).await.expect("locks")
    }

    /// Advances the clock.
    pub(crate) fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// Advances the clock until leases of this TTL are renewed. The guards should include all that
    /// the client holds: the next jump finds less left of a lease that was not renewed.
    pub(crate) async fn renew_now(&self, guards: &[&Guard], ttl: Duration) {
        let before: Vec<_> = guards.iter().map(|guard| guard.deadline()).collect();
        let renewed = || async {
            let lost = guards.iter().find_map(|guard| guard.lost_reason());
            assert!(guards.iter().all(|guard| guard.is_held()), "lost: {lost:?}");
            let renewed = guards.iter().zip(&before).all(|(guard, before)| guard.deadline() > *before);
            if renewed { Ok(()) } else { Err("not renewed so far") }
        };
        // Renewals are due after a third. A call in flight has timed out by then and is retried
        // after a tenth.
        self.advance(ttl * 2 / 5);
        for _ in 0..3 {
            if try_eventually("a renewal", RENEWAL_TIMEOUT, renewed).await.is_ok() {
                return;
            }
            self.advance(ttl / 10);
        }
        eventually(TEST_TIMEOUT, renewed).await;
    }

    /// Renews a lease that the server no longer has, and returns the loss reason, long before its
    /// deadline.
    pub(crate) async fn lost(&self, guard: &Guard, ttl: Duration) -> LostReason {
        self.advance(ttl * 2 / 5);
        for _ in 0..3 {
            if let Ok(reason) = timeout(RENEWAL_TIMEOUT, guard.lost()).await {
                return reason;
            }
            self.advance(ttl / 10);
        }
        timeout(TEST_TIMEOUT, guard.lost()).await.expect("the holder learns of the loss")
    }
}
