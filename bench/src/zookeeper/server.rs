//! The server that all benches of a run share, and its statistics.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use leasehold::Locks;
use leasehold_testbed::Server;
use leasehold_testbed::zookeeper::{ZooKeeper, monitor_values, send_word};
use leasehold_zookeeper::Client;
use serde_json::json;

use crate::redis::{BoxError, TTL};
use crate::report::Report;

// Settings that the testbed reduces have ZooKeeper's own defaults.
const TICK: Duration = Duration::from_secs(2);
const CONTAINER_CHECK: Duration = Duration::from_secs(60);
const PREALLOC_KIB: &str = "65536";

/// A ZooKeeper server that is measured.
pub(crate) struct BenchServer {
    server: Server,
    is_durable: bool,
    /// By how much the numbers of rounds and cycles are divided: 1 for a full run.
    pub(crate) scale: u32,
}

impl BenchServer {
    /// Starts a server; with `is_durable` it waits for the disk at each write.
    pub(crate) async fn start(scale: u32, is_durable: bool) -> Result<Self, BoxError> {
        let settings = ZooKeeper::new().tick(TICK).container_check_interval(CONTAINER_CHECK);
        let settings = settings.property("zookeeper.preAllocSize", PREALLOC_KIB);
        let settings = if is_durable { settings.fsync() } else { settings };
        Ok(Self { server: settings.start().await?, is_durable, scale })
    }

    /// Prints the server and its settings.
    pub(crate) async fn report_server(&self, report: &mut Report) -> Result<(), BoxError> {
        let facts = monitor_values(self.server.addr()).await?;
        let version = facts.get("zk_version").and_then(|text| text.split('-').next()).unwrap_or("of unknown version");
        let (sync, tick, session) = (if self.is_durable { "yes" } else { "no" }, TICK.as_millis(), TTL.as_secs());
        report.print_line(&format!(
            "one ZooKeeper {version} server, tickTime={tick}, forceSync={sync} (unless stated otherwise), a JVM as small as the testbed's; \
             all sessions {session} s"
        ));
        report.add_json(json!({
            "what": "zookeeper: the server", "version": version, "tick_ms": tick as u64, "force_sync": sync,
            "session_s": session,
        }));
        Ok(())
    }

    /// The address for clients.
    pub(crate) fn address(&self) -> String {
        self.server.url()
    }

    /// A new leasehold client, with its own session.
    pub(crate) async fn open_locks(&self) -> leasehold::Result<Locks> {
        Locks::builder().ttl(TTL).open(&format!("zookeeper://{}/bench", self.address())).await
    }

    /// A session without leasehold, with the settings that leasehold uses.
    pub(crate) async fn open_bare_session(&self) -> Result<Client, BoxError> {
        let connector = Client::connector().with_session_timeout(TTL).with_connection_timeout(Duration::from_secs(3));
        Ok(connector.connect(&self.address()).await?)
    }

    /// How many packets each connection has transferred so far.
    pub(crate) async fn traffic(&self) -> Result<Traffic, BoxError> {
        Ok(Traffic::parse(&send_word(self.server.addr(), "cons").await?))
    }

    /// The sum of these metrics so far.
    pub(crate) async fn sum_metrics(&self, metrics: &[&str]) -> Result<u64, BoxError> {
        let facts = monitor_values(self.server.addr()).await?;
        let mut sum = 0;
        for metric in metrics {
            let value = facts.get(*metric).ok_or_else(|| format!("the server does not report {metric}"))?;
            sum += value.parse::<u64>()?;
        }
        Ok(sum)
    }
}

/// How many packets one connection has transferred, as the server counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packets {
    received: u64,
    sent: u64,
}

impl Packets {
    /// The number of requests.
    pub(crate) fn request_count(self) -> u64 {
        self.received
    }

    /// The number of events, minus the requests that have no response yet.
    pub(crate) fn event_count(self) -> i64 {
        self.sent.cast_signed() - self.received.cast_signed()
    }

    fn since(self, earlier: Self) -> Self {
        Self { received: self.received.saturating_sub(earlier.received), sent: self.sent.saturating_sub(earlier.sent) }
    }
}

/// The packets of all connections, by their sessions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traffic(HashMap<String, Packets>);

impl Traffic {
    /// Parses lines such as ` /127.0.0.1:4711[1](queued=0,recved=5,sent=6,sid=0x1001,lop=PING)`. A
    /// connection without a session, like the one that runs this query, has no `sid`.
    fn parse(text: &str) -> Self {
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
    pub(crate) fn packets_since(&self, session: &str, earlier: &Self) -> Packets {
        let at = |traffic: &Self| traffic.0.get(session).copied().unwrap_or_default();
        at(self).since(at(earlier))
    }

    /// The packets of several sessions.
    pub(crate) fn total_packets_since(&self, sessions: &HashSet<String>, earlier: &Self) -> Packets {
        sessions.iter().map(|session| self.packets_since(session, earlier)).fold(Packets::default(), |sum, one| {
            Packets { received: sum.received + one.received, sent: sum.sent + one.sent }
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
    fn connections_are_identified_by_their_sessions() {
        let (before, after) = (Traffic::parse(BEFORE), Traffic::parse(AFTER));
        assert_eq!(before.0.len(), 1);
        assert_eq!(after.new_since(&before), HashSet::from(["0xb".to_owned()]));
    }

    #[test]
    fn packets_that_are_no_response_are_events() {
        let (before, after) = (Traffic::parse(BEFORE), Traffic::parse(AFTER));
        let packets = after.packets_since("0xa", &before);
        assert_eq!((packets.request_count(), packets.event_count()), (2, 2));
        let all = after.total_packets_since(&after.new_since(&Traffic::default()), &before);
        assert_eq!((all.request_count(), all.event_count()), (3, 2));
    }
}
