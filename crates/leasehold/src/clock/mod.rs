//! Time: a local monotonic clock that also counts the time for which the machine was suspended, or
//! a clock that a test controls, by hand or by pausing tokio.
//!
//! Leases and ages are measured on this clock alone, and all waits use it. The wall clock is read
//! only once, where `memory:` stores records, and this clock advances it from there.

mod manual;
mod system;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant as TokioInstant;

pub use self::manual::ManualClock;
use self::manual::ManualSource;
pub use crate::types::Instant;
pub(crate) use crate::types::nanos;

/// What [`ManualClock::new`] and [`Clock::tokio`] show first: one hour. A test can thus subtract
/// from the time.
const TEST_CLOCK_START: Instant = Instant(3_600_000_000_000);

/// The clock on which leases, timeouts and pauses are measured: the system's, or one that a test
/// controls. Cheap to clone; clones show the same time.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use std::time::Duration;
/// use leasehold::clock::Clock;
///
/// let clock = Clock::system();
/// let start = clock.now();
/// clock.sleep(Duration::from_millis(1)).await;
/// assert!(clock.now() > start);
/// # });
/// ```
#[derive(Clone, Debug, Default)]
pub struct Clock(ClockSource);

#[derive(Clone, Debug, Default)]
enum ClockSource {
    /// The machine's monotonic clock.
    #[default]
    System,
    /// Tokio's clock, counted from this instant.
    Tokio(TokioInstant),
    /// The clock of a [`ManualClock`].
    Manual(Arc<ManualSource>),
}

/// Two clocks are equal if they always show the same time.
impl PartialEq for Clock {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (ClockSource::System, ClockSource::System) => true,
            (ClockSource::Tokio(one), ClockSource::Tokio(other)) => one == other,
            (ClockSource::Manual(one), ClockSource::Manual(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Eq for Clock {}

/// The error of [`Clock::timeout`]: the time limit was reached before the work was done.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use std::time::Duration;
/// use leasehold::clock::Clock;
///
/// let never = std::future::pending::<()>();
/// let elapsed = Clock::system().timeout(Duration::from_millis(1), never).await.unwrap_err();
/// assert_eq!(elapsed.to_string(), "the time limit has passed");
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the time limit has passed")
    }
}

impl std::error::Error for Elapsed {}

#[allow(clippy::disallowed_methods, reason = "this is the clock that is handed in")]
impl Clock {
    /// The machine's monotonic clock, which counts while the machine is suspended and never jumps.
    pub fn system() -> Self {
        Self::default()
    }

    /// Tokio's own clock, from now on, for tests. In a runtime with paused time it stops, too, and
    /// jumps to the next timer when all tasks are idle. It does not count while the machine is
    /// suspended.
    pub fn tokio() -> Self {
        Self(ClockSource::Tokio(TokioInstant::now()))
    }

    /// The instant that the clock shows now.
    pub fn now(&self) -> Instant {
        match &self.0 {
            ClockSource::System => system::now(),
            ClockSource::Tokio(start) => TEST_CLOCK_START.saturating_add(start.elapsed()),
            ClockSource::Manual(manual) => manual.now(),
        }
    }

    /// Waits until the clock shows `at`. If the machine is suspended meanwhile, the wait may be
    /// longer by that time.
    pub fn sleep_until(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.sleep_in_slices(at, Duration::MAX)
    }

    /// Waits for this time. If the machine is suspended meanwhile, the wait may be longer by that
    /// time.
    pub async fn sleep(&self, time: Duration) {
        match &self.0 {
            ClockSource::System | ClockSource::Tokio(_) => tokio::time::sleep(time).await,
            ClockSource::Manual(manual) => manual.wait_until(manual.now().saturating_add(time)).await,
        }
    }

    /// Runs `work` for no longer than `limit`, and returns its output.
    ///
    /// # Errors
    /// [`Elapsed`] if `work` was not done within `limit`; it is dropped then.
    pub async fn timeout<F: Future>(&self, limit: Duration, work: F) -> Result<F::Output, Elapsed> {
        let work = std::pin::pin!(work);
        match &self.0 {
            ClockSource::System | ClockSource::Tokio(_) => tokio::time::timeout(limit, work).await.map_err(|_| Elapsed),
            ClockSource::Manual(manual) => tokio::select! {
                biased;
                done = work => Ok(done),
                () = manual.wait_until(manual.now().saturating_add(limit)) => Err(Elapsed),
            },
        }
    }

