//! Judges the nodes where the locks are.

use super::super::facts::{EnsembleFacts, Requirements};
use super::{describe_group, fail, format_count, ok, unknown, warn};
use crate::Finding;
use leasehold_internals::FORMAT;

/// One finding for each kind of unexpected node; one that is ok if there are none.
pub(super) fn judge_nodes(inside: &EnsembleFacts, requirements: &Requirements) -> Vec<Finding> {
    let (check, base) = ("orphans", requirements.shown_base());
    let nodes = match &inside.nodes {
        Ok(nodes) => nodes,
        Err(reason) => {
            let finding = unknown(check, "", reason);
            return vec![finding.impact("a claim without a session would block its lock forever")];
        }
    };
    let mut findings = Vec::new();
    findings.extend(describe_group(&nodes.ownerless, "claim").map(|found| {
        fail(check, "", format!("{found} without a session"))
            .impact("no session end deletes them: their locks are blocked forever. These nodes were restored or copied")
            .fix("delete them: `leasehold evict` on their locks, or delete in zkCli")
    }));
    findings.extend(describe_group(&nodes.unknown_format, "claim").map(|found| {
        fail("node-formats", "", format!("{found} in a format other than {FORMAT}"))
            .impact("another version of leasehold stored these claims; this version refuses to use their locks")
            .fix("use one version of leasehold in the whole fleet, or versions that docs/upgrading.md allows together")
    }));
    findings.extend(describe_group(&nodes.foreign, "node").map(|found| {
        warn("foreign-nodes", "", format!("below {base}, {found}, not leasehold's"))
            .impact("another program uses leasehold's path. In a lock's folder its nodes slow down each acquire, and the folder stays forever")
            .fix("another path in the URL of all clients; or delete the nodes if they are not needed")
    }));
    findings.extend(describe_group(&nodes.stale_folders, "lock").map(|found| {
        warn("empty-folders", "", format!("{found}, empty for more than 10 minutes"))
            .impact("the leader removes empty containers every minute, but not these, and their number grows")
            .fix("delete them if they are not containers (created by hand or restored); check znode.container.checkIntervalMs")
    }));
    let part = if nodes.is_complete { String::new() } else { format!(", of {} in all", nodes.folders) };
    let seen = format!(
        "below {base}, {} with {} examined{part}",
        format_count(nodes.examined, "lock"),
        format_count(nodes.claims, "claim")
    );
    if findings.is_empty() {
        let means = if nodes.is_complete { "no leftovers" } else { "no leftovers, as far as examined" };
        findings.push(ok(check, "", seen).impact(means));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::UnknownReason;
    use super::super::super::walk::{NodeGroup, NodeSurvey};
    use super::super::sample::{assert_level, requirements, three_servers};
    use super::*;
    use crate::Level::{Fail, Ok as Good, Unknown, Warn};

    fn group(count: usize) -> NodeGroup {
        NodeGroup { count, examples: (0..count.min(3)).map(|n| format!("/leasehold/{n}")).collect() }
    }

    #[test]
    fn each_kind_of_orphan_is_reported() {
        let good = NodeSurvey { folders: 9, examined: 9, claims: 1, is_complete: true, ..NodeSurvey::default() };
        let find = |nodes| {
            judge_nodes(&EnsembleFacts { nodes: Ok(nodes), ..three_servers().ensemble.unwrap() }, &requirements())
        };
        assert_level(&find(good.clone())[0], Good, "9 locks with 1 claim examined");
        let part = NodeSurvey { is_complete: false, folders: 5000, examined: 1000, ..good.clone() };
        assert_level(&find(part)[0], Good, "of 5000 in all");
        assert_level(
            &find(NodeSurvey { ownerless: group(1), ..good.clone() })[0],
            Fail,
            "1 claim (/leasehold/0) without",
        );
        assert_level(
            &find(NodeSurvey { unknown_format: group(1), ..good.clone() })[0],
            Fail,
            "1 claim (/leasehold/0) in a format other than 1",
        );
        assert_level(&find(NodeSurvey { foreign: group(5), ..good.clone() })[0], Warn, "5 nodes (/leasehold/0, ");
        assert_level(&find(NodeSurvey { stale_folders: group(2), ..good.clone() })[0], Warn, "checkIntervalMs");
        assert_eq!(find(NodeSurvey { stale_folders: group(2), ownerless: group(1), ..good }).len(), 2);
        let hidden = EnsembleFacts {
            nodes: Err(UnknownReason::RequestFailed(leasehold_zookeeper::Error::NoAuth)),
            ..three_servers().ensemble.unwrap()
        };
        assert_level(&judge_nodes(&hidden, &requirements())[0], Unknown, "forever");
    }
}
