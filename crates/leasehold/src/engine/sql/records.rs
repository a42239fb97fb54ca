//! Records: a table of their own with one row per record, the same for all techniques.
//!
//! Every write is one statement that compares the version. So no transaction stays open between two
//! messages, and poolers work. The row of a removed record stays, without a value, to keep its
//! version. All times are microseconds of the database's clock.
//!
//! | event | consequence |
//! |---|---|
//! | the answer to a write is lost | outcome unknown; a read shows it. Sent again over the same version, the write has no second effect |
//! | two clients write at once | the row is locked for one of them; the second finds another version |
//! | MySQL does the write, and the query for the time fails | an error with an unknown effect, as above |
//! | the database's clock is set back | versions go on one by one; the time that is read goes back with it |
//! | a fail-over loses the last commits | the record is as it was before; the next write gets a version above the lost ones, if the clocks are right |
//! | the table is missing, and this client may not create it | locks work; requests for records fail, with what to do |

use std::sync::Arc;
use std::time::Duration;

use super::Dialect;
use super::connection::{Reply, Value};
use super::ddl::Tables;
use super::error::{ErrorClass, Failure};
use super::pool::{Pool, PooledConnection};
use crate::engine::Record;
use crate::types::{FORMAT, LockName, Result};

/// How many times a statement is tried that others blocked.
const MAX_TRIES: u32 = 5;

/// The records of one engine.
#[derive(Debug)]
pub(super) struct StoredRecords {
    pool: Arc<Pool>,
    sql: RecordStatements,
}

impl StoredRecords {
    pub(super) fn new(pool: &Arc<Pool>) -> Self {
        let config = &pool.config;
        Self {
            pool: Arc::clone(pool),
            sql: RecordStatements::new(config.dialect, &Tables::from_config(config).records),
        }
    }

    pub(super) async fn get(&self, name: &LockName) -> Result<Record> {
        let mut tries = 0;
        loop {
            let mut link = self.pool.borrow_or_error().await?;
            match self.sql.get(&mut link, name).await {
                Ok(found) => return Ok(found),
                Err(failure) => self.retry_or_fail(link, failure, &mut tries, true).await?,
            }
        }
    }

    pub(super) async fn compare_and_set(
        &self,
        name: &LockName,
        expected_version: u64,
        value: String,
    ) -> Result<Option<Record>> {
        let Ok(expected_version) = i64::try_from(expected_version) else { return Ok(None) };
        let mut tries = 0;
        loop {
            let mut link = self.pool.borrow_or_error().await?;
            match self.sql.compare_and_set(&mut link, name, expected_version, &value).await {
                Ok(written) => return Ok(written),
                Err(failure) => self.retry_or_fail(link, failure, &mut tries, false).await?,
            }
        }
    }

    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        let mut tries = 0;
        loop {
            let mut link = self.pool.borrow_or_error().await?;
            match self.sql.list(&mut link, prefix).await {
                Ok(names) => return Ok(names),
                Err(failure) => self.retry_or_fail(link, failure, &mut tries, true).await?,
            }
        }
    }

    /// Decides whether a statement is tried again: it had no effect, or it only reads. Creates a
    /// missing table.
    async fn retry_or_fail(
        &self,
        mut link: PooledConnection,
        failure: Failure,
        tries: &mut u32,
        reads: bool,
    ) -> Result<()> {
        let config = &self.pool.config;
        *tries += 1;
        let to_error = |failure| self.pool.to_error(&super::with_hint(failure, config));
        match failure.class(config.dialect) {
            _ if *tries >= MAX_TRIES => Err(to_error(failure)),
            Some(ErrorClass::Conflict) => Ok(()),
            Some(ErrorClass::NoTable) => super::create_records_table(config, &mut link).await.map_err(to_error),
            // An idle connection had ended; the others may have, too.
            _ if reads && *tries == 1 && failure.is_connection_lost(config.dialect) => {
                self.pool.discard_idle();
                Ok(())
            }
            _ => Err(to_error(failure)),
        }
    }
}

