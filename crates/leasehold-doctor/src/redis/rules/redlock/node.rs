//! Judges one node of Redlock: by the rules for any server, and by those about its vote.

use super::super::super::facts::{NodeFacts, Requirements};
use super::super::super::redlock::{RedlockSettings, Voter};
use super::super::{access, durability, fail, keys, memory, ok, timing, unknown, warn};
use super::restart;
use crate::{Finding, Level};
use leasehold::{Error, ErrorKind};

/// All findings about one node that responds.
pub(super) fn judge_node(
    node: &NodeFacts,
    voters: &[Voter],
    settings: &RedlockSettings,
    requirements: &Requirements,
) -> Vec<Finding> {
    let mut findings = vec![judge_reachable(node, settings, super::able_voter_count(voters)), judge_role(node, voters)];
    findings.extend(judge_cluster_mode(node));
    findings.extend([access::judge_scripts(node, requirements), access::judge_script_time(node, requirements)]);
    if let Some(master) = &node.master {
        findings.push(access::judge_lock_keys(node, master, requirements));
        findings.extend(access::judge_run_id(node, requirements));
    }
    findings.extend([
        memory::judge_eviction_policy(node),
        memory::judge_evicted_keys(node),
        memory::judge_free_memory(node),
    ]);
    if let Some(master) = &node.master {
        findings.extend([
            restart::judge_persistence(node, settings),
            durability::judge_restart(node, requirements),
            judge_replicas(node),
        ]);
        findings.extend(master.keys.iter().flat_map(|keys| keys::judge_keys(node, keys, requirements)));
        findings.push(timing::judge_slow_log(node, requirements));
    }
    findings
}

/// The finding for a node that is unreachable, or that refuses the login; `able_count` nodes can
/// vote.
pub(super) fn judge_unreachable(
    voter: &Voter,
    error: &Error,
    settings: &RedlockSettings,
    able_count: usize,
) -> Finding {
    let (check, level, fix) = match error.kind() {
        ErrorKind::Denied => (
            "login",
            Level::Fail,
            "correct its user and password in the URL: redlock://user:password@h1,…; each may have its own",
        ),
        ErrorKind::Unsupported => {
            ("resp3", Level::Fail, "run Redis 6.0 or newer, and connect to it without a proxy in between")
        }
        _ => (
            "reachable",
            if able_count < settings.quorum.majority { Level::Fail } else { Level::Warn },
            "start it, or correct its address in the URL; look at firewalls and its `bind` setting",
        ),
    };
    let means = effect_of_absence(settings, able_count);
    let (address, message) = (voter.address.to_string(), error.message_without_location());
    // Servers that are unreachable for the same reason get the same text.
    let found = message.strip_prefix(&address).map_or_else(|| message.clone(), |rest| format!("it{rest}"));
    Finding::new(level, check, &address, found).impact(means).fix(fix)
}

/// The effect of one node that does not vote, while `able_count` nodes can.
fn effect_of_absence(settings: &RedlockSettings, able_count: usize) -> &'static str {
    match able_count.checked_sub(settings.quorum.majority) {
        None => "it does not vote, and the others are no majority: no lock can be acquired or renewed",
        Some(0) => "it does not vote; none of the others may fail",
        Some(_) => "it does not vote; those that do are a majority still",
    }
}

/// Judges whether the node still responds: one that does not is no better than an unreachable one.
/// `able_count` nodes can vote.
fn judge_reachable(node: &NodeFacts, settings: &RedlockSettings, able_count: usize) -> Finding {
    let finding = access::judge_reachable(node);
    if finding.level == Level::Ok {
        return finding;
    }
    let level = if able_count < settings.quorum.majority { Level::Fail } else { Level::Warn };
    Finding { level, ..finding }.impact(effect_of_absence(settings, able_count))
}

/// Fails if the node is a replica: its vote would only repeat that of its master.
fn judge_role(node: &NodeFacts, voters: &[Voter]) -> Finding {
    let (check, address) = ("role", &node.address);
    match &node.is_master {
        Ok(true) => ok(check, address, "it is a master").impact("it accepts claims, and its vote is independent"),
        Ok(false) => {
            let found = match (node.info("master_host"), node.info_number("master_port")) {
                (Ok(host), Ok(port)) => {
                    let also = voters.iter().find(|one| has_address(one, host, port));
                    let also = also.map(|one| format!("{}, which votes here, too", one.address));
                    format!("it is a replica of {}", also.unwrap_or_else(|| format!("{host}:{port}")))
                }
                _ => "it is a replica".to_owned(),
            };
            fail(check, address, found)
                .impact(
                    "it accepts no claims, so it does not vote; promoted, it would lack the latest grants: a replica has no independent vote",
                )
                .fix("replace it by a separate server, or REPLICAOF NO ONE; nodes of redlock: are not replicas of each other")
        }
        Err(error) => unknown(check, address, error)
            .impact("a replica would not vote")
            .fix("let this user run INFO and ROLE: +info +role"),
    }
}

