//! Queries the facts about the servers.

use std::time::Duration;

use futures_util::future::join_all;

use super::facts::{
    ConnectFailure, Fact, Facts, Requirements, RowStats, Server, ServerFacts, Table, TableState, UnknownReason, Values,
};
use super::{mysql, postgres, probe};
use leasehold::clock::Clock;
use leasehold_internals::FORMAT;
use leasehold_internals::sql::config::{Config, Technique, WakeMode};
use leasehold_internals::sql::connection::{Connection, Reply, Value};
use leasehold_internals::sql::ddl::{self, Tables};
use leasehold_internals::sql::error::{ErrorClass, Failure};
use leasehold_internals::sql::{Dialect, lease, session_locks};

/// The timeout of a small query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// A little more than the longest lease, in microseconds.
const MAX_LEASE_MICROS: i64 = 25 * 3600 * 1_000_000;

/// A connection for small queries, one after the other.
#[derive(Debug)]
pub(super) struct QueryClient {
    /// `None` after a timeout: the next reply could belong to the query before.
    connection: Option<Connection>,
    clock: Clock,
    pub(super) dialect: Dialect,
}

impl QueryClient {
    /// Connects to the only server of `config`.
    pub(super) async fn open(config: &Config) -> Result<Self, Failure> {
        match config.clock.timeout(config.connect_timeout + QUERY_TIMEOUT, Connection::open(config)).await {
            Ok(connection) => {
                Ok(Self { connection: Some(connection?), clock: config.clock.clone(), dialect: config.dialect })
            }
            Err(_) => Err(Failure::Unreachable(format!("no answer within {:?}", config.connect_timeout))),
        }
    }

    /// The server's id of this connection, from the handshake.
    pub(super) fn connection_id(&self) -> Option<i64> {
        self.connection.as_ref().map(Connection::id)
    }

    /// Runs a query without parameters.
    pub(super) async fn query(&mut self, sql: &str) -> Fact<Reply> {
        self.query_with(sql, &[]).await
    }

    /// Runs a query with these values as its parameters.
    pub(super) async fn query_with(&mut self, sql: &str, values: &[Value]) -> Fact<Reply> {
        let dialect = self.dialect;
        self.with_timeout(async |connection| connection.run(sql, values).await)
            .await?
            .map_err(|failure| UnknownReason::from_failure(&failure, dialect))
    }

    /// Runs statements that return no rows.
    pub(super) async fn execute(&mut self, sql: &str) -> Fact<()> {
        let dialect = self.dialect;
        self.with_timeout(async |connection| connection.execute_batch(sql).await)
            .await?
            .map_err(|failure| UnknownReason::from_failure(&failure, dialect))
    }

    /// Runs a query that returns one value.
    pub(super) async fn query_value(&mut self, sql: &str) -> Fact<Value> {
        let reply = self.query(sql).await?;
        reply.value().cloned().ok_or_else(|| UnknownReason::not_reported("it"))
    }

    /// Runs a query that returns one number.
    pub(super) async fn query_number(&mut self, sql: &str) -> Fact<i64> {
        self.query_value(sql).await?.int().ok_or_else(|| UnknownReason::not_reported("a number"))
    }

    /// Runs a query that returns one text.
    pub(super) async fn query_text(&mut self, sql: &str) -> Fact<String> {
        self.query_value(sql).await?.text().map(ToOwned::to_owned).ok_or_else(|| UnknownReason::not_reported("it"))
    }

    /// Runs a query that returns rows of a name and a value.
    pub(super) async fn query_values(&mut self, sql: &str) -> Fact<Values> {
        let reply = self.query(sql).await?;
        let pair = |row: &Vec<Value>| match &row[..] {
            [Value::Text(name), Value::Text(value)] => Some((name.to_ascii_lowercase(), value.clone())),
            [Value::Text(name), Value::Int(value)] => Some((name.to_ascii_lowercase(), value.to_string())),
            _ => None,
        };
        Ok(Values(reply.rows.iter().filter_map(pair).collect()))
    }

    /// Runs `request` on the connection, which is not used again after a timeout or a connection
    /// error.
    async fn with_timeout<T>(
        &mut self,
        request: impl AsyncFnOnce(&mut Connection) -> Result<T, Failure>,
    ) -> Fact<Result<T, Failure>> {
        let Some(connection) = &mut self.connection else {
            return Err(UnknownReason::Unreachable("it stopped responding".into()));
        };
        match self.clock.timeout(QUERY_TIMEOUT, request(connection)).await {
            Ok(answer) => {
                // After a refusal, the next query may succeed.
                if answer.as_ref().is_err_and(|failure| !matches!(failure, Failure::Refused { .. })) {
                    self.connection = None;
                }
                Ok(answer)
            }
            Err(_) => {
                self.connection = None;
                Err(UnknownReason::Unreachable(format!("no answer within {QUERY_TIMEOUT:?}")))
            }
        }
    }

