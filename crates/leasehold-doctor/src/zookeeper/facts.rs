//! The known facts of an ensemble: plain data that the rules judge.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use leasehold_zookeeper::{Acl, Error as Cause};

use super::walk::NodeSurvey;
use leasehold::Error;

/// Why a fact is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UnknownReason {
    /// The server does not accept this four-letter word.
    NotWhitelisted(&'static str),
    /// Four-letter words do not work over TLS.
    TlsOnly,
    /// The server runs, but does not serve requests.
    NotServing,
    /// The server is unreachable, or did not respond.
    Unreachable(String),
    /// The server responded without the fact; the text says more.
    NotReported(String),
    /// The server answered a request with this error.
    RequestFailed(Cause),
}

impl UnknownReason {
    /// The server responded without `what`.
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

/// What the URL and the options of the examination demand of the ensemble.
#[derive(Clone, Debug)]
pub(super) struct Requirements {
    /// The TTL that the locks will have.
    pub(super) ttl: Duration,
    /// `session-timeout=`; `None` without it.
    pub(super) session_timeout: Option<Duration>,
    /// `session=own`: each claim has its own session.
    pub(super) has_session_per_claim: bool,
    /// The path of the node under which all locks are; empty for the root.
    pub(super) base: String,
}

impl Requirements {
    /// The timeout that leasehold requests for a session.
    pub(super) fn requested_timeout(&self) -> Duration {
        self.session_timeout.unwrap_or(self.ttl).max(leasehold_internals::zookeeper::MIN_TTL)
    }

    /// The path of the node under which all locks are; `/` for the root.
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
    /// Parses the role as a server reports it.
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
    /// Parses lines of a key, this separator, and a value.
    pub(super) fn parse(text: &str, separator: &str) -> Self {
        let pairs = text.lines().filter_map(|line| line.split_once(separator));
        Self(pairs.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())).collect())
    }

    /// The value of this key.
    pub(super) fn text(&self, key: &str) -> Fact<&str> {
        self.0.get(key).map(String::as_str).ok_or_else(|| UnknownReason::not_reported(key))
    }

    /// The value of this key as a number; its integer part if it has a fraction. Not known for
    /// `-1`, by which a server says that it has no value.
    pub(super) fn number(&self, key: &str) -> Fact<u64> {
        let text = self.text(key)?;
        text.split('.').next().unwrap_or_default().parse().map_err(|_| UnknownReason::not_reported(key))
    }
}

/// The difference between the leader's clock and this host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockOffset {
    /// How many milliseconds the leader's clock is ahead of this host's; negative if it is behind.
    pub(super) ahead: i64,
    /// How wrong `ahead` may be: half of a round trip, and the resolution of one millisecond.
    pub(super) error: Duration,
}

/// The measured durations of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RoundTrips {
    pub(super) count: usize,
    pub(super) median: Duration,
    pub(super) longest: Duration,
}

impl RoundTrips {
    /// Sums up measured durations; `None` without any.
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
    /// The durations of reads.
    pub(super) read_trips: Fact<RoundTrips>,
    /// Whether the server sees the probe's lock.
    pub(super) sees_probe: Fact<bool>,
}

/// One server of the URL.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) address: String,
    /// The IP addresses of its host name; empty if they are not known.
    pub(super) addresses: Vec<SocketAddr>,
    /// The reply to the four-letter word `srvr`: version, role and load.
    pub(super) srvr: Fact<KeyValues>,
    /// The reply to `mntr`: metrics.
    pub(super) mntr: Fact<KeyValues>,
    /// The reply to `conf`: settings.
    pub(super) conf: Fact<KeyValues>,
    pub(super) session: Fact<ServerSession>,
}

impl Server {
    /// A metric from `mntr`.
    pub(super) fn metric(&self, key: &str) -> Fact<u64> {
        self.mntr.as_ref().map_err(UnknownReason::clone)?.number(key)
    }

