//! A cluster: whether it is complete, and the effect of losing one node.

use super::super::cluster::{ClusterView, Member};
use super::super::facts::NodeFacts;
use super::super::query::QueryError;
use super::{fail, ok, unknown, warn};
use crate::Finding;
use leasehold::{Error, ErrorKind};

const PERMISSION_FIX: &str = "let this user run CLUSTER INFO and CLUSTER NODES: +cluster";

/// The finding for a node in the URL that is unreachable.
pub(crate) fn judge_unreachable(address: &str, error: &Error) -> Finding {
    let fix = match error.kind() {
        ErrorKind::Denied => "correct the user and the password in the URL",
        _ => "start it, or take it out of the URL",
    };
    warn("cluster-reachable", address, error.to_string())
        .impact("clients have one server less to discover the cluster")
        .fix(fix)
}

/// All findings from the nodes' views of the cluster.
pub(crate) fn judge_views(views: &[ClusterView]) -> Vec<Finding> {
    if views.is_empty() {
        let finding = fail("cluster", "", "no node in the URL is reachable")
            .impact("no lock can be acquired")
            .fix("start them, or correct their addresses in the URL");
        return vec![finding];
    }
    let mut findings: Vec<_> = views.iter().map(judge_state).collect();
    match views.iter().find_map(|view| view.members.as_ref().ok()) {
        Some(members) => findings.extend(judge_members(members)),
        None => findings.push(
            unknown("cluster-nodes", "", &QueryError::missing("its nodes"))
                .impact("only the nodes in the URL were examined")
                .fix(PERMISSION_FIX),
        ),
    }
    findings
}

/// Judges whether the cluster is complete, in the view of one node.
fn judge_state(view: &ClusterView) -> Finding {
    let (check, address) = ("cluster-state", &view.address);
    let info = match &view.state {
        Ok(info) => &info.0,
        Err(QueryError::Refused(reason)) if reason.contains("cluster support disabled") => {
            return fail(check, address, "it is not a cluster node")
                .impact("locks cannot be found by their slots")
                .fix("use it alone: redis://host; or its Sentinels: redis+sentinel://h1,h2,h3/mymaster");
        }
        Err(error) => {
            return unknown(check, address, error).impact("an incomplete cluster refuses locks").fix(PERMISSION_FIX);
        }
    };
    let number = |key: &str| info.get(key).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let (state, assigned) =
        (info.get("cluster_state").map_or("missing", String::as_str), number("cluster_slots_assigned"));
    if state != "ok" || assigned < 16_384 {
        return fail(check, address, format!("cluster_state is {state}, and {assigned} of 16384 slots have a node"))
            .impact("locks in slots without a node cannot be acquired or renewed; with full coverage, no lock can")
            .fix("redis-cli --cluster check, then bring nodes back or --cluster fix");
    }
    let failing = number("cluster_slots_pfail") + number("cluster_slots_fail");
    if failing > 0 {
        return warn(check, address, format!("{failing} slots belong to nodes that do not respond"))
            .impact("their locks are blocked until a replica takes over")
            .fix("check the nodes that CLUSTER NODES marks as fail");
    }
    ok(check, address, "cluster_state is ok, and all slots have a node").impact("every lock has a node")
}

/// Judges the numbers of masters and replicas, and which nodes are unreachable for the others.
fn judge_members(members: &[Member]) -> Vec<Finding> {
    let masters: Vec<_> = members.iter().filter(|one| one.is_master && !one.slots.is_empty()).collect();
    let name = |one: &Member| one.address.as_ref().map_or_else(|| one.id.clone(), ToString::to_string);
    let followed = |id: &str| members.iter().any(|one| one.master_id.as_deref() == Some(id) && !one.is_failing);
    let alone: Vec<_> = masters.iter().filter(|one| !followed(&one.id)).map(|one| name(one)).collect();
    let failing: Vec<_> = members.iter().filter(|one| one.is_failing).map(name).collect();
    let mut findings = vec![match masters.len() {
        3.. => ok("cluster-masters", "", format!("{} masters", masters.len()))
            .impact("when one dies, the others agree on a failover"),
        few => warn("cluster-masters", "", format!("{few} masters"))
            .impact("when one dies, the others are no majority: there is no failover, and its locks are blocked")
            .fix("three masters at least, on three machines"),
    }];
    findings.push(match alone.is_empty() {
        true => ok("cluster-replicas", "", "each master has a replica").impact("each can be replaced"),
        false => warn("cluster-replicas", "", format!("without a replica: {}", alone.join(", ")))
            .impact("when such a master dies, its locks are blocked until it is back")
            .fix("a replica for each: redis-cli --cluster add-node … --cluster-slave"),
    });
    if !failing.is_empty() {
        findings.push(
            warn("cluster-nodes", "", format!("the other nodes cannot reach: {}", failing.join(", ")))
                .impact("they cannot take over, and their locks may be blocked")
                .fix("bring them back, or CLUSTER FORGET them"),
        );
    }
    findings
}

