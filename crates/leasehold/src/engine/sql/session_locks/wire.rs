//! The SQL statements of `technique=session` and `technique=for-update`, and what their answers
//! mean.

use std::time::Duration;

use sha2::{Digest, Sha256};

use super::super::Dialect;
use super::super::config::{Config, Technique};
use super::super::connection::{Reply, Value};
use super::super::ddl::Tables;
use super::super::error::Failure;
use crate::types::{FORMAT, Mode, Token};

/// The timeout of a wait without a limit: a year, in seconds. (MySQL takes -1 for no limit, but
/// MariaDB refuses it.)
const WAIT_SECONDS: u32 = 31_536_000;

/// Which server this is, as far as the statements depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerKind {
    /// Whether it is MariaDB and not MySQL.
    pub(super) is_mariadb: bool,
    /// PostgreSQL's version number, for example 150004; 0 for other servers.
    pub(super) version: i64,
}

/// Makes the statements of one engine.
#[derive(Clone, Debug)]
pub(super) struct SessionStatements {
    pub(super) dialect: Dialect,
    pub(super) technique: Technique,
    pub(super) tables: Tables,
    pub(super) server: ServerKind,
    /// Database, schema and table, which make the keys of named locks different from those of other
    /// engines.
    scope: String,
}

/// A statement with its parameters.
pub(super) type Statement = (String, Vec<Value>);

impl SessionStatements {
    /// The statements for the URL's technique and tables, on this server.
    pub(super) fn new(config: &Config, server: ServerKind) -> Self {
        let tables = Tables::from_config(config);
        let scope = format!("{}\0{}\0{}", config.database, config.schema.as_deref().unwrap_or(""), config.table);
        Self { dialect: config.dialect, technique: config.technique, tables, server, scope }
    }

    /// The SHA-256 of a lock's name and the scope.
    fn digest(&self, name: &str) -> [u8; 32] {
        Sha256::new().chain_update(&self.scope).chain_update([0]).chain_update(name).finalize().into()
    }

    /// The database's own name for a lock, with `technique=session`. MySQL's names are server-wide,
    /// ignore case and have at most 64 characters, so this has 224 bits of a hash. PostgreSQL's are
    /// 64-bit numbers: two locks with the same number exclude each other.
    pub(super) fn key(&self, name: &str) -> Value {
        let digest = self.digest(name);
        match self.dialect {
            Dialect::MySql => Value::Text(format!("lh:{}", hex(&digest[..28]))),
            Dialect::Postgres => {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(&digest[..8]);
                Value::Int(i64::from_be_bytes(bytes))
            }
        }
    }

    /// The statements that set up a session: they turn off all of the server's time limits except
    /// the one for idle sessions.
    pub(super) fn setup(&self) -> String {
        match self.dialect {
            Dialect::MySql if self.server.is_mariadb => {
                "SET SESSION max_statement_time = 0, idle_transaction_timeout = 0, \
                 idle_readonly_transaction_timeout = 0, idle_write_transaction_timeout = 0"
                    .to_owned()
            }
            Dialect::MySql => "SET SESSION max_execution_time = 0".to_owned(),
            Dialect::Postgres => {
                let more = if self.server.version >= 170_000 { "; SET SESSION transaction_timeout = 0" } else { "" };
                format!("SET SESSION lock_timeout = 0; SET SESSION statement_timeout = 0{more}")
            }
        }
    }

