//! Judges which votes a node loses when it restarts, and whether nodes are in their cool-down.

use std::time::Duration;

use super::super::super::facts::{NodeFacts, Requirements};
use super::super::super::query::{Fact, QueryError};
use super::super::super::redlock::RedlockSettings;
use super::super::{fail, format_short, ok, unknown, warn};
use crate::{Finding, Level};

const DURABILITY_FIX: &str = "appendonly yes and appendfsync always; or strict=30s (the longest lease) in the URL, which makes a node \
    cool down for that long after a restart";
const PERMISSION_FIX: &str = "let this user run INFO and CONFIG GET: +info +config|get";

/// Judges which votes a node keeps across a restart.
pub(super) fn judge_persistence(node: &NodeFacts, settings: &RedlockSettings) -> Finding {
    let (check, address) = ("persistence", &node.address);
    let append = (node.info_number("aof_enabled"), node.setting("appendfsync"));
    if let (Ok(1), Ok("always")) = append {
        return ok(check, address, "appendonly yes, appendfsync always").impact("a restart loses no grant");
    }
    if let Some(longest) = settings.strict {
        let longest = format_short(longest);
        return ok(
            check,
            address,
            format!("not each write is on disk, or it is not known; strict={}", longest.replace(' ', "")),
        )
        .impact(format!("after a restart it cools down for {longest}: by then all lost leases have expired"));
    }
    let (found, loss) = match append {
        (Ok(1), Ok("everysec")) => {
            ("appendonly yes, appendfsync everysec".to_owned(), "whose machine crashes loses the last second or two")
        }
        (Ok(1), Ok(fsync)) => {
            (format!("appendonly yes, appendfsync {fsync}"), "whose machine crashes loses all data not written yet")
        }
        (Ok(1), Err(error)) | (Err(error), _) => {
            return unknown(check, address, &error)
                .impact("a node that restarts may lose grants, and vote for others: two clients may hold one lock")
                .fix(format!("{DURABILITY_FIX}; {PERMISSION_FIX}"));
        }
        (Ok(_), _) => match node.setting("save") {
            Ok("") => ("appendonly no, and no snapshots (save is empty)".to_owned(), "that restarts loses all grants"),
            Ok(save) => (
                format!("appendonly no; snapshots: save {save}"),
                "that restarts loses all grants since its last snapshot",
            ),
            Err(_) => ("appendonly no".to_owned(), "that restarts loses grants"),
        },
    };
    let means = "and votes for others: where a lock was held by the barest majority, two hold it then";
    warn(check, address, found).impact(format!("a node {loss}, {means}")).fix(DURABILITY_FIX)
}

/// Judges whether the longest lease of strict mode is at least the locks' TTL; `None` without
/// strict mode.
pub(super) fn judge_longest_lease(settings: &RedlockSettings, requirements: &Requirements) -> Option<Finding> {
    let (check, longest) = ("strict", settings.strict?);
    let found = format!("strict names {} as the longest lease", format_short(longest));
    Some(if requirements.ttl > longest {
        fail(check, "", found)
            .impact(format!(
                "locks with a TTL of {} are refused: the cool-down of strict mode is shorter than they are",
                format_short(requirements.ttl)
            ))
            .fix("strict= in the URL of all clients at least as long as the longest TTL; or a shorter TTL")
    } else {
        ok(check, "", found)
            .impact(format!("a restarted node cools down for {}, and then votes", format_short(longest)))
    })
}

/// The present state of a node in strict mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VoteState {
    Voting,
    /// The node does not vote for this long.
    CoolingDown(Duration),
    /// The node was not used since its start; its cool-down of this length begins with the first
    /// request.
    CoolDownPending(Duration),
}

