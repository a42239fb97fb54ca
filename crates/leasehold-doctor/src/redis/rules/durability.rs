//! The data that a restart loses.

use std::time::Duration;

use super::super::facts::{NodeFacts, Requirements};
use super::super::query::QueryError;
use super::{format_short, ok, unknown, warn};
use crate::Finding;

const TOKEN_REMARK: &str = "tokens still rise, unless its clock went back, too";
const DURABILITY_FIX: &str = "appendonly yes and appendfsync always; or strict=30s (the longest lease) in the URL, which makes a server that \
    may have forgotten leases wait";
const SIMPLE_DURABILITY_FIX: &str = "appendonly yes and appendfsync always";
const PERMISSION_FIX: &str = "let this user run INFO and CONFIG GET: +info +config|get";

/// The recommended setting; the textbook lock has no strict mode.
fn durability_fix(aim: &Requirements) -> &'static str {
    if aim.simple { SIMPLE_DURABILITY_FIX } else { DURABILITY_FIX }
}

/// The data that survives a crash of the server.
pub(super) fn persistence(node: &NodeFacts, aim: &Requirements) -> Finding {
    let (check, at) = ("persistence", &node.address);
    let found = match (node.info_number("aof_enabled"), node.setting("appendfsync"), node.setting("save")) {
        (Ok(1), Ok("always"), _) => {
            return ok(check, at, "appendonly yes, appendfsync always").impact("a restart loses no lock");
        }
        _ if aim.strict => {
            return ok(check, at, "writes may not be on disk before their replies; strict is on")
                .impact("after a restart it grants no lock for the longest lease, so lost locks do no harm");
        }
        (Ok(1), Ok(fsync), _) => format!("appendonly yes, appendfsync {fsync}"),
        (Ok(1), Err(no), _) | (Err(no), _, _) => {
            return unknown(check, at, &no)
                .impact("a server that restarts may lose held locks, and grant them to others")
                .fix(format!("{}; {PERMISSION_FIX}", durability_fix(aim)));
        }
        (Ok(_), _, Ok("")) => "appendonly no, and no snapshots (save is empty)".to_owned(),
        (Ok(_), _, Ok(save)) => format!("appendonly no; snapshots: save {save}"),
        (Ok(_), _, Err(_)) => "appendonly no".to_owned(),
    };
    let means = match node.setting("appendfsync") {
        _ if node.info_number("aof_enabled") != Ok(1) => {
            "a server that restarts forgets held locks, and grants them to others"
        }
        Ok("everysec") => "a machine that crashes loses the last second or two: locks granted then are granted again",
        _ => "a machine that crashes loses all data not written yet: those locks are granted again",
    };
    warn(check, at, found).impact(format!("{means}; {TOKEN_REMARK}")).fix(durability_fix(aim))
}

/// A master that restarts empty empties its replicas.
pub(super) fn empty_restart(node: &NodeFacts) -> Option<Finding> {
    let (check, at) = ("empty-restart", &node.address);
    if node.info_number("connected_slaves").unwrap_or(0) == 0 {
        return None;
    }
    let means = "a master that is restarted before a failover comes back empty, and its replicas empty themselves to be like \
        it: all locks are forgotten on all servers";
    let fix = "appendonly yes on all servers; or else never restart a master by itself (no Restart= in its service)";
    Some(match (node.info_number("aof_enabled"), node.setting("save")) {
        (Ok(1), _) => {
            ok(check, at, "it has replicas, and writes an append-only file").impact("it restarts with its data")
        }
        (Ok(_), Ok("")) => warn(check, at, "it has replicas, and writes nothing to disk").impact(means).fix(fix),
        (Ok(_), Ok(_)) => {
            ok(check, at, "it has replicas, and writes snapshots").impact("it restarts with old data, not empty")
        }
        (Ok(_), Err(no)) | (Err(no), _) => {
            unknown(check, at, &no).impact(means).fix(format!("{fix}; {PERMISSION_FIX}"))
        }
    })
}

/// Whether the server restarted recently.
pub(super) fn restart(node: &NodeFacts, aim: &Requirements) -> Finding {
    let (check, at) = ("restart", &node.address);
    match node.info_number("uptime_in_seconds").map(Duration::from_secs) {
        Ok(up) if up >= aim.ttl => {
            ok(check, at, format!("it has been up for longer than a lease ({})", format_short(aim.ttl)))
                .impact("leases from before its last start have expired")
        }
        Ok(up) => {
            let found = format!("it started {} s ago, less than a lease ({})", up.as_secs(), format_short(aim.ttl));
            let means = "holders may still rely on locks from before the restart, which are granted again";
            let fix = format!("wait for a lease; for the next restart: {}", durability_fix(aim));
            match node.is_durable() {
                _ if aim.strict => {
                    ok(check, at, found).impact("strict mode grants no lock until old leases have expired")
                }
                Ok(true) => ok(check, at, found).impact("it has lost nothing"),
                Ok(false) => warn(check, at, found).impact(means).fix(fix),
                Err(no) => unknown(check, at, &QueryError::Refused(format!("{found}; {no}"))).impact(means).fix(fix),
            }
        }
        Err(no) => unknown(check, at, &no)
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
        assert_level(&persistence(&healthy(), &requirements()), Good, "loses no lock");
        let everysec = healthy().with_setting("appendfsync", "everysec");
        assert_level(&persistence(&everysec, &requirements()), Warn, "last second");
        assert_level(&persistence(&everysec, &Requirements { strict: true, ..requirements() }), Good, "strict");
        let off = healthy().with_info("aof_enabled", "0");
        assert_level(&persistence(&off, &requirements()), Warn, "save 3600 1");
        assert_level(&persistence(&off.clone().with_setting("save", ""), &requirements()), Warn, "no snapshots");
        assert_level(&persistence(&off.without_setting("save"), &requirements()), Warn, "appendonly no");
        assert_level(&persistence(&healthy().without_setting("appendfsync"), &requirements()), Unknown, "+config|get");
        assert_level(&persistence(&refusing_node(), &requirements()), Unknown, "strict=");
    }

    #[test]
    fn a_master_that_restarts_empty_empties_its_replicas() {
        let line = "ip=r,port=1,state=online,offset=1,lag=0";
        assert_eq!(empty_restart(&healthy()), None);
        let off = healthy().with_replica(line).with_info("aof_enabled", "0");
        assert_level(&empty_restart(&off.clone().with_setting("save", "")).unwrap(), Warn, "empty themselves");
        assert_level(&empty_restart(&off.clone()).unwrap(), Good, "snapshots");
        assert_level(&empty_restart(&off.without_setting("save")).unwrap(), Unknown, "+config|get");
        assert_level(&empty_restart(&healthy().with_replica(line)).unwrap(), Good, "append-only");
    }

    #[test]
    fn a_server_that_restarted_less_than_a_lease_ago() {
        let young = healthy().with_info("uptime_in_seconds", "5");
        assert_level(&restart(&young, &requirements()), Good, "lost nothing");
        let forgetful = young.with_setting("appendfsync", "no");
        assert_level(&restart(&forgetful, &requirements()), Warn, "wait for a lease");
        assert_level(&restart(&forgetful, &Requirements { strict: true, ..requirements() }), Good, "strict");
        assert_level(&restart(&forgetful.clone().without_setting("appendfsync"), &requirements()), Unknown, "NOPERM");
        assert_level(
            &restart(&forgetful, &Requirements { ttl: Duration::from_secs(5), ..requirements() }),
            Good,
            "longer than a lease",
        );
        assert_level(&restart(&refusing_node(), &requirements()), Unknown, "+info");
    }
}
