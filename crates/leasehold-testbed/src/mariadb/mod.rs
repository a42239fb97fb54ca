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

use crate::{Result, Server, sql::SqlServer};
pub use crate::{
    connection::Connection,
    sql::{DATABASE, PASSWORD, USER},
};

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
pub type MariaDb = SqlServer<MariaDbProgram>;

/// Makes a [`SqlServer`] a MariaDB.
#[derive(Clone, Debug)]
pub struct MariaDbProgram;

impl MariaDb {
    /// Refuses all writes of ordinary users.
    #[must_use]
    pub fn read_only(self) -> Self {
        self.setting("read_only", "ON")
    }
}
