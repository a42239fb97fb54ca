//! A real ZooKeeper, alone or as an ensemble, and its four-letter words.
//!
//! | | |
//! |---|---|
//! | [`start`], [`ZooKeeper`] | one server, with settings of its own |
//! | [`ZooKeeper::user`] | a server that knows users, by SASL with DIGEST-MD5 |
//! | [`ZooKeeper::tls`] | a server with a port for TLS, and the certificates to trust and to show |
//! | [`Ensemble`] | servers that elect a leader; each can be cut off from the others, but not from its clients |
//! | [`send_word`], [`monitor_values`], [`role`] | ask any of them by hand |
//!
//! A server's URL here is what ZooKeeper calls a connect string: `127.0.0.1:2181`, and of an
//! ensemble all of them with commas in between.
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
pub use tls::{TlsSettings, TlsZooKeeper};

use crate::{Result, Server};

/// Short, so that sessions may be short: the shortest lasts two ticks.
const DEFAULT_TICK: Duration = Duration::from_millis(100);
/// ZooKeeper itself would allow twenty ticks.
const MAX_SESSION: Duration = Duration::from_secs(1200);
/// ZooKeeper itself would look once a minute.
const CONTAINER_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// A busy machine may hold a server up for seconds, and that must not make it lose its leader. A
/// server that is killed closes its connections, and is missed at once.
const PEER_TIMEOUT: Duration = Duration::from_secs(30);

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
    pub fn session_bounds(mut self, shortest: Duration, longest: Duration) -> Self {
        self.min_session = Some(shortest);
        self.max_session = longest;
        self
    }

    /// How often it looks for container nodes that are empty and nodes whose time to live is
    /// over, instead of every 100 ms.
    #[must_use]
    pub fn container_check_interval(mut self, every: Duration) -> Self {
        self.container_check_interval = every;
        self
    }

    /// How long a member of an ensemble bears the silence of its leader, and a leader that of its
    /// followers, instead of thirty seconds. So long may one that is cut off go on answering: a test
    /// that cuts members off, or pauses them, wants it shorter.
    #[must_use]
    pub fn peer_timeout(mut self, bound: Duration) -> Self {
        self.peer_timeout = bound;
        self
    }

    /// Has it wait for the disk with each write, as ZooKeeper does where nobody says otherwise.
    #[must_use]
    pub fn fsync(mut self) -> Self {
        self.fsyncs = true;
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
