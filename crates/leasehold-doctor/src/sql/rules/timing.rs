//! Judges the servers' clocks, and round trips.

use std::time::Duration;

use super::super::facts::{Requirements, ServerFacts};
use super::{fail, format_short, ok, unknown, warn, writers};
use crate::Finding;

/// A clock that differs from this host's by more than this is not synchronized.
const MAX_CLOCK_OFFSET: Duration = Duration::from_secs(1);

/// How far the clocks of synchronized servers may differ, even without `clock-skew=`.
const MAX_SYNCHRONIZED_SKEW: Duration = Duration::from_millis(50);

/// Compares the server's clock with this host's. Leases use only the server's.
pub(super) fn judge_clock(address: &str, server: &ServerFacts) -> Finding {
    let check = "clock";
    match &server.clock {
        Ok(gap) => {
            let distance = Duration::from_micros(gap.ahead.unsigned_abs());
            let side = if gap.ahead < 0 { "behind" } else { "ahead of" };
            let found =
                format!("it is {} {side} this host's clock, ± {}", format_short(distance), format_short(gap.error));
            if distance.saturating_sub(gap.error) <= MAX_CLOCK_OFFSET {
                return ok(check, address, found)
                    .impact("the database's clock alone decides, and it seems to be right");
            }
            warn(check, address, found)
                .impact(
                    "one of the two is wrong. The database's clock alone decides. But when it is corrected forward by that much, held leases end at once, and two clients may hold one lock",
                )
                .fix("synchronize the clocks: chrony or ntpd, which adjust them gradually")
        }
        Err(reason) => unknown(check, address, reason).impact("the database's clock decides when a lease expires"),
    }
}

/// Judges the servers' clocks against each other; `None` for a single server.
pub(super) fn judge_clocks(servers: &[(&str, &ServerFacts)], requirements: &Requirements) -> Option<Finding> {
    let check = "clocks";
    if servers.len() < 2 {
        return None;
    }
    let several =
        servers.iter().filter(|(_, server)| writers::accepts_writes(server, requirements) == Some(true)).count() > 1;
    let means = if several {
        "each server uses its own clock: one that is ahead by more than clock-skew= treats valid leases as expired, and two clients may hold one lock"
    } else {
        "after a fail-over to a clock that is ahead, leases end early by that much, and two clients may hold one lock meanwhile"
    };
    let mut gaps = Vec::new();
    for (address, server) in servers {
        match &server.clock {
            Ok(gap) => gaps.push((*address, gap)),
            Err(reason) => return Some(unknown(check, address, reason).impact(means)),
        }
    }
    let (last, behind) = gaps.iter().min_by_key(|(_, gap)| gap.ahead)?;
    let (first, ahead) = gaps.iter().max_by_key(|(_, gap)| gap.ahead)?;
    let distance = Duration::from_micros(ahead.ahead.abs_diff(behind.ahead));
    let error = ahead.error + behind.error;
    let most = requirements.clock_skew.max(MAX_SYNCHRONIZED_SKEW);
    if distance.saturating_sub(error) <= most {
        let found = format!("at most {} apart, ± {}", format_short(distance), format_short(error));
        return Some(ok(check, "", found).impact("leases end on time, on each server that accepts the writes"));
    }
    let found = format!("{first} is {} ahead of {last}", format_short(distance));
    let fix =
        "synchronize the clocks of all servers: chrony or ntpd; and clock-skew= in the URL, the maximum difference";
    Some(fail(check, "", found).impact(means).fix(fix))
}

