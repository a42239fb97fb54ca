//! Judges the nodes' clocks and response times.

use std::time::Duration;

use super::super::super::facts::{ClockOffset, NodeFacts, Requirements};
use super::super::super::redlock::RedlockSettings;
use super::super::{fail, format_short, ok, unknown, warn};
use crate::Finding;
use leasehold_internals::logic::quorum;

/// Clocks that differ by more than this are not synchronized.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(1);
const SYNCHRONIZE_FIX: &str =
    "keep the clocks of all nodes in step: chrony or ntpd, which turn them slowly instead of setting them";

/// The median of the nodes' clocks; `None` if none is known.
fn median_clock(nodes: &[&NodeFacts]) -> Option<ClockOffset> {
    let mut gaps: Vec<_> = nodes.iter().filter_map(|node| node.clock_offset.as_ref().ok().copied()).collect();
    gaps.sort_by_key(|gap| gap.ahead_us);
    gaps.get(gaps.len() / 2).copied()
}

/// The difference between two clocks: the least that it can be, and as measured.
fn clock_distance(one: &ClockOffset, other: &ClockOffset) -> (Duration, Duration) {
    let distance = Duration::from_micros(one.ahead_us.abs_diff(other.ahead_us));
    (distance.saturating_sub(one.uncertainty + other.uncertainty), distance)
}

/// Where the first clock is relative to the other.
fn direction(one: &ClockOffset, other: &ClockOffset) -> &'static str {
    if one.ahead_us < other.ahead_us { "behind" } else { "ahead of" }
}

/// Judges whether the nodes' clocks differ by more than leases allow for.
pub(super) fn judge_clocks(
    nodes: &[&NodeFacts],
    settings: &RedlockSettings,
    requirements: &Requirements,
) -> Vec<Finding> {
    let (check, allowed) = ("clocks", settings.drift.margin_for(requirements.ttl));
    let means = "each node counts leases on its own clock: when this one is set right, leases there end early, or late, by that \
        much. Tokens rise all the same";
    let mut findings = Vec::new();
    for node in nodes {
        if let Err(error) = &node.clock_offset {
            findings.push(unknown(check, &node.address, error).impact(means).fix("let this user run TIME: +time"));
        }
    }
    let Some(middle) = median_clock(nodes) else { return findings };
    let known = || nodes.iter().filter_map(|node| Some((node, node.clock_offset.as_ref().ok()?)));
    for (node, gap) in known() {
        let (least, distance) = clock_distance(gap, &middle);
        if least <= allowed {
            continue;
        }
        let found = format!("it is {} {} most of the others", format_short(distance), direction(gap, &middle));
        findings.push(if least > requirements.ttl {
            fail(check, &node.address, format!("{found}, more than a lease ({})", format_short(requirements.ttl)))
                .impact(format!("{means}; that is more than a whole lease"))
                .fix(SYNCHRONIZE_FIX)
        } else {
            let allows = format!("; leases allow for {}", format_short(allowed));
            warn(check, &node.address, format!("{found}{allows}")).impact(means).fix(SYNCHRONIZE_FIX)
        });
    }
    if findings.is_empty() && nodes.len() > 1 {
        let ends = (known().min_by_key(|(_, gap)| gap.ahead_us), known().max_by_key(|(_, gap)| gap.ahead_us));
        if let (Some((_, first)), Some((_, last))) = ends {
            let (distance, error) = (clock_distance(first, last).1, first.uncertainty + last.uncertainty);
            let found = format!("at most {} apart, ± {}", format_short(distance), format_short(error));
            let means = format!("that is within what leases allow for ({})", format_short(allowed));
            findings.push(ok(check, "", found).impact(means));
        }
    }
    findings
}

/// Compares the median of the nodes' clocks with this host's; `None` if no clock is known.
pub(super) fn judge_local_clock(nodes: &[&NodeFacts]) -> Option<Finding> {
    let (check, median) = ("clock", median_clock(nodes)?);
    let local = ClockOffset { ahead_us: 0, uncertainty: Duration::ZERO };
    let (least, distance) = clock_distance(&median, &local);
    let side = direction(&median, &local);
    let found = format!(
        "the median server clock is {} {side} this host's, ± {}",
        format_short(distance),
        format_short(median.uncertainty)
    );
    Some(if least <= MAX_CLOCK_DIFFERENCE {
        ok(check, "", found).impact("tokens come from clocks that seem to be right")
    } else {
        warn(check, "", found)
            .impact(
                "this host's clock is wrong, or the servers' clocks are. No lease depends on this host's. But if the servers' clocks are all corrected at once, leases end early or late on a majority: then two clients may hold one lock. Tokens still rise",
            )
            .fix("synchronize the clocks: chrony or ntpd, on this host and on the servers")
    })
}

