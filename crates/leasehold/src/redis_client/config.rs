//! The engine's URL: the servers, the login, and the settings of the protocol.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::transport::Transport;
use crate::clock::Clock;
use crate::engine::EngineUrl;
use crate::engine::url::host_and_port;
use crate::types::{Error, ErrorKind, Result};

/// The default port of a Redis server.
const PORT: u16 = 6379;
/// The default port of a Sentinel.
const SENTINEL_PORT: u16 = 26379;
/// The default prefix of keys.
const PREFIX: &str = "leasehold:";
/// How long the record of a free lock is kept, so that its tokens rise even if the server's clock
/// is set back.
const RETENTION: Duration = Duration::from_secs(3600);

/// The longest lease.
const MAX_LEASE: Duration = Duration::from_secs(24 * 3600);

/// The options that the URL may have.
const OPTIONS: [&str; 13] = [
    "prefix",
    "db",
    "protocol",
    "replicas",
    "strict",
    "retention",
    "connect-timeout",
    "tls",
    "ca",
    "cert",
    "cert-key",
    "sentinel-user",
    "sentinel-password",
];

/// Where the servers are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    Single(Address),
    /// Sentinels, which know the master of this name.
    Sentinel(Vec<Address>, String),
    /// Some nodes of a cluster, which know the others.
    Cluster(Vec<Address>),
}

/// A host and its port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    pub host: String,
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A user and a password; `Debug` shows neither.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Login {
    pub user: Option<String>,
    pub password: Option<String>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.user.is_none() && self.password.is_none() { "Login(none)" } else { "Login(***)" })
    }
}

/// The settings of TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// A PEM file with the certificates to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// This client's certificate and its key, both PEM files.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The protocol of the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// leasehold's own: queues, modes, tokens.
    Full,
    /// The textbook's one string key, shared with other programs.
    Simple,
}

/// All settings of the URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub topology: Topology,
    pub login: Login,
    pub sentinel_login: Login,
    pub tls: Option<Tls>,
    pub db: u32,
    pub prefix: String,
    pub protocol: Protocol,
    /// How many replicas must have a grant before it counts.
    pub replicas: u32,
    /// The longest lease, and so the cool-down of a server that may have lost leases; `None`
    /// without strict mode.
    pub strict: Option<Duration>,
    pub retention: Duration,
    pub connect_timeout: Duration,
    /// The clock for connections and pauses.
    pub clock: Clock,
    pub transport: Transport,
    /// The URL without secrets.
    pub redacted_url: String,
}

impl Config {
    pub fn read(url: &EngineUrl) -> Result<Self> {
        url.refuse_unknown_options(&OPTIONS)?;
        let protocol = match url.option("protocol") {
            None | Some("full") => Protocol::Full,
            Some("simple") => Protocol::Simple,
            Some(other) => return Err(invalid_url(format!("protocol is `full` or `simple`, and not {other:?}"))),
        };
        let topology = topology(url)?;
        let config = Self {
            db: database(url, &topology)?,
            login: Login { user: url.user.clone(), password: url.password.clone() },
            sentinel_login: sentinel_login(url, &topology)?,
            tls: tls(url)?,
            prefix: prefix(url, protocol)?,
            protocol,
            replicas: number(url, "replicas")?.unwrap_or(0),
            strict: url.duration("strict")?,
            retention: url.duration("retention")?.unwrap_or(RETENTION),
            connect_timeout: url.duration("connect-timeout")?.unwrap_or(Duration::from_secs(2)),
            topology,
            clock: Clock::system(),
            transport: Transport::default(),
            redacted_url: url.to_string(),
        };
        config.check()
    }

    /// The same, with this clock.
    pub fn with_clock(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self
    }

    fn check(self) -> Result<Self> {
        let simple = self.protocol == Protocol::Simple;
        if simple && (self.strict.is_some() || self.replicas > 0) {
            return Err(invalid_url(
                "protocol=simple has neither strict= nor replicas=: both need the full protocol".into(),
            ));
        }
        if self.login.user.is_some() && self.login.password.is_none() {
            return Err(invalid_url(
                "there is a user but no password; write user:password@host, or :password@host".into(),
            ));
        }
        if self.connect_timeout < Duration::from_millis(10) {
            return Err(invalid_url("connect-timeout is 10 ms at least".into()));
        }
        if self.strict.is_some_and(|max_lease| max_lease < Duration::from_millis(100) || max_lease > MAX_LEASE) {
            return Err(invalid_url("strict names the longest lease, between 100 ms and one day".into()));
        }
        if self.retention < Duration::from_secs(1) || self.retention > Duration::from_secs(366 * 24 * 3600) {
            return Err(invalid_url("retention is between 1 s and 366 days".into()));
        }
        Ok(self)
    }
}