    /// The statement that makes the server check every second that a waiting client is connected;
    /// `None` if the server does not support it.
    pub(super) fn client_check_setup(&self) -> Option<&'static str> {
        let is_supported = self.dialect == Dialect::Postgres && self.server.version >= 140_000;
        is_supported.then_some("SET SESSION client_connection_check_interval = '1s'")
    }

    /// Whether the lock is held in an open transaction, as with `technique=for-update`.
    pub(super) fn opens_transaction(&self) -> bool {
        self.technique == Technique::ForUpdate
    }

    /// The statements before a lock is acquired: the server ends the session after `ttl` without a
    /// statement. With `technique=for-update`, they also open the transaction that will hold the
    /// row.
    pub(super) fn begin_hold(&self, ttl: Duration) -> String {
        let seconds = idle_seconds(ttl);
        let millis = u64::try_from(ttl.as_micros().div_ceil(1000)).unwrap_or(u64::MAX).min(i32::MAX as u64);
        match (self.dialect, self.technique) {
            (Dialect::MySql, Technique::ForUpdate) => {
                format!("SET SESSION wait_timeout = {seconds}, innodb_lock_wait_timeout = 100000000; START TRANSACTION")
            }
            (Dialect::MySql, _) => format!("SET SESSION wait_timeout = {seconds}"),
            (Dialect::Postgres, Technique::ForUpdate) => {
                format!("BEGIN; SET LOCAL idle_in_transaction_session_timeout = {millis}")
            }
            (Dialect::Postgres, _) => format!("SET SESSION idle_session_timeout = {millis}"),
        }
    }

    /// The query for the row to lock, which returns a row if it exists.
    pub(super) fn find_row(&self, name: &str) -> Statement {
        let rows = &self.tables.rows;
        match self.dialect {
            Dialect::MySql => (format!("SELECT 1 FROM {rows} WHERE name = ?"), vec![name.into()]),
            Dialect::Postgres => (format!("SELECT 1 FROM {rows} WHERE name = $1"), vec![name.into()]),
        }
    }

    /// The statement that creates the row to lock if it does not exist. For MySQL also one to run
    /// before it, so that it does not wait long for a transaction that has locked the row.
    pub(super) fn insert_row(&self, name: &str) -> (Option<&'static str>, Statement) {
        let rows = &self.tables.rows;
        match self.dialect {
            Dialect::MySql => {
                let timeout = if self.server.is_mariadb {
                    "SET SESSION innodb_lock_wait_timeout = 0"
                } else {
                    "SET SESSION innodb_lock_wait_timeout = 1"
                };
                let insert = format!("INSERT IGNORE INTO {rows} (name) VALUES (?)");
                (Some(timeout), (insert, vec![name.into()]))
            }
            Dialect::Postgres => {
                let insert = format!("INSERT INTO {rows} (name) VALUES ($1) ON CONFLICT DO NOTHING");
                (None, (insert, vec![name.into()]))
            }
        }
    }

    /// The statement that acquires the lock if it is free.
    pub(super) fn try_acquire(&self, name: &str, mode: Mode) -> Statement {
        let shared = mode == Mode::Shared;
        let rows = &self.tables.rows;
        let lock = self.row_lock(shared);
        match (self.dialect, self.technique) {
            (Dialect::MySql, Technique::ForUpdate) => {
                (format!("SELECT name FROM {rows} WHERE name = ? {lock} SKIP LOCKED"), vec![name.into()])
            }
            (Dialect::Postgres, Technique::ForUpdate) => {
                (format!("SELECT name FROM {rows} WHERE name = $1 {lock} SKIP LOCKED"), vec![name.into()])
            }
            (Dialect::MySql, _) => ("SELECT GET_LOCK(?, 0)".to_owned(), vec![self.key(name)]),
            (Dialect::Postgres, _) if shared => {
                ("SELECT pg_try_advisory_lock_shared($1)".to_owned(), vec![self.key(name)])
            }
            (Dialect::Postgres, _) => ("SELECT pg_try_advisory_lock($1)".to_owned(), vec![self.key(name)]),
        }
    }

    /// The statement that waits for the lock. In MySQL it contains `mark`, by which it is found
    /// when it must be cancelled.
    pub(super) fn wait(&self, name: &str, mode: Mode, mark: &str) -> Statement {
        let shared = mode == Mode::Shared;
        let rows = &self.tables.rows;
        let lock = self.row_lock(shared);
        match (self.dialect, self.technique) {
            (Dialect::MySql, Technique::ForUpdate) => {
                let name = hex(name.as_bytes());
                (format!("SELECT /* {mark} */ name FROM {rows} WHERE name = X'{name}' {lock}"), Vec::new())
            }
            (Dialect::Postgres, Technique::ForUpdate) => {
                (format!("SELECT name FROM {rows} WHERE name = $1 {lock}"), vec![name.into()])
            }
            (Dialect::MySql, _) => {
                // The key has only letters, digits and a colon.
                let key = self.key(name);
                (format!("SELECT /* {mark} */ GET_LOCK('{}', {WAIT_SECONDS})", key.text().unwrap_or("")), Vec::new())
            }
            (Dialect::Postgres, _) if shared => {
                ("SELECT pg_advisory_lock_shared($1)::text = ''".to_owned(), vec![self.key(name)])
            }
            (Dialect::Postgres, _) => ("SELECT pg_advisory_lock($1)::text = ''".to_owned(), vec![self.key(name)]),
        }
    }

    /// The SQL clause that locks the selected row.
    fn row_lock(&self, shared: bool) -> &'static str {
        match (shared, self.dialect, self.server.is_mariadb) {
            (false, ..) => "FOR UPDATE",
            (true, Dialect::MySql, true) => "LOCK IN SHARE MODE",
            (true, ..) => "FOR SHARE",
        }
    }

    /// Whether the reply to [`try_acquire`](Self::try_acquire) or [`wait`](Self::wait) grants the
    /// lock. Anything but a clear yes does not.
    pub(super) fn is_granted(&self, reply: &Reply, name: &str) -> bool {
        match self.technique {
            Technique::ForUpdate => {
                reply.rows.len() == 1 && reply.value().and_then(Value::text).is_some_and(|row| row == name)
            }
            _ => reply.value().and_then(Value::int) == Some(1),
        }
    }

    /// The statement that returns 1 if the session exists and holds the lock.
    pub(super) fn confirm_held(&self, name: &str) -> Statement {
        match (self.dialect, self.technique) {
            (Dialect::MySql, Technique::Session) => {
                ("SELECT IS_USED_LOCK(?) = CONNECTION_ID()".to_owned(), vec![self.key(name)])
            }
            _ => ("SELECT 1".to_owned(), Vec::new()),
        }
    }

    /// The statement that releases the lock, and returns whether it was held. `None`: the end of
    /// the transaction releases it.
    pub(super) fn release(&self, name: &str, mode: Mode) -> Option<Statement> {
        let sql = match (self.dialect, self.technique, mode) {
            (_, Technique::ForUpdate, _) => return None,
            (Dialect::MySql, ..) => "SELECT RELEASE_LOCK(?)",
            (Dialect::Postgres, _, Mode::Shared) => "SELECT pg_advisory_unlock_shared($1)",
            (Dialect::Postgres, ..) => "SELECT pg_advisory_unlock($1)",
        };
        Some((sql.to_owned(), vec![self.key(name)]))
    }

    /// The statement that releases all locks of the session, or ends its transaction.
    pub(super) fn release_all(&self) -> &'static str {
        match (self.dialect, self.technique) {
            (_, Technique::ForUpdate) => "ROLLBACK",
            (Dialect::MySql, _) => "DO RELEASE_ALL_LOCKS()",
            (Dialect::Postgres, _) => "SELECT pg_advisory_unlock_all()",
        }
    }

    /// The statement that reads the format of a lock's token counter.
    pub(super) fn token_format(&self, name: &str) -> Statement {
        let parameter = if self.dialect == Dialect::MySql { "?" } else { "$1" };
        (format!("SELECT format FROM {} WHERE name = {parameter}", self.tables.tokens), vec![name.into()])
    }

    /// The statement that increments a lock's token counter and returns its new value. A counter in
    /// another format stays as it is, and the reply has no value.
    pub(super) fn next_token(&self, name: &str) -> Statement {
        let tokens = &self.tables.tokens;
        let sql = match self.dialect {
            Dialect::MySql => {
                const NOW: &str = "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)";
                format!(
                    "INSERT INTO {tokens} (name, token, format) VALUES (?, LAST_INSERT_ID({NOW}), {FORMAT}) \
                     ON DUPLICATE KEY UPDATE token = IF(format = {FORMAT}, LAST_INSERT_ID(GREATEST(token + 1, {NOW})), token)"
                )
            }
            Dialect::Postgres => format!(
                "INSERT INTO {tokens} AS counter (name, token, format) \
                 VALUES ($1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, {FORMAT}) \
                 ON CONFLICT (name) DO UPDATE SET token = greatest(counter.token + 1, excluded.token) \
                 WHERE counter.format = {FORMAT} RETURNING token"
            ),
        };
        (sql, vec![name.into()])
    }

    /// The token in the reply to [`next_token`](Self::next_token); `None`: the counter has another
    /// format.
    pub(super) fn parse_token(&self, reply: &Reply) -> Option<Token> {
        let token = match self.dialect {
            Dialect::MySql => (reply.rows_changed > 0).then_some(reply.insert_id),
            Dialect::Postgres => reply.value().and_then(Value::int).and_then(|token| u64::try_from(token).ok()),
        };
        token.filter(|token| *token > 0).map(Token)
    }
}

/// Why a counter has no value, from its format.
pub(super) fn no_token(format: &Reply) -> Failure {
    let format = format.value().and_then(Value::int);
    format.map_or_else(|| Failure::UnexpectedReply("the token counter has no value".into()), Failure::UnknownFormat)
}

/// The TTL in whole seconds, as MySQL needs it for the idle timeout; rounded up, so that it is
/// never shorter.
fn idle_seconds(ttl: Duration) -> u64 {
    ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)
}

/// The bytes as hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
