//! Judges a node of a Galera cluster, in which several servers accept writes, each with its own
//! clock.

use std::time::Duration;

use super::super::facts::{Fact, Requirements, ServerFacts, UnknownReason};
use super::{fail, format_count, format_short, ok, unknown, warn};
use crate::Finding;
use leasehold_internals::sql::config::Technique;

/// The number of nodes of the cluster, the cluster's status, and the state of this node.
fn cluster_status(server: &ServerFacts) -> Fact<(i64, String, String)> {
    let size =
        server.status("wsrep_cluster_size")?.parse().map_err(|_| UnknownReason::not_reported("wsrep_cluster_size"))?;
    let state = server.status("wsrep_local_state_comment").unwrap_or("unknown");
    Ok((size, server.status("wsrep_cluster_status")?.to_owned(), state.to_owned()))
}

/// Judges whether locks work on this node; ok if it is not a Galera node.
pub(super) fn judge_cluster(address: &str, server: &ServerFacts, requirements: &Requirements) -> Finding {
    let check = "galera";
    match server.is_on("wsrep_on") {
        Ok(true) => {}
        // MySQL has neither the setting nor Galera.
        Err(UnknownReason::NotReported(_)) if server.settings.is_ok() => {
            return ok(check, address, "it is not a Galera node").impact("only one clock matters");
        }
        Ok(false) => return ok(check, address, "it is not a Galera node").impact("only one clock matters"),
        Err(reason) => {
            return unknown(check, address, &reason).impact(
                "in a Galera cluster several servers accept writes, each with its own clock, and GET_LOCK does not work",
            );
        }
    }
    let (size, status, state) = match cluster_status(server) {
        Ok(state) => state,
        Err(reason) => return unknown(check, address, &reason).impact("a node without its cluster accepts no writes"),
    };
    let found = format!("a Galera node ({status}, {state}), of {}", format_count(size, "node"));
    if status != "Primary" || server.status("wsrep_ready").is_ok_and(|ready| ready != "ON") {
        return fail(check, address, found)
            .impact(
                "it is cut off from the majority of its cluster, or not in sync: no lock can be acquired or renewed here",
            )
            .fix("bring the other nodes back, or take this one out of the URL");
    }
    if requirements.technique != Technique::Row {
        return fail(check, address, format!("{found}; technique={}", requirements.technique.as_str()))
            .impact(
                "GET_LOCK and row locks exist on one node only: on another the lock is free, and two clients may hold it",
            )
            .fix("technique=row");
    }
    if size > 1 && requirements.clock_skew == Duration::ZERO {
        return warn(check, address, format!("{found}; clock-skew= is not set"))
            .impact(
                "each node uses its own clock: one that is ahead treats valid leases as expired, and two clients may hold one lock. Waiters poll: GET_LOCK, which could wake them, does not work here",
            )
            .fix("clock-skew=1s in the URL: the maximum difference of their clocks; or only one node in the URL");
    }
    if size == 2 {
        return warn(check, address, found)
            .impact("when one of two is down, the other is no majority: no lock can be acquired")
            .fix("a third node, or an arbitrator (garbd)");
    }
    let skew = if size > 1 {
        format!("; leases end {} later for other clients", format_short(requirements.clock_skew))
    } else {
        String::new()
    };
    ok(check, address, format!("{found}{skew}")).impact("all nodes see each grant")
}

#[cfg(test)]
mod tests {
    use super::super::sample::{assert_level, facts, mariadb, opaque_server};
    use super::*;
    use crate::Level::{Fail, Ok as Good, Unknown, Warn};

    fn node(size: &str) -> ServerFacts {
        let node = mariadb().with_setting("wsrep_on", "ON").with_status("wsrep_cluster_status", "Primary");
        let node = node.with_status("wsrep_ready", "ON").with_status("wsrep_local_state_comment", "Synced");
        node.with_status("wsrep_cluster_size", size)
    }

    #[test]
    fn a_cluster_needs_a_clock_skew() {
        let requirements = facts(mariadb()).requirements;
        let skewed = Requirements { clock_skew: Duration::from_secs(1), ..requirements.clone() };
        assert_level(&judge_cluster("h", &mariadb(), &requirements), Good, "not a Galera node");
        assert_level(
            &judge_cluster("h", &mariadb().without_setting("wsrep_on"), &requirements),
            Good,
            "not a Galera node",
        );
        assert_level(
            &judge_cluster("h", &opaque_server(&UnknownReason::not_reported("it")), &requirements),
            Unknown,
            "GET_LOCK",
        );
        assert_level(&judge_cluster("h", &node("1"), &requirements), Good, "1 node");
        assert_level(&judge_cluster("h", &node("3"), &requirements), Warn, "clock-skew=1s");
        assert_level(&judge_cluster("h", &node("3"), &skewed), Good, "1 s later");
        assert_level(&judge_cluster("h", &node("2"), &skewed), Warn, "garbd");
    }

    #[test]
    fn a_partitioned_node_and_session_locks_fail() {
        let requirements = facts(mariadb()).requirements;
        assert_level(
            &judge_cluster("h", &node("3").with_status("wsrep_cluster_status", "non-Primary"), &requirements),
            Fail,
            "cut off",
        );
        assert_level(&judge_cluster("h", &node("3").with_status("wsrep_ready", "OFF"), &requirements), Fail, "cut off");
        for technique in [Technique::ForUpdate, Technique::Session] {
            assert_level(
                &judge_cluster("h", &node("3"), &Requirements { technique, ..requirements.clone() }),
                Fail,
                "technique=row",
            );
        }
    }
}