/// Whether a node votes, according to its record of strict mode; `longest` is the longest lease in
/// the URL. The record has five fields: start, longest lease, last use and lowest token, of 16
/// digits each, and the server's run id (see `scripts/strict.lua`).
fn read_vote_state(node: &NodeFacts, longest: Duration) -> Fact<VoteState> {
    let epoch = match node.master.as_ref().and_then(|master| master.epoch.as_ref()) {
        Some(epoch) => epoch.as_ref().map_err(QueryError::clone)?,
        None => return Err(QueryError::missing("the record of strict mode")),
    };
    let run = node.info("run_id")?;
    let Some(stored) = &epoch.stored else { return Ok(VoteState::CoolDownPending(longest)) };
    let longest = longest.max(Duration::from_micros(stored.longest));
    if stored.run.0.split(|byte| *byte == b':').next() != Some(run.as_bytes()) {
        return Ok(VoteState::CoolDownPending(longest));
    }
    // A time in the future counts as now: the clock was set back.
    let end = stored.start.min(epoch.now).saturating_add(u64::try_from(longest.as_micros()).unwrap_or(u64::MAX));
    Ok(match end.checked_sub(epoch.now) {
        None | Some(0) => VoteState::Voting,
        Some(left) => VoteState::CoolingDown(Duration::from_micros(left)),
    })
}

