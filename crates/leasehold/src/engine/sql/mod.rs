//! `mysql:` and `postgres:` — locks between machines, in a database that you already run.
//!
//! `lease/` is the default technique, a table of leases. `session_locks/` has the two techniques
//! that keep the lock in an open session. Both use either database through `connection` and `pool`.
//! The SQL statements of each technique are in its `wire.rs`, and those of records in `records.rs`.
//! docs/sql.md is the page for users.

#[doc(hidden)]
pub mod config;
#[doc(hidden)]
pub mod connection;
mod connection_load;
#[doc(hidden)]
pub mod ddl;
#[doc(hidden)]
pub mod error;
#[doc(hidden)]
pub mod lease;
#[cfg(feature = "mysql")]
mod mysql;
mod pool;
mod pooler;
#[cfg(feature = "postgres")]
mod postgres;
mod records;
pub mod session_locks;
#[cfg(feature = "postgres")]
mod tls;

pub use self::ddl::ddl;

use std::sync::Arc;
use std::time::Duration;

use self::config::{Config, Technique};
use self::connection::{Reply, Value};
use self::error::{ErrorClass, Failure};
use self::pool::PooledConnection;
use super::{Capabilities, Engine, EngineUrl, Fairness, Fencing};
use crate::clock::Clock;
use crate::types::Result;

/// Capabilities of `mysql:` with `technique=row`, the lease table.
pub const MYSQL: Capabilities = lease_table_capabilities("mysql");
/// Capabilities of `postgres:` with `technique=row`, the lease table.
pub const POSTGRES: Capabilities = lease_table_capabilities("postgres");

/// The capabilities of the lease table, the same in both databases.
const fn lease_table_capabilities(engine: &'static str) -> Capabilities {
    Capabilities {
        shared: true,
        permits: true,
        reentrancy: true,
        fairness: Fairness::Fifo,
        fencing: Fencing::Durable,
        inspection: true,
        force_release: true,
        records: true,
        min_ttl: Duration::from_secs(1),
        tolerates: "restarts and crashes of server and clients, broken connections, poolers, clocks that are set back",
        fails_when: "a fail-over that loses commits; the server's clock set forward while a lock is held",
        ..Capabilities::exclusive_only(engine)
    }
}

/// Opens the engine of a `mysql:` or `postgres:` URL, with the technique that the URL names.
pub(crate) async fn open(url: &EngineUrl, clock: &Clock) -> Result<Arc<dyn Engine>> {
    let dialect = if url.scheme == "mysql" { Dialect::MySql } else { Dialect::Postgres };
    let config = Config { clock: clock.clone(), ..Config::from_url(dialect, url)? };
    let capabilities = if dialect == Dialect::MySql { MYSQL } else { POSTGRES };
    match config.technique {
        Technique::Row => Ok(lease::LeaseEngine::open(config, capabilities, clock).await?),
        Technique::ForUpdate | Technique::Session => session_locks::open(config, clock).await,
    }
}

/// Creates those tables of the technique that do not exist. A database user without that right gets
/// an error that names `leasehold engines --ddl`, which prints the statements.
async fn create_tables(config: &Config, connection: &mut PooledConnection) -> Result<(), Failure> {
    let tables = ddl::Tables::from_config(config);
    let needed = match config.technique {
        Technique::Row => vec![&tables.leases],
        Technique::ForUpdate => vec![&tables.rows, &tables.tokens],
        Technique::Session => vec![&tables.tokens],
    };
    for (table, statement) in needed.into_iter().zip(ddl::lock_table_statements(config)) {
        create_table(config, connection, table, &statement).await.map_err(|failure| with_hint(failure, config))?;
    }
    // A user that may not create or use the table of records can still use locks. Only requests for
    // records fail then.
    match create_records_table(config, connection).await {
        Err(failure) if matches!(failure.class(config.dialect), Some(ErrorClass::Denied | ErrorClass::Other)) => Ok(()),
        result => result,
    }
}

