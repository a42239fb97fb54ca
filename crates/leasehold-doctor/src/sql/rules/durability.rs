//! The data that a crash or a failover loses.

use super::super::facts::{Fact, Requirements, ServerFacts};
use super::{many, ok, unknown, warn};
use crate::Finding;
use leasehold_internals::sql::Dialect;

const TOKENS: &str =
    "tokens still rise, because they are never below the clock's microseconds, unless the clock went back, too";

/// The settings that make the server acknowledge a commit before it is on disk.
fn unsafe_settings(seen: &ServerFacts, aim: &Requirements) -> Fact<Vec<String>> {
    let mut loose = Vec::new();
    match aim.dialect {
        Dialect::MySql => {
            let flush = seen.setting("innodb_flush_log_at_trx_commit")?;
            if !matches!(flush, "1" | "3") {
                loose.push(format!("innodb_flush_log_at_trx_commit={flush}"));
            }
            // After a crash, transactions that are not in the binary log are rolled back.
            if seen.is_on("log_bin")? && seen.setting("sync_binlog")? != "1" {
                loose.push(format!("sync_binlog={}", seen.setting("sync_binlog")?));
            }
        }
        Dialect::Postgres => {
            if !seen.is_on("fsync")? {
                loose.push("fsync=off".into());
            }
            if seen.setting("synchronous_commit")? == "off" {
                loose.push("synchronous_commit=off".into());
            }
        }
    }
    Ok(loose)
}

pub(super) fn on_disk(at: &str, seen: &ServerFacts, aim: &Requirements) -> Finding {
    let check = "durability";
    let fix = match aim.dialect {
        Dialect::MySql => "innodb_flush_log_at_trx_commit=1 and sync_binlog=1",
        Dialect::Postgres => "fsync=on; synchronous_commit=on, at least for the user of the locks (ALTER ROLE … SET)",
    };
    match unsafe_settings(seen, aim) {
        Ok(loose) if loose.is_empty() => {
            ok(check, at, "each commit is on disk before its reply").impact("a crash loses no lock")
        }
        Ok(loose) => warn(check, at, loose.join(", "))
            .impact(format!(
                "a machine that crashes loses the latest commits: held locks are granted to others; {TOKENS}"
            ))
            .fix(fix),
        Err(no) => unknown(check, at, &no).impact("a machine that crashes may lose held locks").fix(fix),
    }
}

/// Whether a commit waits for a replica, and how that is set.
fn synchronous_replication(seen: &ServerFacts, aim: &Requirements) -> Fact<Option<String>> {
    if aim.dialect == Dialect::Postgres {
        let names = seen.setting("synchronous_standby_names")?;
        let commit = seen.setting("synchronous_commit")?;
        let waits = !names.is_empty() && !matches!(commit, "off" | "local");
        return Ok(waits.then(|| format!("synchronous_standby_names={names:?}, synchronous_commit={commit}")));
    }
    for word in ["master", "source"] {
        if seen.is_on(&format!("rpl_semi_sync_{word}_enabled")) == Ok(true) {
            let point = seen.setting(&format!("rpl_semi_sync_{word}_wait_point")).unwrap_or("AFTER_SYNC");
            let active = seen.status(&format!("rpl_semi_sync_{word}_status")).unwrap_or("ON");
            if active == "ON" && point == "AFTER_SYNC" {
                return Ok(Some(format!("semi-synchronous ({point})")));
            }
        }
    }
    seen.settings.as_ref().map_err(Clone::clone)?;
    Ok(None)
}

