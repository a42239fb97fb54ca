//! Measures a server's clock compared with this host's, and its round-trip times.

use std::time::{Duration, UNIX_EPOCH};

use super::facts::{ClockOffset, RoundTrips};
use super::query::{Fact, QueryConnection, QueryError, query, redis_command};
use leasehold::clock::Clock;

/// How often to read the server's clock.
const CLOCK_SAMPLES: usize = 15;
/// How many pings to send.
const ROUND_TRIP_SAMPLES: usize = 100;
/// How long all samples of one measurement may take in total.
const MAX_SAMPLING_TIME: Duration = Duration::from_secs(3);

/// Measures how far the server's clock is ahead of this host's, by the sample with the shortest
/// round trip.
pub(super) async fn measure_clock_offset(connection: &QueryConnection) -> Fact<ClockOffset> {
    let clock = Clock::system();
    let start = clock.now();
    let mut best: Option<ClockOffset> = None;
    for _ in 0..CLOCK_SAMPLES {
        let (local, before) = (wall_clock_us(), clock.now());
        let (seconds, micros): (i64, i64) = query(connection, &redis_command(&["TIME"])).await?;
        let half = clock.now().duration_since(before) / 2;
        let ahead = seconds * 1_000_000 + micros - local - i64::try_from(half.as_micros()).unwrap_or(i64::MAX);
        if best.is_none_or(|best| half < best.uncertainty) {
            best = Some(ClockOffset { ahead_us: ahead, uncertainty: half });
        }
        if clock.now().duration_since(start) > MAX_SAMPLING_TIME {
            break;
        }
    }
    best.ok_or_else(|| QueryError::missing("the time"))
}

/// This host's wall clock, in microseconds since 1970. No lock relies on it; it is only compared.
#[allow(clippy::disallowed_methods, reason = "it is what the server's clock is compared with")]
fn wall_clock_us() -> i64 {
    let since = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// Measures the durations of pings.
pub(super) async fn measure_round_trips(connection: &QueryConnection) -> Fact<RoundTrips> {
    let clock = Clock::system();
    let start = clock.now();
    let mut times = Vec::with_capacity(ROUND_TRIP_SAMPLES);
    while times.len() < ROUND_TRIP_SAMPLES && (times.len() < 3 || clock.now().duration_since(start) < MAX_SAMPLING_TIME)
    {
        let before = clock.now();
        let _: String = query(connection, &redis_command(&["PING"])).await?;
        times.push(clock.now().duration_since(before));
    }
    Ok(summarize(times))
}

/// The number of the durations, their median, and their 99th percentile.
fn summarize(mut times: Vec<Duration>) -> RoundTrips {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() * percent).div_ceil(100).saturating_sub(1)];
    RoundTrips { count: times.len(), p50: at(50), p99: at(99) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let times: Vec<_> = (1..=100).rev().map(Duration::from_millis).collect();
        let trips = summarize(times);
        assert_eq!((trips.p50, trips.p99), (Duration::from_millis(50), Duration::from_millis(99)));
        let one = summarize(vec![Duration::from_millis(7)]);
        assert_eq!((one.p50, one.p99), (Duration::from_millis(7), Duration::from_millis(7)));
    }
}
