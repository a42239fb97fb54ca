//! A client's clock that a test moves ahead: what is due after a third of a TTL is due at once, and no server's clock is touched.

use std::time::Duration;

use leasehold::clock::{Clock, ManualClock};
use leasehold::{Guard, Locks, LostReason};
use leasehold_conformance::test_context::{TEST_TIMEOUT, patient_url};
use leasehold_testbed::{eventually, try_eventually};
use tokio::time::timeout;

/// How long a renewal is waited for before the clock is moved on.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(2);
/// Goes on as the machine's clock does, and by so much more as the test says. A call that is under way at a jump has taken as long as that: where
/// there is no queue, whoever waits then pauses for as long.
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

    /// A client that goes by this clock.
    pub(crate) async fn open_locks(&self, url: &str, ttl: Duration) -> Locks {
        Locks::builder().ttl(ttl).clock(self.clock()).open(&patient_url(url)).await.expect("locks")
    }

    /// Moves it ahead.
    pub(crate) fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// Has leases of this TTL renewed, and waits until they are. All that the client holds should be among them: the next jump finds
    /// less left of what was not renewed meanwhile.
    pub(crate) async fn renew_now(&self, guards: &[&Guard], ttl: Duration) {
        let before: Vec<_> = guards.iter().map(|guard| guard.deadline()).collect();
        let renewed = || async {
            let lost = guards.iter().find_map(|guard| guard.lost_reason());
            assert!(guards.iter().all(|guard| guard.is_held()), "lost: {lost:?}");
            let renewed = guards.iter().zip(&before).all(|(guard, before)| guard.deadline() > *before);
            if renewed { Ok(()) } else { Err("not renewed so far") }
        };
        // They are due after a third. A call that was under way has run out of its time by that, and is made again after a tenth.
        self.advance(ttl * 2 / 5);
        for _ in 0..3 {
            if try_eventually("a renewal", RENEWAL_TIMEOUT, renewed).await.is_ok() {
                return;
            }
            self.advance(ttl / 10);
        }
        eventually(TEST_TIMEOUT, renewed).await;
    }

    /// Has a lease of this TTL renewed that the server no longer has: why it is lost, long before its end.
    pub(crate) async fn lost(&self, guard: &Guard, ttl: Duration) -> LostReason {
        self.advance(ttl * 2 / 5);
        for _ in 0..3 {
            if let Ok(reason) = timeout(RENEWAL_TIMEOUT, guard.lost()).await {
                return reason;
            }
            self.advance(ttl / 10);
        }
        timeout(TEST_TIMEOUT, guard.lost()).await.expect("the holder is told")
    }
}
