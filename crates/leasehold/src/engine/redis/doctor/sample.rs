//! A server's clock compared with ours, and its round-trip times.

use std::time::{Duration, UNIX_EPOCH};

use super::ask::{Known, Link, No, ask, words};
use super::facts::{ClockGap, Trips};
use crate::clock::Clock;

/// How many samples to take, and how long that may take in total.
const CLOCK_SAMPLES: usize = 15;
const TRIP_SAMPLES: usize = 100;
const MOST: Duration = Duration::from_secs(3);

/// The server's clock compared with ours: the sample with the shortest round trip is the best.
pub(super) async fn clock(link: &Link) -> Known<ClockGap> {
    let clock = Clock::system();
    let start = clock.now();
    let mut best: Option<ClockGap> = None;
    for _ in 0..CLOCK_SAMPLES {
        let (ours, before) = (wall(), clock.now());
        let (seconds, micros): (i64, i64) = ask(link, &words(&["TIME"])).await?;
        let half = clock.now().since(before) / 2;
        let ahead = seconds * 1_000_000 + micros - ours - i64::try_from(half.as_micros()).unwrap_or(i64::MAX);
        if best.is_none_or(|best| half < best.error) {
            best = Some(ClockGap { ahead, error: half });
        }
        if clock.now().since(start) > MOST {
            break;
        }
    }
    best.ok_or_else(|| No::missing("the time"))
}

/// Our own wall clock, in microseconds since 1970. No lock relies on it; it is only compared.
#[allow(clippy::disallowed_methods, reason = "it is what the server's clock is compared with")]
fn wall() -> i64 {
    let since = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// Many round trips.
pub(super) async fn trips(link: &Link) -> Known<Trips> {
    let clock = Clock::system();
    let start = clock.now();
    let mut times = Vec::with_capacity(TRIP_SAMPLES);
    while times.len() < TRIP_SAMPLES && (times.len() < 3 || clock.now().since(start) < MOST) {
        let before = clock.now();
        let _: String = ask(link, &words(&["PING"])).await?;
        times.push(clock.now().since(before));
    }
    Ok(summary(times))
}

fn summary(mut times: Vec<Duration>) -> Trips {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() * percent).div_ceil(100).saturating_sub(1)];
    Trips { count: times.len(), p50: at(50), p99: at(99) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let times: Vec<_> = (1..=100).rev().map(Duration::from_millis).collect();
        let trips = summary(times);
        assert_eq!((trips.p50, trips.p99), (Duration::from_millis(50), Duration::from_millis(99)));
        let one = summary(vec![Duration::from_millis(7)]);
        assert_eq!((one.p50, one.p99), (Duration::from_millis(7), Duration::from_millis(7)));
    }
}
