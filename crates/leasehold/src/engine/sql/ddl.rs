//! The names of the database tables, and the SQL statements that create them.

use super::Dialect;
use super::config::{self, Config};
use crate::types::Result;

/// The tables' names, quoted and with the schema, as SQL statements use them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables {
    /// The lease table: one row per lock.
    pub leases: String,
    /// One row per lock, which `technique=for-update` locks.
    pub rows: String,
    /// The token counters of `technique=for-update` and `technique=session`: one row per lock.
    pub tokens: String,
    /// One row per record.
    pub records: String,
}

impl Tables {
    /// The names in `schema` (`None`: the user's default), beginning with `table`, which is plain
    /// and needs no escaping.
    pub fn new(dialect: Dialect, schema: Option<&str>, table: &str) -> Self {
        let quoted_name = |suffix: &str| match (dialect, schema) {
            (Dialect::MySql, _) => format!("`{table}{suffix}`"),
            (Dialect::Postgres, None) => format!("\"{table}{suffix}\""),
            (Dialect::Postgres, Some(schema)) => format!("\"{schema}\".\"{table}{suffix}\""),
        };
        Self {
            leases: quoted_name(""),
            rows: quoted_name("_rows"),
            tokens: quoted_name("_tokens"),
            records: quoted_name("_records"),
        }
    }

    /// The names that the URL sets.
    pub fn from_config(config: &Config) -> Self {
        Self::new(config.dialect, config.schema.as_deref(), &config.table)
    }
}

/// The statements that create missing tables: leases, rows, tokens and records, in this order.
///
/// Names are compared byte by byte. In MySQL that means `VARBINARY`: every `_bin` collation of
/// MariaDB pads with spaces, so that `a` and `a` with a trailing space would be one lock.
pub fn statements(dialect: Dialect, tables: &Tables) -> Vec<String> {
    let Tables { leases, rows, tokens, records } = tables;
    match dialect {
        Dialect::MySql => vec![
            format!(
                "CREATE TABLE IF NOT EXISTS {leases} (\n  name VARBINARY(512) NOT NULL PRIMARY KEY,\n  \
                 version BIGINT NOT NULL,\n  token BIGINT NOT NULL,\n  busy BIGINT NOT NULL,\n  \
                 state MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,\n  {FORMAT_COLUMN}\n) ENGINE=InnoDB ROW_FORMAT=DYNAMIC"
            ),
            format!("CREATE TABLE IF NOT EXISTS {rows} (\n  name VARBINARY(512) NOT NULL PRIMARY KEY\n) ENGINE=InnoDB"),
            format!(
                "CREATE TABLE IF NOT EXISTS {tokens} (\n  name VARBINARY(512) NOT NULL PRIMARY KEY,\n  \
                 token BIGINT NOT NULL,\n  {FORMAT_COLUMN}\n) ENGINE=InnoDB"
            ),
            // A value has up to 64 KiB, and a BLOB one byte less.
            format!(
                "CREATE TABLE IF NOT EXISTS {records} (\n  name VARBINARY(512) NOT NULL PRIMARY KEY,\n  \
                 version BIGINT NOT NULL,\n  value MEDIUMBLOB NOT NULL,\n  {FORMAT_COLUMN}\n) ENGINE=InnoDB ROW_FORMAT=DYNAMIC"
            ),
        ],
        Dialect::Postgres => vec![
            format!(
                "CREATE TABLE IF NOT EXISTS {leases} (\n  name text COLLATE \"C\" PRIMARY KEY,\n  version bigint NOT NULL,\n  \
                 token bigint NOT NULL,\n  busy bigint NOT NULL,\n  state text NOT NULL,\n  {FORMAT_COLUMN}\n) \
                 WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01)"
            ),
            format!("CREATE TABLE IF NOT EXISTS {rows} (\n  name text COLLATE \"C\" PRIMARY KEY\n)"),
            format!(
                "CREATE TABLE IF NOT EXISTS {tokens} (\n  name text COLLATE \"C\" PRIMARY KEY,\n  token bigint NOT NULL,\n  {FORMAT_COLUMN}\n)"
            ),
            format!(
                "CREATE TABLE IF NOT EXISTS {records} (\n  name text COLLATE \"C\" PRIMARY KEY,\n  \
                 version bigint NOT NULL,\n  value bytea NOT NULL,\n  {FORMAT_COLUMN}\n)"
            ),
        ],
    }
}