/// Whether a node has this host, a name or an IP address, and this port.
fn has_address(voter: &Voter, host: &str, port: u64) -> bool {
    let place = host.parse().ok();
    u64::from(voter.address.port) == port
        && (voter.address.host.eq_ignore_ascii_case(host) || place.is_some_and(|place| voter.ips.contains(&place)))
}

/// Fails if the node belongs to a cluster.
fn judge_cluster_mode(node: &NodeFacts) -> Option<Finding> {
    (node.info_number("cluster_enabled") == Ok(1)).then(|| {
        fail("cluster-mode", &node.address, "it is a node of a cluster")
            .impact(
                "it redirects clients for most locks (MOVED), and its fail-over loses grants: it has no independent vote",
            )
            .fix("replace it by a separate server (cluster-enabled no); or use the whole cluster: redis+cluster://h1,h2")
    })
}

/// Warns if the node has replicas: one that is promoted lacks the node's latest votes.
fn judge_replicas(node: &NodeFacts) -> Finding {
    let (check, address) = ("replicas", &node.address);
    let means =
        "a promoted replica lacks the latest grants, and grants those locks again: two clients may hold one lock";
    let fix = "no replicas and no Sentinels for the nodes of redlock: when one dies, the majority continues";
    match node.connected_replicas() {
        Ok(none) if none.is_empty() => {
            ok(check, address, "it has no replica").impact("no replica with older data can replace it")
        }
        Ok(some) => {
            let names: Vec<_> = some.iter().map(|one| one.address.as_str()).collect();
            let noun = if some.len() == 1 { "a replica" } else { "replicas" };
            warn(check, address, format!("it has {noun}: {}", names.join(", "))).impact(means).fix(fix)
        }
        Err(error) => {
            unknown(check, address, &error).impact(means).fix(format!("{fix}; let this user run INFO: +info"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::super::query::QueryError;
    use super::super::super::fixtures::assert_level;
    use super::super::fixtures::{five_voters, node as sample, requirements, settings, voter};
    use super::*;
    use crate::Level::{Fail, Ok as Good, Unknown, Warn};

    #[test]
    fn an_unreachable_node_fails_only_without_a_majority() {
        let finding = |kind, able| judge_unreachable(&voter(sample(1)), &Error::new(kind, "no"), &settings(5), able);
        assert_level(&finding(ErrorKind::Unavailable, 4), Warn, "a majority still");
        assert_level(&finding(ErrorKind::Unavailable, 3), Warn, "may fail");
        assert_level(&finding(ErrorKind::Unavailable, 2), Fail, "no lock can be acquired");
        assert_level(&finding(ErrorKind::Denied, 4), Fail, "redlock://user:password@");
        assert_level(&finding(ErrorKind::Unsupported, 4), Fail, "6.0");
        assert_eq!(finding(ErrorKind::Denied, 4).subject, "h1:6379");
        let silent = NodeFacts { scripts: Err(QueryError::NoResponse("no answer within 5s".into())), ..sample(1) };
        assert_level(&judge_reachable(&silent, &settings(5), 4), Warn, "stopped responding");
        assert_level(&judge_reachable(&silent, &settings(5), 2), Fail, "no lock can be acquired");
        assert_level(&judge_reachable(&sample(1), &settings(5), 2), Good, "accepts the login");
    }

    #[test]
    fn a_replica_is_no_independent_vote() {
        let of = |host: &str, port: &str| {
            let node = sample(2).with_info("master_host", host).with_info("master_port", port);
            judge_role(&NodeFacts { is_master: Ok(false), ..node }, &five_voters())
        };
        assert_level(&of("h1", "6379"), Fail, "h1:6379, which votes here, too");
        assert_level(&of("10.0.0.1", "6379"), Fail, "h1:6379, which votes here, too");
        assert_level(&of("h1", "7"), Fail, "replica of h1:7");
        assert_level(&judge_role(&sample(1), &five_voters()), Good, "independent");
        assert_level(
            &judge_role(&NodeFacts { is_master: Err(QueryError::missing("it")), ..sample(1) }, &five_voters()),
            Unknown,
            "+role",
        );
        let followed = sample(1).with_replica("ip=10.0.0.9,port=6380,state=online,offset=14,lag=1");
        assert_level(&judge_replicas(&followed), Warn, "10.0.0.9:6380");
        assert_level(&judge_replicas(&sample(1)), Good, "no replica");
    }

    #[test]
    fn a_cluster_node_is_no_independent_vote() {
        let findings =
            judge_node(&sample(1).with_info("cluster_enabled", "1"), &five_voters(), &settings(5), &requirements());
        let finding = findings.iter().find(|finding| finding.check == "cluster-mode").unwrap();
        assert_level(finding, Fail, "redis+cluster:");
    }
}
