//! Time: clocks, round trips, commands that block the server, and the duration of a failover.

use std::time::Duration;

use super::super::ask::Known;
use super::super::facts::{Aim, Node};
use super::{fail, ok, short, unknown, warn};
use crate::doctor::Finding;

/// The difference between synchronized clocks is smaller than this.
const APART: Duration = Duration::from_secs(1);
/// A single command that takes longer blocks all others.
const SLOW: Duration = Duration::from_millis(100);
/// Older entries no longer matter.
const RECENT: u64 = 24 * 3600;
/// The time to elect and announce a new master, after the old one was unreachable for long enough.
const ELECTION: Duration = Duration::from_secs(1);

/// The server's clock compared with ours.
pub(super) fn clock(node: &Node) -> Finding {
    let (check, at) = ("clock", &node.address);
    match &node.clock {
        Ok(gap) => {
            let distance = Duration::from_micros(gap.ahead.unsigned_abs());
            let side = if gap.ahead < 0 { "behind" } else { "ahead of" };
            let found = format!("it is {} {side} ours, give or take {}", short(distance), short(gap.error));
            if distance.saturating_sub(gap.error) <= APART {
                return ok(check, at, found).means("tokens come from a clock that is right, as far as we can tell");
            }
            warn(check, at, found)
                .means(
                    "one of the two is wrong. Leases do not mind; but tokens come from the server's clock, and when it \
                    is set back, a lock that was forgotten meanwhile gets lower ones",
                )
                .fix("keep the clocks in step: chrony or ntpd, here and there")
        }
        Err(no) => unknown(check, at, no)
            .means("tokens come from the server's clock; one that is set back may give lower ones")
            .fix("let this user run TIME: +time"),
    }
}

/// The servers' clocks compared with each other. `silence` is the shortest time between the last
/// token of a master and the first token of its successor.
pub(super) fn clocks(nodes: &[Node], silence: Option<Duration>) -> Option<Finding> {
    let check = "clocks";
    if nodes.len() < 2 {
        return None;
    }
    let means = "a server that takes over goes by its own clock: one that is behind gives lower tokens, and one that is ahead drops \
        the records of locks early";
    let mut gaps = Vec::new();
    for node in nodes {
        match &node.clock {
            Ok(gap) => gaps.push((node, gap)),
            Err(no) => {
                let finding = unknown(check, &node.address, no).means(means);
                return Some(finding.fix("let this user run TIME: +time"));
            }
        }
    }
    let (last, behind) = gaps.iter().min_by_key(|(_, gap)| gap.ahead)?;
    let (first, ahead) = gaps.iter().max_by_key(|(_, gap)| gap.ahead)?;
    let distance = Duration::from_micros(ahead.ahead.abs_diff(behind.ahead));
    let error = ahead.error + behind.error;
    let most = silence.map_or(APART, |silence| silence.min(APART));
    Some(if distance.saturating_sub(error) <= most {
        let found = format!("at most {} apart, give or take {}", short(distance), short(error));
        ok(check, "", found).means("tokens rise over a failover")
    } else {
        let found = format!("{} is {} ahead of {}", first.address, short(distance), last.address);
        fail(check, "", found).means(means).fix("keep the clocks of all servers in step: chrony or ntpd")
    })
}

pub(super) fn round_trip(node: &Node, aim: &Aim) -> Finding {
    let (check, at) = ("round-trip", &node.address);
    match &node.trips {
        Ok(trips) => {
            let found = format!("p50 {}, p99 {} of {} pings", short(trips.p50), short(trips.p99), trips.count);
            if trips.p99 <= aim.renewal() {
                return ok(check, at, found).means(format!("renewals, every {}, come in time", short(aim.renewal())));
            }
            warn(check, at, found)
                .means(format!("leases are renewed every {}, and a slow answer loses them", short(aim.renewal())))
                .fix("a longer TTL, or a server that is nearer or less busy")
        }
        Err(no) => unknown(check, at, no)
            .means("where answers take longer than a third of the TTL, leases are lost")
            .fix("let this user run PING: +ping"),
    }
}

