//! Galera: several servers that accept writes, each with its own clock.

use std::time::Duration;

use super::super::super::config::Technique;
use super::super::facts::{Aim, Known, No, Seen};
use super::{fail, many, ok, short, unknown, warn};
use crate::doctor::Finding;

/// The state of the cluster.
fn told(seen: &Seen) -> Known<(i64, String, String)> {
    let size = seen.status("wsrep_cluster_size")?.parse().map_err(|_| No::missing("wsrep_cluster_size"))?;
    let state = seen.status("wsrep_local_state_comment").unwrap_or("unknown");
    Ok((size, seen.status("wsrep_cluster_status")?.to_owned(), state.to_owned()))
}

pub(super) fn cluster(at: &str, seen: &Seen, aim: &Aim) -> Finding {
    let check = "galera";
    match seen.is_on("wsrep_on") {
        Ok(true) => {}
        // MySQL has neither the setting nor Galera.
        Err(No::Missing(_)) if seen.settings.is_ok() => {
            return ok(check, at, "it is no node of Galera").means("one clock decides");
        }
        Ok(false) => return ok(check, at, "it is no node of Galera").means("one clock decides"),
        Err(no) => {
            return unknown(check, at, &no).means(
                "in a Galera cluster several servers take writes, each with its own clock, and GET_LOCK does not work",
            );
        }
    }
    let (size, status, state) = match told(seen) {
        Ok(told) => told,
        Err(no) => return unknown(check, at, &no).means("a node without its cluster takes no writes"),
    };
    let found = format!("a node of Galera ({status}, {state}), of {}", many(size, "node"));
    if status != "Primary" || seen.status("wsrep_ready").is_ok_and(|ready| ready != "ON") {
        return fail(check, at, found)
            .means(
                "it is cut off from the majority of its cluster, or not in step: no lock can be taken or renewed here",
            )
            .fix("bring the other nodes back, or take this one out of the URL");
    }
    if aim.technique != Technique::Row {
        return fail(check, at, format!("{found}; technique={}", aim.technique.as_str()))
            .means(
                "GET_LOCK and row locks are known to one node only: on another, the lock is free, and two may hold it",
            )
            .fix("technique=row");
    }
    if size > 1 && aim.clock_skew == Duration::ZERO {
        return warn(check, at, format!("{found}; clock-skew= is not set"))
            .means(
                "each node goes by its own clock: where one is ahead, it takes leases for over that are not, and two may hold one lock. \
                 Waiters look by themselves: GET_LOCK, which could wake them, does not work here",
            )
            .fix("clock-skew=1s in the URL: how far their clocks may be apart at most; or only one node in the URL");
    }
    if size == 2 {
        return warn(check, at, found)
            .means("when one of two is away, the other is no majority: no lock can be taken")
            .fix("a third node, or an arbitrator (garbd)");
    }
    let skew =
        if size > 1 { format!("; leases end {} later for others", short(aim.clock_skew)) } else { String::new() };
    ok(check, at, format!("{found}{skew}")).means("what one node grants, the others see")
}

#[cfg(test)]
mod tests {
    use super::super::sample::{assert_level, facts, mariadb, mute};
    use super::*;
    use crate::doctor::Level::{Fail, Ok as Good, Unknown, Warn};

    fn node(size: &str) -> Seen {
        let node = mariadb().set("wsrep_on", "ON").with_status("wsrep_cluster_status", "Primary");
        let node = node.with_status("wsrep_ready", "ON").with_status("wsrep_local_state_comment", "Synced");
        node.with_status("wsrep_cluster_size", size)
    }

    #[test]
    fn a_cluster_needs_room_between_its_clocks() {
        let aim = facts(mariadb()).aim;
        let skewed = Aim { clock_skew: Duration::from_secs(1), ..aim.clone() };
        assert_level(&cluster("h", &mariadb(), &aim), Good, "no node");
        assert_level(&cluster("h", &mariadb().hiding("wsrep_on"), &aim), Good, "no node");
        assert_level(&cluster("h", &mute(&No::missing("it")), &aim), Unknown, "GET_LOCK");
        assert_level(&cluster("h", &node("1"), &aim), Good, "1 node");
        assert_level(&cluster("h", &node("3"), &aim), Warn, "clock-skew=1s");
        assert_level(&cluster("h", &node("3"), &skewed), Good, "1 s later");
        assert_level(&cluster("h", &node("2"), &skewed), Warn, "garbd");
    }

    #[test]
    fn a_node_that_is_cut_off_and_locks_that_only_one_node_knows() {
        let aim = facts(mariadb()).aim;
        assert_level(
            &cluster("h", &node("3").with_status("wsrep_cluster_status", "non-Primary"), &aim),
            Fail,
            "cut off",
        );
        assert_level(&cluster("h", &node("3").with_status("wsrep_ready", "OFF"), &aim), Fail, "cut off");
        for technique in [Technique::ForUpdate, Technique::Session] {
            assert_level(&cluster("h", &node("3"), &Aim { technique, ..aim.clone() }), Fail, "technique=row");
        }
    }
}
