//! A real MariaDB, alone or as a cluster, and queries to it.
//!
//! | | |
//! |---|---|
//! | [`start`], [`MariaDb`] | one server, with settings and a [clock](MariaDb::clock) of its own |
//! | [`MariaDb::tls`] | a server that accepts only TLS, and the certificates of its authority and of a client |
//! | [`GaleraCluster`] | servers that all accept writes; each can be cut off from the others, but not from its clients |
//! | [`query()`] | queries any of them as superuser |
//! | [`connections`], [`kill_connection`] | lists and ends connections from the server's side |
//!
//! Each has a database [`DATABASE`], and an ordinary user [`USER`] with the password [`PASSWORD`],
//! who has all permissions there and none elsewhere.
//!
//! Written for MariaDB 10.11.

mod galera;
mod query;
mod server_spec;
mod tls;

pub use galera::GaleraCluster;
pub use query::{connections, kill_connection, query};
pub use tls::{TlsMariaDb, TlsSettings};

pub use crate::connection::Connection;
use crate::{Result, Server, WallClock};

/// The user in a server's URL.
pub const USER: &str = "leasehold";
/// The user's password.
pub const PASSWORD: &str = "password";
/// The database in a server's URL.
pub const DATABASE: &str = "test";

/// Starts one MariaDB.
///
/// # Errors
///
/// As [`Server::start`].
pub async fn start() -> Result<Server> {
    MariaDb::new().start().await
}

/// A MariaDB to start, with custom settings.
///
/// ```no_run
/// # async fn example() -> leasehold_testbed::Result<()> {
/// use leasehold_testbed::mariadb::{self, MariaDb};
///
/// let server = MariaDb::new().setting("max_connections", "5").start().await?;
/// let rows = mariadb::query(&server, "SELECT @@max_connections").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct MariaDb {
    fsyncs: bool,
    settings: Vec<(String, String)>,
    clock: Option<WallClock>,
    disk: Option<u64>,
}

impl MariaDb {
    /// A server that does not wait for the disk: committed data survives a kill, but not a power
    /// failure.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes it wait for the disk at each commit, as MariaDB does by default.
    #[must_use]
    pub fn fsync(mut self) -> Self {
        self.fsyncs = true;
        self
    }

    /// Refuses all writes of ordinary users.
    #[must_use]
    pub fn read_only(self) -> Self {
        self.setting("read_only", "ON")
    }

    /// Sets a system variable; it overrides our own settings.
    #[must_use]
    pub fn setting(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Uses `clock`.
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
