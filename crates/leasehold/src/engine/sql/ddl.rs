//! The tables, and how they are made.

use super::Dialect;
use super::config::Config;

/// The tables' names, as statements say them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tables {
    /// The lease table: a row a lock.
    pub(super) leases: String,
    /// The rows that `technique=for-update` locks.
    pub(super) rows: String,
    /// The counters of the techniques that hold a session.
    pub(super) tokens: String,
}

impl Tables {
    pub(super) fn new(dialect: Dialect, schema: Option<&str>, table: &str) -> Self {
        let named = |suffix: &str| match (dialect, schema) {
            (Dialect::MySql, _) => format!("`{table}{suffix}`"),
            (Dialect::Postgres, None) => format!("\"{table}{suffix}\""),
            (Dialect::Postgres, Some(schema)) => format!("\"{schema}\".\"{table}{suffix}\""),
        };
        Self { leases: named(""), rows: named("_rows"), tokens: named("_tokens") }
    }

    pub(super) fn of(config: &Config) -> Self {
        Self::new(config.dialect, config.schema.as_deref(), &config.table)
    }
}

/// The statements that make what is not there yet, one each.
///
/// Names are compared byte by byte. In MySQL that is `VARBINARY`: every `_bin` collation of MariaDB pads with spaces, so that `a`
/// and `a` with a space behind it would be one lock.
pub(super) fn statements(dialect: Dialect, tables: &Tables) -> Vec<String> {
    let Tables { leases, rows, tokens } = tables;
    match dialect {
        Dialect::MySql => vec![
            format!(
                "CREATE TABLE IF NOT EXISTS {leases} (\n  name VARBINARY(512) NOT NULL PRIMARY KEY,\n  \
                 version BIGINT NOT NULL,\n  token BIGINT NOT NULL,\n  busy BIGINT NOT NULL,\n  \
                 state MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL\n) ENGINE=InnoDB ROW_FORMAT=DYNAMIC"
            ),
            format!("CREATE TABLE IF NOT EXISTS {rows} (\n  name VARBINARY(512) NOT NULL PRIMARY KEY\n) ENGINE=InnoDB"),
            format!(
                "CREATE TABLE IF NOT EXISTS {tokens} (\n  name VARBINARY(512) NOT NULL PRIMARY KEY,\n  \
                 token BIGINT NOT NULL\n) ENGINE=InnoDB"
            ),
        ],
        Dialect::Postgres => vec![
            format!(
                "CREATE TABLE IF NOT EXISTS {leases} (\n  name text COLLATE \"C\" PRIMARY KEY,\n  version bigint NOT NULL,\n  \
                 token bigint NOT NULL,\n  busy bigint NOT NULL,\n  state text NOT NULL\n) \
                 WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01)"
            ),
            format!("CREATE TABLE IF NOT EXISTS {rows} (\n  name text COLLATE \"C\" PRIMARY KEY\n)"),
            format!(
                "CREATE TABLE IF NOT EXISTS {tokens} (\n  name text COLLATE \"C\" PRIMARY KEY,\n  token bigint NOT NULL\n)"
            ),
        ],
    }
}

/// Which of the tables a technique needs.
pub(super) fn needed(config: &Config) -> Vec<String> {
    let [leases, rows, tokens]: [String; 3] =
        statements(config.dialect, &Tables::of(config)).try_into().unwrap_or_default();
    match config.technique {
        super::config::Technique::Row => vec![leases],
        super::config::Technique::ForUpdate => vec![rows, tokens],
        super::config::Technique::Session => vec![tokens],
    }
}
