//! A real ZooKeeper, alone or as an ensemble, and its four-letter words.
//!
//! | | |
//! |---|---|
//! | [`start`], [`ZooKeeper`] | one server, with settings of its own |
//! | [`ZooKeeper::user`] | a server that knows users, by SASL with DIGEST-MD5 |
//! | [`ZooKeeper::tls`] | a server with a port for TLS, and the certificates to trust and to show |
//! | [`Ensemble`] | servers that elect a leader; each can be cut off from the others, but not from its clients |
//! | [`ask()`], [`facts`], [`role`] | ask any of them by hand |
//!
//! A server's URL here is what ZooKeeper calls a connect string: `127.0.0.1:2181`, and of an
//! ensemble all of them with commas in between.
//!
//! Written for ZooKeeper 3.8.

mod ask;
mod ensemble;
mod recipe;
mod tls;

use std::time::Duration;

pub use ask::{Role, ask, facts, role};
pub use ensemble::Ensemble;
pub use recipe::classpath;
pub use tls::{Tls, TlsZooKeeper};

use crate::{Result, Server};

/// Short, so that sessions may be short: the shortest lasts two ticks.
const TICK: Duration = Duration::from_millis(100);
/// ZooKeeper itself would allow twenty ticks.
const LONGEST_SESSION: Duration = Duration::from_secs(1200);
/// ZooKeeper itself would look once a minute.
const CONTAINER_CHECK: Duration = Duration::from_millis(100);
/// A busy machine may hold a server up for a second, and that must not make it lose its leader.
const PEER_SILENCE: Duration = Duration::from_secs(2);

/// Starts one ZooKeeper.
///
/// # Errors
///
/// As [`Server::start`].
pub async fn start() -> Result<Server> {
    ZooKeeper::new().start().await
}

/// A ZooKeeper to be started, with settings of its own.
///
/// ```no_run
/// # async fn example() -> leasehold_testbed::Result<()> {
/// use std::time::Duration;
/// use leasehold_testbed::zookeeper::ZooKeeper;
///
/// let server = ZooKeeper::new().tick(Duration::from_millis(500)).user("ann", "word").start().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ZooKeeper {
    tick: Duration,
    shortest_session: Option<Duration>,
    longest_session: Duration,
    container_check: Duration,
    peer_silence: Duration,
    syncs: bool,
    users: Vec<(String, String)>,
    settings: Vec<(String, String)>,
    properties: Vec<(String, String)>,
}

impl Default for ZooKeeper {
    fn default() -> Self {
        Self {
            tick: TICK,
            shortest_session: None,
            longest_session: LONGEST_SESSION,
            container_check: CONTAINER_CHECK,
            peer_silence: PEER_SILENCE,
            syncs: false,
            users: Vec::new(),
            settings: Vec::new(),
            properties: Vec::new(),
        }
    }
}

impl ZooKeeper {
    /// One with a tick of 100 ms and sessions of 200 ms to twenty minutes, that answers all
    /// four-letter words, has nodes with a time to live, and leaves the writing of its files to
    /// the system: they survive a kill, but not a power cut.
    pub fn new() -> Self {
        Self::default()
    }

    /// The beat of all its clocks. A session ends on a beat, and lasts two of them at least.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// Grants no session that is shorter or longer than these, whatever the tick.
    #[must_use]
    pub fn sessions(mut self, shortest: Duration, longest: Duration) -> Self {
        self.shortest_session = Some(shortest);
        self.longest_session = longest;
        self
    }

    /// How often it looks for container nodes that are empty and nodes whose time to live is
    /// over, instead of every 100 ms.
    #[must_use]
    pub fn container_check(mut self, every: Duration) -> Self {
        self.container_check = every;
        self
    }

    /// How long a member of an ensemble bears the silence of its leader, and a leader that of its
    /// followers, instead of two seconds. So long may one that is cut off go on answering.
    #[must_use]
    pub fn peer_silence(mut self, bound: Duration) -> Self {
        self.peer_silence = bound;
        self
    }

    /// Has it wait for the disk with each write, as ZooKeeper does where nobody says otherwise.
    #[must_use]
    pub fn sync(mut self) -> Self {
        self.syncs = true;
        self
    }

    /// Knows a user, who logs in by SASL with DIGEST-MD5. Others may still come without logging
    /// in, unless `sessionRequireClientSASLAuth` is [set](Self::setting).
    ///
    /// Name and password must be letters and digits.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.users.push((name.to_owned(), password.to_owned()));
        self
    }

    /// Adds a line to its `zoo.cfg` after our own, so that it wins where both say something.
    #[must_use]
    pub fn setting(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Adds a property of the Java machine after our own.
    #[must_use]
    pub fn property(mut self, key: &str, value: &str) -> Self {
        self.properties.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Starts it and waits until it serves.
    ///
    /// # Errors
    ///
    /// As [`Server::start`].
    pub async fn start(self) -> Result<Server> {
        Server::start(self).await
    }
}
