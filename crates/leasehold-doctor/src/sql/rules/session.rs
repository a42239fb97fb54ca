//! Judges the default settings of sessions, and the timeouts of statements and sessions.

use std::time::Duration;

use super::super::facts::{Fact, Requirements, ServerFacts, UnknownReason};
use super::{fail, format_short, ok, unknown, warn};
use crate::Finding;
use leasehold_internals::sql::Dialect;
use leasehold_internals::sql::config::Technique;

/// The beginning of a fix behind a pooler, where the defaults of a session cannot be set.
const ALTER_ROLE_HINT: &str = "for the user of the locks: ALTER ROLE … SET";

/// Judges the default isolation level, which matters only where leasehold's sessions cannot set
/// their own.
pub(super) fn judge_isolation(address: &str, server: &ServerFacts, requirements: &Requirements) -> Finding {
    let check = "isolation";
    let setting: Fact<String> = match requirements.dialect {
        Dialect::Postgres => server.setting("default_transaction_isolation").map(ToOwned::to_owned),
        Dialect::MySql => (|| {
            let level = server.setting("transaction_isolation").or_else(|_| server.setting("tx_isolation"))?;
            Ok(format!(
                "{level}, autocommit {}, sql_mode {:?}",
                server.setting("autocommit")?,
                server.setting("sql_mode")?
            ))
        })(),
    };
    let keeps_defaults = requirements.has_transaction_pooler && requirements.dialect == Dialect::Postgres;
    match setting {
        Ok(found) if keeps_defaults && found != "read committed" => {
            warn(check, address, format!("{found} by default, and behind a pooler leasehold cannot set it"))
                .impact("conflicting statements are refused (40001) and retried: the more clients wait for a lock, the slower it is")
                .fix(format!("{ALTER_ROLE_HINT} default_transaction_isolation = 'read committed'"))
        }
        Ok(found) if keeps_defaults => {
            ok(check, address, format!("{found} by default")).impact("as leasehold's statements need it")
        }
        Ok(found) => ok(check, address, format!("{found} by default"))
            .impact("leasehold's sessions set their own: READ COMMITTED with autocommit; this default does not matter"),
        Err(reason) => unknown(check, address, &reason).impact("leasehold's sessions set their own, except behind a pooler"),
    }
}

/// MySQL: fails with statement-based replication, for which InnoDB refuses READ COMMITTED.
pub(super) fn judge_binlog_format(address: &str, server: &ServerFacts) -> Finding {
    let check = "binlog-format";
    let setting = server.is_on("log_bin").and_then(|on| {
        if on { server.setting("binlog_format").map(|format| Some(format.to_owned())) } else { Ok(None) }
    });
    match setting {
        Ok(None) => ok(check, address, "log_bin is off").impact("no statement is refused because of the binary log"),
        Ok(Some(format)) if format.eq_ignore_ascii_case("STATEMENT") => {
            fail(check, address, "log_bin is on, and binlog_format STATEMENT")
                .impact("InnoDB then refuses writes with READ COMMITTED (error 1665): no lock can be acquired")
                .fix("binlog_format=ROW, or MIXED")
        }
        Ok(Some(format)) => ok(check, address, format!("log_bin is on, binlog_format {format}"))
            .impact("leasehold's writes are replicated as rows, times included"),
        // Where the setting no longer exists, the format is ROW.
        Err(UnknownReason::NotReported(_)) if server.is_on("log_bin") == Ok(true) => {
            ok(check, address, "log_bin is on; there is no binlog_format").impact("rows are replicated, not statements")
        }
        Err(reason) => unknown(check, address, &reason)
            .impact("with binlog_format=STATEMENT, InnoDB refuses leasehold's writes (error 1665)"),
    }
}

/// A setting in milliseconds; `None` if it is 0, which means no limit.
fn millis_setting(server: &ServerFacts, key: &str) -> Fact<Option<Duration>> {
    let value = server.number(key)?;
    Ok(u64::try_from(value).ok().filter(|value| *value > 0).map(Duration::from_millis))
}

/// A setting in seconds; `None` if it is 0, which means no limit.
fn seconds_setting(server: &ServerFacts, key: &str) -> Fact<Option<Duration>> {
    let value: f64 = server.setting(key)?.parse().map_err(|_| UnknownReason::not_reported(key))?;
    Ok(Duration::try_from_secs_f64(value).ok().filter(|value| *value > Duration::ZERO))
}

