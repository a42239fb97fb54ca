//! A real PostgreSQL, and queries to it.
//!
//! | | |
//! |---|---|
//! | [`start`], [`Postgres`] | one server, with settings and a [clock](Postgres::clock) of its own |
//! | [`Postgres::tls`] | a server that accepts only TLS, and the certificates of its authority and of a client |
//! | [`Postgres::replica_of`], [`promote`] | a standby that follows a server, and its promotion |
//! | [`PgBouncer`] | a pooler before a server: many clients share few connections |
//! | [`query()`] | queries any of them as superuser |
//! | [`connections`], [`kill_connection`] | lists and ends connections from the server's side |
//!
//! Each has a database [`DATABASE`], which belongs to an ordinary user [`USER`] with the password
//! [`PASSWORD`]. The superuser [`ADMIN`] has the same password.
//!
//! PostgreSQL's own timeouts, such as `lock_timeout`, use the wall clock. While a
//! [clock](Postgres::clock) is ahead, they never fire: PostgreSQL's signal handler still sees the
//! right time, and treats the alarm as early. While it is behind, they fire on time.
//!
//! Written for PostgreSQL 15.

mod leftovers;
mod pgbouncer;
mod query;
mod server_spec;
mod standby;
mod tls;

pub use pgbouncer::{PgBouncer, PoolMode};
pub use query::{connections, kill_connection, query};
pub use standby::{Standby, promote};

use crate::{Result, Server, sql::SqlServer};
pub use crate::{
    connection::Connection,
    sql::{DATABASE, PASSWORD, USER},
};

/// The superuser; its password is [`PASSWORD`], too.
pub const ADMIN: &str = "postgres";

/// Starts one PostgreSQL.
///
/// # Errors
///
/// As [`Server::start`].
pub async fn start() -> Result<Server> {
    Postgres::new().start().await
}

/// A PostgreSQL to start, with custom settings.
///
/// ```no_run
/// # async fn example() -> leasehold_testbed::Result<()> {
/// use leasehold_testbed::postgres::{self, Postgres};
///
/// let server = Postgres::new().setting("max_connections", "5").start().await?;
/// let rows = postgres::query(&server, "SHOW max_connections").await?;
/// # Ok(())
/// # }
/// ```
pub type Postgres = SqlServer<PostgresProgram>;

/// Makes a [`SqlServer`] a PostgreSQL.
#[derive(Clone, Debug)]
pub struct PostgresProgram;
