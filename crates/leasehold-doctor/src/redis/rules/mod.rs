//! The rules: they make findings from facts, and send no queries. A fact that is not known becomes
//! an unknown finding, never one that is ok.

pub(super) mod access;
pub(super) mod cluster;
mod durability;
#[cfg(test)]
mod fixtures;
mod keys;
mod memory;
pub(super) mod redlock;
mod replicas;
pub(super) mod sentinel;
mod timing;

use std::time::Duration;

use super::facts::{Deployment, NodeFacts, Requirements};
use super::query::QueryError;
use crate::{Finding, Level, fail, format_short, ok, warn};

/// The expected role of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedRole {
    /// A master, which stores the locks.
    Master,
    /// A replica, which may become a master.
    Replica,
    /// Either of the two: the role is not known.
    Any,
}

/// All findings about one server.
pub(super) fn judge_node(node: &NodeFacts, expected: ExpectedRole, requirements: &Requirements) -> Vec<Finding> {
    let mut findings = vec![access::judge_reachable(node)];
    findings.extend(access::judge_role(node, expected, requirements));
    findings.extend(access::judge_cluster_mode(node, requirements));
    findings.extend([access::judge_scripts(node, requirements), access::judge_script_time(node, requirements)]);
    if let Some(master) = &node.master {
        findings.push(access::judge_lock_keys(node, master, requirements));
        findings.extend(access::judge_pubsub(node, master, requirements));
        findings.extend(access::judge_tracking(node, master, requirements));
        findings.extend(access::judge_run_id(node, requirements));
    }
    findings.extend([
        memory::judge_eviction_policy(node),
        memory::judge_evicted_keys(node),
        memory::judge_free_memory(node),
    ]);
    if !requirements.simple {
        findings.push(memory::judge_output_buffer(node));
    }
    if let Some(master) = &node.master {
        findings
            .extend([durability::judge_persistence(node, requirements), durability::judge_restart(node, requirements)]);
        findings.extend(durability::judge_empty_restart(node));
        findings.extend(replicas::judge_min_replicas(node, requirements));
        findings.extend(replicas::judge_replica_count(node, requirements));
        findings.extend(replicas::judge_lag(node));
        findings.extend(master.keys.iter().flat_map(|keys| keys::judge_keys(node, keys, requirements)));
        findings.extend([
            timing::judge_clock(node),
            timing::judge_round_trip(node, requirements),
            timing::judge_slow_log(node, requirements),
        ]);
        if requirements.deployment == Deployment::Cluster {
            findings.extend([timing::judge_node_timeout(node, requirements), cluster::judge_coverage(node)]);
        }
    }
    findings
}

/// All findings from the comparison of several servers. `failover_delay` is how long a master must
/// be unreachable before another is promoted; `None` if only the servers' settings say so.
pub(super) fn judge_together(nodes: &[NodeFacts], failover_delay: Option<Duration>) -> Vec<Finding> {
    let configured = nodes.iter().filter_map(|node| node.setting_number("cluster-node-timeout").ok()).min();
    let failover_delay = failover_delay.or_else(|| configured.map(Duration::from_millis));
    let mut findings = access::judge_same_server(nodes);
    findings.extend(timing::judge_clocks(nodes, failover_delay));
    findings
}

/// A finding for a fact that is not known.
fn unknown(check: &'static str, subject: &str, why: &QueryError) -> Finding {
    Finding::new(Level::Unknown, check, subject, format!("not known: {why}"))
}

/// The fix for a command that the server refused, by the text of its reply.
fn fix_for_refusal(error: &QueryError, requirements: &Requirements) -> String {
    let QueryError::Refused(text) = error else {
        return "check what the server is doing, and examine it again".into();
    };
    match text.split_whitespace().next().unwrap_or_default() {
        "NOPERM" => format!("give the user what locks need: {}", requirements.permissions()),
        "READONLY" | "MOVED" | "ASK" | "CLUSTERDOWN" if requirements.deployment == Deployment::Redlock => {
            "replace it by a separate server: a master that follows no other, and belongs to no cluster".into()
        }
        "READONLY" => "use the master, or its Sentinels: redis+sentinel://h1,h2,h3/mymaster".into(),
        "MOVED" | "ASK" | "CLUSTERDOWN" => {
            "if it is a cluster, use redis+cluster://h1,h2; and repair the cluster".into()
        }
        "CROSSSLOT" => {
            "connect to the server itself, not to a proxy that spreads keys; or use the cluster: redis+cluster://h1,h2"
                .into()
        }
        "OOM" => "free memory: raise maxmemory, or move other data elsewhere".into(),
        "NOREPLICAS" => "bring the replicas back, or lower min-replicas-to-write".into(),
        "MISCONF" => "let the server save its data again: check disk space and the permissions of its folder".into(),
        "LOADING" => "wait until the server has read its data, and examine it again".into(),
        // The refusal of a command within a script, by Redis 7.0.
        _ if text.contains("can't run this command") => {
            format!("give the user what locks need: {}", requirements.permissions())
        }
        _ if text.contains("unknown command") => {
            "connect to the server itself: a proxy or the provider hides the command (see rename-command, too)".into()
        }
        _ => "correct the error that the server reports, and examine it again".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_healthy_master_needs_no_fix() {
        let findings = judge_node(&fixtures::healthy(), ExpectedRole::Master, &fixtures::requirements());
        for finding in &findings {
            assert_eq!((finding.level, finding.fix.as_str()), (Level::Ok, ""), "{finding:?}");
            assert!(!finding.found.is_empty() && !finding.impact.is_empty(), "{finding:?}");
        }
        assert!(findings.len() > 12);
    }

    #[test]
    fn a_server_that_refuses_every_query_gets_no_ok() {
        for expected in [ExpectedRole::Master, ExpectedRole::Replica, ExpectedRole::Any] {
            let findings = judge_node(&fixtures::refusing_node(), expected, &fixtures::requirements());
            for finding in findings.iter().filter(|finding| finding.check != "reachable") {
                assert_ne!(finding.level, Level::Ok, "{finding:?}");
                assert!(!finding.impact.is_empty() && !finding.fix.is_empty(), "{finding:?}");
            }
        }
    }

    #[test]
    fn every_refusal_has_a_fix() {
        let cure = |text: &str| super::fix_for_refusal(&QueryError::Refused(text.into()), &fixtures::requirements());
        assert!(cure("NOPERM User x has no permissions").contains("ACL SETUSER"));
        let in_script = "ERR The user executing the script can't run this command or subcommand: HMGET";
        assert!(cure(in_script).contains("ACL SETUSER"));
        assert!(cure("CROSSSLOT Keys in request").contains("proxy"));
        assert!(cure("ERR unknown command 'EVAL'").contains("rename-command"));
        assert!(cure("OOM command not allowed").contains("maxmemory"));
        assert!(!cure("SOMETHING else").is_empty());
    }

    #[test]
    fn durations_are_short() {
        let text: Vec<_> = [250, 1500, 25_000, 2_000_000, 2_500_000, 180_000_000]
            .map(|micros| format_short(Duration::from_micros(micros)))
            .into();
        assert_eq!(text, ["250 µs", "1.5 ms", "25 ms", "2 s", "2.5 s", "3 min"]);
    }
}
