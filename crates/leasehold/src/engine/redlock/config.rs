//! The engine's URL: the servers, and the settings of the protocol.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::engine::EngineUrl;
use crate::logic::lease::Drift;
use crate::logic::quorum::Quorum;
use crate::redis_client::{Address, Config as Node, Topology};
use crate::types::{Error, ErrorKind, Result};

/// The options that apply to each node on its own.
const NODE_OPTIONS: [&str; 9] =
    ["prefix", "db", "strict", "retention", "connect-timeout", "tls", "ca", "cert", "cert-key"];
/// The options that only TLS needs.
const TLS_OPTIONS: [&str; 3] = ["ca", "cert", "cert-key"];
/// The options of all nodes together.
const QUORUM_OPTIONS: [&str; 5] = ["node-timeout", "drift", "drift-fixed", "even", "second-round"];
/// The default for how long to wait for a node's answer.
const NODE_TIMEOUT: Duration = Duration::from_millis(250);
/// More nodes than this make everything slower and no lock safer.
const MAX_NODES: usize = 15;

/// All settings of the URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub nodes: Vec<Arc<Node>>,
    pub quorum: Quorum,
    pub node_timeout: Duration,
    pub drift: Drift,
    /// Whether every acquire has a second round, even if the first one has stored the token.
    pub always_two_rounds: bool,
    /// The URL without secrets.
    pub redacted_url: String,
}

impl Config {
    pub fn read(url: &EngineUrl) -> Result<Self> {
        let (config, even_allowed) = Self::read_any_count(url)?;
        let count = config.nodes.len();
        if count.is_multiple_of(2) && !even_allowed {
            return Err(invalid_url(&format!(
                "{count} nodes survive no more failures than {}: name one more or one less, or set even=allowed",
                count - 1
            )));
        }
        Ok(config)
    }

    /// The same, with this clock.
    pub fn with_clock(mut self, clock: &Clock) -> Self {
        self.nodes = self.nodes.iter().map(|node| Arc::new(Node::clone(node).with_clock(clock))).collect();
        self
    }

    /// Reads a URL with any number of nodes. Also returns whether the URL allows an even number.
    pub fn read_any_count(url: &EngineUrl) -> Result<(Self, bool)> {
        url.refuse_unknown_options(&[&NODE_OPTIONS[..], &QUORUM_OPTIONS].concat())?;
        if url.hosts.is_empty() {
            return Err(invalid_url("name the servers: redlock://h1,h2,h3,h4,h5"));
        }
        // A login before the first host alone is for all hosts, as in the other URLs.
        let logins: Vec<_> = url.hosts.iter().map(|part| part.rsplit_once('@').map(|(login, _)| login)).collect();
        let for_all = match &logins[..] {
            [Some(first), rest @ ..] if !first.contains("://") && rest.iter().all(Option::is_none) => Some(*first),
            _ => None,
        };
        let nodes =
            url.hosts.iter().map(|part| parse_node(url, part, for_all).map(Arc::new)).collect::<Result<Vec<_>>>()?;
        let config = Self {
            quorum: Quorum::from_node_count(nodes.len()),
            nodes,
            node_timeout: url.duration("node-timeout")?.unwrap_or(NODE_TIMEOUT),
            drift: Drift { ppm: drift_ppm(url)?, fixed: url.duration("drift-fixed")?.unwrap_or(Drift::REMOTE.fixed) },
            always_two_rounds: match url.option("second-round") {
                None | Some("needed") => false,
                Some("always") => true,
                Some(other) => {
                    return Err(invalid_url(&format!("second-round is `needed` or `always`, and not {other:?}")));
                }
            },
            redacted_url: url.to_string(),
        };
        let even_allowed = match url.option("even") {
            None | Some("refused") => false,
            Some("allowed") => true,
            Some(other) => return Err(invalid_url(&format!("even is `allowed` or `refused`, and not {other:?}"))),
        };
        Ok((config.check()?, even_allowed))
    }

    fn check(self) -> Result<Self> {
        let count = self.nodes.len();
        if count > MAX_NODES {
            return Err(invalid_url(&format!("{count} nodes are too many; five are usual, {MAX_NODES} the most")));
        }
        for (at, address) in self.addresses().enumerate() {
            if self.addresses().take(at).any(|other| other == address) {
                return Err(invalid_url(&format!("{address} is named twice: a majority is of independent servers")));
            }
        }
        if self.node_timeout < Duration::from_millis(1) {
            return Err(invalid_url("node-timeout is 1 ms at least"));
        }
        Ok(self)
    }

    /// The addresses of the nodes.
    pub fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.nodes.iter().filter_map(|node| match &node.topology {
            Topology::Single(address) => Some(address),
            _ => None,
        })
    }
}

fn invalid_url(message: &str) -> Error {
    Error::new(ErrorKind::InvalidUrl, message)
}

