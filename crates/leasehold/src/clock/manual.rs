//! A clock that a test advances.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::{Clock, ClockSource, TEST_CLOCK_START, system};
use super::{Instant, nanos};

#[derive(Debug)]
pub(super) struct ManualSource {
    /// The time it shows; for a running clock, how far it is ahead of the machine's clock.
    now: AtomicU64,
    is_running: bool,
    advanced: Notify,
}

impl ManualSource {
    pub(super) fn now(&self) -> Instant {
        let moved = self.now.load(Ordering::SeqCst);
        if self.is_running { Instant(system::now().0.saturating_add(moved)) } else { Instant(moved) }
    }

    /// Waits until the clock shows `at`.
    #[allow(clippy::disallowed_methods, reason = "this is the clock that is handed in")]
    pub(super) async fn wait_until(&self, at: Instant) {
        loop {
            let mut moved = std::pin::pin!(self.advanced.notified());
            moved.as_mut().enable();
            let left = at.duration_since(self.now());
            if left.is_zero() {
                return;
            }
            if self.is_running {
                // Until the test advances the clock, or real time has passed.
                let _ = tokio::time::timeout(left, moved).await;
            } else {
                moved.await;
            }
        }
    }
}

/// A clock that a test advances. Between two advances its time is frozen, or follows real time.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<ManualSource>);

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl ManualClock {
    /// A clock whose time is frozen until it is advanced. It starts at one hour.
    pub fn new() -> Self {
        Self(Arc::new(ManualSource {
            now: AtomicU64::new(TEST_CLOCK_START.0),
            is_running: false,
            advanced: Notify::new(),
        }))
    }

    /// A clock that runs like the machine's and can be advanced ahead of it. For tests on real
    /// servers: timeouts and pauses pass in real time, and the test decides when a lease ends.
    pub fn running() -> Self {
        Self(Arc::new(ManualSource { now: AtomicU64::new(0), is_running: true, advanced: Notify::new() }))
    }

    /// The clock to pass to the code under test.
    pub fn clock(&self) -> Clock {
        Clock(ClockSource::Manual(Arc::clone(&self.0)))
    }

    /// Advances the clock and wakes the tasks that sleep until then.
    pub fn advance(&self, by: Duration) {
        self.0.now.fetch_add(nanos(by), Ordering::SeqCst);
        self.0.advanced.notify_waiters();
    }
}
