//! The nodes' clocks, and how fast they respond.

use std::time::Duration;

use super::super::super::facts::{Aim, ClockGap, Node};
use super::super::super::voters::Plan;
use super::super::{fail, ok, short, unknown, warn};
use crate::doctor::Finding;
use crate::logic::quorum;

/// The difference between synchronized clocks is smaller than this.
const APART: Duration = Duration::from_secs(1);
const IN_STEP: &str =
    "keep the clocks of all nodes in step: chrony or ntpd, which turn them slowly instead of setting them";

/// The median clock.
fn middle(nodes: &[&Node]) -> Option<ClockGap> {
    let mut gaps: Vec<_> = nodes.iter().filter_map(|node| node.clock.as_ref().ok().copied()).collect();
    gaps.sort_by_key(|gap| gap.ahead);
    gaps.get(gaps.len() / 2).copied()
}

/// The minimum difference between two clocks, and the measured one.
fn apart(one: &ClockGap, other: &ClockGap) -> (Duration, Duration) {
    let distance = Duration::from_micros(one.ahead.abs_diff(other.ahead));
    (distance.saturating_sub(one.error + other.error), distance)
}

fn side(one: &ClockGap, other: &ClockGap) -> &'static str {
    if one.ahead < other.ahead { "behind" } else { "ahead of" }
}

/// The nodes' clocks compared with each other.
pub(super) fn clocks(nodes: &[&Node], plan: &Plan, aim: &Aim) -> Vec<Finding> {
    let (check, allowed) = ("clocks", plan.drift.of(aim.ttl));
    let means = "each node counts leases on its own clock: when this one is set right, leases there end early, or late, by that \
        much. Tokens rise all the same";
    let mut findings = Vec::new();
    for node in nodes {
        if let Err(no) = &node.clock {
            findings.push(unknown(check, &node.address, no).means(means).fix("let this user run TIME: +time"));
        }
    }
    let Some(middle) = middle(nodes) else { return findings };
    let known = || nodes.iter().filter_map(|node| Some((node, node.clock.as_ref().ok()?)));
    for (node, gap) in known() {
        let (least, distance) = apart(gap, &middle);
        if least <= allowed {
            continue;
        }
        let found = format!("it is {} {} most of the others", short(distance), side(gap, &middle));
        findings.push(if least > aim.ttl {
            fail(check, &node.address, format!("{found}, more than a lease ({})", short(aim.ttl)))
                .means(format!("{means}; so much ends, or outlives, all of them"))
                .fix(IN_STEP)
        } else {
            let allows = format!("; leases allow for {}", short(allowed));
            warn(check, &node.address, format!("{found}{allows}")).means(means).fix(IN_STEP)
        });
    }
    if findings.is_empty() && nodes.len() > 1 {
        let ends = (known().min_by_key(|(_, gap)| gap.ahead), known().max_by_key(|(_, gap)| gap.ahead));
        if let (Some((_, first)), Some((_, last))) = ends {
            let (distance, error) = (apart(first, last).1, first.error + last.error);
            let found = format!("at most {} apart, give or take {}", short(distance), short(error));
            let means = format!("that is within what leases allow for ({})", short(allowed));
            findings.push(ok(check, "", found).means(means));
        }
    }
    findings
}

/// The median of their clocks compared with ours.
pub(super) fn our_clock(nodes: &[&Node]) -> Option<Finding> {
    let (check, theirs) = ("clock", middle(nodes)?);
    let ours = ClockGap { ahead: 0, error: Duration::ZERO };
    let (least, distance) = apart(&theirs, &ours);
    let side = side(&theirs, &ours);
    let found = format!("most of theirs are {} {side} ours, give or take {}", short(distance), short(theirs.error));
    Some(if least <= APART {
        ok(check, "", found).means("tokens come from clocks that are right, as far as we can tell")
    } else {
        warn(check, "", found)
            .means(
                "ours is wrong, or theirs are. No lease depends on ours; but if theirs are all set right at once, leases end \
                early, or late, on a majority: then two may hold one lock. Tokens rise all the same",
            )
            .fix("keep the clocks in step: chrony or ntpd, here and there")
    })
}

