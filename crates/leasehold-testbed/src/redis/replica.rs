//! A replica that follows a master.

use std::time::Duration;

use super::{Redis, command};
use crate::{Result, Server, WallClock, try_eventually};

/// The time limit for a replica to copy its master's data. Only a failing test waits this long.
const LINK_TIMEOUT: Duration = crate::TEST_TIMEOUT;

/// A replica to start, which copies and follows `master`.
///
/// ```no_run
/// # async fn example() -> leasehold_testbed::Result<()> {
/// use leasehold_testbed::redis;
///
/// let master = redis::start().await?;
/// let replica = redis::replica_of(&master).start().await?;
/// # Ok(())
/// # }
/// ```
pub fn replica_of(master: &Server) -> Replica {
    Replica { redis: Redis::new().following(master), password: None }
}

/// A replica to start; see [`replica_of`].
#[derive(Clone, Debug)]
pub struct Replica {
    redis: Redis,
    password: Option<String>,
}

impl Replica {
    /// Adds arguments of `redis-server`; they override the testbed's own.
    #[must_use]
    pub fn args(mut self, arguments: &[&str]) -> Self {
        self.redis = self.redis.args(arguments);
        self
    }

    /// Makes it use `clock` as its wall clock.
    #[must_use]
    pub fn clock(mut self, clock: &WallClock) -> Self {
        self.redis = self.redis.clock(clock);
        self
    }

    /// Requires `password` from clients, as its master does.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.redis = self.redis.password(password);
        self.password = Some(password.to_owned());
        self
    }

    /// Starts it and waits until it has copied the master's data and follows it.
    ///
    /// A later [`Server::restart`] only waits until it responds, because the master may be down
    /// then.
    ///
    /// # Errors
    ///
    /// As [`Server::start`]; [`Error::TimedOut`](crate::Error::TimedOut) if it cannot follow.
    pub async fn start(self) -> Result<Server> {
        let server = self.redis.start().await?;
        let (addr, password) = (server.addr(), self.password.as_deref());
        try_eventually("link to the master", LINK_TIMEOUT, || command::check_replica_linked(addr, password)).await?;
        Ok(server)
    }
}

impl Redis {
    /// Makes it a replica of `master` from its start.
    pub(super) fn following(self, master: &Server) -> Self {
        self.args(&["--replicaof", &format!("127.0.0.1 {}", master.port())])
    }
}
