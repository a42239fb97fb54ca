//! Judges the nodes of Redlock: their number, their independence, and the data that each may lose.

#[cfg(test)]
mod fixtures;
mod independence;
mod node;
mod restart;
mod time;

use super::super::facts::{NodeFacts, Requirements};
use super::super::redlock::{RedlockSettings, Voter};
use super::{fail, ok, warn};
use crate::{Finding, Level};

/// All findings about the nodes of Redlock.
pub(crate) fn judge_voters(voters: &[Voter], settings: &RedlockSettings, requirements: &Requirements) -> Vec<Finding> {
    let nodes: Vec<&NodeFacts> = voters.iter().filter_map(|voter| voter.facts.as_ref().ok()).collect();
    let mut findings = judge_node_count(settings);
    findings.push(judge_majority(voters, settings));
    for voter in voters {
        match &voter.facts {
            Ok(node) => findings.extend(node::judge_node(node, voters, settings, requirements)),
            Err(error) => findings.push(node::judge_unreachable(voter, error, settings, able_voter_count(voters))),
        }
    }
    findings = keep_greatest(findings, "memory", "the fullest", |finding| info_number(&nodes, finding, "used_memory"));
    findings = keep_greatest(findings, "restart", "the last to start", |finding| {
        u64::MAX - info_number(&nodes, finding, "uptime_in_seconds")
    });
    findings = keep_greatest(findings, "key-types", "the most", |finding| {
        let node = nodes.iter().find(|node| node.address == finding.subject);
        let keys = node.and_then(|node| node.master.as_ref()?.keys.as_ref()?.as_ref().ok());
        keys.map_or(0, |keys| keys.examined as u64)
    });
    findings.extend(independence::judge_same_server(&nodes));
    findings.extend(independence::judge_same_host(voters));
    findings.extend(independence::judge_versions(&nodes));
    findings.extend(time::judge_clocks(&nodes, settings, requirements));
    findings.extend(time::judge_local_clock(&nodes));
    findings.extend(time::judge_node_timeout(&nodes, settings, requirements));
    findings.extend(restart::judge_longest_lease(settings, requirements));
    findings.extend(restart::judge_cool_downs(&nodes, settings));
    findings
}

/// A number from `INFO` of the server that a finding is about; 0 if it is not known.
fn info_number(nodes: &[&NodeFacts], finding: &Finding, key: &str) -> u64 {
    nodes.iter().find(|node| node.address == finding.subject).and_then(|node| node.info_number(key).ok()).unwrap_or(0)
}

/// Keeps only one of the findings of `check`, the one with the greatest `size`, and marks it with
/// `label`. Keeps all of them if one is not ok, or if all have the same text.
fn keep_greatest(findings: Vec<Finding>, check: &str, label: &str, size: impl Fn(&Finding) -> u64) -> Vec<Finding> {
    let of: Vec<_> = findings.iter().filter(|finding| finding.check == check).collect();
    let alike = of.windows(2).all(|two| two[0].found == two[1].found);
    if alike || of.iter().any(|finding| finding.level != Level::Ok) {
        return findings;
    }
    let Some(greatest) = of.iter().max_by_key(|finding| size(finding)) else { return findings };
    let mut one = (*greatest).clone();
    one.found = format!("{label} of {}: {}", of.len(), one.found);
    let mut one = Some(one);
    findings.into_iter().filter_map(|finding| if finding.check == check { one.take() } else { Some(finding) }).collect()
}

/// Judges the number of nodes in the URL.
fn judge_node_count(settings: &RedlockSettings) -> Vec<Finding> {
    let (check, all, needed) = ("nodes", settings.quorum.node_count, settings.quorum.majority);
    let mut findings = Vec::new();
    if all.is_multiple_of(2) {
        let found = format!("{all} nodes, an even number; {needed} of them are a majority");
        let survived = format_failures(settings.quorum.tolerated_failures());
        let means =
            format!("{survived} survived, as with {}; and a partition into two halves stops all locks", all - 1);
        let fix = format!("{} or {} nodes", all - 1, all + 1);
        findings.push(match settings.is_even_allowed {
            true => warn(check, "", found).impact(means).fix(fix),
            false => fail(check, "", found)
                .impact(format!("{means}; the engine refuses this URL"))
                .fix(format!("{fix}; or, if an even number is intended, even=allowed in the URL")),
        });
    }
    if all < 3 {
        let found = if all == 1 { "only 1 node".to_owned() } else { format!("only {all} nodes") };
        let finding =
            warn(check, "", found).impact("no failure is survived: without one of them no lock can be acquired");
        findings.push(
            finding.fix("three or five nodes, each on its own machine; for one server, redis: has more features"),
        );
    }
    if findings.is_empty() {
        let survived = format_failures(settings.quorum.tolerated_failures());
        let found = format!("{all} nodes, of which {needed} are a majority: {survived} survived");
        findings.push(ok(check, "", found).impact("any majority can acquire, renew and release locks"));
    }
    findings
}

/// `2 failures are`, to be followed by `survived`.
fn format_failures(count: usize) -> String {
    match count {
        0 => "no failure is".into(),
        1 => "1 failure is".into(),
        count => format!("{count} failures are"),
    }
}

/// How many nodes can accept claims now; a server with two addresses counts once.
fn able_voter_count(voters: &[Voter]) -> usize {
    let mut runs: Vec<&str> = Vec::new();
    let mut count = 0;
    for node in voters.iter().filter_map(|voter| voter.facts.as_ref().ok()) {
        let able = node.scripts.is_ok() && node.master.as_ref().is_some_and(|master| master.lock_keys.is_ok());
        let run = node.info("run_id").ok();
        let again = run.is_some_and(|run| runs.contains(&run));
        runs.extend(run);
        count += usize::from(able && !again);
    }
    count
}