fn invalid_url(message: String) -> Error {
    Error::new(ErrorKind::InvalidUrl, message)
}

fn topology(url: &EngineUrl) -> Result<Topology> {
    let addresses = |port| url.hosts.iter().map(|host| address(host, port)).collect::<Result<Vec<_>>>();
    let name = url.path.trim_matches('/');
    match url.scheme.as_str() {
        "redis+sentinel" => {
            if url.hosts.is_empty() || name.is_empty() || name.contains('/') {
                return Err(invalid_url(
                    "name the Sentinels and their master: redis+sentinel://h1,h2,h3/mymaster".into(),
                ));
            }
            Ok(Topology::Sentinel(addresses(SENTINEL_PORT)?, name.to_owned()))
        }
        "redis+cluster" => {
            if url.hosts.is_empty() || !name.is_empty() {
                return Err(invalid_url(
                    "name some of the cluster's nodes, without a path: redis+cluster://h1,h2".into(),
                ));
            }
            Ok(Topology::Cluster(addresses(PORT)?))
        }
        _ => match &addresses(PORT)?[..] {
            [] => Ok(Topology::Single(address("127.0.0.1", PORT)?)),
            [one] => Ok(Topology::Single(one.clone())),
            _ => Err(invalid_url(
                "`redis:` is one server; for several there are redis+sentinel:, redis+cluster: and redlock:".into(),
            )),
        },
    }
}

fn address(text: &str, port: u16) -> Result<Address> {
    let (host, port) = host_and_port(text, port, "redis.example")?;
    Ok(Address { host, port })
}

/// The database: `redis://host/2`, or the option.
fn database(url: &EngineUrl, topology: &Topology) -> Result<u32> {
    let path = url.path.trim_start_matches('/');
    let from_path = match topology {
        // Most likely the rest of a password, so the error does not show it.
        Topology::Single(_) if path.contains('@') => {
            return Err(invalid_url("a `/`, `@` or `?` in a user or a password is written as %2F, %40 or %3F".into()));
        }
        Topology::Single(_) if !path.is_empty() => Some(
            path.parse()
                .map_err(|_| invalid_url(format!("{path:?} is not a database; it must be a number: redis://host/2")))?,
        ),
        _ => None,
    };
    let named = number(url, "db")?;
    if named.is_some() && from_path.is_some() && named != from_path {
        return Err(invalid_url("the path and db= name different databases".into()));
    }
    let db = named.or(from_path).unwrap_or(0);
    if db > 0 && matches!(topology, Topology::Cluster(_)) {
        return Err(invalid_url("a cluster has only database 0".into()));
    }
    Ok(db)
}

fn sentinel_login(url: &EngineUrl, topology: &Topology) -> Result<Login> {
    let login = Login {
        user: url.option("sentinel-user").map(str::to_owned),
        password: url.option("sentinel-password").map(str::to_owned),
    };
    if login != Login::default() && !matches!(topology, Topology::Sentinel(..)) {
        return Err(invalid_url("sentinel-user and sentinel-password are for redis+sentinel: only".into()));
    }
    Ok(login)
}

fn tls(url: &EngineUrl) -> Result<Option<Tls>> {
    let on = match url.option("tls") {
        None => url.scheme == "rediss",
        Some("on") => true,
        Some("off") if url.scheme != "rediss" => false,
        Some(other) => {
            return Err(invalid_url(format!("tls is `on` or `off`, and not {other:?}; `rediss:` is always on")));
        }
    };
    let file = |key| url.option(key).map(PathBuf::from);
    let (ca, cert, key) = (file("ca"), file("cert"), file("cert-key"));
    if !on {
        return match ca.or(cert).or(key) {
            None => Ok(None),
            Some(_) => Err(invalid_url("ca, cert and cert-key are for TLS: write rediss:, or tls=on".into())),
        };
    }
    let identity = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        _ => {
            return Err(invalid_url(
                "cert and cert-key belong together: this client's certificate and its key, both PEM files".into(),
            ));
        }
    };
    Ok(Some(Tls { ca, identity }))
}

