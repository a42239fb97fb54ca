//! What a restart loses.

use std::time::Duration;

use super::super::ask::No;
use super::super::facts::{Aim, Node};
use super::{ok, short, unknown, warn};
use crate::doctor::Finding;

const TOKENS: &str = "tokens still rise, unless its clock went back, too";
const SET: &str = "appendonly yes and appendfsync always; or strict=30s (the longest lease) in the URL, which makes a server that \
    may have forgotten leases wait";
const SIMPLE: &str = "appendonly yes and appendfsync always";
const TELL: &str = "let this user run INFO and CONFIG GET: +info +config|get";

/// The recommended setting; the textbook lock has no strict mode.
fn set(aim: &Aim) -> &'static str {
    if aim.simple { SIMPLE } else { SET }
}

/// What survives a crash of the server.
pub(super) fn persistence(node: &Node, aim: &Aim) -> Finding {
    let (check, at) = ("persistence", &node.address);
    let found = match (node.number("aof_enabled"), node.setting("appendfsync"), node.setting("save")) {
        (Ok(1), Ok("always"), _) => {
            return ok(check, at, "appendonly yes, appendfsync always").means("a restart forgets no lock");
        }
        _ if aim.strict => {
            return ok(check, at, "not each write is on disk, or it is not known; strict is on")
                .means("after a restart nobody new gets in for the longest lease, so forgotten locks do no harm");
        }
        (Ok(1), Ok(fsync), _) => format!("appendonly yes, appendfsync {fsync}"),
        (Ok(1), Err(no), _) | (Err(no), _, _) => {
            return unknown(check, at, &no)
                .means("a server that restarts may forget held locks, and grant them to others")
                .fix(format!("{}; {TELL}", set(aim)));
        }
        (Ok(_), _, Ok("")) => "appendonly no, and no snapshots (save is empty)".to_owned(),
        (Ok(_), _, Ok(save)) => format!("appendonly no; snapshots: save {save}"),
        (Ok(_), _, Err(_)) => "appendonly no".to_owned(),
    };
    let means = match node.setting("appendfsync") {
        _ if node.number("aof_enabled") != Ok(1) => {
            "a server that restarts forgets held locks, and grants them to others"
        }
        Ok("everysec") => {
            "a machine that crashes forgets the last second or two: locks taken then are granted to others"
        }
        _ => "a machine that crashes forgets what the system had not written yet: those locks are granted to others",
    };
    warn(check, at, found).means(format!("{means}; {TOKENS}")).fix(set(aim))
}

/// A master that restarts empty empties its replicas.
pub(super) fn empty_restart(node: &Node) -> Option<Finding> {
    let (check, at) = ("empty-restart", &node.address);
    if node.number("connected_slaves").unwrap_or(0) == 0 {
        return None;
    }
    let means = "a master that is restarted before a failover comes back empty, and its replicas empty themselves to be like \
        it: all locks are forgotten on all servers";
    let fix = "appendonly yes on all servers; or else never restart a master by itself (no Restart= in its service)";
    Some(match (node.number("aof_enabled"), node.setting("save")) {
        (Ok(1), _) => {
            ok(check, at, "it has replicas, and writes an append-only file").means("it comes back with its data")
        }
        (Ok(_), Ok("")) => warn(check, at, "it has replicas, and writes nothing to disk").means(means).fix(fix),
        (Ok(_), Ok(_)) => {
            ok(check, at, "it has replicas, and writes snapshots").means("it comes back with old data, not empty")
        }
        (Ok(_), Err(no)) | (Err(no), _) => unknown(check, at, &no).means(means).fix(format!("{fix}; {TELL}")),
    })
}

/// Whether the server restarted recently.
pub(super) fn restart(node: &Node, aim: &Aim) -> Finding {
    let (check, at) = ("restart", &node.address);
    match node.number("uptime_in_seconds").map(Duration::from_secs) {
        Ok(up) if up >= aim.ttl => {
            ok(check, at, format!("it has been up for longer than a lease ({})", short(aim.ttl)))
                .means("leases from before its last start are over")
        }
        Ok(up) => {
            let found = format!("it started {} s ago, less than a lease ({})", up.as_secs(), short(aim.ttl));
            let means = "locks from before may still be relied on by their holders, and be granted to others";
            let fix = format!("wait for a lease; for the next time: {}", set(aim));
            match node.forgets_nothing() {
                _ if aim.strict => {
                    ok(check, at, found).means("strict mode lets nobody new in until old leases are over")
                }
                Ok(true) => ok(check, at, found).means("it has forgotten nothing"),
                Ok(false) => warn(check, at, found).means(means).fix(fix),
                Err(no) => unknown(check, at, &No::Refused(format!("{found}; {no}"))).means(means).fix(fix),
            }
        }
        Err(no) => unknown(check, at, &no)
            .means("a server that has just restarted may have forgotten held locks")
            .fix("let this user run INFO: +info"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::{aim, assert_level, healthy, mute};
    use super::*;
    use crate::doctor::Level::{Ok as Good, Unknown, Warn};

    #[test]
    fn only_each_write_on_disk_forgets_nothing() {
        assert_level(&persistence(&healthy(), &aim()), Good, "forgets no lock");
        let everysec = healthy().with_setting("appendfsync", "everysec");
        assert_level(&persistence(&everysec, &aim()), Warn, "last second");
        assert_level(&persistence(&everysec, &Aim { strict: true, ..aim() }), Good, "strict");
        let off = healthy().with_info("aof_enabled", "0");
        assert_level(&persistence(&off, &aim()), Warn, "save 3600 1");
        assert_level(&persistence(&off.clone().with_setting("save", ""), &aim()), Warn, "no snapshots");
        assert_level(&persistence(&off.hiding("save"), &aim()), Warn, "appendonly no");
        assert_level(&persistence(&healthy().hiding("appendfsync"), &aim()), Unknown, "+config|get");
        assert_level(&persistence(&mute(), &aim()), Unknown, "strict=");
    }

    #[test]
    fn a_master_that_comes_back_empty() {
        let line = "ip=r,port=1,state=online,offset=1,lag=0";
        assert_eq!(empty_restart(&healthy()), None);
        let off = healthy().with_replica(line).with_info("aof_enabled", "0");
        assert_level(&empty_restart(&off.clone().with_setting("save", "")).unwrap(), Warn, "empty themselves");
        assert_level(&empty_restart(&off.clone()).unwrap(), Good, "snapshots");
        assert_level(&empty_restart(&off.hiding("save")).unwrap(), Unknown, "+config|get");
        assert_level(&empty_restart(&healthy().with_replica(line)).unwrap(), Good, "append-only");
    }

    #[test]
    fn a_server_that_has_just_come_back() {
        let young = healthy().with_info("uptime_in_seconds", "5");
        assert_level(&restart(&young, &aim()), Good, "forgotten nothing");
        let forgetful = young.with_setting("appendfsync", "no");
        assert_level(&restart(&forgetful, &aim()), Warn, "wait for a lease");
        assert_level(&restart(&forgetful, &Aim { strict: true, ..aim() }), Good, "strict");
        assert_level(&restart(&forgetful.clone().hiding("appendfsync"), &aim()), Unknown, "NOPERM");
        assert_level(&restart(&forgetful, &Aim { ttl: Duration::from_secs(5), ..aim() }), Good, "longer than a lease");
        assert_level(&restart(&mute(), &aim()), Unknown, "+info");
    }
}
