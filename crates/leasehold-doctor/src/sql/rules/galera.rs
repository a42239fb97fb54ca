//! Galera: several servers that accept writes, each with its own clock.

use std::time::Duration;

use super::super::facts::{Fact, Requirements, ServerFacts, UnknownReason};
use super::{fail, format_short, many, ok, unknown, warn};
use crate::Finding;
use leasehold_internals::sql::config::Technique;

/// The state of the cluster.
fn cluster_status(seen: &ServerFacts) -> Fact<(i64, String, String)> {
    let size =
        seen.status("wsrep_cluster_size")?.parse().map_err(|_| UnknownReason::not_reported("wsrep_cluster_size"))?;
    let state = seen.status("wsrep_local_state_comment").unwrap_or("unknown");
    Ok((size, seen.status("wsrep_cluster_status")?.to_owned(), state.to_owned()))
}

pub(super) fn cluster(at: &str, seen: &ServerFacts, aim: &Requirements) -> Finding {
    let check = "galera";
    match seen.is_on("wsrep_on") {
        Ok(true) => {}
        // MySQL has neither the setting nor Galera.
        Err(UnknownReason::NotReported(_)) if seen.settings.is_ok() => {
            return ok(check, at, "it is not a Galera node").impact("only one clock matters");
        }
        Ok(false) => return ok(check, at, "it is not a Galera node").impact("only one clock matters"),
        Err(no) => {
            return unknown(check, at, &no).impact(
                "in a Galera cluster several servers accept writes, each with its own clock, and GET_LOCK does not work",
            );
        }
    }
    let (size, status, state) = match cluster_status(seen) {
        Ok(state) => state,
        Err(no) => return unknown(check, at, &no).impact("a node without its cluster accepts no writes"),
    };
    let found = format!("a Galera node ({status}, {state}), of {}", many(size, "node"));
    if status != "Primary" || seen.status("wsrep_ready").is_ok_and(|ready| ready != "ON") {
        return fail(check, at, found)
            .impact(
                "it is cut off from the majority of its cluster, or not in sync: no lock can be acquired or renewed here",
            )
            .fix("bring the other nodes back, or take this one out of the URL");
    }
    if aim.technique != Technique::Row {
        return fail(check, at, format!("{found}; technique={}", aim.technique.as_str()))
            .impact(
                "GET_LOCK and row locks exist on one node only: on another the lock is free, and two clients may hold it",
            )
            .fix("technique=row");
    }
    if size > 1 && aim.clock_skew == Duration::ZERO {
        return warn(check, at, format!("{found}; clock-skew= is not set"))
            .impact(
                "each node uses its own clock: one that is ahead treats valid leases as expired, and two may hold one lock. Waiters poll: GET_LOCK, which could wake them, does not work here",
            )
            .fix("clock-skew=1s in the URL: the maximum difference of their clocks; or only one node in the URL");
    }
    if size == 2 {
        return warn(check, at, found)
            .impact("when one of two is down, the other is no majority: no lock can be acquired")
            .fix("a third node, or an arbitrator (garbd)");
    }
    let skew = if size > 1 {
        format!("; leases end {} later for other clients", format_short(aim.clock_skew))
    } else {
        String::new()
    };
    ok(check, at, format!("{found}{skew}")).impact("all nodes see each grant")
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
        let aim = facts(mariadb()).requirements;
        let skewed = Requirements { clock_skew: Duration::from_secs(1), ..aim.clone() };
        assert_level(&cluster("h", &mariadb(), &aim), Good, "not a Galera node");
        assert_level(&cluster("h", &mariadb().without_setting("wsrep_on"), &aim), Good, "not a Galera node");
        assert_level(&cluster("h", &opaque_server(&UnknownReason::not_reported("it")), &aim), Unknown, "GET_LOCK");
        assert_level(&cluster("h", &node("1"), &aim), Good, "1 node");
        assert_level(&cluster("h", &node("3"), &aim), Warn, "clock-skew=1s");
        assert_level(&cluster("h", &node("3"), &skewed), Good, "1 s later");
        assert_level(&cluster("h", &node("2"), &skewed), Warn, "garbd");
    }

    #[test]
    fn a_partitioned_node_and_session_locks_fail() {
        let aim = facts(mariadb()).requirements;
        assert_level(
            &cluster("h", &node("3").with_status("wsrep_cluster_status", "non-Primary"), &aim),
            Fail,
            "cut off",
        );
        assert_level(&cluster("h", &node("3").with_status("wsrep_ready", "OFF"), &aim), Fail, "cut off");
        for technique in [Technique::ForUpdate, Technique::Session] {
            assert_level(&cluster("h", &node("3"), &Requirements { technique, ..aim.clone() }), Fail, "technique=row");
        }
    }
}
