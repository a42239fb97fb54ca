//! A real Redis, alone or as a set, and a simple client.
//!
//! | | |
//! |---|---|
//! | [`start`], [`Redis`] | one server, with a password or custom arguments |
//! | [`replica_of`] | a replica that follows a server |
//! | [`Redis::tls`] | a server that accepts only TLS, and the certificates of its authority and of a client |
//! | [`SentinelSet`] | a master, its replicas, and three Sentinels that replace it when it dies |
//! | [`Cluster`] | masters that share the slots, and their replicas; slots can move |
//! | [`IndependentServers`] | independent servers |
//! | [`RespClient`] | sends commands to any of them |
//!
//! Sets need Redis 7.0 or later.

mod cluster;
mod command;
mod independent_servers;
mod replica;
mod resp;
mod sentinel;
mod tls;

pub use cluster::{Cluster, Migration, slot_of};
pub use independent_servers::IndependentServers;
pub use replica::{Replica, replica_of};
pub use resp::{Reply, RespClient};
pub use sentinel::SentinelSet;

use crate::{
    Result, Server, WallClock, clock,
    process::{Binary, Probe, ServerSpec, Workspace},
};

/// The file with the server's process id, in the data folder; the server removes it at a clean
/// exit.
const PID_FILE: &str = "redis.pid";

/// Starts a Redis without persistence.
///
/// # Errors
///
/// As [`Server::start`].
pub async fn start() -> Result<Server> {
    Redis::new().start().await
}

/// A Redis to start, with custom arguments.
///
/// ```no_run
/// # async fn example() -> leasehold_testbed::Result<()> {
/// use leasehold_testbed::redis::Redis;
///
/// let server = Redis::new().args(&["--appendonly", "yes"]).start().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Redis {
    extra_args: Vec<String>,
    user: Option<String>,
    password: Option<String>,
    clock: Option<WallClock>,
    disk: Option<u64>,
}

impl Redis {
    /// A Redis without persistence, which runs as the user of the tests.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds arguments of `redis-server`; they override the testbed's own.
    #[must_use]
    pub fn args(mut self, arguments: &[&str]) -> Self {
        self.extra_args.extend(arguments.iter().map(|&a| a.to_owned()));
        self
    }

    /// Requires `password` from clients, and sends it to the master if this is or becomes a
    /// replica.
    ///
    /// The URL contains it unescaped: use letters and digits.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.args(&["--requirepass", password, "--masterauth", password])
    }

    /// Makes it use `clock` as its wall clock.
    #[must_use]
    pub fn clock(mut self, clock: &WallClock) -> Self {
        self.clock = Some(clock.clone());
        // Without this it writes no PID file, which the clean-up of its clock needs.
        self.args(&["--pidfile", PID_FILE])
    }

    /// Stores its files on a small [disk](crate::Disk) of this size; root only.
    #[must_use]
    pub fn disk(mut self, bytes: u64) -> Self {
        self.disk = Some(bytes);
        self
    }

    /// Runs it as `user` when the tests run as root.
    #[must_use]
    pub fn run_as(mut self, user: &str) -> Self {
        self.user = Some(user.to_owned());
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

impl ServerSpec for Redis {
    fn binary(&self) -> Binary {
        Binary::new("redis-server", "redis-server")
    }

    fn arguments(&self, workspace: &Workspace) -> Vec<String> {
        let port = workspace.port().to_string();
        let dir = workspace.dir().to_string_lossy();
        let ours = [
            ["--port", &port],
            ["--bind", "127.0.0.1"],
            ["--dir", &dir],
            ["--daemonize", "no"],
            ["--save", ""],
            ["--appendonly", "no"],
            // The first replica does not wait five seconds for a second one.
            ["--repl-diskless-sync-delay", "0"],
        ];
        let ours = ours.iter().flatten().map(|&argument| argument.to_owned());
        ours.chain(self.extra_args.iter().cloned()).collect()
    }

    fn url(&self, workspace: &Workspace) -> String {
        let password = self.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        format!("redis://{password}127.0.0.1:{}/", workspace.port())
    }

    fn probe<'a>(&'a self, workspace: &'a Workspace) -> Probe<'a> {
        ping_probe(workspace)
    }

    fn environment(&self) -> Vec<(String, String)> {
        self.clock.as_ref().map(|clock| clock.environment()).unwrap_or_default()
    }

    fn prepare(&self, workspace: &Workspace) -> Result<()> {
        self.clean_up(workspace);
        Ok(())
    }

    fn clean_up(&self, workspace: &Workspace) {
        if self.clock.is_some() {
            clock::remove_leftovers(&workspace.dir().join(PID_FILE));
        }
    }

    fn disk(&self) -> Option<u64> {
        self.disk
    }

    fn run_as(&self) -> Option<&str> {
        self.user.as_deref()
    }
}

/// Checks once whether a Redis of any kind responds.
fn ping_probe(workspace: &Workspace) -> Probe<'_> {
    Box::pin(async move {
        let answer = async { RespClient::connect(workspace.addr()).await?.command(&["PING"]).await };
        match answer.await {
            Ok(Reply::Simple(pong)) if pong == "PONG" => Ok(()),
            // A server with a password, or whose default user has no permissions, is up, too.
            Ok(Reply::Error(text)) if text.starts_with("NOAUTH") || text.starts_with("NOPERM") => Ok(()),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error.to_string()),
        }
    })
}
