//! Locks between machines, in a database that you already run: MySQL or MariaDB, or PostgreSQL.
//!
//! `lease/` is the default, a table of leases. `session_locks/` has the two techniques that keep
//! the lock in an open session. Both use either database through `connection` and `pool`. Every
//! statement is in a `wire.rs`; those on `records` are beside their code. Users read docs/sql.md.

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

/// Capabilities of the lease table in MySQL and MariaDB.
pub const MYSQL: Capabilities = lease_table_capabilities("mysql");
/// Capabilities of the lease table in PostgreSQL.
pub const POSTGRES: Capabilities = lease_table_capabilities("postgres");

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

/// Opens `mysql:` or `postgres:`.
pub(crate) async fn open(url: &EngineUrl, clock: &Clock) -> Result<Arc<dyn Engine>> {
    let dialect = if url.scheme == "mysql" { Dialect::MySql } else { Dialect::Postgres };
    let config = Config { clock: clock.clone(), ..Config::from_url(dialect, url)? };
    let capabilities = if dialect == Dialect::MySql { MYSQL } else { POSTGRES };
    match config.technique {
        Technique::Row => Ok(lease::LeaseEngine::open(config, capabilities, clock).await?),
        Technique::ForUpdate | Technique::Session => session_locks::open(config, clock).await,
    }
}

/// Creates the tables that do not exist. A user without that right gets the statements from
/// `leasehold engines --ddl`.
async fn create_tables(config: &Config, link: &mut PooledConnection) -> Result<(), Failure> {
    let tables = ddl::Tables::from_config(config);
    let needed = match config.technique {
        Technique::Row => vec![&tables.leases],
        Technique::ForUpdate => vec![&tables.rows, &tables.tokens],
        Technique::Session => vec![&tables.tokens],
    };
    for (table, statement) in needed.into_iter().zip(ddl::lock_table_statements(config)) {
        create_table(config, link, table, &statement).await.map_err(|failure| with_hint(failure, config))?;
    }
    // A user that may not create or use this table still has locks; requests for records fail.
    match create_records_table(config, link).await {
        Err(failure) if matches!(failure.class(config.dialect), Some(ErrorClass::Denied | ErrorClass::Other)) => Ok(()),
        made => made,
    }
}

/// Creates the table of records, unless it exists.
async fn create_records_table(config: &Config, link: &mut PooledConnection) -> Result<(), Failure> {
    create_table(config, link, &ddl::Tables::from_config(config).records, &ddl::records_table_statement(config)).await
}

async fn create_table(
    config: &Config,
    link: &mut PooledConnection,
    table: &str,
    statement: &str,
) -> Result<(), Failure> {
    let exists_query = format!("SELECT 1 FROM {table} WHERE name = 'none'");
    let mut refused = None;
    for _ in 0..3 {
        match link.script(&exists_query).await {
            Err(failure) if failure.class(config.dialect) == Some(ErrorClass::NoTable) => {}
            found => return found,
        }
        // Another client may create it at the same time, which PostgreSQL refuses.
        refused = match link.script(statement).await {
            Err(failure) if matches!(failure.class(config.dialect), Some(ErrorClass::Other | ErrorClass::Conflict)) => {
                Some(failure)
            }
            made => made.map(|()| None)?,
        };
    }
    match (link.script(&exists_query).await, refused) {
        (Err(_), Some(reason)) => Err(reason),
        (found, _) => found,
    }
}

/// Queries whether several servers accept writes here, each with sessions and named locks of its
/// own.
const IS_GALERA_QUERY: &str = "SELECT @@wsrep_on";

/// The answer to [`IS_GALERA_QUERY`]. Only some servers have the variable. A connection that ends
/// before the answer is an error: the server may have it.
fn parse_is_galera(asked: Result<Reply, Failure>) -> Result<bool, Failure> {
    match asked {
        Ok(reply) => Ok(reply.value().and_then(Value::int) == Some(1)),
        Err(failure) if failure.ends_connection(Dialect::MySql) => Err(failure),
        Err(_) => Ok(false),
    }
}

/// Adds advice to the failure if our table is missing or closed to us, and we may not create it.
fn with_hint(failure: Failure, config: &Config) -> Failure {
    match (failure.class(config.dialect), failure) {
        (Some(ErrorClass::Denied), Failure::Refused { code, message: said }) => {
            let command = ddl::command(config);
            let hint = "leasehold needs its table and the rights to use it: have an administrator run what";
            Failure::refused(code, format!("{said}; {hint} `{command}` prints, and grant the rights named there"))
        }
        (_, failure) => failure,
    }
}

/// For benches: the two statements that acquire and release an uncontended lock, on a table of that
/// name.
///
/// Parameters of the first: name, TTL, state and clock skew. PostgreSQL's ends with the row-lock
/// timeout in milliseconds, as text. MySQL's has state and skew once more for the row that exists,
/// and the skew twice more. Parameters of the second: name, version, token and state; in MySQL's,
/// token, state, name and version. Times are microseconds; in the states, `\u{1}` stands for the
/// time of the acquire.
#[doc(hidden)]
pub fn bare_statements(dialect: Dialect, table: &str) -> [String; 2] {
    lease::acquire_and_release_statements(dialect, table)
}

/// The kind of database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// MySQL and MariaDB.
    MySql,
    /// PostgreSQL.
    Postgres,
}

impl Dialect {
    /// The URL's scheme, and the engine's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MySql => "mysql",
            Self::Postgres => "postgres",
        }
    }

    /// The product's display name.
    pub(crate) const fn product(self) -> &'static str {
        match self {
            Self::MySql => "MySQL or MariaDB",
            Self::Postgres => "PostgreSQL",
        }
    }

    /// The server's default port.
    pub(crate) const fn port(self) -> u16 {
        match self {
            Self::MySql => 3306,
            Self::Postgres => 5432,
        }
    }
}
