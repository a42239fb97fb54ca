//! Every statement on the lease table.
//!
//! `version` changes with every write, so that a write decided on an older version fails. `token`
//! is the highest token granted. `busy` is the time until which the rest of the row counts: the
//! last lease or queue position ends then, or the last note of a force release is dropped. It is
//! zero if there is none of these. A later client sees that the lock is free without reading the
//! rest, unless `format` is another number than `FORMAT`. All times are microseconds of the
//! database's clock.

use super::super::Dialect;
use super::super::connection::{Reply, Value};
use super::super::ddl::Tables;
use super::super::error::Failure;
use crate::types::FORMAT;

/// The statements of one engine.
#[derive(Clone, Debug)]
pub(super) struct LeaseStatements {
    dialect: Dialect,
    /// Acquires a free lock. Parameters: name, TTL, state, skew. PostgreSQL's ends, as all its
    /// writes do, with the row-lock timeout.
    acquire: String,
    /// Writes over the version that was read: see [`Swap`].
    swap: String,
    /// As above, and sends notifications: PostgreSQL only.
    swap_and_notify: String,
    /// As above for a row without contenders and without notifications: it needs no time.
    clear: String,
    read: String,
    list: String,
    /// The beginning of the statement.
    versions: String,
    clock: String,
}

/// A row, as it was at `now`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredRow {
    pub(super) version: i64,
    pub(super) token: u64,
    pub(super) now: i64,
    pub(super) state: String,
}

/// A write over a version.
#[derive(Clone, Debug)]
pub(super) struct Swap<'a> {
    pub(super) name: &'a str,
    pub(super) version: i64,
    pub(super) token: u64,
    /// When the last lease, position or note of a force release ends that does not begin now.
    pub(super) busy: i64,
    /// The longest TTL of those that begin now, if there are any.
    pub(super) max_new_ttl: Option<i64>,
    pub(super) state: String,
    /// Notifications to send: a channel and a text each.
    pub(super) notifications: &'a [(String, String)],
    /// The row-lock timeout.
    pub(super) row_lock_timeout: &'a str,
}

/// Acquiring a free lock, and the release that leaves it free, on a table of that name.
pub(in crate::engine::sql) fn acquire_and_release_statements(dialect: Dialect, table: &str) -> [String; 2] {
    let all = match dialect {
        Dialect::MySql => mysql(table),
        Dialect::Postgres => postgres(table),
    };
    [all.acquire, all.clear]
}

impl LeaseStatements {
    pub(super) fn new(dialect: Dialect, tables: &Tables) -> Self {
        match dialect {
            Dialect::MySql => mysql(&tables.leases),
            Dialect::Postgres => postgres(&tables.leases),
        }
    }

    /// Acquires a free lock.
    pub(super) fn acquire(&self, name: &str, ttl: i64, state: &str, skew: i64, lock_wait: &str) -> (&str, Vec<Value>) {
        let values = match self.dialect {
            Dialect::MySql => {
                // The condition appears once for each column.
                let skew = || Value::from(skew);
                vec![name.into(), ttl.into(), state.into(), skew(), state.into(), skew(), skew(), skew()]
            }
            Dialect::Postgres => vec![name.into(), ttl.into(), state.into(), skew.into(), lock_wait.into()],
        };
        (&self.acquire, values)
    }

    pub(super) fn swap(&self, swap: &Swap<'_>) -> (&str, Vec<Value>) {
        let fresh = swap.max_new_ttl.unwrap_or(-1);
        let token = i64::try_from(swap.token).unwrap_or(i64::MAX);
        let state = swap.state.as_str();
        match self.dialect {
            Dialect::MySql => (
                &self.swap,
                vec![
                    state.into(),
                    token.into(),
                    fresh.into(),
                    swap.busy.into(),
                    swap.busy.into(),
                    fresh.into(),
                    swap.name.into(),
                    swap.version.into(),
                ],
            ),
            Dialect::Postgres => {
                let mut values = vec![
                    swap.name.into(),
                    swap.version.into(),
                    token.into(),
                    swap.busy.into(),
                    fresh.into(),
                    state.into(),
                    swap.row_lock_timeout.into(),
                ];
                if swap.notifications.is_empty() {
                    return (&self.swap, values);
                }
                let lines: Vec<String> =
                    swap.notifications.iter().map(|(channel, text)| format!("{channel} {text}")).collect();
                values.push(lines.join("\n").into());
                (&self.swap_and_notify, values)
            }
        }
    }

