//! What a restarted node has lost, and how long its cool-down is.

use std::time::Duration;

use super::super::super::ask::{Known, No};
use super::super::super::facts::{Aim, Node};
use super::super::super::voters::Plan;
use super::super::{fail, ok, short, unknown, warn};
use crate::doctor::{Finding, Level};

const SET: &str = "appendonly yes and appendfsync always; or strict=30s (the longest lease) in the URL, which makes a node \
    abstain for that long after a restart";
const TELL: &str = "let this user run INFO and CONFIG GET: +info +config|get";

/// What a node keeps of its votes across a restart.
pub(super) fn persistence(node: &Node, plan: &Plan) -> Finding {
    let (check, at) = ("persistence", &node.address);
    let append = (node.number("aof_enabled"), node.setting("appendfsync"));
    if let (Ok(1), Ok("always")) = append {
        return ok(check, at, "appendonly yes, appendfsync always").means("a restart forgets no grant");
    }
    if let Some(longest) = plan.strict {
        let longest = short(longest);
        return ok(
            check,
            at,
            format!("not each write is on disk, or it is not known; strict={}", longest.replace(' ', "")),
        )
        .means(format!("after a restart it abstains for {longest}: by then all that it forgot is over"));
    }
    let (found, forgets) = match append {
        (Ok(1), Ok("everysec")) => {
            ("appendonly yes, appendfsync everysec".to_owned(), "whose machine crashes forgets the last second or two")
        }
        (Ok(1), Ok(fsync)) => (
            format!("appendonly yes, appendfsync {fsync}"),
            "whose machine crashes forgets what the system had not written yet",
        ),
        (Ok(1), Err(no)) | (Err(no), _) => {
            return unknown(check, at, &no)
                .means("a node that restarts may forget grants, and vote for others: two may hold one lock")
                .fix(format!("{SET}; {TELL}"));
        }
        (Ok(_), _) => match node.setting("save") {
            Ok("") => {
                ("appendonly no, and no snapshots (save is empty)".to_owned(), "that restarts forgets all grants")
            }
            Ok(save) => (
                format!("appendonly no; snapshots: save {save}"),
                "that restarts forgets all grants since its last snapshot",
            ),
            Err(_) => ("appendonly no".to_owned(), "that restarts forgets grants"),
        },
    };
    let means = "and votes for others: where a lock was held by the barest majority, two hold it then";
    warn(check, at, found).means(format!("a node {forgets}, {means}")).fix(SET)
}

/// The longest lease compared with the TTL of the examination.
pub(super) fn strict(plan: &Plan, aim: &Aim) -> Option<Finding> {
    let (check, longest) = ("strict", plan.strict?);
    let found = format!("strict names {} as the longest lease", short(longest));
    Some(if aim.ttl > longest {
        fail(check, "", found)
            .means(format!("leases of {} are refused: strict mode could not wait for them", short(aim.ttl)))
            .fix(
                "strict= in the URL at least as long as the longest TTL, for all who share the locks; or a shorter TTL",
            )
    } else {
        ok(check, "", found).means(format!("a node that has restarted abstains for {}, and then votes", short(longest)))
    })
}

/// The present state of a node in strict mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Votes,
    /// In its cool-down, for this long.
    Abstains(Duration),
    /// Its cool-down of this length begins with the first request.
    Will(Duration),
}

/// The fields of the record: start, longest lease, last touched, the floor of tokens (16 digits
/// each), run. See `scripts/strict.lua`.
fn state(node: &Node, longest: Duration) -> Known<State> {
    let epoch = match node.master.as_ref().and_then(|master| master.epoch.as_ref()) {
        Some(epoch) => epoch.as_ref().map_err(No::clone)?,
        None => return Err(No::missing("what strict mode has on record")),
    };
    let run = node.info("run_id")?;
    let Some(record) = &epoch.record else { return Ok(State::Will(longest)) };
    let digits = |at: usize| record.get(at..at + 16).and_then(|digits| digits.parse::<u64>().ok());
    let (Some(start), Some(known), Some(seen)) = (digits(0), digits(16), record.get(64..)) else {
        return Err(No::Refused("its record is not what leasehold writes".into()));
    };
    let longest = longest.max(Duration::from_micros(known));
    if seen.split(':').next() != Some(run) {
        return Ok(State::Will(longest));
    }
    // A time in the future counts as now: the clock was set back.
    let end = start.min(epoch.now).saturating_add(u64::try_from(longest.as_micros()).unwrap_or(u64::MAX));
    Ok(match end.checked_sub(epoch.now) {
        None | Some(0) => State::Votes,
        Some(left) => State::Abstains(Duration::from_micros(left)),
    })
}