    /// A setting from `conf`, as a number.
    pub(super) fn setting(&self, key: &str) -> Fact<u64> {
        self.conf.as_ref().map_err(UnknownReason::clone)?.number(key)
    }

    /// The role of the server, according to `srvr` or `mntr`.
    pub(super) fn role(&self) -> Fact<Role> {
        let mode = self.srvr.as_ref().map_err(UnknownReason::clone).and_then(|srvr| srvr.text("Mode"));
        let mode = mode.or_else(|reason| match &self.mntr {
            Ok(mntr) => mntr.text("zk_server_state"),
            Err(_) => Err(reason),
        });
        mode.map(Role::parse)
    }

    /// The version, such as `3.8.0`, and its numbers.
    pub(super) fn version(&self) -> Fact<(String, [u32; 3])> {
        let version_line =
            self.srvr.as_ref().map_err(UnknownReason::clone).and_then(|srvr| srvr.text("Zookeeper version"));
        let version_line = version_line.or_else(|reason| match &self.mntr {
            Ok(mntr) => mntr.text("zk_version"),
            Err(_) => Err(reason),
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

    /// Whether the server serves requests; the reason if it does not, or if that is not known.
    pub(super) fn check_serving(&self) -> Fact<()> {
        match (&self.srvr, self.role(), &self.session) {
            (Err(reason @ (UnknownReason::NotServing | UnknownReason::Unreachable(_))), _, _) => Err(reason.clone()),
            (_, Ok(Role::ReadOnly), _) => Err(UnknownReason::NotReported("it is read-only".into())),
            (_, _, Ok(_)) | (Ok(_), _, _) => Ok(()),
            (Err(_), _, Err(reason)) => Err(reason.clone()),
        }
    }
}

/// A member of the ensemble, from its configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) id: String,
    /// Its host; if it has several, all of them as they are written.
    pub(super) host: String,
    /// Whether it votes; `false` for an observer.
    pub(super) is_voter: bool,
}

/// The members of the ensemble.
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

    /// How many members vote.
    pub(super) fn count_voters(&self) -> usize {
        self.all.iter().filter(|member| member.is_voter).count()
    }
}

/// What was measured while writing to the probe lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProbeResult {
    /// The durations of writes.
    pub(super) writes: RoundTrips,
    pub(super) clock: ClockOffset,
}

/// The facts from a session with the whole ensemble.
#[derive(Clone, Debug)]
pub(super) struct EnsembleFacts {
    pub(super) members: Fact<Members>,
    pub(super) probe: Fact<ProbeResult>,
    /// The nodes where the locks are.
    pub(super) nodes: Fact<NodeSurvey>,
    /// The ACLs, by path, of the node under which all locks are, of some locks, and of a new lock.
    pub(super) acls: Vec<(String, Fact<Vec<Acl>>)>,
    /// Whether a client without a login was refused; `None` where all clients have all permissions.
    pub(super) refuses_anonymous: Option<Fact<bool>>,
}

/// All that is known of the ensemble.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) requirements: Requirements,
    pub(super) servers: Vec<Server>,
    /// The error if no session could be opened.
    pub(super) ensemble: Result<EnsembleFacts, Error>,
}

impl Facts {
    /// Whether the probe lock was written to.
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
        assert_eq!((members.count_voters(), members.has_weights), (3, false));
        assert!(Members::parse("server.1=a:1:2\ngroup.1=1\nweight.1=2").has_weights);
        assert_eq!(Members::parse(""), Members::default());
    }

    #[test]
    fn samples_are_summed_up_by_median_and_longest() {
        let times: Vec<_> = [5, 1, 3, 2, 4].map(Duration::from_millis).into();
        let trips = RoundTrips::from_samples(times).unwrap();
        assert_eq!((trips.median, trips.longest), (Duration::from_millis(3), Duration::from_millis(5)));
        assert_eq!(RoundTrips::from_samples(vec![]), None);
    }
}