    /// Waits until the clock shows `at`. If the machine is suspended past `at`, the wait ends at
    /// most [`MAX_SLEEP_SLICE`] after it resumes.
    pub(crate) fn sleep_until_despite_suspend(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.sleep_in_slices(at, MAX_SLEEP_SLICE)
    }

    /// Waits until the clock shows `at`, and reads the clock at least once per `slice`.
    fn sleep_in_slices(&self, at: Instant, slice: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        if let ClockSource::Manual(manual) = &self.0 {
            let manual = Arc::clone(manual);
            return Box::pin(async move { manual.wait_until(at).await });
        }
        let clock = self.clone();
        Box::pin(async move {
            loop {
                let left = at.duration_since(clock.now());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left.min(slice)).await;
            }
        })
    }
}

/// Pauses before the next query of the kernel, in real time: the kernel does not follow a test's
/// clock.
#[cfg(all(feature = "file", target_os = "linux"))]
#[allow(clippy::disallowed_methods, reason = "real time, whatever clock was handed in")]
pub(crate) async fn pause_before_poll(time: Duration) {
    tokio::time::sleep(time).await;
}

/// The longest sleep of the keeper. Tokio's timer does not count while the machine is suspended, so
/// after a resume the keeper signals a loss at most this much late. (`is_held` reads the clock and
/// is never late.)
const MAX_SLEEP_SLICE: Duration = Duration::from_secs(1);

/// The wall clock, read once and then advanced by a monotonic clock, so that it never jumps.
#[cfg(feature = "memory")]
#[derive(Debug)]
pub(crate) struct WallTime {
    /// The time since 1970, UTC, at `started_at`.
    wall_at_start: Duration,
    started_at: Instant,
}

#[cfg(feature = "memory")]
impl WallTime {
    #[allow(clippy::disallowed_methods, reason = "read once; from then on the monotonic clock advances it")]
    pub(crate) fn new(clock: &Clock) -> Self {
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self { wall_at_start: wall, started_at: clock.now() }
    }

    /// The time since 1970, UTC.
    pub(crate) fn now(&self, clock: &Clock) -> Duration {
        self.wall_at_start + clock.now().duration_since(self.started_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_manual_clock_wakes_its_sleepers_when_it_is_advanced() {
        let manual_clock = ManualClock::new();
        let clock = manual_clock.clock();
        let at = clock.now().saturating_add(Duration::from_secs(10));
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep_until(at).await }
        });
        manual_clock.advance(Duration::from_secs(9));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        manual_clock.advance(Duration::from_secs(1));
        sleeper.await.unwrap();
    }

    #[tokio::test]
    async fn a_running_clock_follows_real_time_and_can_be_advanced() {
        let manual_clock = ManualClock::running();
        let clock = manual_clock.clock();
        clock.sleep(Duration::from_millis(5)).await;
        let at = clock.now().saturating_add(Duration::from_secs(3600));
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep_until(at).await }
        });
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        manual_clock.advance(Duration::from_secs(3600));
        sleeper.await.unwrap();
        assert!(clock.now() >= at);
    }

    #[tokio::test]
    async fn a_timeout_drops_the_work_once_the_clock_is_advanced_past_it() {
        let manual_clock = ManualClock::new();
        let clock = manual_clock.clock();
        assert_eq!(clock.timeout(Duration::ZERO, async { 1 }).await, Ok(1), "work that is done at once is in time");
        let late = tokio::spawn({
            let clock = clock.clone();
            async move { clock.timeout(Duration::from_secs(10), clock.sleep(Duration::from_secs(11))).await }
        });
        tokio::task::yield_now().await;
        manual_clock.advance(Duration::from_secs(10));
        assert_eq!(late.await.unwrap(), Err(Elapsed));
    }

    #[tokio::test(start_paused = true)]
    async fn tokios_clock_stops_while_tokio_is_paused() {
        let clock = Clock::tokio();
        let start = clock.now();
        assert_eq!(clock.now(), start);
        clock.sleep(Duration::from_secs(3600)).await;
        assert_eq!(clock.now().duration_since(start), Duration::from_secs(3600));
        clock.sleep_until(start.saturating_add(Duration::from_secs(7200))).await;
        assert_eq!(clock.now().duration_since(start), Duration::from_secs(7200));
        assert_eq!(clock.timeout(Duration::from_secs(5), std::future::pending::<()>()).await, Err(Elapsed));
        assert_eq!(clock.now().duration_since(start), Duration::from_secs(7205));
    }
}