/// Commands that blocked all others.
pub(super) fn slow_log(node: &Node, aim: &Aim) -> Finding {
    let (check, at) = ("slow-log", &node.address);
    let limit = aim.renewal().min(SLOW);
    let means = "while one command runs, no lock can be taken or renewed";
    let threshold: Known<i64> = node
        .setting("slowlog-log-slower-than")
        .and_then(|text| text.parse().map_err(|_| super::No::missing("slowlog-log-slower-than")));
    let entries = match &node.slow {
        Ok(entries) => entries,
        Err(no) => return unknown(check, at, no).means(means).fix("let this user run SLOWLOG GET: +slowlog|get"),
    };
    let blind = match &threshold {
        Ok(-1) => Some("the slow log is off".to_owned()),
        Ok(micros) if *micros > limit.as_micros() as i64 => Some(format!("only what takes over {micros} µs is logged")),
        // A log with faster commands would have the slower ones, too.
        Err(no) if !entries.iter().any(|slow| slow.took <= limit) => Some(format!("it may be off: {no}")),
        _ => None,
    };
    let newest = entries.iter().map(|slow| slow.at).max().unwrap_or(0);
    let now = server_time(node).unwrap_or(newest);
    let recent = entries.iter().filter(|slow| slow.took >= limit && slow.at + RECENT >= now);
    let mut recent: Vec<_> = recent.collect();
    recent.sort_by_key(|slow| std::cmp::Reverse(slow.took));
    match (recent.first(), blind) {
        (Some(worst), _) => {
            let found = format!(
                "{} commands of the last day took {} or longer; the longest, {}, took {}",
                recent.len(),
                short(limit),
                worst.command,
                short(worst.took)
            );
            warn(check, at, found)
                .means(means)
                .fix("SLOWLOG GET shows them: make them smaller, or move them to another server")
        }
        (None, Some(blind)) => {
            unknown(check, at, &super::No::Refused(blind)).means(means).fix("slowlog-log-slower-than 10000")
        }
        (None, None) => ok(check, at, format!("no command of the last day took {} or longer", short(limit)))
            .means("nothing made locks wait"),
    }
}

/// Seconds since 1970 on the server's clock.
fn server_time(node: &Node) -> Option<u64> {
    node.number("server_time_usec").ok().map(|micros| micros / 1_000_000)
}

/// How long a cluster's node must be unreachable before another is promoted.
pub(super) fn node_timeout(node: &Node, aim: &Aim) -> Finding {
    match node.set_number("cluster-node-timeout").map(Duration::from_millis) {
        Ok(silence) => failover(&node.address, silence, &format!("cluster-node-timeout is {}", short(silence)), aim)
            .fix_with("cluster-node-timeout"),
        Err(no) => unknown("failover-time", &node.address, &no)
            .means("a failover that takes longer than two thirds of a lease loses held locks")
            .fix("cluster-node-timeout well below two thirds of the TTL; let this user run CONFIG GET: +config|get"),
    }
}

/// The duration of a failover compared with a lease. When its server dies, a lease has at least two
/// thirds of its TTL left.
pub(super) fn failover(at: &str, silence: Duration, found: &str, aim: &Aim) -> Failover {
    let most = aim.ttl * 2 / 3;
    let takes = silence + ELECTION;
    Failover(if takes <= most {
        ok("failover-time", at, found).means(format!(
            "a failover of about {} fits into a lease ({})",
            short(takes),
            short(aim.ttl)
        ))
    } else {
        warn("failover-time", at, found).means(format!(
            "a failover takes about {}; leases of {} end meanwhile, and their holders are told that they lost them",
            short(takes),
            short(aim.ttl)
        ))
    })
}

/// A finding that still needs the name of the setting to change.
pub(super) struct Failover(Finding);

