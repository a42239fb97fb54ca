//! Replicas: the data that a failover loses.

use super::super::facts::{NodeFacts, Requirements};
use super::{fail, ok, unknown, warn};
use crate::Finding;

/// Replicas report their offset once a second.
const LATE_AFTER_SECS: u64 = 3;

/// Whether a master that has lost its replicas keeps granting.
pub(super) fn min_replicas(node: &NodeFacts, aim: &Requirements) -> Option<Finding> {
    let (check, at) = ("min-replicas", &node.address);
    let means = "a master that is cut off goes on granting locks while a replica takes its place: two may hold one lock until \
        the old one is told";
    let fix = "min-replicas-to-write 1 and min-replicas-max-lag 10, or less; and replicas=N in the URL, which waits for \
        replicas at each grant";
    let followers = match node.info_number("connected_slaves") {
        // None at present; the rules for Sentinel and cluster cover that.
        Ok(0) => return None,
        Ok(count) => count,
        Err(no) => {
            return Some(unknown(check, at, &no).impact(means).fix(format!("{fix}; let this user run INFO: +info")));
        }
    };
    let has = if followers == 1 { "1 replica".to_owned() } else { format!("{followers} replicas") };
    Some(match (node.setting_number("min-replicas-to-write"), node.setting_number("min-replicas-max-lag")) {
        (Ok(least @ 1..), Ok(lag @ 1..)) => {
            ok(check, at, format!("{has}; min-replicas-to-write {least}, within {lag} s"))
                .impact("a master that is cut off stops granting soon")
        }
        // `INFO` has this line only if the setting is used.
        (Err(_), _) if node.info("min_slaves_good_slaves").is_ok() => {
            ok(check, at, format!("{has}; min-replicas-to-write is set"))
                .impact("a master that is cut off stops granting soon")
        }
        _ if aim.replicas > 0 => ok(check, at, format!("{has}; the URL asks for replicas={}", aim.replicas))
            .impact("a grant counts only when replicas have it"),
        (Ok(_), Ok(_)) => warn(check, at, format!("{has}; min-replicas-to-write is 0")).impact(means).fix(fix),
        (Err(no), _) | (_, Err(no)) => {
            unknown(check, at, &no).impact(means).fix(format!("{fix}; let this user run CONFIG GET: +config|get"))
        }
    })
}

/// Whether there are as many replicas as the URL waits for.
pub(super) fn replica_count(node: &NodeFacts, aim: &Requirements) -> Option<Finding> {
    let (check, at, wanted) = ("replicas", &node.address, u64::from(aim.replicas));
    if wanted == 0 {
        return None;
    }
    let connected = match node.info_number("connected_slaves") {
        Ok(connected) => connected,
        Err(no) => {
            let means = "with fewer, no lock is ever granted";
            return Some(unknown(check, at, &no).impact(means).fix("let this user run INFO: +info"));
        }
    };
    let found = format!("the URL asks for {wanted}; {connected} are connected");
    Some(if connected < wanted {
        fail(check, at, found)
            .impact("no grant is acknowledged, so no lock is ever granted")
            .fix("bring the replicas back, or lower replicas= in the URL")
    } else if connected > wanted {
        warn(check, at, found)
            .impact("a failover may promote a replica without a grant, and the lock is granted again")
            .fix(format!("replicas={connected} in the URL, or replica-priority 0 for those that must not be promoted"))
    } else {
        ok(check, at, found).impact("every replica has a grant before it counts")
    })
}

/// Whether the replicas keep up.
pub(super) fn lag(node: &NodeFacts) -> Option<Finding> {
    let (check, at) = ("replica-lag", &node.address);
    let followers = match node.connected_replicas() {
        Ok(followers) if followers.is_empty() => return None,
        Ok(followers) => followers,
        Err(no) => {
            let means = "a lagging replica lacks the latest locks if it is promoted";
            return Some(unknown(check, at, &no).impact(means).fix("let this user run INFO: +info"));
        }
    };
    let late: Vec<_> = followers
        .iter()
        .filter(|one| !one.is_online || one.lag >= LATE_AFTER_SECS)
        .map(|one| match one.is_online {
            true => format!("{} last responded {} s ago", one.address, one.lag),
            false => format!("{} is not in step yet", one.address),
        })
        .collect();
    Some(if late.is_empty() {
        ok(check, at, format!("{} in step", followers.len())).impact("a promoted replica lacks only the last moments")
    } else {
        warn(check, at, late.join("; "))
            .impact("if this replica is promoted, locks since then are lost and granted again")
            .fix("check the replica's log, its network and repl-backlog-size")
    })
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{assert_level, healthy, refusing_node, requirements};
    use super::*;
    use crate::Level::{Fail, Ok as Good, Unknown, Warn};

    const LINE: &str = "ip=10.0.0.2,port=6380,state=online,offset=14,lag=1";

    #[test]
    fn a_partitioned_master_should_stop_granting() {
        let node = healthy().with_replica(LINE);
        assert_eq!(min_replicas(&healthy(), &requirements()), None);
        assert_level(&min_replicas(&node, &requirements()).unwrap(), Warn, "min-replicas-to-write 1");
        assert_level(
            &min_replicas(&node, &Requirements { replicas: 1, ..requirements() }).unwrap(),
            Good,
            "replicas=1",
        );
        let set = node.clone().with_setting("min-replicas-to-write", "1");
        assert_level(&min_replicas(&set, &requirements()).unwrap(), Good, "within 10 s");
        assert_level(
            &min_replicas(&set.with_setting("min-replicas-max-lag", "0"), &requirements()).unwrap(),
            Warn,
            "cut off",
        );
        let hidden = node.without_setting("min-replicas-to-write");
        assert_level(&min_replicas(&hidden, &requirements()).unwrap(), Unknown, "+config|get");
        let configured = hidden.with_info("min_slaves_good_slaves", "1");
        assert_level(&min_replicas(&configured, &requirements()).unwrap(), Good, "is set");
        assert_level(&min_replicas(&refusing_node(), &requirements()).unwrap(), Unknown, "+info");
    }

    #[test]
    fn replicas_in_the_url_must_be_connected() {
        let node = healthy().with_replica(LINE);
        assert_eq!(replica_count(&node, &requirements()), None);
        let wanting = |replicas| Requirements { replicas, ..requirements() };
        assert_level(&replica_count(&node, &wanting(2)).unwrap(), Fail, "no lock is ever granted");
        assert_level(&replica_count(&node, &wanting(1)).unwrap(), Good, "every replica");
        assert_level(&replica_count(&node.with_replica(LINE), &wanting(1)).unwrap(), Warn, "replicas=2");
    }

    #[test]
    fn a_replica_that_is_behind() {
        assert_eq!(lag(&healthy()), None);
        assert_level(&lag(&healthy().with_replica(LINE)).unwrap(), Good, "1 in step");
        let late = "ip=10.0.0.3,port=6380,state=online,offset=14,lag=9";
        assert_level(&lag(&healthy().with_replica(LINE).with_replica(late)).unwrap(), Warn, "10.0.0.3:6380");
        let copying = "ip=10.0.0.3,port=6380,state=send_bulk,offset=0,lag=0";
        assert_level(&lag(&healthy().with_replica(copying)).unwrap(), Warn, "not in step");
    }
}
