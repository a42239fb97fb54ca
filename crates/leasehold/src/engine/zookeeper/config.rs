//! Parses `zookeeper:` URLs: the servers, the login, access to the nodes, and session timeouts.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use leasehold_zookeeper::{Acl, Acls, Permission};

use crate::engine::EngineUrl;
use crate::engine::url::host_and_port;
use crate::types::{Error, ErrorKind, Result};

/// The path below which all nodes are, unless the URL has one.
const DEFAULT_BASE: &str = "/leasehold";
/// The port of a server whose URL names none.
const DEFAULT_PORT: u16 = 2181;

/// The names of the options that the URL may have.
const OPTIONS: [&str; 9] =
    ["session", "session-timeout", "connect-timeout", "auth", "acl", "tls", "ca", "cert", "cert-key"];

/// `auth=`: the kind of login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// A user and a password that the server only compares with ACLs (`addauth digest`).
    Digest,
    /// SASL with DIGEST-MD5: the server checks the password.
    Sasl,
}

/// The user and the password of the login; `Debug` shows neither.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    pub scheme: Scheme,
    pub user: String,
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({:?}, ***)", self.scheme)
    }
}

/// The TLS options of the URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// `ca=`, a PEM file with the certificates of the trusted authorities, and revocation lists if
    /// any.
    pub ca: PathBuf,
    /// `cert=` and `cert-key=`, PEM files with the client's own certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// `acl=`: who may access the nodes that this client creates, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every client may do everything.
    Open,
    /// Only the user that created them may do anything.
    Creator,
    /// The user that created them may do everything; every client may read.
    Readable,
}

impl Access {
    /// The ACL for new nodes.
    pub fn acls(self) -> Acls<'static> {
        match self {
            Self::Open => Acls::anyone_all(),
            Self::Creator => Acls::creator_all(),
            Self::Readable => {
                const READABLE: &[Acl] =
                    &[Acl::new_const(Permission::ALL, "auth", ""), Acl::new_const(Permission::READ, "world", "anyone")];
                Acls::new(READABLE)
            }
        }
    }
}

/// The settings in the URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// All servers, as the client library reads them: `h1:2181,h2:2181`.
    pub hosts: String,
    /// All servers, as errors show them.
    pub shown_hosts: String,
    /// Host and port of each server, in the order of the URL.
    pub servers: Vec<(String, u16)>,
    /// The path below which all nodes are, without a slash at its end; empty for the root.
    pub base: String,
    pub login: Option<Login>,
    pub access: Access,
    pub tls: Option<TlsConfig>,
    /// Whether each claim has its own session (`session=own`), instead of sharing a few.
    pub has_session_per_claim: bool,
    /// The timeout of all sessions (`session-timeout=`). `None`: a session's timeout follows from
    /// the TTLs of its claims.
    pub session_timeout: Option<Duration>,
    /// The time limit for opening a session.
    pub connect_timeout: Duration,
    /// The URL without passwords, to display.
    pub redacted_url: String,
}

impl Config {
    /// # Errors
    /// `InvalidUrl` for an unknown option, an invalid value, or options that contradict each other.
    pub fn from_url(url: &EngineUrl) -> Result<Self> {
        url.refuse_unknown_options(&OPTIONS)?;
        let servers = parse_servers(url)?;
        let hosts: Vec<String> = servers.iter().map(|(host, port)| address(host, *port)).collect();
        let login = parse_login(url)?;
        let has_session_per_claim = match url.option("session") {
            None | Some("shared") => false,
            Some("own") => true,
            Some(other) => return Err(invalid_url(format!("session is `shared` or `own`, and not {other:?}"))),
        };
        let access = match (url.option("acl"), &login, parse_tls(url)?.is_some_and(|tls| tls.identity.is_some())) {
            (Some("open"), _, _) | (None, None, false) => Access::Open,
            (None, _, _) | (Some("creator"), Some(_), _) | (Some("creator"), _, true) => Access::Creator,
            (Some("readable"), Some(_), _) | (Some("readable"), _, true) => Access::Readable,
            (Some("creator" | "readable"), None, false) => {
                return Err(invalid_url(
                    "acl=creator and acl=readable need a login: add user:password@host, or cert=".into(),
                ));
            }
            (Some(other), _, _) => {
                return Err(invalid_url(format!("acl is `open`, `creator` or `readable`, and not {other:?}")));
            }
        };
        let session_timeout = url.duration("session-timeout")?;
        if session_timeout.is_some_and(|timeout| timeout < super::MIN_TTL) {
            return Err(invalid_url(format!("session-timeout must be at least {:?}", super::MIN_TTL)));
        }
        let connect_timeout = url.duration("connect-timeout")?.unwrap_or(Duration::from_secs(10));
        if connect_timeout < Duration::from_millis(10) {
            return Err(invalid_url("connect-timeout must be at least 10 ms".into()));
        }
        Ok(Self {
            shown_hosts: hosts.join(","),
            hosts: hosts.join(","),
            servers,
            base: parse_base(&url.path)?,
            login,
            access,
            tls: parse_tls(url)?,
            has_session_per_claim,
            session_timeout,
            connect_timeout,
            redacted_url: url.to_string(),
        })
    }
}