/// Judges the timeout of statements.
pub(super) fn judge_statement_timeout(address: &str, server: &ServerFacts, requirements: &Requirements) -> Finding {
    let check = "statement-timeout";
    let (key, setting) = match requirements.dialect {
        Dialect::Postgres => ("statement_timeout", millis_setting(server, "statement_timeout")),
        Dialect::MySql if server.setting("max_statement_time").is_ok() => {
            ("max_statement_time", seconds_setting(server, "max_statement_time"))
        }
        // MySQL's setting ends only reads.
        Dialect::MySql => ("max_execution_time", millis_setting(server, "max_execution_time")),
    };
    let least = Duration::from_secs(1);
    match setting {
        Ok(Some(most)) if requirements.is_held_in_session() || requirements.dialect == Dialect::MySql => {
            ok(check, address, format!("{key} is {}", format_short(most)))
                .impact("leasehold's sessions set their own, none: waiters wait in a statement")
        }
        Ok(None) => {
            ok(check, address, format!("{key} is not set")).impact("the server ends none of leasehold's statements")
        }
        Ok(Some(most)) if most < least => warn(check, address, format!("{key} is {}", format_short(most)))
            .impact("the server cancels a slow statement, so an acquire or a renewal fails instead of being late")
            .fix(format!("{key} of {} or more for the user of the locks", format_short(least))),
        Ok(Some(most)) => ok(check, address, format!("{key} is {}", format_short(most)))
            .impact("longer than leasehold's statements need"),
        Err(reason) => unknown(check, address, &reason)
            .impact("if the server cancels statements early, acquires and renewals fail"),
    }
}

/// Reports the timeout of a statement that waits for a row lock of another transaction.
pub(super) fn judge_lock_timeout(address: &str, server: &ServerFacts, requirements: &Requirements) -> Finding {
    let check = "lock-timeout";
    let (key, setting) = match requirements.dialect {
        Dialect::Postgres => ("lock_timeout", millis_setting(server, "lock_timeout")),
        Dialect::MySql => ("innodb_lock_wait_timeout", seconds_setting(server, "innodb_lock_wait_timeout")),
    };
    let found = |time: Option<Duration>| {
        time.map_or(format!("{key} is not set"), |time| format!("{key} is {}", format_short(time)))
    };
    match setting {
        Ok(time) if requirements.has_transaction_pooler && requirements.dialect == Dialect::Postgres => {
            ok(check, address, found(time))
                .impact("leasehold's statements carry their own, 1 s: a statement that waits for a locked row times out")
        }
        Ok(time) => ok(check, address, found(time)).impact(
            "leasehold's sessions set their own, 1 s: a row that another transaction keeps locked does not block a client for longer",
        ),
        Err(reason) => unknown(check, address, &reason).impact("leasehold's sessions set their own, except behind a pooler"),
    }
}

/// Judges the timeout of idle sessions.
pub(super) fn judge_idle_timeout(address: &str, server: &ServerFacts, requirements: &Requirements) -> Finding {
    let check = "idle-timeout";
    let mut ends: Vec<(&str, Duration)> = Vec::new();
    let keys: &[&str] = match (requirements.dialect, requirements.technique) {
        (Dialect::MySql, _) => &["wait_timeout"],
        (_, Technique::ForUpdate) => &["idle_in_transaction_session_timeout", "idle_session_timeout"],
        _ => &["idle_session_timeout"],
    };
    for key in keys {
        let setting = if requirements.dialect == Dialect::MySql {
            seconds_setting(server, key)
        } else {
            millis_setting(server, key)
        };
        match setting {
            Ok(time) => ends.extend(time.map(|time| (*key, time))),
            // PostgreSQL before version 14 has none.
            Err(UnknownReason::NotReported(_)) if server.settings.is_ok() && *key == "idle_session_timeout" => {}
            Err(reason) => {
                return unknown(check, address, &reason)
                    .impact("the server may end idle sessions, and their locks with them");
            }
        }
    }
    let Some((key, time)) = ends.into_iter().min_by_key(|(_, time)| *time) else {
        return ok(check, address, format!("{} is not set", keys.join(", "))).impact("idle sessions are not ended");
    };
    let found = format!("{key} is {}", format_short(time));
    if requirements.is_held_in_session() {
        return ok(check, address, found)
            .impact("leasehold's sessions set their own, the TTL: it ends the lock of an unresponsive holder");
    }
    if requirements.dialect == Dialect::Postgres && !requirements.is_polling && !requirements.is_held_in_session() {
        return warn(check, address, found)
            .impact(
                "the connection for messages to waiters is idle: the server ends it each time, and waiters poll until it is replaced",
            )
            .fix(format!("ALTER ROLE … SET {key} = 0 for the user of the locks; or wake=poll in the URL"));
    }
    let means = match requirements.dialect {
        Dialect::MySql => "leasehold's sessions set their own, 8 hours; an ended session is replaced",
        Dialect::Postgres => "an ended session is replaced when it is needed",
    };
    ok(check, address, found).impact(means)
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
