//! The known facts of an ensemble: plain data that the rules judge.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use leasehold_zookeeper::{Acl, Error as Cause};

use super::walk::NodeSurvey;
use leasehold::Error;

/// Why something is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UnknownReason {
    /// The server does not accept this four-letter word.
    NotWhitelisted(&'static str),
    /// Four-letter words do not work over TLS.
    TlsOnly,
    /// The server runs, but does not serve requests.
    NotServing,
    /// It is unreachable, or did not respond.
    Unreachable(String),
    /// The server does not reveal it.
    NotReported(String),
    /// It failed a request with this error.
    RequestFailed(Cause),
}

impl UnknownReason {
    pub(super) fn not_reported(what: &str) -> Self {
        Self::NotReported(format!("it does not report {what}"))
    }
}

impl fmt::Display for UnknownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotWhitelisted(word) => write!(f, "{word} is not in its 4lw.commands.whitelist"),
            Self::TlsOnly => f.write_str("four-letter words do not work over TLS"),
            Self::NotServing => f.write_str("it runs, but is not serving requests"),
            Self::Unreachable(why) | Self::NotReported(why) => f.write_str(why),
            Self::RequestFailed(cause) => write!(f, "{cause}"),
        }
    }
}

/// A fact, or why it is not known.
pub(super) type Fact<T> = Result<T, UnknownReason>;

/// The user's requirements of the ensemble.
#[derive(Clone, Debug)]
pub(super) struct Requirements {
    pub(super) ttl: Duration,
    /// `session-timeout=`.
    pub(super) session_timeout: Option<Duration>,
    pub(super) has_session_per_claim: bool,
    pub(super) base: String,
}

impl Requirements {
    /// The timeout that we request for a session.
    pub(super) fn requested_timeout(&self) -> Duration {
        self.session_timeout.unwrap_or(self.ttl).max(leasehold_internals::zookeeper::MIN_TTL)
    }

    /// The node under which all locks are, in a readable form.
    pub(super) fn shown_base(&self) -> &str {
        if self.base.is_empty() { "/" } else { &self.base }
    }
}

/// The present role of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Standalone,
    Leader,
    Follower,
    Observer,
    ReadOnly,
    Other(String),
}

impl Role {
    fn parse(text: &str) -> Self {
        match text {
            "standalone" => Self::Standalone,
            "leader" => Self::Leader,
            "follower" => Self::Follower,
            "observer" => Self::Observer,
            "read-only" => Self::ReadOnly,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Standalone => "standalone",
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::Observer => "observer",
            Self::ReadOnly => "read-only",
            Self::Other(text) => text,
        })
    }
}

/// The lines of a reply: `key: value` (srvr), `key<tab>value` (mntr) or `key=value` (conf).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyValues(pub(super) HashMap<String, String>);

impl KeyValues {
    pub(super) fn parse(text: &str, separator: &str) -> Self {
        let pairs = text.lines().filter_map(|line| line.split_once(separator));
        Self(pairs.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())).collect())
    }

    pub(super) fn text(&self, key: &str) -> Fact<&str> {
        self.0.get(key).map(String::as_str).ok_or_else(|| UnknownReason::not_reported(key))
    }

    /// A number; the integer part if it has a fraction. `-1` means that there is none.
    pub(super) fn number(&self, key: &str) -> Fact<u64> {
        let text = self.text(key)?;
        text.split('.').next().unwrap_or_default().parse().map_err(|_| UnknownReason::not_reported(key))
    }
}

/// The difference between the leader's clock and ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockOffset {
    /// How many milliseconds it is ahead of ours.
    pub(super) ahead: i64,
    /// The error of that: half of a round trip, and the resolution of one millisecond.
    pub(super) error: Duration,
}

/// The durations of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RoundTrips {
    pub(super) count: usize,
    pub(super) median: Duration,
    pub(super) longest: Duration,
}