/// Reports whether a slot without a node blocks only its own locks, or all locks.
pub(super) fn judge_coverage(node: &NodeFacts) -> Finding {
    let (check, address) = ("cluster-coverage", &node.address);
    match node.setting("cluster-require-full-coverage") {
        Ok("no") => ok(check, address, "cluster-require-full-coverage no")
            .impact("when some slots have no node, only their locks are blocked"),
        Ok(value) => ok(check, address, format!("cluster-require-full-coverage {value}"))
            .impact("when any slot has no node, all locks are blocked; `no` would limit it to the locks of that slot"),
        Err(error) => unknown(check, address, &error)
            .impact("when some slots have no node, all locks may be blocked, or only those of these slots")
            .fix("let this user run CONFIG GET: +config|get"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::Info;
    use super::super::fixtures::{assert_level, healthy};
    use super::*;
    use crate::Level::{Fail, Ok as Good, Unknown, Warn};

    fn view(info: &str) -> ClusterView {
        ClusterView { address: "h:1".into(), state: Ok(Info::parse(info)), members: Ok(vec![]) }
    }

    fn member(id: &str, follows: Option<&str>) -> Member {
        let is_master = follows.is_none();
        let slots = if is_master { vec![0..=1] } else { vec![] };
        let follows = follows.map(str::to_owned);
        Member { id: id.into(), address: None, is_master, master_id: follows, is_failing: false, slots }
    }

    #[test]
    fn a_cluster_must_be_complete() {
        assert_level(&judge_state(&view("cluster_state:ok\r\ncluster_slots_assigned:16384\r\n")), Good, "every lock");
        assert_level(&judge_state(&view("cluster_state:fail\r\ncluster_slots_assigned:16384\r\n")), Fail, "fail");
        assert_level(&judge_state(&view("cluster_state:ok\r\ncluster_slots_assigned:9\r\n")), Fail, "9 of 16384");
        let pale = "cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_slots_pfail:5\r\n";
        assert_level(&judge_state(&view(pale)), Warn, "5 slots");
        let refused = |reason: &str| ClusterView { state: Err(QueryError::Refused(reason.into())), ..view("") };
        assert_level(&judge_state(&refused("ERR This instance has cluster support disabled")), Fail, "redis://host");
        assert_level(&judge_state(&refused("NOPERM")), Unknown, "+cluster");
        assert_level(&judge_views(&[])[0], Fail, "no node in the URL");
    }

    #[test]
    fn too_few_masters_and_masters_without_replicas_warn() {
        let [a, b, c] = ["a", "b", "c"].map(|id| member(id, None));
        let [d, e, f] = ["a", "b", "c"].map(|id| member("r", Some(id)));
        let whole = judge_members(&[a.clone(), b.clone(), c.clone(), d.clone(), e.clone(), f.clone()]);
        assert!(whole.iter().all(|finding| finding.level == Good), "{whole:?}");
        let two = judge_members(&[a.clone(), b.clone(), d.clone(), e.clone()]);
        assert_level(&two[0], Warn, "2 masters");
        let alone = judge_members(&[a, b, c, d, e, Member { is_failing: true, ..f }]);
        assert_level(&alone[1], Warn, "without a replica: c");
        assert_level(&alone[2], Warn, "cannot reach");
    }

    #[test]
    fn full_coverage_is_reported_or_unknown() {
        assert_level(&judge_coverage(&healthy()), Good, "all locks are blocked");
        assert_level(
            &judge_coverage(&healthy().with_setting("cluster-require-full-coverage", "no")),
            Good,
            "only their locks",
        );
        assert_level(
            &judge_coverage(&healthy().without_setting("cluster-require-full-coverage")),
            Unknown,
            "+config|get",
        );
    }
}
