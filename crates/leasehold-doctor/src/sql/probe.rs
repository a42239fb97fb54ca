//! Measures a server's clock compared with this host's, and its round trips.

use std::time::{Duration, UNIX_EPOCH};

use super::facts::{ClockOffset, Fact, RoundTrips, UnknownReason};
use super::gather::QueryClient;
use leasehold::clock::Clock;
use leasehold_internals::sql::Dialect;

/// How often to read the server's time.
const SAMPLES: usize = 50;
/// How long all samples may take in total.
const MAX_DURATION: Duration = Duration::from_secs(3);

/// The SQL expression for the clock that leases use, in microseconds since 1970.
pub(super) fn clock_expression(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::MySql => "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)",
        Dialect::Postgres => "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
    }
}

/// Measures the difference between the server's clock and this host's, and the durations of
/// queries.
pub(super) async fn measure_clock(client: &mut QueryClient) -> (Fact<ClockOffset>, Fact<RoundTrips>) {
    let sql = format!("SELECT {}", clock_expression(client.dialect));
    let clock = Clock::system();
    let start = clock.now();
    let mut times = Vec::with_capacity(SAMPLES);
    let mut best: Option<ClockOffset> = None;
    // The first query is slower, because it is prepared.
    if let Err(reason) = client.query_number(&sql).await {
        return (Err(reason.clone()), Err(reason));
    }
    while times.len() < SAMPLES && (times.len() < 3 || clock.now().duration_since(start) < MAX_DURATION) {
        let (local, before) = (wall_clock_micros(), clock.now());
        let remote = match client.query_number(&sql).await {
            Ok(time) => time,
            Err(reason) => return (Err(reason.clone()), Err(reason)),
        };
        let took = clock.now().duration_since(before);
        times.push(took);
        let gap = compute_clock_offset(remote, local, took);
        if best.is_none_or(|best| gap.error < best.error) {
            best = Some(gap);
        }
    }
    let none = || UnknownReason::not_reported("the time");
    (best.ok_or_else(none), RoundTrips::from_samples(times).ok_or_else(none))
}

/// The server's time `remote` compared with `local` at the start of a query that took `took`, both
/// in microseconds. The server read its clock at some time during the round trip.
fn compute_clock_offset(remote: i64, local: i64, took: Duration) -> ClockOffset {
    let half = took / 2;
    let middle = local.saturating_add(i64::try_from(half.as_micros()).unwrap_or(i64::MAX));
    ClockOffset { ahead: remote.saturating_sub(middle), error: half }
}

/// This host's wall clock, in microseconds since 1970. No lock relies on it; it is only compared.
#[allow(clippy::disallowed_methods, reason = "it is what the server's clock is compared with")]
fn wall_clock_micros() -> i64 {
    let since = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_offset_is_taken_at_the_middle_of_the_round_trip() {
        let gap = |remote, local, took| super::compute_clock_offset(remote, local, Duration::from_micros(took));
        assert_eq!(gap(1_005, 1_000, 10), ClockOffset { ahead: 0, error: Duration::from_micros(5) });
        assert_eq!(gap(60_001_001, 1_000_000, 2).ahead, 59_001_000);
        assert_eq!(gap(1, 60_000_000, 2).ahead, -60_000_000);
    }
}