/// Judges whether the two round trips of a renewal are short enough.
pub(super) fn judge_round_trip(address: &str, server: &ServerFacts, requirements: &Requirements) -> Finding {
    let check = "round-trip";
    match &server.round_trips {
        Ok(trips) => {
            let found =
                format!("p50 {}, p99 {} of {} queries", format_short(trips.p50), format_short(trips.p99), trips.count);
            // One operation reads and writes.
            if trips.p99 * 2 <= requirements.renewal_interval() {
                return ok(check, address, found).impact(format!(
                    "renewals, every {}, come in time",
                    format_short(requirements.renewal_interval())
                ));
            }
            warn(check, address, found)
                .impact(format!(
                    "leases are renewed every {}, by up to two round trips, and a slow response loses them",
                    format_short(requirements.renewal_interval())
                ))
                .fix("a longer TTL, or a server that is nearer or less busy")
        }
        Err(reason) => unknown(check, address, reason)
            .impact("where responses take longer than a sixth of the TTL, leases are lost"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::{ClockOffset, RoundTrips, UnknownReason};
    use super::super::sample::{assert_level, opaque_server, postgres, requirements};
    use super::*;
    use crate::Level::{Fail, Ok as Good, Unknown, Warn};
    use leasehold_internals::sql::Dialect;

    fn with_clock_ahead(millis: i64) -> ServerFacts {
        let gap = ClockOffset { ahead: millis * 1000, error: Duration::from_millis(1) };
        ServerFacts { clock: Ok(gap), ..postgres() }
    }

    #[test]
    fn a_server_clock_far_from_this_hosts_is_a_warning() {
        assert_level(&judge_clock("h", &with_clock_ahead(-900)), Good, "behind");
        assert_level(&judge_clock("h", &with_clock_ahead(1_001)), Good, "ahead of this host's clock, ± 1.0 ms");
        assert_level(&judge_clock("h", &with_clock_ahead(60_000)), Warn, "alone decides");
        assert_level(&judge_clock("h", &opaque_server(&UnknownReason::not_reported("it"))), Unknown, "decides");
    }

    #[test]
    fn server_clocks_may_differ_by_the_declared_skew() {
        let pg = requirements(Dialect::Postgres);
        let both = |one: &ServerFacts, other: &ServerFacts, requirements: &Requirements| {
            judge_clocks(&[("a", one), ("b", other)], requirements).unwrap()
        };
        let standby = |millis| ServerFacts { is_in_recovery: Ok(true), ..with_clock_ahead(millis) };
        assert_eq!(judge_clocks(&[("a", &with_clock_ahead(0))], &pg), None);
        assert_level(&both(&with_clock_ahead(0), &standby(40), &pg), Good, "40 ms apart");
        assert_level(&both(&with_clock_ahead(0), &standby(3000), &pg), Fail, "b is 3 s ahead of a");
        assert_level(&both(&with_clock_ahead(0), &standby(900), &pg), Fail, "fail-over");
        let skewed = Requirements { clock_skew: Duration::from_secs(3), ..pg.clone() };
        assert_level(&both(&with_clock_ahead(0), &standby(3000), &skewed), Good, "3 s apart");
        assert_level(&both(&with_clock_ahead(0), &standby(3100), &skewed), Fail, "clock-skew=");
        // Both accept writes.
        assert_level(&both(&with_clock_ahead(0), &with_clock_ahead(300), &pg), Fail, "clock-skew=");
        assert_level(
            &both(
                &with_clock_ahead(0),
                &with_clock_ahead(300),
                &Requirements { clock_skew: MAX_CLOCK_OFFSET, ..pg.clone() },
            ),
            Good,
            "on time",
        );
        assert_level(
            &both(&with_clock_ahead(0), &opaque_server(&UnknownReason::not_reported("it")), &pg),
            Unknown,
            "fail-over",
        );
    }

    #[test]
    fn slow_round_trips_are_a_warning() {
        let of = |millis| {
            let trips = RoundTrips { count: 50, p50: Duration::from_millis(1), p99: Duration::from_millis(millis) };
            judge_round_trip(
                "h",
                &ServerFacts { round_trips: Ok(trips), ..postgres() },
                &requirements(Dialect::Postgres),
            )
        };
        assert_level(&of(5_000), Good, "every 10 s");
        assert_level(&of(5_001), Warn, "longer TTL");
        assert_level(
            &judge_round_trip(
                "h",
                &opaque_server(&UnknownReason::not_reported("it")),
                &requirements(Dialect::Postgres),
            ),
            Unknown,
            "sixth",
        );
    }
}
