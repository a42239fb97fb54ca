//! PgBouncer in front of a PostgreSQL: many clients share few connections.

use std::{fs, net::SocketAddr};

use tokio_postgres::Config;

use super::{ADMIN, DATABASE, PASSWORD, USER, query, server_spec::SYSTEM_USER};
use crate::{
    Error, Result, Server,
    process::{Binary, Probe, ServerSpec, Workspace},
};

const CONFIG_FILE: &str = "pgbouncer.ini";
const USERS_FILE: &str = "users.txt";
/// The default number of server connections: small, so that a third client must wait.
const POOL_SIZE: usize = 2;

/// At which time a client returns its server connection to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolMode {
    /// The client keeps its server connection until it disconnects.
    Session,
    /// The client returns its server connection at the end of each transaction.
    Transaction,
    /// The client returns its server connection after each statement; transactions of several
    /// statements are refused.
    Statement,
}

/// A PgBouncer to start.
///
/// ```no_run
/// # async fn example() -> leasehold_testbed::Result<()> {
/// use leasehold_testbed::postgres::{self, PgBouncer, PoolMode};
///
/// let postgres = postgres::start().await?;
/// let bouncer = PgBouncer::new(&postgres, PoolMode::Transaction).pool_size(1).start().await?;
/// println!("clients connect to {}", bouncer.url());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PgBouncer {
    server_addr: SocketAddr,
    mode: PoolMode,
    pool_size: usize,
    settings: Vec<(String, String)>,
}

impl PgBouncer {
    /// A PgBouncer before `postgres`, with two connections for all clients.
    pub fn new(postgres: &Server, mode: PoolMode) -> Self {
        Self { server_addr: postgres.addr(), mode, pool_size: POOL_SIZE, settings: Vec::new() }
    }

    /// Makes it connect to PostgreSQL at another address, such as that of a [proxy](crate::Proxy).
    #[must_use]
    pub fn via(mut self, addr: SocketAddr) -> Self {
        self.server_addr = addr;
        self
    }

    /// Sets the number of server connections that all clients share; two by default.
    #[must_use]
    pub fn pool_size(mut self, connections: usize) -> Self {
        self.pool_size = connections;
        self
    }

    /// Adds a line to PgBouncer's configuration; it overrides the testbed's own.
    #[must_use]
    pub fn setting(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Starts it and waits until it responds; the server behind it need not.
    ///
    /// # Errors
    ///
    /// As [`Server::start`].
    pub async fn start(self) -> Result<Server> {
        Server::start(self).await
    }

    fn config(&self, port: u16) -> String {
        let mode = match self.mode {
            PoolMode::Session => "session",
            PoolMode::Transaction => "transaction",
            PoolMode::Statement => "statement",
        };
        let (host, server_port) = (self.server_addr.ip(), self.server_addr.port());
        let ours = [
            ("listen_addr", "127.0.0.1".to_owned()),
            ("listen_port", port.to_string()),
            ("unix_socket_dir", String::new()),
            ("auth_type", "scram-sha-256".to_owned()),
            ("auth_file", USERS_FILE.to_owned()),
            ("admin_users", ADMIN.to_owned()),
            ("pool_mode", mode.to_owned()),
            ("default_pool_size", self.pool_size.to_string()),
            ("max_client_conn", "500".to_owned()),
            // Retries at once if the server is down.
            ("server_login_retry", "0".to_owned()),
        ];
        let ours = ours.iter().map(|(key, value)| (*key, value.as_str()));
        let settings = ours.chain(self.settings.iter().map(|(key, value)| (key.as_str(), value.as_str())));
        let settings: String = settings.map(|(key, value)| format!("{key} = {value}\n")).collect();
        let database = format!("{DATABASE} = host={host} port={server_port} dbname={DATABASE}");
        format!("[databases]\n{database}\n[pgbouncer]\n{settings}")
    }
}

impl ServerSpec for PgBouncer {
    fn binary(&self) -> Binary {
        Binary::new("pgbouncer", "pgbouncer")
    }

    fn arguments(&self, _workspace: &Workspace) -> Vec<String> {
        vec![CONFIG_FILE.to_owned()]
    }

    fn url(&self, workspace: &Workspace) -> String {
        format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{}/{DATABASE}", workspace.port())
    }

    fn prepare(&self, workspace: &Workspace) -> Result<()> {
        let users = [USER, ADMIN].map(|user| format!("\"{user}\" \"{PASSWORD}\"\n")).concat();
        for (name, text) in [(CONFIG_FILE, self.config(workspace.port())), (USERS_FILE, users)] {
            let file = workspace.dir().join(name);
            let writing = Error::io(format!("writing {}", file.display()));
            fs::write(file, text).map_err(writing)?;
        }
        Ok(())
    }

    /// Logs in to PgBouncer's own administration database, which needs no PostgreSQL.
    fn probe<'a>(&'a self, workspace: &'a Workspace) -> Probe<'a> {
        Box::pin(async move {
            let mut config = Config::new();
            config.host("127.0.0.1").port(workspace.port()).user(ADMIN).password(PASSWORD).dbname("pgbouncer");
            query::query_with_config(&config, "SHOW VERSION").await.map(drop).map_err(|error| error.to_string())
        })
    }

    fn run_as(&self) -> Option<&str> {
        Some(SYSTEM_USER)
    }
}