    /// Writes over the version that was read: no contender is left.
    pub(super) fn clear(&self, swap: &Swap<'_>) -> (&str, Vec<Value>) {
        let token = i64::try_from(swap.token).unwrap_or(i64::MAX);
        let state = swap.state.as_str();
        let values = match self.dialect {
            Dialect::MySql => vec![token.into(), state.into(), swap.name.into(), swap.version.into()],
            Dialect::Postgres => {
                vec![swap.name.into(), swap.version.into(), token.into(), state.into(), swap.row_lock_timeout.into()]
            }
        };
        (&self.clear, values)
    }

    /// The time of an acquire or a write. `None`: it was not made, because the lock is not free or
    /// the version is another one. The time of an acquire is also its version and its token.
    pub(super) fn write_time(&self, reply: &Reply) -> Result<Option<i64>, &'static str> {
        match self.dialect {
            Dialect::MySql if reply.rows_changed == 0 => Ok(None),
            Dialect::MySql => i64::try_from(reply.insert_id).ok().filter(|now| *now > 0).map(Some).ok_or("no time"),
            Dialect::Postgres => reply.value().map(|now| now.int().ok_or("no time")).transpose(),
        }
    }

    pub(super) fn read(&self, name: &str) -> (&str, Vec<Value>) {
        (&self.read, vec![name.into()])
    }

    /// The versions of these locks' rows.
    pub(super) fn versions(&self, names: &[&str]) -> (String, Vec<Value>) {
        match self.dialect {
            Dialect::MySql => {
                // The list is padded with the last name: few different texts mean few prepared
                // statements.
                let last = names.last().copied().unwrap_or_default();
                let more = names.len().next_power_of_two() - names.len();
                let all = names.iter().copied().chain(std::iter::repeat_n(last, more));
                let values: Vec<Value> = all.map(Value::from).collect();
                (format!("{} IN ({})", self.versions, vec!["?"; values.len()].join(", ")), values)
            }
            // No name has a line break.
            Dialect::Postgres => (
                format!("{} = ANY(string_to_array($1, chr(10)))", self.versions),
                vec![names.join("\n").as_str().into()],
            ),
        }
    }

    /// The database's time.
    pub(super) fn clock(&self) -> &str {
        &self.clock
    }

    pub(super) fn list(&self, prefix: &str) -> (&str, Vec<Value>) {
        let values = match self.dialect {
            Dialect::MySql => vec![prefix.into(), prefix.into()],
            Dialect::Postgres => vec![prefix.into()],
        };
        (&self.list, values)
    }
}

/// Reads version, token, state, format, now.
pub(super) fn parse_row(row: &[Value]) -> Result<StoredRow, Failure> {
    let [version, token, state, format, now] = row else { return Err(unexpected_reply("a row of another length")) };
    match format.int() {
        Some(format) if format == i64::from(FORMAT) => {}
        Some(format) => return Err(Failure::UnknownFormat(format)),
        None => return Err(unexpected_reply("no format")),
    }
    Ok(StoredRow {
        version: version.int().ok_or_else(|| unexpected_reply("no version"))?,
        token: token.int().and_then(|token| token.try_into().ok()).ok_or_else(|| unexpected_reply("no token"))?,
        state: state.text().ok_or_else(|| unexpected_reply("no state"))?.to_owned(),
        now: now.int().ok_or_else(|| unexpected_reply("no time"))?,
    })
}

fn unexpected_reply(detail: &str) -> Failure {
    Failure::UnexpectedReply(detail.to_owned())
}

