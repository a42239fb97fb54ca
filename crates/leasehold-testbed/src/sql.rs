//! The user, the database and the settings that MariaDB and PostgreSQL servers have in common.

use std::marker::PhantomData;

use crate::{Result, Server, WallClock, process::ServerSpec};

/// The user in the URL of a MariaDB or PostgreSQL.
pub const USER: &str = "leasehold";
/// The password of [`USER`].
pub const PASSWORD: &str = "password";
/// The database in the URL of a MariaDB or PostgreSQL.
pub const DATABASE: &str = "test";

/// A MariaDB or PostgreSQL to start, with custom settings: use the aliases
/// [`MariaDb`](crate::mariadb::MariaDb) and [`Postgres`](crate::postgres::Postgres).
#[derive(Clone, Debug)]
pub struct SqlServer<Program> {
    program: PhantomData<Program>,
    /// Whether it waits for the disk at each commit.
    pub(crate) fsyncs: bool,
    /// Names and values of the test's own settings, in the order in which they were made.
    pub(crate) settings: Vec<(String, String)>,
    /// The wall clock that it uses; `None` for the machine's.
    pub(crate) clock: Option<WallClock>,
    /// The size of its own disk in bytes; `None` if its files are in the temporary folder.
    pub(crate) disk: Option<u64>,
}

impl<Program> Default for SqlServer<Program> {
    fn default() -> Self {
        Self { program: PhantomData, fsyncs: false, settings: Vec::new(), clock: None, disk: None }
    }
}

impl<Program> SqlServer<Program> {
    /// A server that does not wait for the disk: committed data survives a kill, but not a power
    /// failure.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes it wait for the disk at each commit, as both databases do by default.
    #[must_use]
    pub fn fsync(mut self) -> Self {
        self.fsyncs = true;
        self
    }

    /// Sets a system variable (MariaDB) or a configuration parameter (PostgreSQL); it overrides the
    /// testbed's own settings.
    #[must_use]
    pub fn setting(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Makes it use `clock` as its wall clock.
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
    pub async fn start(self) -> Result<Server>
    where
        Self: ServerSpec,
    {
        Server::start(self).await
    }
}