impl Failover {
    pub(super) fn fix_with(self, setting: &str) -> Finding {
        if self.0.level == crate::doctor::Level::Ok {
            return self.0;
        }
        self.0.fix(format!("a lower {setting}, or a longer TTL: the silence should stay below two thirds of it"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::ask::No;
    use super::super::super::facts::{ClockGap, Slow, Trips};
    use super::super::sample::{aim, assert_level, healthy};
    use super::*;
    use crate::doctor::Level::{Fail, Ok as Good, Unknown, Warn};

    fn off(millis: i64) -> Node {
        let gap = ClockGap { ahead: millis * 1000, error: Duration::from_millis(1) };
        Node { clock: Ok(gap), ..healthy() }
    }

    fn dumb() -> Node {
        Node {
            clock: Err(No::missing("TIME")),
            trips: Err(No::missing("PING")),
            slow: Err(No::missing("it")),
            ..healthy()
        }
    }

    #[test]
    fn clocks_apart() {
        assert_level(&clock(&off(-900)), Good, "behind");
        assert_level(&clock(&off(1_000)), Good, "give or take");
        assert_level(&clock(&off(60_000)), Warn, "chrony");
        assert_level(&clock(&off(-60_000)), Warn, "behind");
        assert_level(&clock(&dumb()), Unknown, "+time");
    }

    #[test]
    fn servers_apart() {
        assert_eq!(clocks(&[healthy()], None), None);
        assert_level(&clocks(&[off(0), off(900)], None).unwrap(), Good, "900 ms apart");
        assert_level(&clocks(&[off(0), off(900)], Some(Duration::from_millis(500))).unwrap(), Fail, "ahead of");
        assert_level(&clocks(&[off(-700), off(0), off(700)], None).unwrap(), Fail, "1.4 s");
        assert_level(&clocks(&[off(0), dumb()], None).unwrap(), Unknown, "+time");
    }

    #[test]
    fn answers_that_come_late() {
        let trips = Trips { count: 100, p50: Duration::from_millis(1), p99: Duration::from_millis(50) };
        let node = Node { trips: Ok(trips), ..healthy() };
        assert_level(&round_trip(&node, &aim()), Good, "every 10 s");
        assert_level(&round_trip(&node, &Aim { ttl: Duration::from_millis(100), ..aim() }), Warn, "longer TTL");
        assert_level(&round_trip(&dumb(), &aim()), Unknown, "+ping");
    }

    #[test]
    fn commands_that_block() {
        let slow = |at, millis| Slow { at, took: Duration::from_millis(millis), command: "KEYS".into() };
        let node = |entries| Node { slow: Ok(entries), ..healthy() }.with_info("server_time_usec", "200000000000");
        assert_level(&slow_log(&node(vec![slow(199_999, 250), slow(199_998, 120)]), &aim()), Warn, "KEYS, took 250 ms");
        assert_level(&slow_log(&node(vec![slow(199_999, 20)]), &aim()), Good, "100 ms or longer");
        assert_level(&slow_log(&node(vec![slow(1, 250)]), &aim()), Good, "last day");
        assert_level(
            &slow_log(&node(vec![slow(199_999, 20)]), &Aim { ttl: Duration::from_millis(30), ..aim() }),
            Warn,
            "10 ms",
        );
        let blind = node(vec![]).with_setting("slowlog-log-slower-than", "-1");
        assert_level(&slow_log(&blind, &aim()), Unknown, "slow log is off");
        let blind = node(vec![]).with_setting("slowlog-log-slower-than", "5000000");
        assert_level(&slow_log(&blind, &aim()), Unknown, "5000000");
        assert_level(&slow_log(&dumb(), &aim()), Unknown, "+slowlog|get");
        let hidden = |entries| node(entries).hiding("slowlog-log-slower-than");
        assert_level(&slow_log(&hidden(vec![]), &aim()), Unknown, "may be off");
        assert_level(&slow_log(&hidden(vec![slow(199_999, 20)]), &aim()), Good, "last day");
    }

    #[test]
    fn failovers_that_outlast_a_lease() {
        assert_level(&node_timeout(&healthy(), &aim()), Good, "16 s");
        assert_level(
            &node_timeout(&healthy().with_setting("cluster-node-timeout", "20000"), &aim()),
            Warn,
            "two thirds",
        );
        assert_level(&node_timeout(&healthy().hiding("cluster-node-timeout"), &aim()), Unknown, "+config|get");
    }
}
