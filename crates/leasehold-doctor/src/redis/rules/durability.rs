//! Judges which data a restart loses.

use std::time::Duration;

use super::super::facts::{NodeFacts, Requirements};
use super::super::query::QueryError;
use super::{format_short, ok, unknown, warn};
use crate::Finding;

/// What a finding about lost locks says of the tokens.
const TOKEN_REMARK: &str = "tokens still rise, unless its clock went back, too";
const DURABILITY_FIX: &str = "appendonly yes and appendfsync always; or strict=30s (the longest lease) in the URL, which makes a server that \
    may have lost leases cool down first";
const SIMPLE_DURABILITY_FIX: &str = "appendonly yes and appendfsync always";
const PERMISSION_FIX: &str = "let this user run INFO and CONFIG GET: +info +config|get";

/// The fix for writes that are not durable; `protocol=simple` has no strict mode to recommend.
fn durability_fix(requirements: &Requirements) -> &'static str {
    if requirements.simple { SIMPLE_DURABILITY_FIX } else { DURABILITY_FIX }
}

/// Judges which locks a crash of the server loses.
pub(super) fn judge_persistence(node: &NodeFacts, requirements: &Requirements) -> Finding {
    let (check, address) = ("persistence", &node.address);
    let found = match (node.info_number("aof_enabled"), node.setting("appendfsync"), node.setting("save")) {
        (Ok(1), Ok("always"), _) => {
            return ok(check, address, "appendonly yes, appendfsync always").impact("a restart loses no lock");
        }
        _ if requirements.strict => {
            return ok(check, address, "writes may not be on disk before their replies; strict is on")
                .impact("after a restart it grants no lock for the longest lease, so lost locks do no harm");
        }
        (Ok(1), Ok(fsync), _) => format!("appendonly yes, appendfsync {fsync}"),
        (Ok(1), Err(error), _) | (Err(error), _, _) => {
            return unknown(check, address, &error)
                .impact("a server that restarts may lose held locks, and grant them to others")
                .fix(format!("{}; {PERMISSION_FIX}", durability_fix(requirements)));
        }
        (Ok(_), _, Ok("")) => "appendonly no, and no snapshots (save is empty)".to_owned(),
        (Ok(_), _, Ok(save)) => format!("appendonly no; snapshots: save {save}"),
        (Ok(_), _, Err(_)) => "appendonly no".to_owned(),
    };
    let means = match node.setting("appendfsync") {
        _ if node.info_number("aof_enabled") != Ok(1) => {
            "a server that restarts loses held locks, and grants them to others"
        }
        Ok("everysec") => "a machine that crashes loses the last second or two: locks granted then are granted again",
        _ => "a machine that crashes loses all data not written yet: those locks are granted again",
    };
    warn(check, address, found).impact(format!("{means}; {TOKEN_REMARK}")).fix(durability_fix(requirements))
}

/// Judges whether a master with replicas may restart empty, because its replicas would then delete
/// their data. `None` without replicas.
pub(super) fn judge_empty_restart(node: &NodeFacts) -> Option<Finding> {
    let (check, address) = ("empty-restart", &node.address);
    if node.info_number("connected_slaves").unwrap_or(0) == 0 {
        return None;
    }
    let means = "a master that is restarted before a failover restarts empty, and its replicas empty themselves to be like \
        it: all locks are lost on all servers";
    let fix =
        "appendonly yes on all servers; or else never restart a master automatically (no Restart= in its service)";
    Some(match (node.info_number("aof_enabled"), node.setting("save")) {
        (Ok(1), _) => {
            ok(check, address, "it has replicas, and writes an append-only file").impact("it restarts with its data")
        }
        (Ok(_), Ok("")) => warn(check, address, "it has replicas, and writes nothing to disk").impact(means).fix(fix),
        (Ok(_), Ok(_)) => {
            ok(check, address, "it has replicas, and writes snapshots").impact("it restarts with old data, not empty")
        }
        (Ok(_), Err(error)) | (Err(error), _) => {
            unknown(check, address, &error).impact(means).fix(format!("{fix}; {PERMISSION_FIX}"))
        }
    })
}

