//! Time: clocks, round trips, commands that block the server, and the duration of a failover.

use std::time::Duration;

use super::super::facts::{NodeFacts, Requirements};
use super::super::query::Fact;
use super::{fail, format_short, ok, unknown, warn};
use crate::Finding;

/// Clocks that differ by more than this are not synchronized.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(1);
/// A command that runs longer than this delays locks noticeably, because the server runs one at a
/// time.
const SLOW_COMMAND: Duration = Duration::from_millis(100);
/// Entries of the slow log that are older than this many seconds no longer matter.
const RECENT_SECONDS: u64 = 24 * 3600;
/// The time to elect and announce a new master, after the old one was unreachable for long enough.
const ELECTION: Duration = Duration::from_secs(1);

/// Compares the server's clock with this host's.
pub(super) fn judge_clock(node: &NodeFacts) -> Finding {
    let (check, address) = ("clock", &node.address);
    match &node.clock_offset {
        Ok(gap) => {
            let distance = Duration::from_micros(gap.ahead_us.unsigned_abs());
            let side = if gap.ahead_us < 0 { "behind" } else { "ahead of" };
            let found = format!(
                "it is {} {side} this host's clock, ± {}",
                format_short(distance),
                format_short(gap.uncertainty)
            );
            if distance.saturating_sub(gap.uncertainty) <= MAX_CLOCK_DIFFERENCE {
                return ok(check, address, found).impact("tokens come from a clock that seems to be right");
            }
            warn(check, address, found)
                .impact(
                    "one of the two is wrong. Leases do not depend on it. But tokens come from the server's clock: when it is set back, a lock that was lost meanwhile gets lower tokens",
                )
                .fix("synchronize the clocks: chrony or ntpd, on this machine and on the server")
        }
        Err(error) => unknown(check, address, error)
            .impact("tokens come from the server's clock; after it is set back, tokens may be lower")
            .fix("let this user run TIME: +time"),
    }
}

/// Judges the servers' clocks against each other; `None` for a single server. `failover_delay` is
/// the shortest time between the last token of a master and the first token of its successor.
pub(super) fn judge_clocks(nodes: &[NodeFacts], failover_delay: Option<Duration>) -> Option<Finding> {
    let check = "clocks";
    if nodes.len() < 2 {
        return None;
    }
    let means = "a promoted server uses its own clock: one that is behind assigns lower tokens, and one that is ahead drops the records of locks early";
    let mut gaps = Vec::new();
    for node in nodes {
        match &node.clock_offset {
            Ok(gap) => gaps.push((node, gap)),
            Err(error) => {
                let finding = unknown(check, &node.address, error).impact(means);
                return Some(finding.fix("let this user run TIME: +time"));
            }
        }
    }
    let (last, behind) = gaps.iter().min_by_key(|(_, gap)| gap.ahead_us)?;
    let (first, ahead) = gaps.iter().max_by_key(|(_, gap)| gap.ahead_us)?;
    let distance = Duration::from_micros(ahead.ahead_us.abs_diff(behind.ahead_us));
    let error = ahead.uncertainty + behind.uncertainty;
    let most = failover_delay.map_or(MAX_CLOCK_DIFFERENCE, |silence| silence.min(MAX_CLOCK_DIFFERENCE));
    Some(if distance.saturating_sub(error) <= most {
        let found = format!("at most {} apart, ± {}", format_short(distance), format_short(error));
        ok(check, "", found).impact("tokens rise over a failover")
    } else {
        let found = format!("{} is {} ahead of {}", first.address, format_short(distance), last.address);
        fail(check, "", found).impact(means).fix("synchronize the clocks of all servers: chrony or ntpd")
    })
}

/// Judges whether a renewal's round trip is short enough.
pub(super) fn judge_round_trip(node: &NodeFacts, requirements: &Requirements) -> Finding {
    let (check, address) = ("round-trip", &node.address);
    match &node.round_trips {
        Ok(trips) => {
            let found =
                format!("p50 {}, p99 {} of {} pings", format_short(trips.p50), format_short(trips.p99), trips.count);
            if trips.p99 <= requirements.renewal_interval() {
                return ok(check, address, found).impact(format!(
                    "renewals, every {}, come in time",
                    format_short(requirements.renewal_interval())
                ));
            }
            warn(check, address, found)
                .impact(format!(
                    "leases are renewed every {}, and a slow response loses them",
                    format_short(requirements.renewal_interval())
                ))
                .fix("a longer TTL, or a server that is nearer or less busy")
        }
        Err(error) => unknown(check, address, error)
            .impact("where responses take longer than a third of the TTL, leases are lost")
            .fix("let this user run PING: +ping"),
    }
}

