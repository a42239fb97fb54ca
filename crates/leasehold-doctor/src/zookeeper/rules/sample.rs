//! Ensembles for the rules' tests, with real replies of ZooKeeper 3.8.

pub(super) use crate::assert_level;
use std::time::Duration;

use leasehold_zookeeper::{Acl, Permission};

use super::super::facts::{
    ClockOffset, EnsembleFacts, Facts, KeyValues, Members, ProbeResult, Requirements, RoundTrips, Server,
    ServerSession, UnknownReason,
};
use super::super::walk::NodeSurvey;

const SRVR: &str = "Zookeeper version: 3.8.0-${mvngit.commit.id}, built on 2024-12-29 17:54 UTC
Latency min/avg/max: 0/0.0/0
Received: 1
Sent: 0
Connections: 1
Outstanding: 0
Zxid: 0x0
Mode: follower
Node count: 5
";

const MNTR: &str = "zk_version\t3.8.0-${mvngit.commit.id}, built on 2024-12-29 17:54 UTC
zk_server_state\tfollower
zk_peer_state\tfollowing - broadcast
zk_ephemerals_count\t0
zk_num_alive_connections\t1
zk_avg_latency\t0.0
zk_outstanding_requests\t0
zk_znode_count\t5
zk_global_sessions\t0
zk_last_client_response_size\t-1
zk_watch_count\t0
zk_approximate_data_size\t182
zk_uptime\t9096
zk_max_latency\t0
zk_quorum_size\t3
zk_connection_rejected\t0
zk_avg_fsynctime\t0.0
zk_max_fsynctime\t0
zk_cnt_fsynctime\t3
";

const CONF: &str = "clientPort=29473
secureClientPort=-1
dataDir=/var/lib/zookeeper/version-2
dataDirSize=597
dataLogDir=/var/lib/zookeeper/version-2
dataLogSize=597
tickTime=500
maxClientCnxns=60
minSessionTimeout=1000
maxSessionTimeout=10000
clientPortListenBacklog=-1
serverId=3
initLimit=10
syncLimit=5
electionAlg=3
electionPort=29493
quorumPort=29483
peerType=0
membership:\x20
server.1=h1:29481:29491:participant
server.2=h2:29482:29492:participant
server.3=h3:29483:29493:participant
version=0";

/// For tests: what a URL with default options requires of the ensemble.
pub(super) fn requirements() -> Requirements {
    Requirements {
        ttl: Duration::from_secs(30),
        session_timeout: None,
        has_session_per_claim: false,
        base: "/leasehold".into(),
    }
}

fn trips() -> RoundTrips {
    RoundTrips { count: 10, median: Duration::from_millis(1), longest: Duration::from_millis(3) }
}

/// A follower.
pub(in super::super) fn follower(address: &str) -> Server {
    // The last letter of its name determines its id.
    let server = address.bytes().last().unwrap_or_default();
    Server {
        address: address.into(),
        addresses: Vec::new(),
        srvr: Ok(KeyValues::parse(SRVR, ": ")),
        mntr: Ok(KeyValues::parse(MNTR, "\t")),
        conf: Ok(KeyValues::parse(CONF, "=")),
        session: Ok(ServerSession {
            server,
            timeout: Duration::from_secs(30),
            read_trips: Ok(trips()),
            sees_probe: Ok(true),
        }),
    }
}

/// A leader with two followers.
pub(super) fn leader(address: &str) -> Server {
    let leader = follower(address).with_srvr("Mode", "leader").with_mntr("zk_server_state", "leader");
    leader.with_mntr("zk_synced_followers", "2").with_mntr("zk_synced_non_voting_followers", "0")
}

/// A standalone server.
pub(super) fn standalone(address: &str) -> Server {
    let server = follower(address).with_srvr("Mode", "standalone");
    Server {
        mntr: Err(UnknownReason::NotWhitelisted("mntr")),
        conf: Err(UnknownReason::NotWhitelisted("conf")),
        ..server
    }
}

/// Three servers with correct settings.
pub(super) fn three_servers() -> Facts {
    let clock = ClockOffset { ahead: 0, error: Duration::from_millis(2) };
    let own =
        vec![Acl::new_const(Permission::ALL, "digest", "u:x"), Acl::new_const(Permission::READ, "world", "anyone")];
    Facts {
        requirements: requirements(),
        servers: vec![leader("h1"), follower("h2"), follower("h3")],
        ensemble: Ok(EnsembleFacts {
            members: Ok(Members::parse(CONF)),
            probe: Ok(ProbeResult { writes: trips(), clock }),
            nodes: Ok(NodeSurvey { is_complete: true, ..NodeSurvey::default() }),
            acls: vec![("/leasehold".into(), Ok(own))],
            refuses_anonymous: Some(Ok(true)),
        }),
    }
}

/// The same reply, with this value.
fn with_line(mut reply: KeyValues, key: &str, value: &str) -> KeyValues {
    reply.0.insert(key.into(), value.into());
    reply
}

impl Server {
    /// The same server, with this value in its reply to `srvr`.
    pub(super) fn with_srvr(self, key: &str, value: &str) -> Self {
        Self { srvr: self.srvr.map(|lines| with_line(lines, key, value)), ..self }
    }

    /// The same server, with this value in its reply to `mntr`.
    pub(super) fn with_mntr(self, key: &str, value: &str) -> Self {
        Self { mntr: self.mntr.map(|lines| with_line(lines, key, value)), ..self }
    }

    /// The same server, with this value in its reply to `conf`.
    pub(super) fn with_conf(self, key: &str, value: &str) -> Self {
        Self { conf: self.conf.map(|lines| with_line(lines, key, value)), ..self }
    }
}
