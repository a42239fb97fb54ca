//! Judges which data a crash or a failover loses.

use super::super::facts::{Fact, Requirements, ServerFacts};
use super::{format_count, ok, unknown, warn};
use crate::Finding;
use leasehold_internals::sql::Dialect;

/// What a finding about lost locks says of the tokens.
const TOKEN_REMARK: &str =
    "tokens still rise, because they are never below the clock's microseconds, unless the clock went back, too";

/// The settings that make the server acknowledge a commit before it is on disk.
fn unsafe_settings(server: &ServerFacts, requirements: &Requirements) -> Fact<Vec<String>> {
    let mut loose = Vec::new();
    match requirements.dialect {
        Dialect::MySql => {
            let flush = server.setting("innodb_flush_log_at_trx_commit")?;
            if !matches!(flush, "1" | "3") {
                loose.push(format!("innodb_flush_log_at_trx_commit={flush}"));
            }
            // After a crash, transactions that are not in the binary log are rolled back.
            if server.is_on("log_bin")? && server.setting("sync_binlog")? != "1" {
                loose.push(format!("sync_binlog={}", server.setting("sync_binlog")?));
            }
        }
        Dialect::Postgres => {
            if !server.is_on("fsync")? {
                loose.push("fsync=off".into());
            }
            if server.setting("synchronous_commit")? == "off" {
                loose.push("synchronous_commit=off".into());
            }
        }
    }
    Ok(loose)
}

/// Judges whether a commit is on disk before its reply.
pub(super) fn judge_durability(address: &str, server: &ServerFacts, requirements: &Requirements) -> Finding {
    let check = "durability";
    let fix = match requirements.dialect {
        Dialect::MySql => "innodb_flush_log_at_trx_commit=1 and sync_binlog=1",
        Dialect::Postgres => "fsync=on; synchronous_commit=on, at least for the user of the locks (ALTER ROLE … SET)",
    };
    match unsafe_settings(server, requirements) {
        Ok(loose) if loose.is_empty() => {
            ok(check, address, "each commit is on disk before its reply").impact("a crash loses no lock")
        }
        Ok(loose) => warn(check, address, loose.join(", "))
            .impact(format!(
                "a machine that crashes loses the latest commits: held locks are granted to others; {TOKEN_REMARK}"
            ))
            .fix(fix),
        Err(reason) => unknown(check, address, &reason).impact("a machine that crashes may lose held locks").fix(fix),
    }
}

/// The settings by which a commit waits for a replica; `None` if it does not wait.
fn synchronous_replication(server: &ServerFacts, requirements: &Requirements) -> Fact<Option<String>> {
    if requirements.dialect == Dialect::Postgres {
        let names = server.setting("synchronous_standby_names")?;
        let commit = server.setting("synchronous_commit")?;
        let waits = !names.is_empty() && !matches!(commit, "off" | "local");
        return Ok(waits.then(|| format!("synchronous_standby_names={names:?}, synchronous_commit={commit}")));
    }
    for word in ["master", "source"] {
        if server.is_on(&format!("rpl_semi_sync_{word}_enabled")) == Ok(true) {
            let point = server.setting(&format!("rpl_semi_sync_{word}_wait_point")).unwrap_or("AFTER_SYNC");
            let active = server.status(&format!("rpl_semi_sync_{word}_status")).unwrap_or("ON");
            if active == "ON" && point == "AFTER_SYNC" {
                return Ok(Some(format!("semi-synchronous ({point})")));
            }
        }
    }
    server.settings.as_ref().map_err(Clone::clone)?;
    Ok(None)
}

