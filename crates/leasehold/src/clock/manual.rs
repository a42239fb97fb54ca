//! A clock that a test advances.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::{Clock, ClockSource, TEST_CLOCK_START, system};
use super::{Instant, nanos};

/// The state that a [`ManualClock`] and its [`Clock`]s share.
#[derive(Debug)]
pub(super) struct ManualSource {
    /// In nanoseconds: the time that a frozen clock shows, or how far a running clock is ahead of
    /// the machine's.
    nanos: AtomicU64,
    /// Whether the clock follows real time between two advances.
    is_running: bool,
    /// Notified at each advance.
    advanced: Notify,
}

impl ManualSource {
    /// The time that the clock shows.
    pub(super) fn now(&self) -> Instant {
        let nanos = self.nanos.load(Ordering::SeqCst);
        if self.is_running { Instant(system::now().0.saturating_add(nanos)) } else { Instant(nanos) }
    }

    /// Waits until the clock shows `at`.
    #[allow(clippy::disallowed_methods, reason = "this is the clock that is handed in")]
    pub(super) async fn wait_until(&self, at: Instant) {
        loop {
            let mut advanced = std::pin::pin!(self.advanced.notified());
            advanced.as_mut().enable();
            let left = at.duration_since(self.now());
            if left.is_zero() {
                return;
            }
            if self.is_running {
                // Until the test advances the clock, or real time has passed.
                let _ = tokio::time::timeout(left, advanced).await;
            } else {
                advanced.await;
            }
        }
    }
}

/// A clock that a test advances. Between two advances it is frozen, or follows real time.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use std::time::Duration;
/// use leasehold::{Locks, clock::ManualClock};
///
/// let manual_clock = ManualClock::new();
/// let locks = Locks::builder().clock(manual_clock.clock()).open("memory:").await?;
/// let guard = locks.mutex("stock:42").max_hold(Duration::from_secs(60)).lock().await?;
/// manual_clock.advance(Duration::from_secs(60));
/// assert!(!guard.is_held());
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<ManualSource>);

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl ManualClock {
    /// A clock that is frozen until it is advanced. It starts at one hour.
    pub fn new() -> Self {
        Self(Arc::new(ManualSource {
            nanos: AtomicU64::new(TEST_CLOCK_START.0),
            is_running: false,
            advanced: Notify::new(),
        }))
    }

    /// A clock that runs like the machine's and can be advanced ahead of it. For tests on real
    /// servers: timeouts and pauses pass in real time, and the test decides when a lease ends.
    pub fn running() -> Self {
        Self(Arc::new(ManualSource { nanos: AtomicU64::new(0), is_running: true, advanced: Notify::new() }))
    }

    /// The clock to pass to the code under test.
    pub fn clock(&self) -> Clock {
        Clock(ClockSource::Manual(Arc::clone(&self.0)))
    }

    /// Advances the clock by this time, and wakes the tasks whose sleep ends within it.
    pub fn advance(&self, by: Duration) {
        self.0.nanos.fetch_add(nanos(by), Ordering::SeqCst);
        self.0.advanced.notify_waiters();
    }
}