fn prefix(url: &EngineUrl, protocol: Protocol) -> Result<String> {
    // Other programs know the textbook lock by its bare name.
    let default = if protocol == Protocol::Simple { "" } else { PREFIX };
    let prefix = url.option("prefix").unwrap_or(default);
    if prefix.contains(['{', '}']) || prefix.chars().any(char::is_control) || prefix.len() > 100 {
        return Err(invalid_url(
            "prefix= must be at most 100 bytes, without braces (they select the cluster slot)".into(),
        ));
    }
    if prefix.is_empty() && protocol == Protocol::Full {
        return Err(invalid_url("an empty prefix would mix leasehold's keys with all others".into()));
    }
    Ok(prefix.to_owned())
}

fn number(url: &EngineUrl, key: &str) -> Result<Option<u32>> {
    let parse = |text: &str| text.parse().map_err(|_| invalid_url(format!("{key} is a number, and not {text:?}")));
    url.option(key).map(parse).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Config> {
        Config::read(&EngineUrl::parse(url)?)
    }

    #[test]
    fn reads_every_kind_of_deployment() {
        let config = read("redis://u:p%40ss@h:1/3?prefix=x:").unwrap();
        assert_eq!(config.topology, Topology::Single(Address { host: "h".into(), port: 1 }));
        assert_eq!((config.db, config.prefix.as_str()), (3, "x:"));
        assert_eq!(config.login.password.as_deref(), Some("p@ss"));
        let config = read("redis+sentinel://h1,h2:7,[::1]:8/mymaster?db=2&tls=on&sentinel-password=s").unwrap();
        let Topology::Sentinel(addresses, name) = &config.topology else { panic!("{config:?}") };
        let text: Vec<_> = addresses.iter().map(Address::to_string).collect();
        assert_eq!((text.join(" ").as_str(), name.as_str()), ("h1:26379 h2:7 [::1]:8", "mymaster"));
        assert_eq!((config.db, config.tls.is_some()), (2, true));
        assert!(
            matches!(read("redis+cluster://h1,h2").unwrap().topology, Topology::Cluster(nodes) if nodes.len() == 2)
        );
        assert!(read("rediss://h").unwrap().tls.is_some());
        let config = read("redis:?strict=30s&replicas=2&retention=5m").unwrap();
        assert_eq!((config.strict, config.replicas), (Some(Duration::from_secs(30)), 2));
        assert_eq!(read("redis://h?protocol=simple").unwrap().prefix, "");
    }

    #[test]
    fn errors_name_the_problem() {
        for (url, expected) in [
            ("redis://h1,h2", "one server"),
            ("redis://h/x", "is not a database"),
            ("redis://h:port", "no host with a port"),
            ("redis+sentinel://h1", "their master"),
            ("redis+cluster://h1/0", "without a path"),
            ("redis+cluster://h1?db=1", "only database 0"),
            ("redis://u@h", "no password"),
            ("redis://h?tls=maybe", "`on` or `off`"),
            ("redis://h?ca=/x", "for TLS"),
            ("rediss://h?cert=/x", "belong together"),
            ("redis://h?prefix={a}", "without braces"),
            ("redis://h?strict=soon", "like 500ms"),
            ("redis://h?strict=25h", "one day"),
            ("redis://h?protocol=simple&strict=1s", "neither strict"),
            ("redis://h?protocol=raft", "`full` or `simple`"),
            ("redis://h?sentinel-user=x", "redis+sentinel: only"),
            ("redis://h/1?db=2", "different databases"),
            ("redis://h?connect-timeout=0", "10 ms at least"),
            ("redis://h?colour=red", "it has prefix"),
        ] {
            let error = read(url).expect_err(url);
            assert!(error.to_string().contains(expected), "{url}: {error}");
        }
    }

    #[test]
    fn never_shows_a_secret() {
        let config =
            read("redis+sentinel://u:hunter2@h/m?sentinel-password=hunter3&tls=on&cert=/c&cert-key=/k").unwrap();
        let text = format!("{config:?} {config:#?} {}", config.redacted_url);
        assert!(!text.contains("hunter"), "{text}");
    }
}
