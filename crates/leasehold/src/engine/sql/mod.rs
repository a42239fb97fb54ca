//! Locks between machines, in a database that is there already: MySQL or MariaDB, or PostgreSQL.
//!
//! `lease/` is the default, a table of leases; `held/` has the two techniques that keep the lock in an open session. Both speak to either database
//! over `link` and `pool`; every statement is in a `wire.rs`, those on `records` beside what they do. docs/sql.md is for users.

mod config;
mod ddl;
pub(crate) mod doctor;
mod error;
pub mod held;
mod lease;
mod link;
mod load;
#[cfg(feature = "mysql")]
mod mysql;
mod pool;
mod pooler;
#[cfg(feature = "postgres")]
mod postgres;
mod records;
#[cfg(feature = "postgres")]
mod tls;

pub use self::ddl::ddl;

use std::sync::Arc;
use std::time::Duration;

use self::config::{Config, Technique};
use self::error::{Failure, Meaning};
use self::link::{Reply, Value};
use self::pool::Pooled;
use super::{Capabilities, Engine, EngineUrl, Fairness, Fencing};
use crate::clock::Clock;
use crate::error::Result;

/// What the lease table can do in MySQL and MariaDB.
pub const MYSQL: Capabilities = lease("mysql");
/// What the lease table can do in PostgreSQL.
pub const POSTGRES: Capabilities = lease("postgres");

const fn lease(engine: &'static str) -> Capabilities {
    Capabilities {
        shared: true,
        permits: true,
        reentry: true,
        fairness: Fairness::Fifo,
        fencing: Fencing::Durable,
        inspection: true,
        eviction: true,
        records: true,
        min_ttl: Duration::from_secs(1),
        survives: "restarts and crashes of server and clients, broken connections, poolers, clocks that are set back",
        breaks: "a fail-over that loses commits; the server's clock set forward while a lock is held",
        ..Capabilities::exclusive_only(engine)
    }
}

/// Opens `mysql:` or `postgres:`.
pub(crate) async fn open(url: &EngineUrl, clock: &Clock) -> Result<Arc<dyn Engine>> {
    let dialect = if url.scheme == "mysql" { Dialect::MySql } else { Dialect::Postgres };
    let config = Config { clock: clock.clone(), ..Config::read(dialect, url)? };
    let can = if dialect == Dialect::MySql { MYSQL } else { POSTGRES };
    match config.technique {
        Technique::Row => Ok(lease::LeaseEngine::open(config, can, clock).await?),
        Technique::ForUpdate | Technique::Session => held::open(config, clock).await,
    }
}

/// Makes the tables that are not there. Whoever may not make them can have them made: `leasehold engines --ddl`.
async fn make_tables(config: &Config, link: &mut Pooled) -> Result<(), Failure> {
    let tables = ddl::Tables::of(config);
    let needed = match config.technique {
        Technique::Row => vec![&tables.leases],
        Technique::ForUpdate => vec![&tables.rows, &tables.tokens],
        Technique::Session => vec![&tables.tokens],
    };
    for (table, statement) in needed.into_iter().zip(ddl::needed(config)) {
        make_table(config, link, table, &statement).await.map_err(|failure| with_hint(failure, config))?;
    }
    // Who may not make this one, or use it, has locks all the same: whoever asks for a record is told then.
    match make_records(config, link).await {
        Err(failure) if matches!(failure.meaning(config.dialect), Some(Meaning::Denied | Meaning::Other)) => Ok(()),
        made => made,
    }
}

/// Makes the table of records, unless it is there.
async fn make_records(config: &Config, link: &mut Pooled) -> Result<(), Failure> {
    make_table(config, link, &ddl::Tables::of(config).records, &ddl::records(config)).await
}

async fn make_table(config: &Config, link: &mut Pooled, table: &str, statement: &str) -> Result<(), Failure> {
    let there = format!("SELECT 1 FROM {table} WHERE name = 'none'");
    let mut refused = None;
    for _ in 0..3 {
        match link.script(&there).await {
            Err(failure) if failure.meaning(config.dialect) == Some(Meaning::NoTable) => {}
            found => return found,
        }
        // Somebody else may make it at the same time, and PostgreSQL minds.
        refused = match link.script(statement).await {
            Err(failure) if matches!(failure.meaning(config.dialect), Some(Meaning::Other | Meaning::Collision)) => {
                Some(failure)
            }
            made => made.map(|()| None)?,
        };
    }
    match (link.script(&there).await, refused) {
        (Err(_), Some(why)) => Err(why),
        (found, _) => found,
    }
}

/// What tells whether several servers take writes here, each with sessions and named locks of its own.
const IS_GALERA: &str = "SELECT @@wsrep_on";

/// What came of [`IS_GALERA`]. Only some servers have the variable; one that could not be asked may have.
fn is_galera(asked: Result<Reply, Failure>) -> Result<bool, Failure> {
    match asked {
        Ok(reply) => Ok(reply.value().and_then(Value::int) == Some(1)),
        Err(failure) if failure.is_end(Dialect::MySql) => Err(failure),
        Err(_) => Ok(false),
    }
}

/// The same, with what to do where our table is not there, or not for us, and we may not make it.
fn with_hint(failure: Failure, config: &Config) -> Failure {
    match (failure.meaning(config.dialect), failure) {
        (Some(Meaning::Denied), Failure::Refused { code, said }) => {
            let command = ddl::command(config);
            let hint = "our table must be made, and we must be let use it: have an administrator run what";
            Failure::refused(code, format!("{said}; {hint} `{command}` prints, and grant the rights named there"))
        }
        (_, failure) => failure,
    }
}

/// For benches: the two statements by which a lock that nobody else wants is taken and given back, on a table of that name.
///
/// Their parameters: name, TTL, state and clock skew, and PostgreSQL's end with how many milliseconds they wait for a locked row, as text; in MySQL's, state and skew stand once more for the row that is there, and the skew twice more.
/// Then name, version, token and state; in MySQL's, token, state, name and version. Times are microseconds; in the states the moment of the take is
/// written as `\u{1}`.
#[doc(hidden)]
pub fn bare_statements(dialect: Dialect, table: &str) -> [String; 2] {
    lease::take_and_clear(dialect, table)
}

/// Which database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// MySQL and MariaDB.
    MySql,
    /// PostgreSQL.
    Postgres,
}

impl Dialect {
    /// The URL's scheme, and the engine's name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::MySql => "mysql",
            Self::Postgres => "postgres",
        }
    }

    /// The product, for people.
    pub(crate) const fn product(self) -> &'static str {
        match self {
            Self::MySql => "MySQL or MariaDB",
            Self::Postgres => "PostgreSQL",
        }
    }

    /// The server's usual port.
    pub(crate) const fn port(self) -> u16 {
        match self {
            Self::MySql => 3306,
            Self::Postgres => 5432,
        }
    }
}