/// The column with the format number of a row. It has no default: each statement that inserts a row
/// states the number of what it inserts.
const FORMAT_COLUMN: &str = "format BIGINT NOT NULL";

/// The statement that creates the table of records, which every technique may use.
pub fn records_table_statement(config: &Config) -> String {
    statements(config.dialect, &Tables::from_config(config)).pop().unwrap_or_default()
}

/// The statements for the tables that a technique needs for its locks.
pub fn lock_table_statements(config: &Config) -> Vec<String> {
    let [leases, rows, tokens, _]: [String; 4] =
        statements(config.dialect, &Tables::from_config(config)).try_into().unwrap_or_default();
    match config.technique {
        super::config::Technique::Row => vec![leases],
        super::config::Technique::ForUpdate => vec![rows, tokens],
        super::config::Technique::Session => vec![tokens],
    }
}

/// Returns the statements that create leasehold's tables, as text for an administrator to run if
/// the user in the URL may not create tables. Comments in it list the rights that this user needs.
///
/// `table` is the URL's `table=`, and `schema`, which only PostgreSQL has, its `schema=`.
///
/// ```
/// use leasehold::engine::sql::{Dialect, ddl};
///
/// let text = ddl(Dialect::Postgres, None, Some("ops"))?;
/// assert!(text.contains("CREATE TABLE IF NOT EXISTS \"ops\".\"leasehold\""));
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// # Errors
/// `InvalidUrl` for a name that the URL would refuse, too.
pub fn ddl(dialect: Dialect, table: Option<&str>, schema: Option<&str>) -> Result<String> {
    let table = config::check_identifier("table", table.unwrap_or(config::DEFAULT_TABLE))?;
    let schema = schema.map(|schema| config::check_identifier("schema", schema)).transpose()?;
    config::check_schema(dialect, schema.as_deref())?;
    let tables = Tables::new(dialect, schema.as_deref(), &table);
    let user = if dialect == Dialect::MySql { "'user'@'%'" } else { "\"user\"" };
    let mut text = String::new();
    if let Some(schema) = &schema {
        text.push_str(&format!(
            "-- GRANT USAGE ON SCHEMA \"{schema}\" TO {user};\nCREATE SCHEMA IF NOT EXISTS \"{schema}\";\n\n"
        ));
    }
    let uses = [
        (&tables.leases, "The lease table: technique=row, which is the default."),
        (&tables.rows, "Only for technique=for-update."),
        (&tables.tokens, "Only for technique=for-update and technique=session."),
        (&tables.records, "Records, which schedules need: any technique."),
    ];
    for ((table, purpose), statement) in uses.into_iter().zip(statements(dialect, &tables)) {
        text.push_str(&format!(
            "-- {purpose}\n-- GRANT SELECT, INSERT, UPDATE ON {table} TO {user};\n{statement};\n\n"
        ));
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    Ok(text)
}

/// The `leasehold engines --ddl` command that prints the statements for the tables of this URL.
pub fn command(config: &Config) -> String {
    let mut command = format!("leasehold engines --ddl {}", config.dialect.name());
    if config.table != config::DEFAULT_TABLE {
        command.push_str(&format!(" --table {}", config.table));
    }
    if let Some(schema) = &config.schema {
        command.push_str(&format!(" --schema {schema}"));
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ddl_lists_grants_and_tables() {
        let text = ddl(Dialect::MySql, Some("locks"), None).unwrap();
        assert!(text.contains("-- GRANT SELECT, INSERT, UPDATE ON `locks` TO 'user'@'%';\nCREATE TABLE"), "{text}");
        assert_eq!(text.matches("CREATE TABLE IF NOT EXISTS `locks").count(), 4);
        assert!(text.ends_with(";\n") && !text.ends_with("\n\n"));
        let text = ddl(Dialect::Postgres, None, Some("ops")).unwrap();
        assert!(text.starts_with("-- GRANT USAGE ON SCHEMA \"ops\""), "{text}");
        assert!(text.contains("CREATE SCHEMA IF NOT EXISTS \"ops\";"), "{text}");
        for (table, schema) in [(Some("a-b"), None), (Some(""), None), (None, Some("ops"))] {
            assert!(ddl(Dialect::MySql, table, schema).is_err());
        }
    }
}
