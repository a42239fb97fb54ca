//! A tick: the nominal time of a run, which identifies it.

use std::fmt;

use jiff::Timestamp;

/// A nominal time, in whole seconds since 1970 (UTC): the time that a run is *for*, independent of
/// when it takes place. Shown as `2026-11-16T03:00:00Z`.
///
/// ```
/// use leasehold_schedule::Tick;
///
/// let tick = Tick::parse("2026-11-16T03:00:00Z").unwrap();
/// assert_eq!(tick, Tick::from_unix(1_794_798_000));
/// assert_eq!(tick.to_string(), "2026-11-16T03:00:00Z");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tick(i64);

impl Tick {
    /// The tick at this many seconds since 1970 (UTC).
    pub const fn from_unix(seconds: i64) -> Self {
        Self(seconds)
    }

    /// The tick in seconds since 1970 (UTC).
    pub const fn unix(self) -> i64 {
        self.0
    }

    /// Parses the output of [`Display`](fmt::Display), or any other timestamp in RFC 3339. `None`
    /// if it is neither.
    pub fn parse(text: &str) -> Option<Self> {
        text.parse::<Timestamp>().ok().map(|at| Self(at.as_second()))
    }
}

impl fmt::Display for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Timestamp::from_second(self.0) {
            Ok(at) => at.fmt(f),
            Err(_) => write!(f, "{} s", self.0),
        }
    }
}