/// Warns of commands of the last day that blocked all others for long.
pub(super) fn judge_slow_log(node: &NodeFacts, requirements: &Requirements) -> Finding {
    let (check, address) = ("slow-log", &node.address);
    let limit = requirements.renewal_interval().min(SLOW_COMMAND);
    let means = "while one command runs, no lock can be acquired or renewed";
    let threshold: Fact<i64> = node
        .setting("slowlog-log-slower-than")
        .and_then(|text| text.parse().map_err(|_| super::QueryError::missing("slowlog-log-slower-than")));
    let entries = match &node.slow_log {
        Ok(entries) => entries,
        Err(error) => {
            return unknown(check, address, error).impact(means).fix("let this user run SLOWLOG GET: +slowlog|get");
        }
    };
    let blind = match &threshold {
        Ok(-1) => Some("the slow log is off".to_owned()),
        Ok(micros) if *micros > limit.as_micros() as i64 => Some(format!("only commands over {micros} µs are logged")),
        // A log with faster commands would have the slower ones, too.
        Err(error) if !entries.iter().any(|slow| slow.duration <= limit) => Some(format!("it may be off: {error}")),
        _ => None,
    };
    let newest = entries.iter().map(|slow| slow.logged_at).max().unwrap_or(0);
    let now = server_time(node).unwrap_or(newest);
    let recent = entries.iter().filter(|slow| slow.duration >= limit && slow.logged_at + RECENT_SECONDS >= now);
    let mut recent: Vec<_> = recent.collect();
    recent.sort_by_key(|slow| std::cmp::Reverse(slow.duration));
    match (recent.first(), blind) {
        (Some(worst), _) => {
            let found = format!(
                "{} commands of the last day took {} or longer; the longest, {}, took {}",
                recent.len(),
                format_short(limit),
                worst.command,
                format_short(worst.duration)
            );
            warn(check, address, found)
                .impact(means)
                .fix("SLOWLOG GET lists them: make them smaller, or move them to another server")
        }
        (None, Some(blind)) => unknown(check, address, &super::QueryError::Refused(blind))
            .impact(means)
            .fix("slowlog-log-slower-than 10000"),
        (None, None) => {
            ok(check, address, format!("no command of the last day took {} or longer", format_short(limit)))
                .impact("no command delayed locks")
        }
    }
}

/// The server's time in seconds since 1970; `None` if it does not report it.
fn server_time(node: &NodeFacts) -> Option<u64> {
    node.info_number("server_time_usec").ok().map(|micros| micros / 1_000_000)
}

/// Judges whether a failover of a cluster fits into a lease, by the node's setting.
pub(super) fn judge_node_timeout(node: &NodeFacts, requirements: &Requirements) -> Finding {
    match node.setting_number("cluster-node-timeout").map(Duration::from_millis) {
        Ok(silence) => judge_failover(
            &node.address,
            silence,
            &format!("cluster-node-timeout is {}", format_short(silence)),
            requirements,
        )
        .with_setting_to_fix("cluster-node-timeout"),
        Err(error) => unknown("failover-time", &node.address, &error)
            .impact("a failover longer than two thirds of a lease loses held locks")
            .fix("cluster-node-timeout well below two thirds of the TTL; let this user run CONFIG GET: +config|get"),
    }
}

/// Judges whether a failover fits into what is left of a lease when its server dies: at least two
/// thirds of the TTL. `found` is the observation about the server at `address`.
pub(super) fn judge_failover(
    address: &str,
    failover_delay: Duration,
    found: &str,
    requirements: &Requirements,
) -> FailoverFinding {
    let most = requirements.ttl * 2 / 3;
    let duration = failover_delay + ELECTION;
    FailoverFinding(if duration <= most {
        ok("failover-time", address, found).impact(format!(
            "a failover of about {} fits into a lease ({})",
            format_short(duration),
            format_short(requirements.ttl)
        ))
    } else {
        warn("failover-time", address, found).impact(format!(
            "a failover takes about {}; leases of {} expire meanwhile, and their holders lose them",
            format_short(duration),
            format_short(requirements.ttl)
        ))
    })
}

/// A finding about a failover that still needs the name of the setting to change.
pub(super) struct FailoverFinding(Finding);

