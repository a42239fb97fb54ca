//! A real MariaDB, alone or as a cluster, and SQL by hand.
//!
//! | | |
//! |---|---|
//! | [`start`], [`MariaDb`] | one server, with settings and a [clock](MariaDb::clock) of its own |
//! | [`MariaDb::tls`] | a server that takes only TLS, and the certificates to trust and to show |
//! | [`GaleraCluster`] | servers that all take writes; each can be cut off from the others, but not from its clients |
//! | [`query()`] | asks any of them by hand, as the one who may do everything |
//! | [`connections`], [`kill_connection`] | who is connected, and the end of one of them, from the server's side |
//!
//! Each has a database [`DATABASE`], and an ordinary user [`USER`] with the password [`PASSWORD`],
//! who may do everything there and nothing elsewhere.
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

/// A MariaDB to be started, with settings of its own.
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
    /// One that leaves the writing of its files to the system: what was committed survives a kill,
    /// but not a power cut.
    pub fn new() -> Self {
        Self::default()
    }

    /// Has it wait for the disk with each commit, as MariaDB does where nobody says otherwise.
    #[must_use]
    pub fn fsync(mut self) -> Self {
        self.fsyncs = true;
        self
    }

    /// Refuses all writing by ordinary users.
    #[must_use]
    pub fn read_only(self) -> Self {
        self.setting("read_only", "ON")
    }

    /// Sets a system variable after our own, so that it wins where both say something.
    #[must_use]
    pub fn setting(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Goes by `clock`.
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
