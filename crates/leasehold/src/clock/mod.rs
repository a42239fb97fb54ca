//! Time: a local monotonic clock that also counts the time the machine slept, or a clock that a
//! test controls, by hand or by pausing tokio.
//!
//! Leases and ages are measured on this clock alone, and all waits use it. The wall clock is read
//! only once, where `memory:` stores records, and this clock advances it from there.

mod manual;
mod moment;
mod system;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use self::manual::Manual;
pub use self::manual::ManualClock;
pub use self::moment::Moment;
pub(crate) use self::moment::nanos;

/// What a test clock shows first: one hour.
const START: Moment = Moment(3_600_000_000_000);

/// A source of time.
#[derive(Clone, Debug, Default)]
pub struct Clock(Source);

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    System,
    /// Tokio's clock, since this instant.
    Tokio(Instant),
    Manual(Arc<Manual>),
}

/// Two clocks are equal if they always show the same time.
impl PartialEq for Clock {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Source::System, Source::System) => true,
            (Source::Tokio(one), Source::Tokio(other)) => one == other,
            (Source::Manual(one), Source::Manual(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Eq for Clock {}

/// The time limit was reached before the work was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the time is over")
    }
}

impl std::error::Error for Elapsed {}

#[allow(clippy::disallowed_methods, reason = "this is the clock that is handed in")]
impl Clock {
    /// The machine's monotonic clock, which counts while the machine sleeps and never jumps.
    pub fn system() -> Self {
        Self::default()
    }

    /// Tokio's own clock, from now on. In a runtime with paused time it stands still, too, and
    /// jumps to the next timer when all tasks are idle. For tests: it does not count the time that
    /// the machine slept.
    pub fn tokio() -> Self {
        Self(Source::Tokio(Instant::now()))
    }

    /// The present moment.
    pub fn now(&self) -> Moment {
        match &self.0 {
            Source::System => system::now(),
            Source::Tokio(start) => START.after(start.elapsed()),
            Source::Manual(manual) => manual.now(),
        }
    }

    /// Waits until `at`. If the machine sleeps meanwhile, it may wake later by that time.
    pub fn sleep_until(&self, at: Moment) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.doze_until(at, Duration::MAX)
    }

    /// Waits for this time. If the machine sleeps meanwhile, it may wake later by that time.
    pub async fn sleep(&self, time: Duration) {
        match &self.0 {
            Source::System | Source::Tokio(_) => tokio::time::sleep(time).await,
            Source::Manual(manual) => manual.reach(manual.now().after(time)).await,
        }
    }

    /// Runs `work` for no longer than `most`, and drops it then.
    ///
    /// # Errors
    /// If `work` did not complete in time.
    pub async fn timeout<F: Future>(&self, most: Duration, work: F) -> Result<F::Output, Elapsed> {
        let work = std::pin::pin!(work);
        match &self.0 {
            Source::System | Source::Tokio(_) => tokio::time::timeout(most, work).await.map_err(|_| Elapsed),
            Source::Manual(manual) => tokio::select! {
                biased;
                done = work => Ok(done),
                () = manual.reach(manual.now().after(most)) => Err(Elapsed),
            },
        }
    }

    /// Waits until `at`, and wakes soon after the machine resumes from sleep, too.
    pub(crate) fn alarm(&self, at: Moment) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.doze_until(at, LONGEST_NAP)
    }

    fn doze_until(&self, at: Moment, nap: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        if let Source::Manual(manual) = &self.0 {
            let manual = Arc::clone(manual);
            return Box::pin(async move { manual.reach(at).await });
        }
        let clock = self.clone();
        Box::pin(async move {
            loop {
                let left = at.since(clock.now());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left.min(nap)).await;
            }
        })
    }
}

/// Pauses before the next query of the kernel, in real time: the kernel does not follow a test's
/// clock.
#[cfg(feature = "file")]
#[allow(clippy::disallowed_methods, reason = "real time, whatever clock was handed in")]
pub(crate) async fn until_asked_again(time: Duration) {
    tokio::time::sleep(time).await;
}

/// The timer below does not count the time that the machine slept, so the keeper naps no longer
/// than this. After a resume it signals a loss at most this much late. (`is_held` reads the clock
/// itself and is never late.)
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// The time of day: read once, then advanced by the monotonic clock, so it never jumps.
#[cfg(feature = "memory")]
#[derive(Debug)]
pub(crate) struct Calendar {
    wall: Duration,
    at: Moment,
}

#[cfg(feature = "memory")]
impl Calendar {
    #[allow(clippy::disallowed_methods, reason = "read once; from here on the clock goes by itself")]
    pub(crate) fn new(clock: &Clock) -> Self {
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self { wall, at: clock.now() }
    }

    /// The time since 1970, UTC.
    pub(crate) fn now(&self, clock: &Clock) -> Duration {
        self.wall + clock.now().since(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_manual_clock_wakes_its_sleepers_when_it_is_moved() {
        let hand = ManualClock::new();
        let clock = hand.clock();
        let at = clock.now().after(Duration::from_secs(10));
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep_until(at).await }
        });
        hand.advance(Duration::from_secs(9));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        hand.advance(Duration::from_secs(1));
        sleeper.await.unwrap();
    }

    #[tokio::test]
    async fn a_running_clock_goes_on_alone_and_can_be_moved() {
        let hand = ManualClock::running();
        let clock = hand.clock();
        clock.sleep(Duration::from_millis(5)).await;
        let at = clock.now().after(Duration::from_secs(3600));
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep_until(at).await }
        });
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        hand.advance(Duration::from_secs(3600));
        sleeper.await.unwrap();
        assert!(clock.now() >= at);
    }

    #[tokio::test]
    async fn what_is_not_done_in_time_is_dropped_when_the_hand_has_moved_so_far() {
        let hand = ManualClock::new();
        let clock = hand.clock();
        assert_eq!(clock.timeout(Duration::ZERO, async { 1 }).await, Ok(1), "what is there counts");
        let late = tokio::spawn({
            let clock = clock.clone();
            async move { clock.timeout(Duration::from_secs(10), clock.sleep(Duration::from_secs(11))).await }
        });
        tokio::task::yield_now().await;
        hand.advance(Duration::from_secs(10));
        assert_eq!(late.await.unwrap(), Err(Elapsed));
    }

    #[tokio::test(start_paused = true)]
    async fn tokios_clock_stands_still_while_tokio_is_paused() {
        let clock = Clock::tokio();
        let start = clock.now();
        assert_eq!(clock.now(), start);
        clock.sleep(Duration::from_secs(3600)).await;
        assert_eq!(clock.now().since(start), Duration::from_secs(3600));
        clock.sleep_until(start.after(Duration::from_secs(7200))).await;
        assert_eq!(clock.now().since(start), Duration::from_secs(7200));
        assert_eq!(clock.timeout(Duration::from_secs(5), std::future::pending::<()>()).await, Err(Elapsed));
        assert_eq!(clock.now().since(start), Duration::from_secs(7205));
    }
}