/// A host and a port as one text; IPv6 addresses get brackets.
pub fn address(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn invalid_url(message: String) -> Error {
    Error::new(ErrorKind::InvalidUrl, message)
}

/// Host and port of each server; without a host in the URL, this machine.
fn parse_servers(url: &EngineUrl) -> Result<Vec<(String, u16)>> {
    if url.hosts.is_empty() {
        return Ok(vec![("127.0.0.1".to_owned(), DEFAULT_PORT)]);
    }
    url.hosts.iter().map(|text| host_and_port(text, DEFAULT_PORT, "zk1.example")).collect()
}

/// The path below which all nodes are; an error if ZooKeeper does not allow it.
fn parse_base(path: &str) -> Result<String> {
    if path.is_empty() {
        return Ok(DEFAULT_BASE.to_owned());
    }
    let path = path.trim_end_matches('/');
    let is_invalid = |part: &str| {
        part.is_empty()
            || part == "."
            || part == ".."
            || part.chars().any(|c| c.is_control() || ('\u{e000}'..='\u{f8ff}').contains(&c) || c >= '\u{fff0}')
    };
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    if parts.iter().any(|part| is_invalid(part)) || parts.first() == Some(&"zookeeper") {
        return Err(invalid_url(format!(
            "{path:?} is no path that ZooKeeper allows for nodes; it is like /locks or /apps/billing"
        )));
    }
    Ok(path.to_owned())
}

/// The login in the URL; `None` if it has none.
fn parse_login(url: &EngineUrl) -> Result<Option<Login>> {
    let scheme = match url.option("auth") {
        None | Some("digest") => Scheme::Digest,
        Some("sasl") => Scheme::Sasl,
        Some(other) => return Err(invalid_url(format!("auth is `digest` or `sasl`, and not {other:?}"))),
    };
    match (&url.user, &url.password) {
        (Some(user), Some(password)) => Ok(Some(Login { scheme, user: user.clone(), password: password.clone() })),
        (None, None) if url.option("auth").is_none() => Ok(None),
        _ => Err(invalid_url("a login is a user and a password: zookeeper://user:password@host".into())),
    }
}

/// The TLS options of the URL; `None` if TLS is off.
fn parse_tls(url: &EngineUrl) -> Result<Option<TlsConfig>> {
    let file = |key| url.option(key).map(PathBuf::from);
    let is_on = match url.option("tls") {
        Some("" | "true" | "on") => true,
        Some("false" | "off") => false,
        None => file("ca").is_some(),
        Some(other) => return Err(invalid_url(format!("tls is `on` or `off`, and not {other:?}"))),
    };
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
    let ca = file("ca")
        .ok_or_else(|| invalid_url("TLS needs ca=, the PEM file of the authority that signed the servers".into()))?;
    Ok(Some(TlsConfig { ca, identity }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Config> {
        Config::from_url(&EngineUrl::parse(url).unwrap())
    }

    #[test]
    fn a_url_sets_servers_login_and_sessions() {
        let config =
            read("zookeeper://u:p%40@h1,h2:99,[::1]/apps/locks?session-timeout=10s&session=own&auth=sasl").unwrap();
        assert_eq!((config.hosts.as_str(), config.base.as_str()), ("h1:2181,h2:99,[::1]:2181", "/apps/locks"));
        assert_eq!((config.session_timeout, config.has_session_per_claim), (Some(Duration::from_secs(10)), true));
        assert_eq!(
            config.login.as_ref().map(|login| (login.scheme, login.password.as_str())),
            Some((Scheme::Sasl, "p@"))
        );
        assert_eq!(config.access, Access::Creator, "a login restricts the locks to its creator");
        assert!(!format!("{config:?}").contains("p@"));
        let config = read("zookeeper:").unwrap();
        assert_eq!(
            (config.hosts.as_str(), config.base.as_str(), config.access),
            ("127.0.0.1:2181", "/leasehold", Access::Open)
        );
        assert_eq!(read("zookeeper://h/").unwrap().base, "");
        assert_eq!(read("zookeeper://h/a/").unwrap().base, "/a");
        assert_eq!(read("zookeeper://u:p@h?acl=readable").unwrap().access, Access::Readable);
        assert_eq!(
            read("zookeeper://h?tls=on&ca=/c").unwrap().tls,
            Some(TlsConfig { ca: "/c".into(), identity: None })
        );
    }

    #[test]
    fn an_invalid_url_is_refused() {
        for (url, expected) in [
            ("zookeeper://h?sesion=own", "session-timeout"),
            ("zookeeper://h?session=mine", "`own`"),
            ("zookeeper://h?session-timeout=soon", "30s"),
            ("zookeeper://h?session-timeout=10ms", "at least"),
            ("zookeeper://h:x", "zk1.example:2181"),
            ("zookeeper://h//a", "/apps/billing"),
            ("zookeeper://h/a/../b", "/apps/billing"),
            ("zookeeper://h/zookeeper/quota", "/apps/billing"),
            ("zookeeper://user@h", "user:password@host"),
            ("zookeeper://h?auth=sasl", "user:password@host"),
            ("zookeeper://u:p@h?auth=kerberos", "`sasl`"),
            ("zookeeper://h?acl=creator", "user:password@host"),
            ("zookeeper://u:p@h?acl=me", "`readable`"),
            ("zookeeper://h?tls=on", "ca="),
            ("zookeeper://h?tls=off&ca=/c", "tls=on"),
            ("zookeeper://h?tls=on&ca=/c&cert=/d", "cert-key"),
        ] {
            let error = read(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{url}");
            assert!(error.to_string().contains(expected), "{url}: {error}");
        }
    }
}