/// The data that a failover loses.
pub(super) fn replicas(at: &str, seen: &ServerFacts, aim: &Requirements) -> Finding {
    let check = "replication";
    let means = "a fail-over to a replica without the latest commits loses held locks, and grants them to others";
    let fix = match aim.dialect {
        Dialect::MySql => {
            "semi-synchronous replication with rpl_semi_sync_master_wait_point=AFTER_SYNC and a long timeout; or no automatic fail-over"
        }
        Dialect::Postgres => {
            "synchronous_standby_names='ANY 1 (*)' and synchronous_commit=on; or no automatic fail-over"
        }
    };
    if seen.is_galera() {
        return ok(check, at, "a cluster that certifies each commit").impact("every node has each grant");
    }
    match (seen.replicas.clone(), synchronous_replication(seen, aim)) {
        (Ok(0), _) => ok(check, at, "it has no replica").impact("there is no fail-over that could lose locks"),
        (Ok(count), Ok(Some(how))) => ok(check, at, format!("{}; {how}", many(count, "replica")))
            .impact("a grant is on a replica before its reply"),
        (Ok(count), Ok(None)) => warn(check, at, format!("{}, asynchronous", many(count, "replica")))
            .impact(format!("{means}; {TOKENS}"))
            .fix(fix),
        (Err(no), _) | (_, Err(no)) => unknown(check, at, &no).impact(means).fix(fix),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::UnknownReason;
    use super::super::sample::{assert_level, mariadb, opaque_server, postgres, requirements};
    use super::*;
    use crate::Level::{Ok as Good, Unknown, Warn};

    #[test]
    fn every_commit_must_be_flushed_to_disk() {
        let (my, pg) = (requirements(Dialect::MySql), requirements(Dialect::Postgres));
        assert_level(&on_disk("h", &mariadb(), &my), Good, "loses no lock");
        let lazy = mariadb().with_setting("innodb_flush_log_at_trx_commit", "2");
        assert_level(&on_disk("h", &lazy, &my), Warn, "innodb_flush_log_at_trx_commit=2");
        let logged = mariadb().with_setting("log_bin", "ON");
        assert_level(&on_disk("h", &logged, &my), Warn, "sync_binlog=0");
        assert_level(&on_disk("h", &logged.with_setting("sync_binlog", "1"), &my), Good, "on disk");
        assert_level(&on_disk("h", &postgres(), &pg), Good, "on disk");
        assert_level(&on_disk("h", &postgres().with_setting("fsync", "off"), &pg), Warn, "fsync=off");
        assert_level(&on_disk("h", &postgres().with_setting("synchronous_commit", "off"), &pg), Warn, "microseconds");
        assert_level(&on_disk("h", &postgres().with_setting("synchronous_commit", "local"), &pg), Good, "on disk");
        assert_level(&on_disk("h", &opaque_server(&UnknownReason::not_reported("it")), &pg), Unknown, "crashes");
    }

    #[test]
    fn asynchronous_replicas_are_a_warning() {
        let (my, pg) = (requirements(Dialect::MySql), requirements(Dialect::Postgres));
        assert_level(&replicas("h", &mariadb(), &my), Good, "no replica");
        let two = ServerFacts { replicas: Ok(2), ..postgres() };
        assert_level(&replicas("h", &two, &pg), Warn, "2 replicas, asynchronous");
        let waits = two.with_setting("synchronous_standby_names", "*");
        assert_level(&replicas("h", &waits, &pg), Good, "before its reply");
        assert_level(&replicas("h", &waits.with_setting("synchronous_commit", "local"), &pg), Warn, "ANY 1");
        let semi = ServerFacts { replicas: Ok(1), ..mariadb() }.with_setting("rpl_semi_sync_master_enabled", "ON");
        assert_level(&replicas("h", &semi, &my), Warn, "AFTER_SYNC");
        let semi = semi.with_setting("rpl_semi_sync_master_wait_point", "AFTER_SYNC");
        assert_level(&replicas("h", &semi, &my), Good, "semi-synchronous");
        assert_level(&replicas("h", &semi.with_status("rpl_semi_sync_master_status", "OFF"), &my), Warn, "1 replica");
        assert_level(&replicas("h", &opaque_server(&UnknownReason::Denied("1227".into())), &my), Unknown, "fail-over");
    }
}
