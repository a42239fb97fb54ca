//! A real ZooKeeper, alone or as an ensemble, and its four-letter words.
//!
//! | | |
//! |---|---|
//! | [`start`], [`ZooKeeper`] | one server, with custom settings |
//! | [`ZooKeeper::user`] | a server with users, who log in by SASL with DIGEST-MD5 |
//! | [`ZooKeeper::tls`] | a server with a port for TLS, and the certificates of its authority and of a client |
//! | [`Ensemble`] | servers that elect a leader; each can be cut off from the others, but not from its clients |
//! | [`send_word`], [`monitor_values`], [`role`] | query any of them |
//!
//! A server's URL here is ZooKeeper's connect string: `127.0.0.1:2181`, and for an ensemble all
//! addresses with commas in between.
//!
//! Written for ZooKeeper 3.8.

mod ensemble;
mod four_letter_words;
mod server_spec;
mod tls;

use std::time::Duration;

pub use ensemble::Ensemble;
pub use four_letter_words::{Role, monitor_values, role, send_word};
pub use server_spec::classpath;
pub use tls::plain_addr;

use crate::{Result, Server};

/// The default of the tick: short, because the shortest session lasts two ticks.
const DEFAULT_TICK: Duration = Duration::from_millis(100);
/// The default of the longest session timeout; ZooKeeper's own is twenty ticks.
const MAX_SESSION: Duration = Duration::from_secs(1200);
/// The default of how often empty container nodes are removed; ZooKeeper's own is a minute.
const CONTAINER_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The default of how long members wait for an unresponsive one: on a busy machine a server may
/// pause for seconds, and must not lose its leader. A server that is killed closes its connections,
/// which the others notice at once.
const PEER_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts one ZooKeeper.
///
/// # Errors
///
/// As [`Server::start`].
pub async fn start() -> Result<Server> {
    ZooKeeper::new().start().await
}

/// A ZooKeeper to start, with custom settings.
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
    min_session: Option<Duration>,
    max_session: Duration,
    container_check_interval: Duration,
    peer_timeout: Duration,
    fsyncs: bool,
    users: Vec<(String, String)>,
    settings: Vec<(String, String)>,
    properties: Vec<(String, String)>,
}

impl Default for ZooKeeper {
    fn default() -> Self {
        Self {
            tick: DEFAULT_TICK,
            min_session: None,
            max_session: MAX_SESSION,
            container_check_interval: CONTAINER_CHECK_INTERVAL,
            peer_timeout: PEER_TIMEOUT,
            fsyncs: false,
            users: Vec::new(),
            settings: Vec::new(),
            properties: Vec::new(),
        }
    }
}

impl ZooKeeper {
    /// A server with a tick of 100 ms and sessions of 200 ms to twenty minutes, all four-letter
    /// words, and TTL nodes. It does not wait for the disk: data survives a kill, but not a power
    /// failure.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the tick, ZooKeeper's unit of time; 100 ms by default. A session ends on a tick, and
    /// lasts at least two ticks.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// Sets the shortest and the longest session timeout that the server grants, independently of
    /// the tick.
    #[must_use]
    pub fn session_bounds(mut self, shortest: Duration, longest: Duration) -> Self {
        self.min_session = Some(shortest);
        self.max_session = longest;
        self
    }

    /// Sets how often the server removes empty container nodes and expired TTL nodes; every 100 ms
    /// by default.
    #[must_use]
    pub fn container_check_interval(mut self, every: Duration) -> Self {
        self.container_check_interval = every;
        self
    }

    /// Sets the time after which a member gives up an unresponsive leader, and a leader
    /// unresponsive followers; thirty seconds by default. A member that is cut off may serve
    /// clients for this long, so a test that cuts members off, or pauses them, sets it shorter.
    #[must_use]
    pub fn peer_timeout(mut self, bound: Duration) -> Self {
        self.peer_timeout = bound;
        self
    }

    /// Makes it wait for the disk at each write, as ZooKeeper does by default.
    #[must_use]
    pub fn fsync(mut self) -> Self {
        self.fsyncs = true;
        self
    }

    /// Adds a user, who logs in by SASL with DIGEST-MD5. Other clients need no login, unless
    /// `sessionRequireClientSASLAuth` is [set](Self::setting).
    ///
    /// Name and password must be letters and digits.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.users.push((name.to_owned(), password.to_owned()));
        self
    }

    /// Adds a line to the server's `zoo.cfg`; it overrides the testbed's own.
    #[must_use]
    pub fn setting(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Adds a property of the server's JVM; it overrides the testbed's own.
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
