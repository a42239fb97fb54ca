//! Parses `mysql:` and `postgres:` URLs: the servers, the login, the technique of the locks, and
//! limits.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::Dialect;
use crate::clock::Clock;
use crate::engine::EngineUrl;
use crate::engine::url::host_and_port;
use crate::types::{Error, ErrorKind, Result};

/// The name of the lease table, and the beginning of the other tables' names, unless the URL has
/// `table=`.
pub const DEFAULT_TABLE: &str = "leasehold";
/// How many connections an engine may open, unless the URL has `connections=`.
const DEFAULT_CONNECTIONS: usize = 10;
/// The interval at which a waiter polls when no notification can wake it, unless the URL has
/// `poll=`.
const DEFAULT_POLL: Duration = Duration::from_millis(100);
/// The largest `poll=` with the techniques whose locks belong to a MySQL session. A holder learns
/// at the next poll that the server has ended its session.
const MAX_SESSION_POLL: Duration = Duration::from_secs(1);

/// The names of the options that the URL may have.
const OPTIONS: [&str; 13] = [
    "technique",
    "table",
    "schema",
    "connections",
    "wake",
    "poll",
    "pooler",
    "connect-timeout",
    "clock-skew",
    "tls",
    "ca",
    "cert",
    "cert-key",
];

/// `technique=`: what keeps a lock in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Technique {
    /// A row of the lease table, which is the default.
    Row,
    /// A row lock in an open transaction.
    ForUpdate,
    /// A named lock of the session: `GET_LOCK`, or an advisory lock.
    Session,
}

impl Technique {
    /// The word for it in the URL.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Row => "row",
            Self::ForUpdate => "for-update",
            Self::Session => "session",
        }
    }
}

/// `wake=`: what wakes a waiter of the lease table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeMode {
    /// A notification (PostgreSQL) or a wake-up lock (MySQL), where the server and its setup have
    /// them.
    Auto,
    /// Nothing: the waiter polls.
    Poll,
}

/// The user and the password of the database login; `Debug` shows neither.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    pub user: String,
    pub password: Option<String>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(***)")
    }
}

/// The TLS options of the URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// `ca=`, a PEM file with the certificates of the trusted authorities.
    pub ca: PathBuf,
    /// `cert=` and `cert-key=`, PEM files with the client's own certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The settings in the URL, and the clock to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub dialect: Dialect,
    /// Host and port of each server, in the order of the URL.
    pub servers: Vec<(String, u16)>,
    pub login: Login,
    /// The database that has the tables.
    pub database: String,
    pub technique: Technique,
    /// The name of the lease table, and the beginning of the other tables' names.
    pub table: String,
    /// The schema of the tables; `None`: the user's default. PostgreSQL only.
    pub schema: Option<String>,
    /// How many connections the engine may open.
    pub connections: usize,
    pub wake: WakeMode,
    /// How often a waiter polls, and with the other techniques on MySQL how often the engine checks
    /// that its sessions exist.
    pub poll: Duration,
    /// Whether `pooler=transaction` states that a pooler gives each transaction another session.
    /// The engine then keeps no state in a session.
    pub has_transaction_pooler: bool,
    /// The time limit for connecting to one server, and for statements that no TTL limits.
    pub connect_timeout: Duration,
    /// Whether a server that refuses writes is good enough, because no lock will be acquired.
    pub allows_read_only: bool,
    /// `clock-skew=`, by how much the clocks of servers may differ that accept writes. Zero unless
    /// set.
    pub clock_skew: Duration,
    /// `None` if TLS is off.
    pub tls: Option<TlsConfig>,
    /// The clock for connections and pauses.
    pub clock: Clock,
    /// The URL without passwords, to display.
    pub redacted_url: String,
}