fn mysql(table: &str) -> LeaseStatements {
    // One time for the whole statement; the session's time zone has no summer time.
    const NOW: &str = "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)";
    let put = |text: &str, mark: u8, value: &str| format!("REPLACE({text}, CHAR({mark} USING utf8mb4), {value})");
    // A value may name a column that precedes it: there, `version` is the time. The same goes for
    // VALUES(version) below. Usually that time is above all earlier values, and the text that
    // contains it is already right.
    let next = "GREATEST(token + 1, version + 1, VALUES(version))";
    let both = |value: &str| put(&put("?", 1, value), 2, value);
    let is_free = format!("format = {FORMAT} AND busy <= VALUES(version) - ?");
    // Each assignment sees the results of those before it, so `busy` comes last. LAST_INSERT_ID
    // returns the time.
    let acquire = format!(
        "INSERT INTO {table} (name, version, token, busy, state, format) \
         VALUES (?, {NOW}, LAST_INSERT_ID(version), version + ?, {}, {FORMAT}) ON DUPLICATE KEY UPDATE \
         state = IF({is_free}, \
          IF(GREATEST(token, version) < VALUES(version), VALUES(state), {}), state), \
         token = IF({is_free}, LAST_INSERT_ID({next}), token), \
         version = IF({is_free}, token, version), \
         busy = IF({is_free}, version + VALUES(busy) - VALUES(version), busy)",
        both("version"),
        both(next),
    );
    let swap = format!(
        "UPDATE {table} SET state = {}, version = version + 1, token = ?, \
         busy = IF(? < 0, ?, GREATEST(?, {NOW} + ?)) WHERE name = ? AND version = ?",
        put("?", 1, &format!("LAST_INSERT_ID({NOW})")),
    );
    LeaseStatements {
        dialect: Dialect::MySql,
        acquire,
        swap_and_notify: String::new(),
        swap,
        clear: format!(
            "UPDATE {table} SET version = version + 1, token = ?, busy = 0, state = ? WHERE name = ? AND version = ?"
        ),
        read: format!("SELECT version, token, state, format, {NOW} FROM {table} WHERE name = ?"),
        list: format!(
            "SELECT name, version, token, state, format, {NOW} FROM {table} WHERE busy > {NOW} AND LEFT(name, LENGTH(?)) = ? \
             ORDER BY name"
        ),
        versions: format!("SELECT name, version FROM {table} WHERE name"),
        clock: format!("SELECT {NOW}"),
    }
}

fn postgres(table: &str) -> LeaseStatements {
    const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    // One time for the whole statement: when it arrived. A double has room for the microseconds
    // until the year 2242, and is faster.
    const CAME: &str = "(date_part('epoch', statement_timestamp()) * 1000000)::bigint";
    // The row-lock timeout is set for the statement's own transaction alone. The session, which
    // behind a pooler is used by another program next, stays unchanged. The timeout is evaluated
    // with the row's own values, before the statement waits for a lock.
    let bounded = |parameter: u8| format!("(SELECT set_config('lock_timeout', ${parameter}, true)) AS bound");
    let both = |value: &str| format!("replace(replace($3, chr(1), {value}::text), chr(2), {value}::text)");
    let next = "greatest(l.token + 1, l.version + 1, excluded.token)";
    let acquire = format!(
        "INSERT INTO {table} AS l (name, version, token, busy, state, format) \
         SELECT $1, {CAME}, {CAME}, {CAME} + $2, {}, {FORMAT} FROM {} ON CONFLICT (name) DO UPDATE SET \
         version = {next}, token = {next}, busy = {next} + $2, \
         state = CASE WHEN greatest(l.token, l.version) < excluded.token THEN excluded.state ELSE {} END \
         WHERE l.format = {FORMAT} AND l.busy <= excluded.token - $4 RETURNING l.token",
        both(CAME),
        bounded(5),
        both(next),
    );
    let update = format!(
        "UPDATE {table} AS l SET version = l.version + 1, token = $3, \
         busy = CASE WHEN $5 < 0 THEN $4 ELSE greatest($4, {CAME} + $5) END, \
         state = replace($6, chr(1), {CAME}::text) FROM {} WHERE l.name = $1 AND l.version = $2 RETURNING {CAME} AS now",
        bounded(7),
    );
    // Notifications go out with the commit, and only if the write was made.
    let swap_loudly = format!(
        "WITH u AS ({update}) \
         SELECT u.now, (SELECT count(pg_notify(split_part(m, ' ', 1), substr(m, strpos(m, ' ') + 1) || ' ' || u.now)) \
          FROM unnest(string_to_array($8, chr(10))) AS m) FROM u"
    );
    LeaseStatements {
        dialect: Dialect::Postgres,
        acquire,
        swap: update,
        swap_and_notify: swap_loudly,
        clear: format!(
            "UPDATE {table} AS l SET version = l.version + 1, token = $3, busy = 0, state = $4 FROM {} \
             WHERE l.name = $1 AND l.version = $2",
            bounded(5),
        ),
        read: format!("SELECT version, token, state, format, {NOW} FROM {table} WHERE name = $1"),
        list: format!(
            "SELECT name, version, token, state, format, {NOW} FROM {table} WHERE busy > {NOW} AND starts_with(name, $1) ORDER BY name"
        ),
        versions: format!("SELECT name, version FROM {table} WHERE name"),
        clock: format!("SELECT {NOW}"),
    }
}