    pub(super) async fn close(self) {
        if let Some(connection) = self.connection {
            connection.close().await;
        }
    }
}

/// Queries all facts about all servers of the URL; `ttl` is that of the locks.
pub(super) async fn gather_facts(config: &Config, ttl: Duration) -> Facts {
    let requirements = Requirements {
        dialect: config.dialect,
        ttl,
        technique: config.technique,
        connections: config.connections as u64,
        has_transaction_pooler: config.has_transaction_pooler,
        is_polling: config.wake == WakeMode::Poll,
        clock_skew: config.clock_skew,
        ddl_command: ddl::command(config),
    };
    let servers = join_all(config.servers.iter().map(|place| gather_server(config, place))).await;
    Facts { requirements, servers }
}

/// Queries the facts about one server.
async fn gather_server(config: &Config, (host, port): &(String, u16)) -> Server {
    let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    // The session is used as behind a pooler: it sets and prepares nothing, so it shows the
    // defaults.
    let alone = Config {
        servers: vec![(host.clone(), *port)],
        has_transaction_pooler: true,
        allows_read_only: true,
        ..config.clone()
    };
    let facts = match QueryClient::open(&alone).await {
        Ok(mut client) => {
            let facts = gather_server_facts(&mut client, &alone).await;
            client.close().await;
            Ok(facts)
        }
        Err(failure) => Err(connect_failure(&failure, config.dialect)),
    };
    Server { address, facts }
}

/// Why a server accepted no connection, by the failure of the attempt.
fn connect_failure(failure: &Failure, dialect: Dialect) -> ConnectFailure {
    let reason = match failure {
        Failure::Refused { code, message: reason } => format!("{code}: {reason}"),
        Failure::Unreachable(why) | Failure::ConnectionLost(why) => why.clone(),
        other => other.to_error(dialect, "it").message_without_location(),
    };
    match failure.class(dialect) {
        Some(ErrorClass::Denied) => ConnectFailure::Denied(reason),
        Some(ErrorClass::NoDatabase) => ConnectFailure::NoDatabase(reason),
        Some(ErrorClass::TooManyConnections) => ConnectFailure::TooManyConnections(reason),
        _ => ConnectFailure::Unreachable(reason),
    }
}

/// Queries the facts about a server over an open connection.
async fn gather_server_facts(client: &mut QueryClient, config: &Config) -> ServerFacts {
    let skipped = || UnknownReason::Skipped("it is another kind of server");
    let mut facts = ServerFacts {
        version: Err(skipped()),
        settings: Err(skipped()),
        status: Err(skipped()),
        identity: Err(skipped()),
        is_in_recovery: Err(skipped()),
        in_use: Err(skipped()),
        replicas: Err(skipped()),
        intermediary: Err(skipped()),
        clock: Err(skipped()),
        round_trips: Err(skipped()),
        tables: Vec::new(),
        dry_run: Err(skipped()),
        row_stats: Err(skipped()),
    };
    match config.dialect {
        Dialect::MySql => mysql::query_facts(client, &mut facts).await,
        Dialect::Postgres => postgres::query_facts(client, config, &mut facts).await,
    }
    (facts.clock, facts.round_trips) = probe::measure_clock(client).await;
    for (name, wanted, statement) in required_tables(config) {
        let found = match config.dialect {
            Dialect::MySql => mysql::query_table(client, &name, &statement).await,
            Dialect::Postgres => postgres::query_table(client, config.schema.as_deref(), &name).await,
        };
        facts.tables.push(Table { name, required_columns: wanted, state: found });
    }
    facts.dry_run = run_dry_run(client, config, &facts).await;
    facts.row_stats = match facts.tables.first().map(|table| &table.state) {
        Some(Ok(TableState::Exists(_))) if config.technique == Technique::Row => count_rows(client, config).await,
        Some(Err(reason)) => Err(reason.clone()),
        _ => Err(UnknownReason::Skipped("there is no lease table")),
    };
    facts
}

/// The tables that the technique needs: name, columns besides `name`, and the statement that
/// creates it.
fn required_tables(config: &Config) -> Vec<(String, &'static [&'static str], String)> {
    const LEASE_COLUMNS: &[&str] = &["version", "token", "busy", "state", "format"];
    let of = |suffix: &str, wanted| (format!("{}{suffix}", config.table), wanted);
    let tables: Vec<(String, &'static [&'static str])> = match config.technique {
        Technique::Row => vec![of("", LEASE_COLUMNS)],
        Technique::ForUpdate => vec![of("_rows", &[]), of("_tokens", &["token", "format"])],
        Technique::Session => vec![of("_tokens", &["token", "format"])],
    };
    tables
        .into_iter()
        .zip(ddl::lock_table_statements(config))
        .map(|((name, wanted), made)| (name, wanted, made))
        .collect()
}