/// One part: `[redis[s]://][user:password@]host[:port][/db]`.
fn parse_node(url: &EngineUrl, part: &str, for_all: Option<&str>) -> Result<Node> {
    let text = match (part.split_once("://"), for_all) {
        (Some(("redis" | "rediss", _)), _) => part.to_owned(),
        (Some((other, _)), _) => {
            let message = format!("a node is one Redis server, redis:// or rediss://, and not {other}://");
            return Err(invalid_url(&message));
        }
        (None, Some(login)) if !part.contains('@') => format!("redis://{login}@{part}"),
        (None, _) => format!("redis://{part}"),
    };
    // If only some parts use TLS, its files are for those parts.
    let secure = |part: &str| part.starts_with("rediss://");
    let is_unencrypted = !secure(&text) && url.option("tls").is_none() && url.hosts.iter().any(|part| secure(part));
    let wanted = |key: &str| NODE_OPTIONS.contains(&key) && !(is_unencrypted && TLS_OPTIONS.contains(&key));
    let mut node = EngineUrl::parse(&text)?;
    if node.hosts.is_empty() {
        return Err(invalid_url("one of the nodes has no host: redlock://h1,h2,h3"));
    }
    // From `password-file=`: for all that have no password of their own.
    node.password = node.password.or_else(|| url.password.clone());
    node.options = url.options.iter().filter(|(key, _)| wanted(key)).cloned().collect();
    Node::read(&node)
}

/// The share of a lease by which clocks may differ, in parts per million: `drift=0.01`.
fn drift_ppm(url: &EngineUrl) -> Result<u32> {
    let Some(text) = url.option("drift") else { return Ok(Drift::REMOTE.ppm) };
    let share: Option<f64> = text.parse().ok().filter(|share| (0.0..0.5).contains(share));
    let share =
        share.ok_or_else(|| invalid_url(&format!("drift is a share of the TTL like 0.01, and not {text:?}")))?;
    Ok((share * 1e6).round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Config> {
        Config::read(&EngineUrl::parse(url)?)
    }

    #[test]
    fn each_part_is_a_full_address() {
        let config =
            read("redlock://u:p%2C1@h1:1/2,rediss://:s%40x@h2,[::1]:7?prefix=x:&drift=0.02&drift-fixed=5ms").unwrap();
        let nodes = &config.nodes;
        let text: Vec<_> = config.addresses().map(ToString::to_string).collect();
        assert_eq!(text, ["h1:1", "h2:6379", "[::1]:7"]);
        assert_eq!((nodes[0].db, nodes[0].login.password.as_deref()), (2, Some("p,1")));
        assert_eq!((nodes[1].tls.is_some(), nodes[1].login.password.as_deref()), (true, Some("s@x")));
        assert_eq!((nodes[2].login.password.as_deref(), nodes[2].prefix.as_str()), (None, "x:"));
        assert_eq!(config.quorum, Quorum { node_count: 3, majority: 2 });
        assert_eq!(config.drift, Drift { ppm: 20_000, fixed: Duration::from_millis(5) });
    }

    #[test]
    fn one_login_is_for_all() {
        let config = read("redlock://u:p@h1,h2,h3?tls=on").unwrap();
        for node in &config.nodes {
            assert_eq!((node.login.user.as_deref(), node.login.password.as_deref()), (Some("u"), Some("p")));
            assert!(node.tls.is_some());
        }
        assert_eq!(read("redlock://u:p@h1,:q@h2,h3").unwrap().nodes[2].login.password, None);
    }

    #[test]
    fn tls_may_be_for_some() {
        let config = read("redlock://h1,rediss://h2,h3?ca=/a.pem").unwrap();
        let secure: Vec<_> = config.nodes.iter().map(|node| node.tls.is_some()).collect();
        assert_eq!(secure, [false, true, false]);
        read("redlock://h1,h2,h3?ca=/a.pem").expect_err("no node uses TLS");
    }

    #[test]
    fn errors_name_the_problem() {
        for (url, expected) in [
            ("redlock:", "name the servers"),
            ("redlock://h1,h2", "even=allowed"),
            ("redlock://h1,h2,h3,h4", "no more failures than 3"),
            ("redlock://h1,h2,h1:6379", "named twice"),
            ("redlock://u:p@,h2,h3", "has no host"),
            ("redlock://h1,h2,redis+cluster://h3", "one Redis server"),
            ("redlock://h1,h2,h3?drift=2", "like 0.01"),
            ("redlock://h1,h2,h3?even=yes", "`allowed` or `refused`"),
            ("redlock://h1,h2,h3?replicas=1", "it has prefix"),
            ("redlock://h1,h2,h3?second-round=no", "`needed` or `always`"),
            ("redlock://h1/x,h2,h3", "not a database"),
            ("redlock://u:pa,ss@h1,h2,h3", "written as %2C"),
        ] {
            let error = read(url).expect_err(url);
            assert!(error.to_string().contains(expected), "{url}: {error}");
        }
        assert_eq!(read("redlock://h1,h2?even=allowed").unwrap().quorum.majority, 2);
    }

    #[test]
    fn an_even_number_of_nodes_can_be_inspected() {
        let any = |url: &str| Config::read_any_count(&EngineUrl::parse(url).unwrap());
        let (config, allowed) = any("redlock://h1,h2,h3,h4").unwrap();
        assert_eq!((config.quorum, allowed), (Quorum { node_count: 4, majority: 3 }, false));
        assert!(any("redlock://h1,h2?even=allowed").unwrap().1);
        assert!(any("redlock://h1,h1").unwrap_err().to_string().contains("named twice"));
    }

    #[test]
    fn never_shows_a_secret() {
        for url in ["redlock://u:hunter2@h1,rediss://:hunter3@h2,h3", "redlock://u:hunter2@h1,h2?even=allowed"] {
            let config = read(url).unwrap();
            let text = format!("{config:?} {config:#?} {} {:?}", config.redacted_url, EngineUrl::parse(url));
            assert!(!text.contains("hunter") && text.contains("u:***@h1"), "{text}");
        }
    }
}