/// One finding for each node that is in its cool-down or about to begin it; empty without strict
/// mode.
pub(super) fn judge_cool_downs(nodes: &[&NodeFacts], settings: &RedlockSettings) -> Vec<Finding> {
    let (check, Some(longest)) = ("cool-down", settings.strict) else { return Vec::new() };
    let masters: Vec<_> = nodes.iter().filter(|node| node.master.is_some()).collect();
    let states: Vec<_> = masters.iter().map(|node| (node, read_vote_state(node, longest))).collect();
    let voting = states
        .iter()
        .filter(|(_, state)| !matches!(state, Ok(VoteState::CoolingDown(_) | VoteState::CoolDownPending(_))))
        .count();
    // If no node was ever used, the cool-down has not begun, which is normal.
    let new = states.iter().all(|(_, state)| matches!(state, Ok(VoteState::CoolDownPending(_))));
    let (level, means) = match voting >= settings.quorum.majority {
        true => (Level::Warn, "it does not vote until then; the others are a majority"),
        false if new => (Level::Warn, "the first clients wait for this time, once"),
        false => {
            (Level::Fail, "it does not vote until then, and the others are no majority: no new lock can be acquired")
        }
    };
    let wait = "wait until the cool-down ends. A node with appendfsync always needs no strict mode";
    let mut findings = Vec::new();
    for (node, state) in &states {
        let address = &node.address;
        let found = match state {
            Ok(VoteState::Voting) => continue,
            Ok(VoteState::CoolingDown(left)) => {
                let left = Duration::from_secs(left.as_secs() + u64::from(left.subsec_nanos() > 0));
                format!("it is new or has restarted, and cools down for another {}", format_short(left))
            }
            Ok(VoteState::CoolDownPending(wait)) => {
                format!("not used since it started: from its first use on, it cools down for {}", format_short(*wait))
            }
            Err(error) => {
                let finding = unknown(check, address, error)
                    .impact("a node that has restarted does not vote for the longest lease");
                findings.push(finding.fix("let this user run GET on leasehold's keys, and INFO: +get +info"));
                continue;
            }
        };
        findings.push(Finding::new(level, check, address, found).impact(means).fix(wait));
    }
    if findings.is_empty() && !states.is_empty() {
        findings
            .push(ok(check, "", "no node is in a cool-down").impact("no node has restarted within the longest lease"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use leasehold::Token;
    use leasehold_internals::redis::{Epoch as StoredEpoch, Rest};

    use super::super::super::super::facts::{Epoch, MasterFacts};
    use super::super::super::fixtures::{assert_level, refusing_node};
    use super::super::fixtures::{node, requirements, settings};
    use super::*;
    use crate::Level::{Fail, Ok as Good, Unknown, Warn};

    const NOW: u64 = 1_700_000_000_000_000;

    fn strict_settings() -> RedlockSettings {
        RedlockSettings { strict: Some(Duration::from_secs(30)), ..settings(5) }
    }

    /// A node that was first used this many seconds ago, in this server run.
    fn node_first_used(number: usize, secs_ago: u64, run: &str) -> NodeFacts {
        let stored = StoredEpoch {
            start: NOW - secs_ago * 1_000_000,
            longest: 30_000_000,
            refreshed: NOW,
            min_token: Token(NOW),
            run: Rest(run.into()),
        };
        node_with_epoch(number, Ok(Epoch { now: NOW, stored: Some(stored) }))
    }

    fn node_with_epoch(number: usize, epoch: Fact<Epoch>) -> NodeFacts {
        let node = node(number);
        let master = node.master.clone().map(|master| MasterFacts { epoch: Some(epoch), ..master });
        NodeFacts { master, ..node }
    }

    fn findings(states: &[NodeFacts]) -> Vec<Finding> {
        judge_cool_downs(&states.iter().collect::<Vec<_>>(), &strict_settings())
    }

    #[test]
    fn only_fsync_on_every_write_loses_no_vote() {
        assert_level(&judge_persistence(&node(1), &settings(5)), Good, "loses no grant");
        let everysec = node(1).with_setting("appendfsync", "everysec");
        assert_level(&judge_persistence(&everysec, &settings(5)), Warn, "last second");
        assert_level(&judge_persistence(&everysec, &strict_settings()), Good, "cools down for 30 s");
        assert_level(
            &judge_persistence(&node(1).with_setting("appendfsync", "no"), &settings(5)),
            Warn,
            "not written yet",
        );
        let off = node(1).with_info("aof_enabled", "0");
        assert_level(&judge_persistence(&off, &settings(5)), Warn, "since its last snapshot");
        assert_level(
            &judge_persistence(&off.clone().with_setting("save", ""), &settings(5)),
            Warn,
            "loses all grants, and",
        );
        assert_level(&judge_persistence(&off.without_setting("save"), &settings(5)), Warn, "appendonly no");
        assert_level(&judge_persistence(&node(1).without_setting("appendfsync"), &settings(5)), Unknown, "+config|get");
        assert_level(&judge_persistence(&refusing_node(), &settings(5)), Unknown, "strict=");
        assert_level(&judge_persistence(&refusing_node(), &strict_settings()), Good, "or it is not known");
    }

    #[test]
    fn the_longest_lease_must_be_long_enough() {
        assert_eq!(judge_longest_lease(&settings(5), &requirements()), None);
        assert_level(&judge_longest_lease(&strict_settings(), &requirements()).unwrap(), Good, "30 s");
        let longer = Requirements { ttl: Duration::from_secs(31), ..requirements() };
        assert_level(&judge_longest_lease(&strict_settings(), &longer).unwrap(), Fail, "refused");
    }

    #[test]
    fn each_node_in_its_cool_down_is_named() {
        let well = |number| node_first_used(number, 31, &format!("run{number}"));
        assert!(judge_cool_downs(&[&well(1)], &settings(5)).is_empty());
        assert_level(&findings(&[1, 2, 3, 4, 5].map(well))[0], Good, "no node is in a cool-down");
        let one = findings(&[well(1), well(2), well(3), well(4), node_first_used(5, 10, "run5:7")]);
        assert_eq!(one.len(), 1);
        assert_level(&one[0], Warn, "another 20 s");
        let three = findings(&[
            well(1),
            well(2),
            node_first_used(3, 10, "run3"),
            node_first_used(4, 10, "run4"),
            node_first_used(5, 90, "before"),
        ]);
        assert_eq!(three.len(), 3);
        assert_level(&three[0], Fail, "no new lock");
        assert_level(&three[2], Fail, "not used since it started");
        let new = node_with_epoch(1, Ok(Epoch { now: NOW, stored: None }));
        assert_level(&findings(&[new])[0], Warn, "from its first use on");
    }

    #[test]
    fn an_unreadable_epoch_is_unknown() {
        let refused = Err(QueryError::Refused("NOPERM".into()));
        assert_level(&findings(&[node_with_epoch(1, refused)])[0], Unknown, "+get");
        let damaged = Err(QueryError::Refused("its record is not what leasehold writes".into()));
        assert_level(&findings(&[node_with_epoch(1, damaged)])[0], Unknown, "not what leasehold writes");
        assert_level(&findings(&[refusing_node()])[0], Unknown, "+info");
    }
}