/// Judges whether a failover to a replica loses locks.
pub(super) fn judge_replication(address: &str, server: &ServerFacts, requirements: &Requirements) -> Finding {
    let check = "replication";
    let means = "a fail-over to a replica without the latest commits loses held locks, and grants them to others";
    let fix = match requirements.dialect {
        Dialect::MySql => {
            "semi-synchronous replication with rpl_semi_sync_master_wait_point=AFTER_SYNC and a long timeout; or no automatic fail-over"
        }
        Dialect::Postgres => {
            "synchronous_standby_names='ANY 1 (*)' and synchronous_commit=on; or no automatic fail-over"
        }
    };
    if server.is_galera() {
        return ok(check, address, "a cluster that certifies each commit").impact("every node has each grant");
    }
    match (server.replicas.clone(), synchronous_replication(server, requirements)) {
        (Ok(0), _) => ok(check, address, "it has no replica").impact("there is no fail-over that could lose locks"),
        (Ok(count), Ok(Some(how))) => ok(check, address, format!("{}; {how}", format_count(count, "replica")))
            .impact("a grant is on a replica before its reply"),
        (Ok(count), Ok(None)) => warn(check, address, format!("{}, asynchronous", format_count(count, "replica")))
            .impact(format!("{means}; {TOKEN_REMARK}"))
            .fix(fix),
        (Err(reason), _) | (_, Err(reason)) => unknown(check, address, &reason).impact(means).fix(fix),
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
        assert_level(&judge_durability("h", &mariadb(), &my), Good, "loses no lock");
        let lazy = mariadb().with_setting("innodb_flush_log_at_trx_commit", "2");
        assert_level(&judge_durability("h", &lazy, &my), Warn, "innodb_flush_log_at_trx_commit=2");
        let logged = mariadb().with_setting("log_bin", "ON");
        assert_level(&judge_durability("h", &logged, &my), Warn, "sync_binlog=0");
        assert_level(&judge_durability("h", &logged.with_setting("sync_binlog", "1"), &my), Good, "on disk");
        assert_level(&judge_durability("h", &postgres(), &pg), Good, "on disk");
        assert_level(&judge_durability("h", &postgres().with_setting("fsync", "off"), &pg), Warn, "fsync=off");
        assert_level(
            &judge_durability("h", &postgres().with_setting("synchronous_commit", "off"), &pg),
            Warn,
            "microseconds",
        );
        assert_level(
            &judge_durability("h", &postgres().with_setting("synchronous_commit", "local"), &pg),
            Good,
            "on disk",
        );
        assert_level(
            &judge_durability("h", &opaque_server(&UnknownReason::not_reported("it")), &pg),
            Unknown,
            "crashes",
        );
    }

    #[test]
    fn asynchronous_replicas_are_a_warning() {
        let (my, pg) = (requirements(Dialect::MySql), requirements(Dialect::Postgres));
        assert_level(&judge_replication("h", &mariadb(), &my), Good, "no replica");
        let two = ServerFacts { replicas: Ok(2), ..postgres() };
        assert_level(&judge_replication("h", &two, &pg), Warn, "2 replicas, asynchronous");
        let waits = two.with_setting("synchronous_standby_names", "*");
        assert_level(&judge_replication("h", &waits, &pg), Good, "before its reply");
        assert_level(&judge_replication("h", &waits.with_setting("synchronous_commit", "local"), &pg), Warn, "ANY 1");
        let semi = ServerFacts { replicas: Ok(1), ..mariadb() }.with_setting("rpl_semi_sync_master_enabled", "ON");
        assert_level(&judge_replication("h", &semi, &my), Warn, "AFTER_SYNC");
        let semi = semi.with_setting("rpl_semi_sync_master_wait_point", "AFTER_SYNC");
        assert_level(&judge_replication("h", &semi, &my), Good, "semi-synchronous");
        assert_level(
            &judge_replication("h", &semi.with_status("rpl_semi_sync_master_status", "OFF"), &my),
            Warn,
            "1 replica",
        );
        assert_level(
            &judge_replication("h", &opaque_server(&UnknownReason::Denied("1227".into())), &my),
            Unknown,
            "fail-over",
        );
    }
}