/// The nodes that are in their cool-down, and for how long.
pub(super) fn abstaining(nodes: &[&Node], plan: &Plan) -> Vec<Finding> {
    let (check, Some(longest)) = ("abstains", plan.strict) else { return Vec::new() };
    let masters: Vec<_> = nodes.iter().filter(|node| node.master.is_some()).collect();
    let states: Vec<_> = masters.iter().map(|node| (node, state(node, longest))).collect();
    let voting = states.iter().filter(|(_, state)| !matches!(state, Ok(State::Abstains(_) | State::Will(_)))).count();
    // If no node was ever used, the cool-down has not begun, and all is in order.
    let new = states.iter().all(|(_, state)| matches!(state, Ok(State::Will(_))));
    let (level, means) = match voting >= plan.quorum.needed {
        true => (Level::Warn, "it does not vote until then; the others are a majority"),
        false if new => (Level::Warn, "the first who come wait for so long, once"),
        false => (Level::Fail, "it does not vote until then, and the others are no majority: no new lock can be taken"),
    };
    let wait = "wait; it passes by itself. A node with appendfsync always needs no strict mode";
    let mut findings = Vec::new();
    for (node, state) in &states {
        let at = &node.address;
        let found = match state {
            Ok(State::Votes) => continue,
            Ok(State::Abstains(left)) => {
                let left = Duration::from_secs(left.as_secs() + u64::from(left.subsec_nanos() > 0));
                format!("it is new or has restarted, and abstains for another {}", short(left))
            }
            Ok(State::Will(wait)) => {
                format!("not used since it started: from its first use on, it abstains for {}", short(*wait))
            }
            Err(no) => {
                let finding =
                    unknown(check, at, no).means("a node that has restarted does not vote for the longest lease");
                findings.push(finding.fix("let this user run GET on our keys, and INFO: +get +info"));
                continue;
            }
        };
        findings.push(Finding::new(level, check, at, found).means(means).fix(wait));
    }
    if findings.is_empty() && !states.is_empty() {
        findings.push(ok(check, "", "no node abstains").means("none has restarted within the longest lease"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::super::super::facts::{Epoch, MasterFacts};
    use super::super::super::sample::{assert_level, mute};
    use super::super::sample::{aim, node, plan};
    use super::*;
    use crate::doctor::Level::{Fail, Ok as Good, Unknown, Warn};

    const NOW: u64 = 1_700_000_000_000_000;

    fn careful() -> Plan {
        Plan { strict: Some(Duration::from_secs(30)), ..plan(5) }
    }

    /// A node that was first used this many seconds ago, in this server run.
    fn asked(number: usize, ago: u64, run: &str) -> Node {
        let record = format!("{:016}{:016}{:016}{:016}{run}", NOW - ago * 1_000_000, 30_000_000, NOW, NOW);
        with(number, Ok(Epoch { now: NOW, record: Some(record) }))
    }

    fn with(number: usize, epoch: Known<Epoch>) -> Node {
        let node = node(number);
        let master = node.master.clone().map(|master| MasterFacts { epoch: Some(epoch), ..master });
        Node { master, ..node }
    }

    fn said(states: &[Node]) -> Vec<Finding> {
        abstaining(&states.iter().collect::<Vec<_>>(), &careful())
    }

    #[test]
    fn only_each_write_on_disk_forgets_no_vote() {
        assert_level(&persistence(&node(1), &plan(5)), Good, "forgets no grant");
        let everysec = node(1).with_setting("appendfsync", "everysec");
        assert_level(&persistence(&everysec, &plan(5)), Warn, "last second");
        assert_level(&persistence(&everysec, &careful()), Good, "abstains for 30 s");
        assert_level(&persistence(&node(1).with_setting("appendfsync", "no"), &plan(5)), Warn, "not written yet");
        let off = node(1).with_info("aof_enabled", "0");
        assert_level(&persistence(&off, &plan(5)), Warn, "since its last snapshot");
        assert_level(&persistence(&off.clone().with_setting("save", ""), &plan(5)), Warn, "forgets all grants, and");
        assert_level(&persistence(&off.hiding("save"), &plan(5)), Warn, "appendonly no");
        assert_level(&persistence(&node(1).hiding("appendfsync"), &plan(5)), Unknown, "+config|get");
        assert_level(&persistence(&mute(), &plan(5)), Unknown, "strict=");
        assert_level(&persistence(&mute(), &careful()), Good, "or it is not known");
    }

    #[test]
    fn the_longest_lease_must_be_long_enough() {
        assert_eq!(strict(&plan(5), &aim()), None);
        assert_level(&strict(&careful(), &aim()).unwrap(), Good, "30 s");
        let longer = Aim { ttl: Duration::from_secs(31), ..aim() };
        assert_level(&strict(&careful(), &longer).unwrap(), Fail, "refused");
    }

    #[test]
    fn who_abstains_is_named() {
        let well = |number| asked(number, 31, &format!("run{number}"));
        assert!(abstaining(&[&well(1)], &plan(5)).is_empty());
        assert_level(&said(&[1, 2, 3, 4, 5].map(well))[0], Good, "no node abstains");
        let one = said(&[well(1), well(2), well(3), well(4), asked(5, 10, "run5:7")]);
        assert_eq!(one.len(), 1);
        assert_level(&one[0], Warn, "another 20 s");
        let three = said(&[well(1), well(2), asked(3, 10, "run3"), asked(4, 10, "run4"), asked(5, 90, "before")]);
        assert_eq!(three.len(), 3);
        assert_level(&three[0], Fail, "no new lock");
        assert_level(&three[2], Fail, "not used since it started");
        let new = with(1, Ok(Epoch { now: NOW, record: None }));
        assert_level(&said(&[new])[0], Warn, "from its first use on");
    }

    #[test]
    fn what_is_not_told_is_not_known() {
        let refused = Err(No::Refused("NOPERM".into()));
        assert_level(&said(&[with(1, refused)])[0], Unknown, "+get");
        let damaged = Epoch { now: NOW, record: Some("what".into()) };
        assert_level(&said(&[with(1, Ok(damaged))])[0], Unknown, "not what leasehold writes");
        assert_level(&said(&[mute()])[0], Unknown, "+info");
    }
}