impl Config {
    /// # Errors
    /// `InvalidUrl` for an unknown option, an invalid value, or options that contradict each other.
    pub fn from_url(dialect: Dialect, url: &EngineUrl) -> Result<Self> {
        if url.option("sslmode").is_some() || url.option("ssl-mode").is_some() {
            return Err(invalid_url(
                "TLS needs tls=on&ca=/path/to/ca.pem, and the server's name is always checked".into(),
            ));
        }
        url.refuse_unknown_options(&OPTIONS)?;
        let technique = match url.option("technique") {
            None | Some("row") => Technique::Row,
            Some("for-update") => Technique::ForUpdate,
            Some("session") => Technique::Session,
            Some(other) => {
                return Err(invalid_url(format!("technique is `row`, `for-update` or `session`, and not {other:?}")));
            }
        };
        let pooler = match url.option("pooler") {
            Some("transaction") => true,
            Some("session") => false,
            _ => parse_switch(url, "pooler")?.unwrap_or(false),
        };
        if pooler && dialect == Dialect::MySql {
            return Err(invalid_url("pooler=transaction is for PostgreSQL: before MySQL, give each connection its own session of the server \
                (ProxySQL: no multiplexing for this user), or connect to the server itself"
                .into()));
        }
        let wake = match url.option("wake") {
            None | Some("auto") if pooler => WakeMode::Poll,
            None | Some("auto") => WakeMode::Auto,
            Some("poll") => WakeMode::Poll,
            Some(other) => return Err(invalid_url(format!("wake is `auto` or `poll`, and not {other:?}"))),
        };
        if pooler && technique != Technique::Row {
            let technique = technique.as_str();
            return Err(invalid_url(format!(
                "technique={technique} keeps the lock in one session, and a pooler in transaction mode gives each transaction \
                 another: use technique=row, or connect to the server itself"
            )));
        }
        let connections = match url.option("connections") {
            None => DEFAULT_CONNECTIONS,
            Some(text) => match text.parse() {
                Ok(number @ 2..=1000) => number,
                _ => return Err(invalid_url(format!("connections is a number from 2 to 1000, and not {text:?}"))),
            },
        };
        let connect_timeout = url.duration("connect-timeout")?.unwrap_or(Duration::from_secs(5));
        if connect_timeout < Duration::from_millis(10) {
            return Err(invalid_url("connect-timeout must be at least 10 ms".into()));
        }
        Ok(Self {
            dialect,
            servers: parse_servers(dialect, url)?,
            login: parse_login(dialect, url)?,
            database: parse_database(dialect, url)?,
            technique,
            table: parse_identifier(url, "table")?.unwrap_or_else(|| DEFAULT_TABLE.to_owned()),
            schema: parse_schema(dialect, url)?,
            connections,
            wake,
            poll: parse_poll(dialect, technique, url)?,
            has_transaction_pooler: pooler,
            connect_timeout,
            allows_read_only: false,
            clock_skew: url.duration("clock-skew")?.unwrap_or(Duration::ZERO),
            tls: parse_tls(url)?,
            clock: Clock::system(),
            redacted_url: url.to_string(),
        })
    }
}

fn invalid_url(message: String) -> Error {
    Error::new(ErrorKind::InvalidUrl, message)
}

/// An option that is `on` or `off`; `None` if the URL does not have it.
fn parse_switch(url: &EngineUrl, key: &str) -> Result<Option<bool>> {
    match url.option(key) {
        None => Ok(None),
        Some("" | "on" | "true") => Ok(Some(true)),
        Some("off" | "false") => Ok(Some(false)),
        Some(other) => Err(invalid_url(format!("{key} is `on` or `off`, and not {other:?}"))),
    }
}

/// The poll interval, if it is one that the technique allows.
fn parse_poll(dialect: Dialect, technique: Technique, url: &EngineUrl) -> Result<Duration> {
    let poll = url.duration("poll")?.unwrap_or(DEFAULT_POLL);
    if poll < Duration::from_millis(1) {
        return Err(invalid_url("poll must be at least 1 ms".into()));
    }
    if dialect == Dialect::MySql && technique != Technique::Row && poll > MAX_SESSION_POLL {
        let technique = technique.as_str();
        return Err(invalid_url(format!(
            "with technique={technique} on MySQL, poll is 1 s at most: it is how late a holder learns that the server has ended its session, \
             whose lock is free from then on"
        )));
    }
    Ok(poll)
}

/// Host and port of each server; without a host in the URL, this machine.
fn parse_servers(dialect: Dialect, url: &EngineUrl) -> Result<Vec<(String, u16)>> {
    if url.hosts.is_empty() {
        return Ok(vec![("127.0.0.1".to_owned(), dialect.port())]);
    }
    url.hosts.iter().map(|text| host_and_port(text, dialect.port(), "db.example")).collect()
}

/// The login in the URL, which must have a user.
fn parse_login(dialect: Dialect, url: &EngineUrl) -> Result<Login> {
    let user = url.user.clone().ok_or_else(|| {
        let scheme = dialect.name();
        invalid_url(format!("a database needs a user: {scheme}://user:password@host/database"))
    })?;
    Ok(Login { user, password: url.password.clone() })
}

/// The database that the URL's path names.
fn parse_database(dialect: Dialect, url: &EngineUrl) -> Result<String> {
    let path = url.path.trim_matches('/');
    if path.is_empty() || path.contains('/') {
        let scheme = dialect.name();
        return Err(invalid_url(format!(
            "name the database that has the table: {scheme}://user:password@host/database"
        )));
    }
    Ok(path.to_owned())
}

/// The value of an option that names a table or schema; `None` if the URL does not have the option.
fn parse_identifier(url: &EngineUrl, key: &str) -> Result<Option<String>> {
    url.option(key).map(|text| check_identifier(key, text)).transpose()
}

/// Checks that the name of a table or schema is plain: lower-case letters, digits and `_`, which
/// need no quoting. The error names the URL option `key`.
pub fn check_identifier(key: &str, text: &str) -> Result<String> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    // At most 40 bytes: the other tables' names have a suffix, and PostgreSQL's names end at 63
    // bytes.
    if text.is_empty()
        || text.len() > 40
        || !text.chars().all(is_plain)
        || text.starts_with(|c: char| c.is_ascii_digit())
    {
        return Err(invalid_url(format!("{key} is up to 40 lower-case letters, digits and `_`, and not {text:?}")));
    }
    Ok(text.to_owned())
}