impl FailoverFinding {
    /// The finding; unless it is ok, its fix is to lower `setting`.
    pub(super) fn with_setting_to_fix(self, setting: &str) -> Finding {
        if self.0.level == crate::Level::Ok {
            return self.0;
        }
        self.0.fix(format!("a lower {setting}, or a longer TTL: {setting} should be below two thirds of it"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::{ClockOffset, RoundTrips, SlowLogEntry};
    use super::super::super::query::QueryError;
    use super::super::fixtures::{assert_level, healthy, requirements};
    use super::*;
    use crate::Level::{Fail, Ok as Good, Unknown, Warn};

    fn node_with_clock_offset(millis: i64) -> NodeFacts {
        let gap = ClockOffset { ahead_us: millis * 1000, uncertainty: Duration::from_millis(1) };
        NodeFacts { clock_offset: Ok(gap), ..healthy() }
    }

    fn node_without_measurements() -> NodeFacts {
        NodeFacts {
            clock_offset: Err(QueryError::missing("TIME")),
            round_trips: Err(QueryError::missing("PING")),
            slow_log: Err(QueryError::missing("it")),
            ..healthy()
        }
    }

    #[test]
    fn a_server_clock_that_differs_from_this_hosts_warns() {
        assert_level(&judge_clock(&node_with_clock_offset(-900)), Good, "behind");
        assert_level(&judge_clock(&node_with_clock_offset(1_000)), Good, "ahead of this host's clock, ± ");
        assert_level(&judge_clock(&node_with_clock_offset(60_000)), Warn, "chrony");
        assert_level(&judge_clock(&node_with_clock_offset(-60_000)), Warn, "behind");
        assert_level(&judge_clock(&node_without_measurements()), Unknown, "+time");
    }

    #[test]
    fn server_clocks_that_differ_fail() {
        assert_eq!(judge_clocks(&[healthy()], None), None);
        assert_level(
            &judge_clocks(&[node_with_clock_offset(0), node_with_clock_offset(900)], None).unwrap(),
            Good,
            "900 ms apart",
        );
        assert_level(
            &judge_clocks(&[node_with_clock_offset(0), node_with_clock_offset(900)], Some(Duration::from_millis(500)))
                .unwrap(),
            Fail,
            "ahead of",
        );
        assert_level(
            &judge_clocks(
                &[node_with_clock_offset(-700), node_with_clock_offset(0), node_with_clock_offset(700)],
                None,
            )
            .unwrap(),
            Fail,
            "1.4 s",
        );
        assert_level(
            &judge_clocks(&[node_with_clock_offset(0), node_without_measurements()], None).unwrap(),
            Unknown,
            "+time",
        );
    }

    #[test]
    fn slow_round_trips_warn() {
        let trips = RoundTrips { count: 100, p50: Duration::from_millis(1), p99: Duration::from_millis(50) };
        let node = NodeFacts { round_trips: Ok(trips), ..healthy() };
        assert_level(&judge_round_trip(&node, &requirements()), Good, "every 10 s");
        assert_level(
            &judge_round_trip(&node, &Requirements { ttl: Duration::from_millis(100), ..requirements() }),
            Warn,
            "longer TTL",
        );
        assert_level(&judge_round_trip(&node_without_measurements(), &requirements()), Unknown, "+ping");
    }

    #[test]
    fn slow_commands_of_the_last_day_warn() {
        let slow = |logged_at, millis| SlowLogEntry {
            logged_at,
            duration: Duration::from_millis(millis),
            command: "KEYS".into(),
        };
        let node =
            |entries| NodeFacts { slow_log: Ok(entries), ..healthy() }.with_info("server_time_usec", "200000000000");
        assert_level(
            &judge_slow_log(&node(vec![slow(199_999, 250), slow(199_998, 120)]), &requirements()),
            Warn,
            "KEYS, took 250 ms",
        );
        assert_level(&judge_slow_log(&node(vec![slow(199_999, 20)]), &requirements()), Good, "100 ms or longer");
        assert_level(&judge_slow_log(&node(vec![slow(1, 250)]), &requirements()), Good, "last day");
        assert_level(
            &judge_slow_log(
                &node(vec![slow(199_999, 20)]),
                &Requirements { ttl: Duration::from_millis(30), ..requirements() },
            ),
            Warn,
            "10 ms",
        );
        let blind = node(vec![]).with_setting("slowlog-log-slower-than", "-1");
        assert_level(&judge_slow_log(&blind, &requirements()), Unknown, "slow log is off");
        let blind = node(vec![]).with_setting("slowlog-log-slower-than", "5000000");
        assert_level(&judge_slow_log(&blind, &requirements()), Unknown, "5000000");
        assert_level(&judge_slow_log(&node_without_measurements(), &requirements()), Unknown, "+slowlog|get");
        let hidden = |entries| node(entries).without_setting("slowlog-log-slower-than");
        assert_level(&judge_slow_log(&hidden(vec![]), &requirements()), Unknown, "may be off");
        assert_level(&judge_slow_log(&hidden(vec![slow(199_999, 20)]), &requirements()), Good, "last day");
    }

    #[test]
    fn failovers_longer_than_a_lease_warn() {
        assert_level(&judge_node_timeout(&healthy(), &requirements()), Good, "16 s");
        assert_level(
            &judge_node_timeout(&healthy().with_setting("cluster-node-timeout", "20000"), &requirements()),
            Warn,
            "two thirds",
        );
        assert_level(
            &judge_node_timeout(&healthy().without_setting("cluster-node-timeout"), &requirements()),
            Unknown,
            "+config|get",
        );
    }
}