/// Creates the table of records if it does not exist.
async fn create_records_table(config: &Config, connection: &mut PooledConnection) -> Result<(), Failure> {
    create_table(config, connection, &ddl::Tables::from_config(config).records, &ddl::records_table_statement(config))
        .await
}

/// Runs `statement`, which creates `table`, if the table does not exist.
async fn create_table(
    config: &Config,
    connection: &mut PooledConnection,
    table: &str,
    statement: &str,
) -> Result<(), Failure> {
    let exists_query = format!("SELECT 1 FROM {table} WHERE name = 'none'");
    let mut refused = None;
    for _ in 0..3 {
        match connection.execute_batch(&exists_query).await {
            Err(failure) if failure.class(config.dialect) == Some(ErrorClass::NoTable) => {}
            found => return found,
        }
        // PostgreSQL refuses this if another client is creating the table at the same time. The
        // next pass then finds the table.
        refused = match connection.execute_batch(statement).await {
            Err(failure) if matches!(failure.class(config.dialect), Some(ErrorClass::Other | ErrorClass::Conflict)) => {
                Some(failure)
            }
            result => result.map(|()| None)?,
        };
    }
    match (connection.execute_batch(&exists_query).await, refused) {
        (Err(_), Some(reason)) => Err(reason),
        (found, _) => found,
    }
}

/// Asks MySQL or MariaDB whether it is part of a Galera cluster, in which each server accepts
/// writes and has sessions and named locks of its own.
const IS_GALERA_QUERY: &str = "SELECT @@wsrep_on";

/// Whether the result of [`IS_GALERA_QUERY`] shows a Galera cluster. Servers that cannot be part of
/// one refuse the query: `false`. If the connection ended before the answer, this is an error,
/// because the answer is unknown.
fn parse_is_galera(result: Result<Reply, Failure>) -> Result<bool, Failure> {
    match result {
        Ok(reply) => Ok(reply.value().and_then(Value::int) == Some(1)),
        Err(failure) if failure.ends_connection(Dialect::MySql) => Err(failure),
        Err(_) => Ok(false),
    }
}

/// If the server denied access to a table, adds to the failure how to create the table and grant
/// the rights.
fn with_hint(failure: Failure, config: &Config) -> Failure {
    match (failure.class(config.dialect), failure) {
        (Some(ErrorClass::Denied), Failure::Refused { code, message }) => {
            let command = ddl::command(config);
            let hint = "leasehold needs its tables and the rights to use them: have an administrator run what";
            Failure::refused(code, format!("{message}; {hint} `{command}` prints, and grant the rights named there"))
        }
        (_, failure) => failure,
    }
}

/// For benchmarks: the two statements that acquire and release an uncontended lock in the lease
/// table `table`.
///
/// Parameters of the first, in PostgreSQL: name, TTL, state, clock skew, and the row-lock timeout
/// in milliseconds as text. In MySQL: name, TTL, state, clock skew; then state and skew once more
/// for a row that exists, and the skew twice more. Parameters of the second, in PostgreSQL: name,
/// version, token and state; in MySQL: token, state, name and version. Times are in microseconds.
/// In the states, `\u{1}` stands for the time of the acquire.
#[doc(hidden)]
pub fn bare_statements(dialect: Dialect, table: &str) -> [String; 2] {
    lease::acquire_and_release_statements(dialect, table)
}

/// The kind of database behind a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// MySQL and MariaDB.
    MySql,
    /// PostgreSQL.
    Postgres,
}

impl Dialect {
    /// The scheme of URLs, which is also the engine's name in errors: `mysql` or `postgres`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MySql => "mysql",
            Self::Postgres => "postgres",
        }
    }

    /// The name of the database product in messages.
    pub(crate) const fn product(self) -> &'static str {
        match self {
            Self::MySql => "MySQL or MariaDB",
            Self::Postgres => "PostgreSQL",
        }
    }

    /// The port of a server whose URL names none.
    pub(crate) const fn port(self) -> u16 {
        match self {
            Self::MySql => 3306,
            Self::Postgres => 5432,
        }
    }
}