/// The nodes' response times compared with the timeout.
pub(super) fn node_timeout(nodes: &[&Node], plan: &Plan, aim: &Aim) -> Vec<Finding> {
    let (check, most) = ("node-timeout", quorum::node_timeout(aim.ttl, plan.node_timeout));
    let why = match most < plan.node_timeout {
        true => format!("a tenth of the TTL, less than node-timeout={}", short(plan.node_timeout).replace(' ', "")),
        false => "node-timeout".to_owned(),
    };
    let (mut findings, mut slowest) = (Vec::new(), None);
    let late = |node: &&&Node| node.trips.as_ref().is_ok_and(|trips| trips.p99 > most);
    let lost = nodes.iter().filter(late).count() > plan.quorum.spare();
    for node in nodes {
        let at = &node.address;
        let trips = match &node.trips {
            Ok(trips) => trips,
            Err(no) => {
                let finding = unknown(check, at, no).means("a node that answers later than node-timeout does not vote");
                findings.push(finding.fix("let this user run PING: +ping"));
                continue;
            }
        };
        let found = format!(
            "p50 {}, p99 {} of {} pings; it is waited for {} ({why})",
            short(trips.p50),
            short(trips.p99),
            trips.count,
            short(most)
        );
        let fix = match most < plan.node_timeout {
            true => "a longer TTL, or a node that is nearer or less busy",
            false => {
                "a longer node-timeout= in the URL (a tenth of the TTL is used at most), or a node that is nearer or less busy"
            }
        };
        if trips.p99 > most && lost {
            let means = "it answers too late to vote, and so do so many that there is no majority";
            findings.push(fail(check, at, found).means(means).fix(fix));
        } else if trips.p99 > most / 2 {
            let means =
                "it often answers too late, or nearly so: then it does not vote, and fewer failures are survived";
            findings.push(warn(check, at, found).means(means).fix(fix));
        } else if slowest.as_ref().is_none_or(|(p99, _)| trips.p99 > *p99) {
            let found = if nodes.len() > 1 { format!("the slowest: {found}") } else { found };
            let means = format!("they answer in time; one that does not costs {} at most", short(most));
            slowest = Some((trips.p99, ok(check, at, found).means(means)));
        }
    }
    if findings.is_empty() {
        findings.extend(slowest.map(|(_, finding)| finding));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::super::super::ask::No;
    use super::super::super::super::facts::Trips;
    use super::super::super::sample::assert_level;
    use super::super::sample::{aim, node, plan};
    use super::*;
    use crate::doctor::Level::{Fail, Ok as Good, Unknown, Warn};

    fn at(number: usize, millis: i64) -> Node {
        let gap = ClockGap { ahead: millis * 1000, error: Duration::from_millis(1) };
        Node { clock: Ok(gap), ..node(number) }
    }

    fn find(clocks_at: [i64; 5]) -> Vec<Finding> {
        let nodes: Vec<_> = clocks_at.iter().enumerate().map(|(index, millis)| at(index + 1, *millis)).collect();
        clocks(&nodes.iter().collect::<Vec<_>>(), &plan(5), &aim())
    }

    #[test]
    fn clocks_against_what_leases_allow_for() {
        assert_level(&find([0, 5, -5, 100, 300])[0], Good, "305 ms apart, give or take 2.0 ms");
        let one = find([0, 5, -5, 0, 400]);
        assert_eq!((one.len(), one[0].subject.as_str()), (1, "h5:6379"));
        assert_level(&one[0], Warn, "400 ms ahead of most of the others; leases allow for 302 ms");
        assert_level(&find([0, 5, -5, 0, -31_000])[0], Fail, "behind most of the others, more than a lease (30 s)");
        assert_eq!(find([0, 0, 0, 5000, -5000]).len(), 2);
        let dumb = Node { clock: Err(No::missing("TIME")), ..node(2) };
        assert_level(&clocks(&[&at(1, 0), &dumb], &plan(5), &aim())[0], Unknown, "+time");
    }

    #[test]
    fn our_own_clock_may_be_the_wrong_one() {
        let all = |millis| our_clock(&[&at(1, millis), &at(2, millis), &at(3, 0)]).unwrap();
        assert_level(&all(900), Good, "ahead of ours");
        assert_level(&all(-60_000), Warn, "1 min behind ours");
        assert_level(&all(60_000), Warn, "ours is wrong");
    }

    #[test]
    fn answers_against_how_long_they_are_waited_for() {
        let takes = |number, millis| {
            let trips = Trips { count: 100, p50: Duration::from_millis(1), p99: Duration::from_millis(millis) };
            Node { trips: Ok(trips), ..node(number) }
        };
        let find = |p99: [u64; 3], aim: &Aim| {
            let nodes = [takes(1, p99[0]), takes(2, p99[1]), takes(3, p99[2])];
            node_timeout(&nodes.iter().collect::<Vec<_>>(), &plan(3), aim)
        };
        let well = find([1, 100, 2], &aim());
        assert_eq!((well.len(), well[0].subject.as_str()), (1, "h2:6379"));
        assert_level(&well[0], Good, "the slowest: p50 1.0 ms, p99 100 ms of 100 pings; it is waited for 250 ms");
        assert_level(&find([1, 200, 2], &aim())[0], Warn, "node-timeout= in the URL");
        assert_level(&find([1, 300, 2], &aim())[0], Warn, "does not vote");
        assert_level(&find([300, 300, 2], &aim())[0], Fail, "no majority");
        let quick = Aim { ttl: Duration::from_secs(1), ..aim() };
        assert_level(&find([1, 90, 2], &quick)[0], Warn, "100 ms (a tenth of the TTL, less than node-timeout=250ms)");
        let dumb = Node { trips: Err(No::missing("PING")), ..node(2) };
        assert_level(&node_timeout(&[&dumb], &plan(1), &aim())[0], Unknown, "+ping");
    }
}