impl RoundTrips {
    pub(super) fn from_samples(mut times: Vec<Duration>) -> Option<Self> {
        times.sort_unstable();
        let (median, longest) = (times.get(times.len() / 2)?, times.last()?);
        Some(Self { count: times.len(), median: *median, longest: *longest })
    }
}

/// A session with a single server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerSession {
    /// The id of the server that opened it, which is the first byte of the session's id.
    pub(super) server: u8,
    /// The timeout that it granted for the requested one.
    pub(super) timeout: Duration,
    pub(super) read_trips: Fact<RoundTrips>,
    /// Whether the server sees our probe lock.
    pub(super) sees_probe: Fact<bool>,
}

/// One server of the URL.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) address: String,
    /// The addresses of its name.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) srvr: Fact<KeyValues>,
    pub(super) mntr: Fact<KeyValues>,
    pub(super) conf: Fact<KeyValues>,
    pub(super) session: Fact<ServerSession>,
}

impl Server {
    /// A figure of `mntr`.
    pub(super) fn metric(&self, key: &str) -> Fact<u64> {
        self.mntr.as_ref().map_err(UnknownReason::clone)?.number(key)
    }

    /// A number from `conf`.
    pub(super) fn setting(&self, key: &str) -> Fact<u64> {
        self.conf.as_ref().map_err(UnknownReason::clone)?.number(key)
    }

    pub(super) fn role(&self) -> Fact<Role> {
        let version_line = self.srvr.as_ref().map_err(UnknownReason::clone).and_then(|srvr| srvr.text("Mode"));
        let version_line = version_line.or_else(|no| match &self.mntr {
            Ok(mntr) => mntr.text("zk_server_state"),
            Err(_) => Err(no),
        });
        version_line.map(Role::parse)
    }

    /// The version, such as `3.8.0`, and its numbers.
    pub(super) fn version(&self) -> Fact<(String, [u32; 3])> {
        let version_line =
            self.srvr.as_ref().map_err(UnknownReason::clone).and_then(|srvr| srvr.text("Zookeeper version"));
        let version_line = version_line.or_else(|no| match &self.mntr {
            Ok(mntr) => mntr.text("zk_version"),
            Err(_) => Err(no),
        });
        let text = version_line?;
        let text = text.split(['-', ',', ' ']).next().unwrap_or_default();
        let mut numbers = text.split('.').map(str::parse);
        let mut number = || numbers.next().and_then(Result::ok);
        match (number(), number(), number()) {
            (Some(major), Some(minor), patch) => Ok((text.to_owned(), [major, minor, patch.unwrap_or(0)])),
            _ => Err(UnknownReason::not_reported("its version")),
        }
    }

    /// Whether it serves requests, as far as is known.
    pub(super) fn check_serving(&self) -> Fact<()> {
        match (&self.srvr, self.role(), &self.session) {
            (Err(no @ (UnknownReason::NotServing | UnknownReason::Unreachable(_))), _, _) => Err(no.clone()),
            (_, Ok(Role::ReadOnly), _) => Err(UnknownReason::NotReported("it is read-only".into())),
            (_, _, Ok(_)) | (Ok(_), _, _) => Ok(()),
            (Err(_), _, Err(no)) => Err(no.clone()),
        }
    }
}

/// A member of the ensemble, from its configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) id: String,
    /// Its host; if it has several, all of them as they are written.
    pub(super) host: String,
    pub(super) is_voter: bool,
}

/// All members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Members {
    pub(super) all: Vec<Member>,
    /// Whether votes are counted by groups or weights.
    pub(super) has_weights: bool,
}

impl Members {
    /// Parses `server.1=h1:2888:3888:participant;0.0.0.0:2181` and similar lines.
    pub(super) fn parse(text: &str) -> Self {
        let mut members = Self::default();
        for (key, value) in text.lines().filter_map(|line| line.trim().split_once('=')) {
            if key.starts_with("group.") || key.starts_with("weight.") {
                members.has_weights = true;
            }
            let Some(id) = key.strip_prefix("server.") else { continue };
            let peer = value.split(';').next().unwrap_or_default();
            let votes = !peer.to_ascii_lowercase().ends_with(":observer");
            let host = match peer.strip_prefix('[') {
                Some(rest) => rest.split(']').next(),
                None => peer.split(':').next(),
            };
            members.all.push(Member { id: id.to_owned(), host: host.unwrap_or_default().to_owned(), is_voter: votes });
        }
        members
    }