/// Every statement on the table.
#[derive(Clone, Debug)]
struct RecordStatements {
    dialect: Dialect,
    /// The version, the value, the format and the time, even without a row. Parameter: name.
    read: String,
    /// Writes a record that does not exist. Parameters: name, value.
    insert: String,
    /// Writes over a version. Parameters: value, name, version.
    update: String,
    /// The names that start with a prefix. Parameter: prefix.
    names: String,
    clock: String,
}

impl RecordStatements {
    fn new(dialect: Dialect, table: &str) -> Self {
        match dialect {
            Dialect::MySql => mysql(table),
            Dialect::Postgres => postgres(table),
        }
    }

    async fn get(&self, link: &mut PooledConnection, name: &LockName) -> Result<Record, Failure> {
        let reply = link.run(&self.read, &[name.as_str().into()]).await?;
        let Some([version, value, format, now]) = reply.row() else { return Err(unexpected_reply()) };
        let now = duration_from_micros(now.int())?;
        if let Some(format) = format.int().filter(|format| *format != i64::from(FORMAT)) {
            return Err(Failure::UnknownFormat(format));
        }
        match (version, value) {
            (Value::Null, Value::Null) => Ok(Record::absent(now)),
            (version, Value::Text(value)) if value.is_empty() => {
                version.int().map(|_| Record::absent(now)).ok_or_else(unexpected_reply)
            }
            (version, Value::Text(value)) => {
                let version =
                    version.int().and_then(|version| u64::try_from(version).ok()).ok_or_else(unexpected_reply)?;
                Ok(Record { version, value: self.decode(value)?, engine_time: now })
            }
            _ => Err(unexpected_reply()),
        }
    }

    async fn compare_and_set(
        &self,
        link: &mut PooledConnection,
        name: &LockName,
        expected_version: i64,
        value: &str,
    ) -> Result<Option<Record>, Failure> {
        if expected_version == 0 && value.is_empty() {
            return Ok(Some(self.get(link, name).await?).filter(|found| found.version == 0));
        }
        let (name, stored) = (name.as_str(), self.encode(value));
        let reply = if expected_version == 0 {
            link.run(&self.insert, &[name.into(), stored]).await?
        } else {
            link.run(&self.update, &[stored, name.into(), expected_version.into()]).await?
        };
        if reply.rows_changed == 0 {
            return Ok(None);
        }
        let (version, now) = self.written_version(link, &reply).await?;
        if value.is_empty() {
            return Ok(Some(Record::absent(now)));
        }
        Ok(Some(Record { version, value: value.to_owned(), engine_time: now }))
    }

    /// The version that was written, and the time.
    async fn written_version(&self, link: &mut PooledConnection, reply: &Reply) -> Result<(u64, Duration), Failure> {
        match self.dialect {
            Dialect::MySql => {
                // After any error here, the write is stored.
                let clock = link.run(&self.clock, &[]).await.map_err(|failure| match failure {
                    Failure::Refused { code, message } => Failure::ConnectionLost(format!("{code}: {message}")),
                    failure => failure,
                })?;
                Ok((reply.insert_id, duration_from_micros(clock.value().and_then(Value::int))?))
            }
            Dialect::Postgres => {
                let Some([version, now]) = reply.row() else { return Err(unexpected_reply()) };
                let version =
                    version.int().and_then(|version| u64::try_from(version).ok()).ok_or_else(unexpected_reply)?;
                Ok((version, duration_from_micros(now.int())?))
            }
        }
    }

    async fn list(&self, link: &mut PooledConnection, prefix: &str) -> Result<Vec<LockName>, Failure> {
        let values = match self.dialect {
            // The prefix appears twice.
            Dialect::MySql => vec![prefix.into(), prefix.into()],
            Dialect::Postgres => vec![prefix.into()],
        };
        let reply = link.run(&self.names, &values).await?;
        let name = |row: &Vec<Value>| row.first().and_then(Value::text).and_then(|name| LockName::new(name).ok());
        Ok(reply.rows.iter().filter_map(name).collect())
    }

