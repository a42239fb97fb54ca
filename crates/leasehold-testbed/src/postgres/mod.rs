//! A real PostgreSQL, and SQL by hand.
//!
//! | | |
//! |---|---|
//! | [`start`], [`Postgres`] | one server, with settings and a [clock](Postgres::clock) of its own |
//! | [`Postgres::tls`] | a server that takes only TLS, and the certificates to trust and to show |
//! | [`Postgres::replica_of`], [`promote`] | a standby that follows a server, and takes its place |
//! | [`PgBouncer`] | stands in front of a server, so that many clients share few connections |
//! | [`query()`] | asks any of them by hand, as the one who may do everything |
//! | [`connections`], [`kill_connection`] | who is connected, and the end of one of them, from the server's side |
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

/// A PostgreSQL to be started, with settings of its own.
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
    /// One that leaves the writing of its files to the system: what was committed survives a kill,
    /// but not a power cut.
    pub fn new() -> Self {
        Self::default()
    }

    /// Has it wait for the disk with each commit, as PostgreSQL does where nobody says otherwise.
    #[must_use]
    pub fn fsync(mut self) -> Self {
        self.fsyncs = true;
        self
    }

    /// Sets a configuration parameter after our own, so that it wins where both say something.
    #[must_use]
    pub fn setting(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Goes by `clock`.
    ///
    /// PostgreSQL's own timeouts, such as `lock_timeout`, go by the wall clock. While it is ahead
    /// they do not come at all: what PostgreSQL does when its alarm rings still sees the right
    /// time, and takes the alarm for an early one. While it is behind they come in time.
    #[must_use]
    pub fn clock(mut self, clock: &WallClock) -> Self {
        self.clock = Some(clock.clone());
        self
    }

    /// Keeps its files on a small [disk](crate::Disk) of so many bytes, which they must fit on; root only.
    #[must_use]
    pub fn disk(mut self, bytes: u64) -> Self {
        self.disk = Some(bytes);
        self
    }

    /// Starts it and waits until it answers.
    ///
    /// # Errors
    ///
    /// As [`Server::start`].
    pub async fn start(self) -> Result<Server> {
        Server::start(self).await
    }
}