/// Judges whether the server restarted less than a TTL ago, and may have lost leases then.
pub(super) fn judge_restart(node: &NodeFacts, requirements: &Requirements) -> Finding {
    let (check, address) = ("restart", &node.address);
    match node.info_number("uptime_in_seconds").map(Duration::from_secs) {
        Ok(up) if up >= requirements.ttl => {
            ok(check, address, format!("it has been up for longer than a lease ({})", format_short(requirements.ttl)))
                .impact("leases from before its last start have expired")
        }
        Ok(up) => {
            let found =
                format!("it started {} s ago, less than a lease ({})", up.as_secs(), format_short(requirements.ttl));
            let means = "holders may still rely on locks from before the restart, which are granted again";
            let fix = format!("wait for a lease; for the next restart: {}", durability_fix(requirements));
            match node.is_durable() {
                _ if requirements.strict => {
                    ok(check, address, found).impact("strict mode grants no lock until old leases have expired")
                }
                Ok(true) => ok(check, address, found).impact("it has lost nothing"),
                Ok(false) => warn(check, address, found).impact(means).fix(fix),
                Err(error) => {
                    unknown(check, address, &QueryError::Refused(format!("{found}; {error}"))).impact(means).fix(fix)
                }
            }
        }
        Err(error) => unknown(check, address, &error)
            .impact("a server that has just restarted may have lost held locks")
            .fix("let this user run INFO: +info"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{assert_level, healthy, refusing_node, requirements};
    use super::*;
    use crate::Level::{Ok as Good, Unknown, Warn};

    #[test]
    fn only_fsync_on_every_write_loses_nothing() {
        assert_level(&judge_persistence(&healthy(), &requirements()), Good, "loses no lock");
        let everysec = healthy().with_setting("appendfsync", "everysec");
        assert_level(&judge_persistence(&everysec, &requirements()), Warn, "last second");
        assert_level(&judge_persistence(&everysec, &Requirements { strict: true, ..requirements() }), Good, "strict");
        let off = healthy().with_info("aof_enabled", "0");
        assert_level(&judge_persistence(&off, &requirements()), Warn, "save 3600 1");
        assert_level(&judge_persistence(&off.clone().with_setting("save", ""), &requirements()), Warn, "no snapshots");
        assert_level(&judge_persistence(&off.without_setting("save"), &requirements()), Warn, "appendonly no");
        assert_level(
            &judge_persistence(&healthy().without_setting("appendfsync"), &requirements()),
            Unknown,
            "+config|get",
        );
        assert_level(&judge_persistence(&refusing_node(), &requirements()), Unknown, "strict=");
    }

    #[test]
    fn a_master_that_restarts_empty_empties_its_replicas() {
        let line = "ip=r,port=1,state=online,offset=1,lag=0";
        assert_eq!(judge_empty_restart(&healthy()), None);
        let off = healthy().with_replica(line).with_info("aof_enabled", "0");
        assert_level(&judge_empty_restart(&off.clone().with_setting("save", "")).unwrap(), Warn, "empty themselves");
        assert_level(&judge_empty_restart(&off.clone()).unwrap(), Good, "snapshots");
        assert_level(&judge_empty_restart(&off.without_setting("save")).unwrap(), Unknown, "+config|get");
        assert_level(&judge_empty_restart(&healthy().with_replica(line)).unwrap(), Good, "append-only");
    }

    #[test]
    fn a_recent_restart_warns_unless_no_lease_is_lost() {
        let young = healthy().with_info("uptime_in_seconds", "5");
        assert_level(&judge_restart(&young, &requirements()), Good, "lost nothing");
        let forgetful = young.with_setting("appendfsync", "no");
        assert_level(&judge_restart(&forgetful, &requirements()), Warn, "wait for a lease");
        assert_level(&judge_restart(&forgetful, &Requirements { strict: true, ..requirements() }), Good, "strict");
        assert_level(
            &judge_restart(&forgetful.clone().without_setting("appendfsync"), &requirements()),
            Unknown,
            "NOPERM",
        );
        assert_level(
            &judge_restart(&forgetful, &Requirements { ttl: Duration::from_secs(5), ..requirements() }),
            Good,
            "longer than a lease",
        );
        assert_level(&judge_restart(&refusing_node(), &requirements()), Unknown, "+info");
    }
}