    /// A value as it is sent. PostgreSQL's texts have no zero character, so they are sent as hex
    /// digits.
    fn encode(&self, value: &str) -> Value {
        match self.dialect {
            Dialect::MySql => value.into(),
            Dialect::Postgres => value.bytes().map(|byte| format!("{byte:02x}")).collect::<String>().into(),
        }
    }

    fn decode(&self, stored: &str) -> Result<String, Failure> {
        match self.dialect {
            Dialect::MySql => Ok(stored.to_owned()),
            Dialect::Postgres => from_hex(stored).ok_or_else(unexpected_reply),
        }
    }
}

fn from_hex(digits: &str) -> Option<String> {
    let (pairs, []) = digits.as_bytes().as_chunks::<2>() else { return None };
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    String::from_utf8(pairs.iter().map(byte).collect::<Option<_>>()?).ok()
}

fn duration_from_micros(micros: Option<i64>) -> Result<Duration, Failure> {
    micros.and_then(|micros| u64::try_from(micros).ok()).map(Duration::from_micros).ok_or_else(unexpected_reply)
}

fn unexpected_reply() -> Failure {
    Failure::UnexpectedReply("a record in an unknown format".into())
}

fn mysql(table: &str) -> RecordStatements {
    const NOW: &str = "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)";
    // LAST_INSERT_ID returns the version. Columns are assigned from left to right: before its own
    // assignment, `value` is the old one.
    let next = format!("LAST_INSERT_ID(GREATEST(version + 1, {NOW}))");
    RecordStatements {
        dialect: Dialect::MySql,
        read: format!(
            "SELECT r.version, r.value, r.format, c.now_us FROM (SELECT {NOW} AS now_us) AS c LEFT JOIN {table} AS r ON r.name = ?"
        ),
        insert: format!(
            "INSERT INTO {table} (name, version, value, format) VALUES (?, LAST_INSERT_ID({NOW}), ?, {FORMAT}) ON DUPLICATE KEY UPDATE \
             version = IF(value = '' AND format = {FORMAT}, {next}, version), \
             value = IF(value = '' AND format = {FORMAT}, VALUES(value), value)"
        ),
        update: format!(
            "UPDATE {table} SET version = {next}, value = ? WHERE name = ? AND version = ? AND value <> '' AND format = {FORMAT}"
        ),
        names: format!("SELECT name FROM {table} WHERE value <> '' AND LEFT(name, LENGTH(?)) = ? ORDER BY name"),
        clock: format!("SELECT {NOW}"),
    }
}

fn postgres(table: &str) -> RecordStatements {
    // Evaluated at each use: even after waiting for a locked row.
    const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    RecordStatements {
        dialect: Dialect::Postgres,
        read: format!(
            "SELECT r.version, encode(r.value, 'hex'), r.format, {NOW} FROM (SELECT 1) AS c LEFT JOIN {table} AS r ON r.name = $1"
        ),
        insert: format!(
            "INSERT INTO {table} AS r (name, version, value, format) VALUES ($1, {NOW}, decode($2, 'hex'), {FORMAT}) \
             ON CONFLICT (name) DO UPDATE SET version = greatest(r.version + 1, {NOW}), value = excluded.value \
             WHERE r.value = '' AND r.format = {FORMAT} RETURNING r.version, {NOW}"
        ),
        update: format!(
            "UPDATE {table} AS r SET version = greatest(r.version + 1, {NOW}), value = decode($1, 'hex') \
             WHERE r.name = $2 AND r.version = $3 AND r.value <> '' AND r.format = {FORMAT} RETURNING r.version, {NOW}"
        ),
        names: format!("SELECT name FROM {table} WHERE value <> '' AND starts_with(name, $1) ORDER BY name"),
        clock: format!("SELECT {NOW}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_value_round_trips(value: String) {
            for dialect in [Dialect::MySql, Dialect::Postgres] {
                let sql = RecordStatements::new(dialect, "t");
                let stored = sql.encode(&value);
                prop_assert_eq!(sql.decode(stored.text().unwrap()), Ok(value.clone()));
            }
        }

        #[test]
        fn decoding_any_text_does_not_panic(stored in ".{0,20}") {
            let _ = RecordStatements::new(Dialect::Postgres, "t").decode(&stored);
        }
    }
}