/// Judges whether the nodes respond within the time that clients wait for them.
pub(super) fn judge_node_timeout(
    nodes: &[&NodeFacts],
    settings: &RedlockSettings,
    requirements: &Requirements,
) -> Vec<Finding> {
    let (check, most) = ("node-timeout", quorum::node_timeout(requirements.ttl, settings.node_timeout));
    let why = match most < settings.node_timeout {
        true => {
            format!(
                "a tenth of the TTL, less than node-timeout={}",
                format_short(settings.node_timeout).replace(' ', "")
            )
        }
        false => "node-timeout".to_owned(),
    };
    let (mut findings, mut slowest) = (Vec::new(), None);
    let late = |node: &&&NodeFacts| node.round_trips.as_ref().is_ok_and(|trips| trips.p99 > most);
    let lost = nodes.iter().filter(late).count() > settings.quorum.tolerated_failures();
    for node in nodes {
        let address = &node.address;
        let trips = match &node.round_trips {
            Ok(trips) => trips,
            Err(error) => {
                let finding =
                    unknown(check, address, error).impact("a node that responds later than node-timeout does not vote");
                findings.push(finding.fix("let this user run PING: +ping"));
                continue;
            }
        };
        let found = format!(
            "p50 {}, p99 {} of {} pings; it is waited for {} ({why})",
            format_short(trips.p50),
            format_short(trips.p99),
            trips.count,
            format_short(most)
        );
        let fix = match most < settings.node_timeout {
            true => "a longer TTL, or a node that is nearer or less busy",
            false => {
                "a longer node-timeout= in the URL (a tenth of the TTL is used at most), or a node that is nearer or less busy"
            }
        };
        if trips.p99 > most && lost {
            let means = "it responds too late to vote, and so many others do that there is no majority";
            findings.push(fail(check, address, found).impact(means).fix(fix));
        } else if trips.p99 > most / 2 {
            let means =
                "it often responds too late, or nearly so: then it does not vote, and fewer failures are survived";
            findings.push(warn(check, address, found).impact(means).fix(fix));
        } else if slowest.as_ref().is_none_or(|(p99, _)| trips.p99 > *p99) {
            let found = if nodes.len() > 1 { format!("the slowest: {found}") } else { found };
            let means = format!("they respond in time; a node that does not costs {} at most", format_short(most));
            slowest = Some((trips.p99, ok(check, address, found).impact(means)));
        }
    }
    if findings.is_empty() {
        findings.extend(slowest.map(|(_, finding)| finding));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::super::super::facts::RoundTrips;
    use super::super::super::super::query::QueryError;
    use super::super::super::fixtures::assert_level;
    use super::super::fixtures::{node, requirements, settings};
    use super::*;
    use crate::Level::{Fail, Ok as Good, Unknown, Warn};

    fn node_with_clock_offset(number: usize, millis: i64) -> NodeFacts {
        let gap = ClockOffset { ahead_us: millis * 1000, uncertainty: Duration::from_millis(1) };
        NodeFacts { clock_offset: Ok(gap), ..node(number) }
    }

    fn findings(clocks_at: [i64; 5]) -> Vec<Finding> {
        let nodes: Vec<_> =
            clocks_at.iter().enumerate().map(|(index, millis)| node_with_clock_offset(index + 1, *millis)).collect();
        judge_clocks(&nodes.iter().collect::<Vec<_>>(), &settings(5), &requirements())
    }

    #[test]
    fn clocks_are_compared_with_the_allowed_drift() {
        assert_level(&findings([0, 5, -5, 100, 300])[0], Good, "305 ms apart, ± 2.0 ms");
        let one = findings([0, 5, -5, 0, 400]);
        assert_eq!((one.len(), one[0].subject.as_str()), (1, "h5:6379"));
        assert_level(&one[0], Warn, "400 ms ahead of most of the others; leases allow for 302 ms");
        assert_level(&findings([0, 5, -5, 0, -31_000])[0], Fail, "behind most of the others, more than a lease (30 s)");
        assert_eq!(findings([0, 0, 0, 5000, -5000]).len(), 2);
        let unmeasured = NodeFacts { clock_offset: Err(QueryError::missing("TIME")), ..node(2) };
        assert_level(
            &judge_clocks(&[&node_with_clock_offset(1, 0), &unmeasured], &settings(5), &requirements())[0],
            Unknown,
            "+time",
        );
    }

    #[test]
    fn this_hosts_clock_may_be_the_wrong_one() {
        let all = |millis| {
            judge_local_clock(&[
                &node_with_clock_offset(1, millis),
                &node_with_clock_offset(2, millis),
                &node_with_clock_offset(3, 0),
            ])
            .unwrap()
        };
        assert_level(&all(900), Good, "the median server clock is 900 ms ahead of this host's, ± ");
        assert_level(&all(-60_000), Warn, "the median server clock is 1 min behind this host's, ± ");
        assert_level(&all(60_000), Warn, "this host's clock is wrong");
    }

    #[test]
    fn response_times_are_compared_with_the_node_timeout() {
        let with_round_trip = |number, millis| {
            let trips = RoundTrips { count: 100, p50: Duration::from_millis(1), p99: Duration::from_millis(millis) };
            NodeFacts { round_trips: Ok(trips), ..node(number) }
        };
        let find = |p99: [u64; 3], requirements: &Requirements| {
            let nodes = [with_round_trip(1, p99[0]), with_round_trip(2, p99[1]), with_round_trip(3, p99[2])];
            judge_node_timeout(&nodes.iter().collect::<Vec<_>>(), &settings(3), requirements)
        };
        let well = find([1, 100, 2], &requirements());
        assert_eq!((well.len(), well[0].subject.as_str()), (1, "h2:6379"));
        assert_level(&well[0], Good, "the slowest: p50 1.0 ms, p99 100 ms of 100 pings; it is waited for 250 ms");
        assert_level(&find([1, 200, 2], &requirements())[0], Warn, "node-timeout= in the URL");
        assert_level(&find([1, 300, 2], &requirements())[0], Warn, "does not vote");
        assert_level(&find([300, 300, 2], &requirements())[0], Fail, "no majority");
        let quick = Requirements { ttl: Duration::from_secs(1), ..requirements() };
        assert_level(&find([1, 90, 2], &quick)[0], Warn, "100 ms (a tenth of the TTL, less than node-timeout=250ms)");
        let unmeasured = NodeFacts { round_trips: Err(QueryError::missing("PING")), ..node(2) };
        assert_level(&judge_node_timeout(&[&unmeasured], &settings(1), &requirements())[0], Unknown, "+ping");
    }
}
