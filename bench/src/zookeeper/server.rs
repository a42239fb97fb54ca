//! The server that all benches of a run share, and its statistics.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use leasehold::Locks;
use leasehold_testbed::Server;
use leasehold_testbed::zookeeper::{ZooKeeper, ask, facts};
use leasehold_zookeeper::Client;
use serde_json::json;

use crate::redis::{Oops, TTL};
use crate::report::Report;

/// ZooKeeper's defaults.
const TICK: Duration = Duration::from_secs(2);
const CONTAINER_CHECK: Duration = Duration::from_secs(60);
const WRITTEN_AHEAD: &str = "65536";

/// A server.
pub(crate) struct Bench {
    server: Server,
    syncs: bool,
    /// The factor by which everything is shortened.
    pub(crate) scale: u32,
}

impl Bench {
    /// Starts a server; with `syncs` it waits for the disk at each write.
    pub(crate) async fn start(scale: u32, syncs: bool) -> Result<Self, Oops> {
        let settings = ZooKeeper::new().tick(TICK).container_check(CONTAINER_CHECK);
        let settings = settings.property("zookeeper.preAllocSize", WRITTEN_AHEAD);
        let settings = if syncs { settings.sync() } else { settings };
        Ok(Self { server: settings.start().await?, syncs, scale })
    }

    /// Prints what the benches run on.
    pub(crate) async fn introduce(&self, report: &mut Report) -> Result<(), Oops> {
        let facts = facts(self.server.addr()).await?;
        let version = facts.get("zk_version").and_then(|text| text.split('-').next()).unwrap_or("of unknown version");
        let (sync, tick, session) = (if self.syncs { "yes" } else { "no" }, TICK.as_millis(), TTL.as_secs());
        report.say(&format!(
            "one ZooKeeper {version} server, tickTime={tick}, forceSync={sync} (unless said otherwise), a Java machine as small as the testbed's; \
             all sessions {session} s"
        ));
        report.add(json!({
            "what": "zookeeper: the server", "version": version, "tick_ms": tick as u64, "force_sync": sync,
            "session_s": session,
        }));
        Ok(())
    }

    /// The address for clients.
    pub(crate) fn address(&self) -> String {
        self.server.url()
    }

    /// Leasehold's locks, over a new session.
    pub(crate) async fn open(&self) -> leasehold::Result<Locks> {
        Locks::builder().ttl(TTL).open(&format!("zookeeper://{}/bench", self.address())).await
    }

    /// A bare session with leasehold's settings.
    pub(crate) async fn bare(&self) -> Result<Client, Oops> {
        let connector = Client::connector().with_session_timeout(TTL).with_connection_timeout(Duration::from_secs(3));
        Ok(connector.connect(&self.address()).await?)
    }

    /// How many packets each connection has transferred so far.
    pub(crate) async fn traffic(&self) -> Result<Traffic, Oops> {
        Ok(Traffic::read(&ask(self.server.addr(), "cons").await?))
    }

    /// The sum of these metrics so far.
    pub(crate) async fn sum(&self, metrics: &[&str]) -> Result<u64, Oops> {
        let facts = facts(self.server.addr()).await?;
        let mut sum = 0;
        for metric in metrics {
            let value = facts.get(*metric).ok_or_else(|| format!("the server does not tell {metric}"))?;
            sum += value.parse::<u64>()?;
        }
        Ok(sum)
    }
}

/// The packets of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packets {
    received: u64,
    sent: u64,
}

impl Packets {
    /// The number of requests.
    pub(crate) fn requests(self) -> u64 {
        self.received
    }

    /// The number of events, minus the requests that have no response yet.
    pub(crate) fn events(self) -> i64 {
        self.sent.cast_signed() - self.received.cast_signed()
    }

    fn since(self, earlier: Self) -> Self {
        Self { received: self.received.saturating_sub(earlier.received), sent: self.sent.saturating_sub(earlier.sent) }
    }
}

/// The connections, by their sessions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traffic(HashMap<String, Packets>);

impl Traffic {
    /// Parses lines such as ` /127.0.0.1:4711[1](queued=0,recved=5,sent=6,sid=0x1001,lop=PING)`. A
    /// connection without a session, like the one that runs this query, has no `sid`.
    fn read(text: &str) -> Self {
        let line = |line: &str| {
            let (_, fields) = line.trim().strip_suffix(')')?.split_once('(')?;
            let field = |wanted: &str| {
                fields.split(',').find_map(|field| field.split_once('=').filter(|(key, _)| *key == wanted))
            };
            let number = |wanted: &str| field(wanted)?.1.parse().ok();
            let packets = Packets { received: number("recved")?, sent: number("sent")? };
            Some((field("sid")?.1.to_owned(), packets))
        };
        Self(text.lines().filter_map(line).collect())
    }

    /// The sessions that did not exist earlier.
    pub(crate) fn new_since(&self, earlier: &Self) -> HashSet<String> {
        self.0.keys().filter(|session| !earlier.0.contains_key(*session)).cloned().collect()
    }

    /// The packets of one session since `earlier`.
    pub(crate) fn of(&self, session: &str, earlier: &Self) -> Packets {
        let at = |traffic: &Self| traffic.0.get(session).copied().unwrap_or_default();
        at(self).since(at(earlier))
    }

    /// The packets of several sessions.
    pub(crate) fn of_all(&self, sessions: &HashSet<String>, earlier: &Self) -> Packets {
        sessions.iter().map(|session| self.of(session, earlier)).fold(Packets::default(), |sum, one| Packets {
            received: sum.received + one.received,
            sent: sum.sent + one.sent,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = " /127.0.0.1:1[1](queued=0,recved=5,sent=5,sid=0xa,lop=PING,est=1,to=30000)\n\
                          /127.0.0.1:2[0](queued=0,recved=1,sent=0)\n\n";
    const AFTER: &str = " /127.0.0.1:1[1](queued=0,recved=7,sent=9,sid=0xa,lop=NA,est=1,to=30000)\n\
                         /127.0.0.1:3[1](queued=0,recved=1,sent=1,sid=0xb,lop=SESS,est=1,to=30000)\n";

    #[test]
    fn connections_are_told_by_their_sessions() {
        let (before, after) = (Traffic::read(BEFORE), Traffic::read(AFTER));
        assert_eq!(before.0.len(), 1);
        assert_eq!(after.new_since(&before), HashSet::from(["0xb".to_owned()]));
    }

    #[test]
    fn what_is_no_answer_is_an_event() {
        let (before, after) = (Traffic::read(BEFORE), Traffic::read(AFTER));
        let packets = after.of("0xa", &before);
        assert_eq!((packets.requests(), packets.events()), (2, 2));
        let all = after.of_all(&after.new_since(&Traffic::default()), &before);
        assert_eq!((all.requests(), all.events()), (3, 2));
    }
}