    pub(super) fn voters(&self) -> usize {
        self.all.iter().filter(|member| member.is_voter).count()
    }
}

/// The measurements of the probe lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProbeResult {
    pub(super) writes: RoundTrips,
    pub(super) clock: ClockOffset,
}

/// The facts from a session with the whole ensemble.
#[derive(Clone, Debug)]
pub(super) struct EnsembleFacts {
    pub(super) members: Fact<Members>,
    pub(super) probe: Fact<ProbeResult>,
    pub(super) nodes: Fact<NodeSurvey>,
    /// ACLs of the node under which all locks are, of some locks, and of a new lock.
    pub(super) acls: Vec<(String, Fact<Vec<Acl>>)>,
    /// Whether a client without a login was refused; `None` where all clients have all permissions.
    pub(super) refuses_anonymous: Option<Fact<bool>>,
}

/// All facts.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) requirements: Requirements,
    pub(super) servers: Vec<Server>,
    pub(super) ensemble: Result<EnsembleFacts, Error>,
}

impl Facts {
    /// Whether our probe was written.
    pub(super) fn has_written_probe(&self) -> bool {
        self.ensemble.as_ref().is_ok_and(|inside| inside.probe.is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::super::rules::sample;
    use super::*;

    #[test]
    fn server_replies_are_parsed() {
        let server = sample::follower("h");
        assert_eq!(server.role(), Ok(Role::Follower));
        assert_eq!(server.version(), Ok(("3.8.0".into(), [3, 8, 0])));
        assert_eq!(server.metric("zk_znode_count"), Ok(5));
        assert_eq!(server.metric("zk_avg_latency"), Ok(0));
        assert_eq!(
            server.metric("zk_last_client_response_size"),
            Err(UnknownReason::not_reported("zk_last_client_response_size"))
        );
        assert_eq!(server.setting("tickTime"), Ok(500));
        // A server without `srvr` may accept `mntr`.
        let server = Server { srvr: Err(UnknownReason::NotWhitelisted("srvr")), ..server };
        assert_eq!((server.role(), server.version().map(|(text, _)| text)), (Ok(Role::Follower), Ok("3.8.0".into())));
        let mute = Server { mntr: Err(UnknownReason::NotWhitelisted("mntr")), ..server };
        assert_eq!(mute.role(), Err(UnknownReason::NotWhitelisted("srvr")));
    }

    #[test]
    fn members_are_parsed_in_all_formats() {
        let text = "server.1=127.0.0.1:29481:29491:participant\nserver.2=h2:2888:3888;2181\n\
            server.3=[::1]:2888:3888:observer;0.0.0.0:2181\nserver.4=h4:2888:3888:PARTICIPANT;[::]:2181\nversion=100000000";
        let members = Members::parse(text);
        let seen: Vec<_> = members.all.iter().map(|one| (one.id.as_str(), one.host.as_str(), one.is_voter)).collect();
        assert_eq!(seen, [("1", "127.0.0.1", true), ("2", "h2", true), ("3", "::1", false), ("4", "h4", true)]);
        assert_eq!((members.voters(), members.has_weights), (3, false));
        assert!(Members::parse("server.1=a:1:2\ngroup.1=1\nweight.1=2").has_weights);
        assert_eq!(Members::parse(""), Members::default());
    }

    #[test]
    fn median_and_longest_of_samples() {
        let times: Vec<_> = [5, 1, 3, 2, 4].map(Duration::from_millis).into();
        let trips = RoundTrips::from_samples(times).unwrap();
        assert_eq!((trips.median, trips.longest), (Duration::from_millis(3), Duration::from_millis(5)));
        assert_eq!(RoundTrips::from_samples(vec![]), None);
    }
}
