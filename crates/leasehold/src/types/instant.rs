//! Points in time on a clock.

use std::fmt;
use std::time::Duration;

/// A point in time on a [`Clock`](crate::clock::Clock). Unlike a [`std::time::Instant`], it belongs
/// to a clock that a test can control, and can be stored as a number. Instants of two machines, or
/// of two clocks, cannot be compared.
///
/// ```
/// use std::time::Duration;
/// use leasehold::clock::Instant;
///
/// let start = Instant::from_nanos(1_000);
/// let end = start.saturating_add(Duration::from_secs(5));
/// assert_eq!(end.duration_since(start), Duration::from_secs(5));
/// assert_eq!(start.duration_since(end), Duration::ZERO);
/// assert!(end < Instant::NEVER);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(pub(crate) u64);

impl Instant {
    /// Later than every other instant.
    pub const NEVER: Self = Self(u64::MAX);

    /// The instant this many nanoseconds after the clock's start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The nanoseconds from the clock's start to this instant.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This instant plus `by`; saturates at [`Instant::NEVER`].
    #[must_use]
    pub fn saturating_add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(nanos(by)))
    }

    /// This instant minus `by`; saturates at the clock's start. `NEVER` stays `NEVER`.
    #[must_use]
    pub fn saturating_sub(self, by: Duration) -> Self {
        if self == Self::NEVER { self } else { Self(self.0.saturating_sub(nanos(by))) }
    }

    /// The time from `earlier` to this instant; zero if `earlier` is later.
    pub fn duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NEVER { f.write_str("never") } else { write!(f, "{:?}", Duration::from_nanos(self.0)) }
    }
}

/// A duration in nanoseconds; saturates at `u64::MAX`, about 584 years.
pub(crate) fn nanos(d: Duration) -> u64 {
    d.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(d.subsec_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_saturate() {
        assert_eq!(Instant::NEVER.saturating_add(Duration::from_secs(1)), Instant::NEVER);
        assert_eq!(Instant::NEVER.saturating_sub(Duration::from_secs(1)), Instant::NEVER);
        assert_eq!(Instant::from_nanos(5).saturating_sub(Duration::from_secs(1)), Instant::from_nanos(0));
        assert_eq!(Instant::from_nanos(5).duration_since(Instant::from_nanos(9)), Duration::ZERO);
    }
}
