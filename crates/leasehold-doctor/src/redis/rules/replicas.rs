//! Judges the replicas: which data a failover loses.

use super::super::facts::{NodeFacts, Requirements};
use super::{fail, ok, unknown, warn};
use crate::Finding;

/// A replica that has not acknowledged writes for this many seconds is late; healthy ones do so
/// once a second.
const LATE_AFTER_SECS: u64 = 3;

/// Judges whether a master that has lost its replicas stops granting. `None` without replicas.
pub(super) fn judge_min_replicas(node: &NodeFacts, requirements: &Requirements) -> Option<Finding> {
    let (check, address) = ("min-replicas", &node.address);
    let means = "a partitioned master continues to grant locks while a replica takes its place: two clients may hold one lock \
        until the old master learns of the new one";
    let fix = "min-replicas-to-write 1 and min-replicas-max-lag 10, or less; and replicas=N in the URL, which waits for \
        replicas at each grant";
    let followers = match node.info_number("connected_slaves") {
        // No replica is connected; the rules for Sentinel and cluster judge that.
        Ok(0) => return None,
        Ok(count) => count,
        Err(error) => {
            return Some(
                unknown(check, address, &error).impact(means).fix(format!("{fix}; let this user run INFO: +info")),
            );
        }
    };
    let has = if followers == 1 { "1 replica".to_owned() } else { format!("{followers} replicas") };
    Some(match (node.setting_number("min-replicas-to-write"), node.setting_number("min-replicas-max-lag")) {
        (Ok(least @ 1..), Ok(lag @ 1..)) => {
            ok(check, address, format!("{has}; min-replicas-to-write {least}, within {lag} s"))
                .impact("a partitioned master stops granting soon")
        }
        // `INFO` has this line only if the setting is used.
        (Err(_), _) if node.info("min_slaves_good_slaves").is_ok() => {
            ok(check, address, format!("{has}; min-replicas-to-write is set"))
                .impact("a partitioned master stops granting soon")
        }
        _ if requirements.replicas > 0 => {
            ok(check, address, format!("{has}; the URL asks for replicas={}", requirements.replicas))
                .impact("a grant counts only when replicas have it")
        }
        (Ok(_), Ok(_)) => warn(check, address, format!("{has}; min-replicas-to-write is 0")).impact(means).fix(fix),
        (Err(error), _) | (_, Err(error)) => unknown(check, address, &error)
            .impact(means)
            .fix(format!("{fix}; let this user run CONFIG GET: +config|get")),
    })
}

/// Judges whether as many replicas are connected as `replicas=` waits for; `None` without that
/// option.
pub(super) fn judge_replica_count(node: &NodeFacts, requirements: &Requirements) -> Option<Finding> {
    let (check, address, wanted) = ("replicas", &node.address, u64::from(requirements.replicas));
    if wanted == 0 {
        return None;
    }
    let connected = match node.info_number("connected_slaves") {
        Ok(connected) => connected,
        Err(error) => {
            let means = "with fewer, no lock is ever granted";
            return Some(unknown(check, address, &error).impact(means).fix("let this user run INFO: +info"));
        }
    };
    let found = format!("the URL asks for {wanted}; {connected} are connected");
    Some(if connected < wanted {
        fail(check, address, found)
            .impact("no grant is acknowledged, so no lock is ever granted")
            .fix("bring the replicas back, or lower replicas= in the URL")
    } else if connected > wanted {
        warn(check, address, found)
            .impact("a failover may promote a replica without a grant, and the lock is granted again")
            .fix(format!("replicas={connected} in the URL, or replica-priority 0 for those that must not be promoted"))
    } else {
        ok(check, address, found).impact("every replica has a grant before it counts")
    })
}

/// Warns of replicas that are behind; `None` without replicas.
pub(super) fn judge_lag(node: &NodeFacts) -> Option<Finding> {
    let (check, address) = ("replica-lag", &node.address);
    let followers = match node.connected_replicas() {
        Ok(followers) if followers.is_empty() => return None,
        Ok(followers) => followers,
        Err(error) => {
            let means = "a lagging replica lacks the latest locks if it is promoted";
            return Some(unknown(check, address, &error).impact(means).fix("let this user run INFO: +info"));
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
        ok(check, address, format!("{} in step", followers.len()))
            .impact("a promoted replica lacks only the last moments")
    } else {
        warn(check, address, late.join("; "))
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
        assert_eq!(judge_min_replicas(&healthy(), &requirements()), None);
        assert_level(&judge_min_replicas(&node, &requirements()).unwrap(), Warn, "min-replicas-to-write 1");
        assert_level(
            &judge_min_replicas(&node, &Requirements { replicas: 1, ..requirements() }).unwrap(),
            Good,
            "replicas=1",
        );
        let set = node.clone().with_setting("min-replicas-to-write", "1");
        assert_level(&judge_min_replicas(&set, &requirements()).unwrap(), Good, "within 10 s");
        assert_level(
            &judge_min_replicas(&set.with_setting("min-replicas-max-lag", "0"), &requirements()).unwrap(),
            Warn,
            "partitioned",
        );
        let hidden = node.without_setting("min-replicas-to-write");
        assert_level(&judge_min_replicas(&hidden, &requirements()).unwrap(), Unknown, "+config|get");
        let configured = hidden.with_info("min_slaves_good_slaves", "1");
        assert_level(&judge_min_replicas(&configured, &requirements()).unwrap(), Good, "is set");
        assert_level(&judge_min_replicas(&refusing_node(), &requirements()).unwrap(), Unknown, "+info");
    }

    #[test]
    fn replicas_in_the_url_must_be_connected() {
        let node = healthy().with_replica(LINE);
        assert_eq!(judge_replica_count(&node, &requirements()), None);
        let wanting = |replicas| Requirements { replicas, ..requirements() };
        assert_level(&judge_replica_count(&node, &wanting(2)).unwrap(), Fail, "no lock is ever granted");
        assert_level(&judge_replica_count(&node, &wanting(1)).unwrap(), Good, "every replica");
        assert_level(&judge_replica_count(&node.with_replica(LINE), &wanting(1)).unwrap(), Warn, "replicas=2");
    }

    #[test]
    fn a_replica_that_is_behind_warns() {
        assert_eq!(judge_lag(&healthy()), None);
        assert_level(&judge_lag(&healthy().with_replica(LINE)).unwrap(), Good, "1 in step");
        let late = "ip=10.0.0.3,port=6380,state=online,offset=14,lag=9";
        assert_level(&judge_lag(&healthy().with_replica(LINE).with_replica(late)).unwrap(), Warn, "10.0.0.3:6380");
        let copying = "ip=10.0.0.3,port=6380,state=send_bulk,offset=0,lag=0";
        assert_level(&judge_lag(&healthy().with_replica(copying)).unwrap(), Warn, "not in step");
    }
}
