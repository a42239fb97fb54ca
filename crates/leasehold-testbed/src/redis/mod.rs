//! A real Redis, and a client by hand.

mod resp;

pub use resp::{Reply, Resp};

use crate::{
    Result, Server,
    process::{Binary, Place, Probe, Recipe},
};

/// Starts a Redis that keeps nothing on disk.
///
/// # Errors
///
/// As [`Server::start`].
pub async fn start() -> Result<Server> {
    Redis::new().start().await
}

/// A Redis to be started, with arguments of its own.
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
    extra: Vec<String>,
    user: Option<String>,
}

impl Redis {
    /// A Redis that keeps nothing on disk and runs as whoever runs the tests.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds arguments after our own, so that they win where both say something.
    #[must_use]
    pub fn args(mut self, arguments: &[&str]) -> Self {
        self.extra.extend(arguments.iter().map(|&a| a.to_owned()));
        self
    }

    /// Runs it as `user` when the tests run as root.
    #[must_use]
    pub fn run_as(mut self, user: &str) -> Self {
        self.user = Some(user.to_owned());
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

impl Recipe for Redis {
    fn binary(&self) -> Binary {
        Binary::new("redis-server", "redis-server")
    }

    fn arguments(&self, place: &Place) -> Vec<String> {
        let port = place.port().to_string();
        let dir = place.dir().to_string_lossy();
        let ours = [
            ["--port", &port],
            ["--bind", "127.0.0.1"],
            ["--dir", &dir],
            ["--daemonize", "no"],
            ["--save", ""],
            ["--appendonly", "no"],
        ];
        let ours = ours.iter().flatten().map(|&argument| argument.to_owned());
        ours.chain(self.extra.iter().cloned()).collect()
    }

    fn url(&self, place: &Place) -> String {
        format!("redis://127.0.0.1:{}/", place.port())
    }

    fn probe<'a>(&'a self, place: &'a Place) -> Probe<'a> {
        Box::pin(async move {
            let answer = async { Resp::connect(place.addr()).await?.command(&["PING"]).await };
            match answer.await {
                Ok(Reply::Simple(pong)) if pong == "PONG" => Ok(()),
                // One with a password is up, too.
                Ok(Reply::Error(text)) if text.starts_with("NOAUTH") => Ok(()),
                Ok(other) => Err(format!("{other:?}")),
                Err(error) => Err(error.to_string()),
            }
        })
    }

    fn run_as(&self) -> Option<&str> {
        self.user.as_deref()
    }
}