/// Judges whether a majority of the nodes can accept claims now.
fn judge_majority(voters: &[Voter], settings: &RedlockSettings) -> Finding {
    let (check, quorum, able) = ("majority", settings.quorum, able_voter_count(voters));
    let found = format!("{able} of {} can vote; {} are needed", quorum.node_count, quorum.majority);
    let fix = "repair the others: each has its own finding with a fix";
    if able < quorum.majority {
        return fail(check, "", found).impact("there is no majority: no lock can be acquired or renewed").fix(fix);
    }
    let spare = able - quorum.majority;
    let more = match spare {
        0 => "none of them may fail now".to_owned(),
        1 => "1 of them may fail, and locks go on".to_owned(),
        spare => format!("{spare} of them may fail, and locks go on"),
    };
    if able == quorum.node_count {
        ok(check, "", found).impact(more)
    } else {
        warn(check, "", found).impact(more).fix(fix)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::assert_level;
    use super::fixtures::{five_voters, node, requirements, settings, voter};
    use super::*;
    use crate::Level::{Fail, Ok as Good, Warn};
    use leasehold::{Error, ErrorKind};

    fn unreachable_voter(number: usize) -> Voter {
        Voter { facts: Err(Error::new(ErrorKind::Unavailable, "refused")), ..voter(node(number)) }
    }

    #[test]
    fn five_healthy_nodes_need_no_fix() {
        let findings = judge_voters(&five_voters(), &settings(5), &requirements());
        for finding in &findings {
            assert_eq!((finding.level, finding.fix.as_str()), (Good, ""), "{finding:?}");
            assert!(!finding.found.is_empty() && !finding.impact.is_empty(), "{finding:?}");
        }
        assert!(findings.len() > 12);
    }

    #[test]
    fn servers_that_refuse_every_query_get_no_ok() {
        let mute = |number| {
            let address = node(number).address;
            voter(NodeFacts { address, ..super::super::fixtures::refusing_node() })
        };
        for strict in [None, Some(requirements().ttl)] {
            let settings = RedlockSettings { strict, ..settings(3) };
            let requirements = Requirements { strict: strict.is_some(), ..requirements() };
            let findings = judge_voters(&[mute(1), mute(2), mute(3)], &settings, &requirements);
            // Known without their replies; in strict mode, durability does not matter.
            let known = ["reachable", "nodes", "same-host", "strict"];
            let known = |check| known.contains(&check) || strict.is_some() && check == "persistence";
            for finding in findings.iter().filter(|finding| !known(finding.check)) {
                assert_ne!(finding.level, Good, "{finding:?}");
                assert!(!finding.impact.is_empty() && !finding.fix.is_empty(), "{finding:?}");
            }
        }
    }

    #[test]
    fn even_and_too_small_numbers_of_nodes_are_reported() {
        assert_level(&judge_node_count(&settings(5))[0], Good, "2 failures are survived");
        assert_level(&judge_node_count(&settings(3))[0], Good, "2 are a majority: 1 failure is survived");
        assert_level(&judge_node_count(&settings(4))[0], Fail, "even=allowed");
        assert_level(&judge_node_count(&settings(4))[0], Fail, "1 failure is survived, as with 3");
        let allowed = |nodes| RedlockSettings { is_even_allowed: true, ..settings(nodes) };
        assert_level(&judge_node_count(&allowed(4))[0], Warn, "3 or 5 nodes");
        let two = judge_node_count(&allowed(2));
        assert_level(&two[0], Warn, "even");
        assert_level(&two[1], Warn, "only 2 nodes");
        assert_level(&judge_node_count(&settings(1))[0], Warn, "redis: has more features");
    }

    #[test]
    fn a_majority_is_counted_by_servers_that_can_vote() {
        assert_level(&judge_majority(&five_voters(), &settings(5)), Good, "2 of them may fail");
        let mut voters = five_voters();
        voters[0] = unreachable_voter(1);
        assert_level(&judge_majority(&voters, &settings(5)), Warn, "1 of them may fail");
        voters[1] = unreachable_voter(2);
        assert_level(&judge_majority(&voters, &settings(5)), Warn, "none of them may fail");
        let findings = judge_voters(&voters, &settings(5), &requirements());
        let reachable: Vec<_> = findings.iter().filter(|one| one.check == "reachable" && one.level == Warn).collect();
        assert_eq!(reachable.len(), 2);
        // A server with two addresses votes once.
        voters[2] = voter(node(4));
        assert_level(&judge_majority(&voters, &settings(5)), Fail, "2 of 5 can vote");
        let findings = judge_voters(&voters, &settings(5), &requirements());
        assert!(findings.iter().any(|one| one.check == "reachable" && one.level == Fail), "{findings:?}");
    }

    #[test]
    fn figures_of_healthy_nodes_are_one_finding() {
        let mut voters = five_voters();
        voters[3] = voter(node(4).with_info("used_memory", "50000000"));
        let findings = judge_voters(&voters, &settings(5), &requirements());
        let memory: Vec<_> = findings.iter().filter(|one| one.check == "memory").collect();
        assert_eq!((memory.len(), memory[0].subject.as_str()), (1, "h4:6379"));
        assert_level(memory[0], Good, "the fullest of 5: 47.7 MiB");
        voters[3] = voter(node(4).with_info("used_memory", "90000000"));
        let findings = judge_voters(&voters, &settings(5), &requirements());
        assert_eq!(findings.iter().filter(|one| one.check == "memory").count(), 5);
    }
}
