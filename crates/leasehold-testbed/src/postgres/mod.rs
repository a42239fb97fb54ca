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
pub use tls::{TlsPostgres, TlsSettings};

pub use crate::connection::Connection;
use crate::{Result, Server, WallClock};

/// The user in a server's URL.
pub const USER: &str = "leasehold";
/// The superuser.
pub const ADMIN: &str = "postgres";
/// The password of both.
pub const PASSWORD: &str = "password";
/// The database in a server's URL.
pub const DATABASE: &str = "test";

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
#[derive(Clone, Debug, Default)]
pub struct Postgres {
    fsyncs: bool,
    settings: Vec<(String, String)>,
    clock: Option<WallClock>,
    disk: Option<u64>,
}

impl Postgres {
    /// A server that does not wait for the disk: committed data survives a kill, but not a power
    /// failure.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes it wait for the disk at each commit, as PostgreSQL does by default.
    #[must_use]
    pub fn fsync(mut self) -> Self {
        self.fsyncs = true;
        self
    }

    /// Sets a configuration parameter; it overrides our own settings.
    #[must_use]
    pub fn setting(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Uses `clock`.
    ///
    /// PostgreSQL's own timeouts, such as `lock_timeout`, use the wall clock. While it is ahead,
    /// they never fire: PostgreSQL's signal handler still sees the right time, and treats the alarm
    /// as early. While it is behind, they fire on time.
    #[must_use]
    pub fn clock(mut self, clock: &WallClock) -> Self {
        self.clock = Some(clock.clone());
        self
    }

    /// Stores its files on a small [disk](crate::Disk) of this size, which must be large enough;
    /// root only.
    #[must_use]
    pub fn disk(mut self, bytes: u64) -> Self {
        self.disk = Some(bytes);
        self
    }

    /// Starts it and waits until it responds.
    ///
    /// # Errors
    ///
    /// As [`Server::start`].
    pub async fn start(self) -> Result<Server> {
        Server::start(self).await
    }
}