/// Acquires a lock with an unused name in a transaction that is rolled back; skipped where a
/// rollback is impossible.
async fn run_dry_run(client: &mut QueryClient, config: &Config, facts: &ServerFacts) -> Fact<()> {
    if facts.read_only_reason(config.dialect).is_ok_and(|read_only| read_only.is_some()) {
        return Err(UnknownReason::Skipped("it accepts no writes"));
    }
    for table in &facts.tables {
        match &table.state {
            Ok(TableState::Exists(shape)) if super::rules::is_transactional(shape) => {}
            Ok(TableState::Exists(_)) => return Err(UnknownReason::Skipped("its table cannot roll back")),
            Ok(TableState::Missing { .. }) => return Err(UnknownReason::Skipped("its table does not exist")),
            Err(_) => return Err(UnknownReason::Skipped("its table could not be examined")),
        }
    }
    let dialect = client.dialect;
    client
        .with_timeout(async |connection| match config.technique {
            Technique::Row => lease::dry_run(connection, config).await,
            Technique::ForUpdate | Technique::Session => session_locks::dry_run(connection, config).await,
        })
        .await?
        .map_err(|failure| UnknownReason::from_failure(&failure, dialect))
}

/// Counts the rows of the lease table, and parses some of them.
async fn count_rows(client: &mut QueryClient, config: &Config) -> Fact<RowStats> {
    let table = Tables::from_config(config).leases;
    let now = probe::clock_expression(config.dialect);
    let most = RowStats::MAX_COUNTED;
    let (long, one) = match config.dialect {
        Dialect::MySql => ("SIGNED", "1, 0"),
        Dialect::Postgres => ("bigint", "1 ELSE 0 END"),
    };
    let sum = |condition: &str| match config.dialect {
        Dialect::MySql => format!("CAST(COALESCE(SUM(IF({condition}, {one})), 0) AS {long})"),
        Dialect::Postgres => format!("COALESCE(SUM(CASE WHEN {condition} THEN {one}), 0)::{long}"),
    };
    let sql = format!(
        "SELECT COUNT(*), {}, {}, {} FROM (SELECT busy, {now} AS now FROM {table} LIMIT {most}) AS counted",
        sum("busy > now"),
        sum("busy > 0 AND busy <= now"),
        sum(&format!("busy > now + {MAX_LEASE_MICROS}")),
    );
    let reply = client.query(&sql).await?;
    let numbers: Vec<i64> = reply.row().unwrap_or_default().iter().filter_map(Value::int).collect();
    let [count, busy, ended, endless] = numbers[..] else {
        return Err(UnknownReason::not_reported("the number of rows"));
    };
    let sql = format!(
        "SELECT name, version, token, state, format FROM {table} ORDER BY busy DESC LIMIT {}",
        RowStats::MAX_PARSED
    );
    // Rows may be large, and there may be no index: read them only if their number is known to be
    // below the limit.
    let reply = if count < most { client.query(&sql).await? } else { Reply::default() };
    let mut stats = RowStats {
        count,
        active: busy,
        expired: ended,
        never_expiring: endless,
        parsed: reply.rows.len(),
        ..RowStats::default()
    };
    for row in &reply.rows {
        check_row(&mut stats, row);
    }
    Ok(stats)
}

/// Adds a row with these columns to `stats`, if it is in another format or cannot be parsed: name,
/// version, token, state, format.
fn check_row(stats: &mut RowStats, row: &[Value]) {
    let [name, version, token, state, format] = row else { return };
    let name = || name.text().unwrap_or_default().to_owned();
    let why = match (format.int(), version.int(), token.int(), state.text()) {
        // Another version may parse it, and its lock may be held.
        (Some(other), ..) if other != i64::from(FORMAT) => return stats.other_formats.push((name(), other)),
        (Some(_), Some(0..), Some(0..), Some(state)) => lease::corruption(state),
        (Some(_), ..) => Some("its version or token is invalid"),
        (None, ..) => Some("its format is not a number"),
    };
    stats.corrupt.extend(why.map(|why| (name(), why)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_in_another_format_are_not_damaged() {
        let mut stats = RowStats::default();
        let format = i64::from(FORMAT);
        for (name, state, format) in [("torn", "{", format), ("newer", "{", format + 1), ("older", "", 0)] {
            check_row(&mut stats, &[name.into(), 1i64.into(), 1i64.into(), state.into(), format.into()]);
        }
        assert_eq!(stats.other_formats, [("newer".to_owned(), format + 1), ("older".to_owned(), 0)]);
        assert_eq!(stats.corrupt.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["torn"]);
    }
}
