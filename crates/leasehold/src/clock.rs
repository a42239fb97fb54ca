//! Time: a local monotonic clock that also counts the time the machine slept, or one that a test moves by hand.
//!
//! Leases and ages are measured on this clock alone. The wall clock is read once, where `memory:` keeps records, and carried on by this
//! one.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// A point on a [`Clock`]. Moments of two machines, or of two clocks, cannot be compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(u64);

impl Moment {
    /// Later than anything that will happen.
    pub const NEVER: Self = Self(u64::MAX);

    /// The moment this many nanoseconds after the clock's start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This moment plus `by`; stops at [`Moment::NEVER`].
    #[must_use]
    pub fn after(self, by: Duration) -> Self {
        Self(self.0.saturating_add(nanos(by)))
    }

    /// This moment minus `by`; stops at the clock's start. `NEVER` stays `NEVER`.
    #[must_use]
    pub fn before(self, by: Duration) -> Self {
        if self == Self::NEVER { self } else { Self(self.0.saturating_sub(nanos(by))) }
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NEVER { f.write_str("never") } else { write!(f, "{:?}", Duration::from_nanos(self.0)) }
    }
}

/// A duration in nanoseconds; more than 584 years are as good as for ever.
pub(crate) fn nanos(d: Duration) -> u64 {
    d.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(d.subsec_nanos()))
}

/// Where the time comes from.
#[derive(Clone, Debug, Default)]
pub struct Clock(Source);

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    System,
    Manual(Arc<Manual>),
}

#[derive(Debug)]
struct Manual {
    now: AtomicU64,
    moved: Notify,
}

impl Clock {
    /// The machine's clock since boot, which goes on while the machine sleeps and never jumps.
    pub fn system() -> Self {
        Self::default()
    }

    /// The present moment.
    pub fn now(&self) -> Moment {
        match &self.0 {
            Source::System => system_now(),
            Source::Manual(manual) => Moment(manual.now.load(Ordering::SeqCst)),
        }
    }

    /// Waits until `at`. After the machine slept it may wake as much later as that took.
    pub fn sleep_until(&self, at: Moment) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.doze_until(at, Duration::MAX)
    }

    /// Waits until `at`, and wakes soon after a sleep of the machine, too.
    pub(crate) fn alarm(&self, at: Moment) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.doze_until(at, LONGEST_NAP)
    }

    fn doze_until(&self, at: Moment, nap: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        match &self.0 {
            Source::System => Box::pin(async move {
                loop {
                    let left = at.since(system_now());
                    if left.is_zero() {
                        return;
                    }
                    tokio::time::sleep(left.min(nap)).await;
                }
            }),
            Source::Manual(manual) => {
                let manual = Arc::clone(manual);
                Box::pin(async move { manual.reach(at).await })
            }
        }
    }
}

/// The time of day, as it was when this was made and as the clock has gone on since: it never jumps.
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

    /// How long ago 1970 began, UTC.
    pub(crate) fn now(&self, clock: &Clock) -> Duration {
        self.wall + clock.now().since(self.at)
    }
}

/// The timer below us does not count the time that the machine slept, so the keeper's naps are no longer than this: after a
/// suspend a loss is signalled at most so much late. (`is_held` reads the clock itself and is never late.)
const LONGEST_NAP: Duration = Duration::from_secs(1);

impl Manual {
    async fn reach(&self, at: Moment) {
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            moved.as_mut().enable();
            if self.now.load(Ordering::SeqCst) >= at.0 {
                return;
            }
            moved.await;
        }
    }
}

/// A clock that stands still until a test moves it.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Manual>);

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl ManualClock {
    /// A clock that shows one hour after its start.
    pub fn new() -> Self {
        Self(Arc::new(Manual { now: AtomicU64::new(3_600_000_000_000), moved: Notify::new() }))
    }

    /// The clock to hand in.
    pub fn clock(&self) -> Clock {
        Clock(Source::Manual(Arc::clone(&self.0)))
    }

    /// Moves the time forward and wakes those who slept until then.
    pub fn advance(&self, by: Duration) {
        self.0.now.fetch_add(nanos(by), Ordering::SeqCst);
        self.0.moved.notify_waiters();
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn system_now() -> Moment {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Moment(seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[allow(clippy::disallowed_methods, reason = "this is the clock")]
fn system_now() -> Moment {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    Moment(nanos(START.get_or_init(Instant::now).elapsed()) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_do_not_wrap() {
        assert_eq!(Moment::NEVER.after(Duration::from_secs(1)), Moment::NEVER);
        assert_eq!(Moment::NEVER.before(Duration::from_secs(1)), Moment::NEVER);
        assert_eq!(Moment::from_nanos(5).before(Duration::from_secs(1)), Moment::from_nanos(0));
        assert_eq!(Moment::from_nanos(5).since(Moment::from_nanos(9)), Duration::ZERO);
    }

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
}