/// The schema in the URL, which only PostgreSQL has.
fn parse_schema(dialect: Dialect, url: &EngineUrl) -> Result<Option<String>> {
    let schema = parse_identifier(url, "schema")?;
    check_schema(dialect, schema.as_deref())?;
    Ok(schema)
}

/// Refuses a schema for MySQL, whose schemas are databases.
pub fn check_schema(dialect: Dialect, schema: Option<&str>) -> Result<()> {
    if schema.is_some() && dialect == Dialect::MySql {
        return Err(invalid_url("a MySQL schema is the database itself: mysql://user:password@host/database".into()));
    }
    Ok(())
}

/// The TLS options of the URL; `None` if TLS is off.
fn parse_tls(url: &EngineUrl) -> Result<Option<TlsConfig>> {
    let file = |key| url.option(key).map(PathBuf::from);
    let is_on = parse_switch(url, "tls")?.unwrap_or_else(|| file("ca").is_some());
    let identity = match (file("cert"), file("cert-key")) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        _ => return Err(invalid_url("cert and cert-key need each other: both name a PEM file".into())),
    };
    if !is_on {
        if identity.is_some() || file("ca").is_some() {
            return Err(invalid_url("ca, cert and cert-key have no effect without TLS: add tls=on".into()));
        }
        return Ok(None);
    }
    let ca = file("ca").ok_or_else(|| {
        invalid_url("TLS needs ca=, the PEM file of the authority that signed the server's certificate".into())
    })?;
    Ok(Some(TlsConfig { ca, identity }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Config> {
        let url = EngineUrl::parse(url)?;
        Config::from_url(if url.scheme == "mysql" { Dialect::MySql } else { Dialect::Postgres }, &url)
    }

    #[test]
    fn a_url_sets_servers_login_and_technique() {
        let config =
            read("postgres://u:p%40@h1,h2:99/shop?technique=session&table=locks&schema=ops&connections=4").unwrap();
        assert_eq!(config.servers, [("h1".to_owned(), 5432), ("h2".to_owned(), 99)]);
        assert_eq!((config.database.as_str(), config.table.as_str()), ("shop", "locks"));
        assert_eq!((config.schema.as_deref(), config.connections), (Some("ops"), 4));
        assert_eq!((config.technique, config.login.password.as_deref()), (Technique::Session, Some("p@")));
        assert!(!format!("{config:?}").contains("p@"));
        let config = read("mysql://u@h/shop").unwrap();
        assert_eq!((config.servers[0].1, config.technique, config.wake), (3306, Technique::Row, WakeMode::Auto));
        assert_eq!(read("postgres://u@h/d?pooler=transaction").unwrap().wake, WakeMode::Poll);
        assert!(read("postgres://u@h/d?ca=/c").unwrap().tls.is_some());
        assert!(read("mysql://u@h/d?poll=1h").is_ok() && read("postgres://u@h/d?technique=session&poll=1h").is_ok());
    }

    #[test]
    fn an_invalid_url_is_refused() {
        for (url, expected) in [
            ("mysql://h/d", "user:password@host"),
            ("mysql://u@h", "name the database"),
            ("mysql://u@h/a/b", "name the database"),
            ("mysql://u@h:x/d", "db.example:3306"),
            ("mysql://u@h/d?technique=magic", "`for-update`"),
            ("mysql://u@h/d?tecnique=row", "technique"),
            ("mysql://u@h/d?schema=a", "database itself"),
            ("postgres://u@h/d?table=a-b", "lower-case"),
            ("postgres://u@h/d?table=1a", "lower-case"),
            ("postgres://u@h/d?connections=1", "from 2 to 1000"),
            ("postgres://u@h/d?pooler=maybe", "`off`"),
            ("postgres://u@h/d?pooler=on&technique=session", "technique=row"),
            ("mysql://u@h/d?pooler=transaction", "no multiplexing"),
            ("postgres://u@h/d?wake=never", "`poll`"),
            ("postgres://u@h/d?poll=0ms", "at least"),
            ("mysql://u@h/d?technique=session&poll=2s", "1 s at most"),
            ("mysql://u@h/d?technique=for-update&poll=1h", "1 s at most"),
            ("postgres://u@h/d?connect-timeout=1ms", "at least"),
            ("postgres://u@h/d?sslmode=require", "tls=on"),
            ("postgres://u@h/d?tls=on", "ca="),
            ("postgres://u@h/d?tls=session", "`off`"),
            ("postgres://u@h/d?tls=off&ca=/c", "tls=on"),
            ("postgres://u@h/d?tls=on&ca=/c&cert=/d", "cert-key"),
        ] {
            let error = read(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{url}");
            assert!(error.to_string().contains(expected), "{url}: {error}");
        }
    }
}
