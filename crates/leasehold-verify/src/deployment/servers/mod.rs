//! The servers that a test run starts, and their faults.

mod clock;
mod cluster;
mod folder;
mod leftovers;
mod out_of_memory;
mod read_only;
mod redis;
mod redlock;
mod sql;
mod zookeeper;

use std::net::SocketAddr;

pub(super) use self::cluster::ClusterServers;
pub(super) use self::folder::Folder;
pub(super) use self::leftovers::Leftovers;
pub(super) use self::redis::RedisServers;
pub(super) use self::redlock::RedlockServers;
pub(super) use self::sql::SqlServer;
pub(super) use self::zookeeper::ZookeeperServers;
use super::network::Network;
use super::{ActiveFault, DeploymentOptions, LocalEngine, RunError};
use crate::history::FaultKind;
use crate::rng::Rng;

/// The servers that a test run has started.
pub(super) enum LocalServers {
    /// No server: the engine is `memory:`, or its servers belong to the user.
    None,
    Folder(Folder),
    Redis(Box<RedisServers>),
    Cluster(Box<ClusterServers>),
    Redlock(RedlockServers),
    Zookeeper(Box<ZookeeperServers>),
    Sql(Box<SqlServer>),
}

impl LocalServers {
    /// Starts the servers that the engine needs for these faults.
    pub(super) async fn start(local: LocalEngine, options: &DeploymentOptions) -> Result<Self, RunError> {
        Ok(match local {
            LocalEngine::Memory => Self::None,
            LocalEngine::File => Self::Folder(Folder::create(options)?),
            LocalEngine::Redis => Self::Redis(Box::new(RedisServers::start(options, false).await?)),
            LocalEngine::RedisSentinel => Self::Redis(Box::new(RedisServers::start(options, true).await?)),
            LocalEngine::RedisCluster => Self::Cluster(Box::new(ClusterServers::start(options).await?)),
            LocalEngine::Redlock => Self::Redlock(RedlockServers::start(options).await?),
            LocalEngine::Zookeeper => Self::Zookeeper(Box::new(ZookeeperServers::start(options).await?)),
            LocalEngine::Mysql | LocalEngine::Postgres => Self::Sql(Box::new(SqlServer::start(local, options).await?)),
        })
    }

    /// The engine's URL without the proxies.
    pub(super) fn url(&self) -> String {
        match self {
            Self::None => "memory:".to_owned(),
            Self::Folder(folder) => folder.url(),
            Self::Redis(redis) => redis.url(),
            Self::Cluster(cluster) => cluster.url(),
            Self::Redlock(redlock) => redlock.url(),
            Self::Zookeeper(zookeeper) => zookeeper.url(),
            Self::Sql(sql) => sql.url(),
        }
    }

    /// The addresses of the Sentinels, which tell clients the others' addresses; empty: there are
    /// none.
    pub(super) fn discovery_servers(&self) -> Vec<SocketAddr> {
        match self {
            Self::Redis(redis) => redis.sentinels(),
            _ => Vec::new(),
        }
    }

    /// The addresses of the servers that get a proxy; empty: the engine has no network.
    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        match self {
            Self::None | Self::Folder(_) => Vec::new(),
            Self::Redis(redis) => redis.addrs(),
            Self::Cluster(cluster) => cluster.addrs(),
            Self::Redlock(redlock) => redlock.addrs(),
            Self::Zookeeper(zookeeper) => zookeeper.addrs(),
            Self::Sql(sql) => sql.addrs(),
        }
    }

    /// The versions that the servers report.
    pub(super) async fn versions(&self) -> Result<Vec<String>, RunError> {
        match self {
            Self::None | Self::Folder(_) => Ok(Vec::new()),
            Self::Redis(redis) => redis.versions().await,
            Self::Cluster(cluster) => cluster.versions().await,
            Self::Redlock(redlock) => redlock.versions().await,
            Self::Zookeeper(zookeeper) => zookeeper.versions().await,
            Self::Sql(sql) => sql.versions().await,
        }
    }

    /// Whether the servers redirect clients to each other.
    pub(super) fn redirects_clients(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Names for `count` locks, made from `base`; in a cluster one on each master instead. `prefix`
    /// is what the engine puts before each name.
    pub(super) fn lock_names(&mut self, base: &str, prefix: &str, count: usize) -> Vec<String> {
        match self {
            Self::Cluster(cluster) => cluster.lock_names(base, prefix),
            _ => (1..=count).map(|number| format!("{base}:{number}")).collect(),
        }
    }

    /// Names for anchor locks, which are held during a whole run: one on each master of a cluster;
    /// none for any other engine.
    pub(super) fn anchor_names(&mut self, base: &str) -> Vec<String> {
        match self {
            Self::Cluster(cluster) => cluster.anchor_names(base),
            _ => Vec::new(),
        }
    }

    /// Whether the servers cause this fault themselves, and not the proxies.
    pub(super) fn handles_fault(&self, fault: FaultKind) -> bool {
        matches!((self, fault), (Self::Zookeeper(_), FaultKind::Partition))
    }

    /// Whether half of the connections pass no more data from the beginning of this fault, without
    /// being closed, so that their clients do not notice it.
    fn silences_connections(&self, fault: FaultKind, has_safeguards: bool) -> bool {
        match self {
            // ZooKeeper's clients have sessions, which do not depend on connections. A cluster
            // silences the connections of one master only, itself.
            Self::None | Self::Folder(_) | Self::Zookeeper(_) | Self::Cluster(_) => false,
            Self::Redis(_) | Self::Redlock(_) | Self::Sql(_) => match fault {
                FaultKind::Crash | FaultKind::Wipe | FaultKind::Ahead => true,
                // If the clock goes back, a holder that cannot renew would leave a claim that lasts
                // longer by as much.
                FaultKind::Clock => !has_safeguards,
                _ => false,
            },
        }
    }

    /// Begins a server fault. `minority` are the indices of the servers that it may hit if servers
    /// vote.
    pub(super) async fn begin_fault(
        &mut self,
        fault: FaultKind,
        minority: &[usize],
        network: Option<&Network>,
        has_safeguards: bool,
        rng: &mut Rng,
    ) -> Result<ActiveFault, RunError> {
        // A fail-over silences connections later, when there are grants to lose.
        if let Some(network) = network.filter(|_| self.silences_connections(fault, has_safeguards)) {
            network.silence_half_of_connections(rng);
        }
        match self {
            Self::None => Err(unsupported_fault(fault)),
            Self::Folder(folder) => folder.begin_fault(fault, rng),
            Self::Redis(redis) => redis.begin_fault(fault, network, rng).await,
            Self::Cluster(cluster) => cluster.begin_fault(fault, network, rng).await,
            Self::Redlock(redlock) => redlock.begin_fault(fault, minority, rng).await,
            Self::Zookeeper(zookeeper) => zookeeper.begin_fault(fault, rng).await,
            Self::Sql(sql) => sql.begin_fault(fault, rng).await,
        }
    }

    /// Makes the next fault of this kind hit a majority of the voting servers; returns `false` if
    /// it cannot.
    pub(super) fn hit_majority_next(&mut self, fault: FaultKind) -> bool {
        match self {
            Self::Redlock(redlock) if fault == FaultKind::Wipe => {
                redlock.hit_majority_next();
                true
            }
            _ => false,
        }
    }

    /// Records the servers' state at the beginning of a run.
    pub(super) async fn save_baseline(&mut self) -> Result<(), RunError> {
        match self {
            Self::Redis(redis) => redis.save_baseline().await,
            _ => Ok(()),
        }
    }

    /// Fails if Sentinels have replaced a master without an injected fault since
    /// [`save_baseline`](Self::save_baseline).
    pub(super) async fn check_no_foreign_failover(&self) -> Result<(), RunError> {
        match self {
            Self::Redis(redis) => redis.check_no_foreign_failover().await,
            _ => Ok(()),
        }
    }

    /// What the servers still store although all workers have ended.
    pub(super) async fn leftovers(&self, locks: &[String]) -> Result<Leftovers, RunError> {
        match self {
            Self::Redis(redis) => leftovers::unexpiring_keys(&redis.addrs()).await,
            Self::Cluster(cluster) => leftovers::unexpiring_keys(&cluster.addrs()).await,
            Self::Redlock(redlock) => redlock.leftovers(locks).await,
            Self::Zookeeper(zookeeper) => zookeeper.leftovers().await,
            Self::None | Self::Folder(_) | Self::Sql(_) => Ok(Leftovers::new()),
        }
    }

    /// The clients' sessions at a database; empty for any other engine.
    pub(super) async fn client_sessions(&self) -> Result<Leftovers, RunError> {
        match self {
            Self::Sql(sql) => sql.client_sessions().await,
            _ => Ok(Leftovers::new()),
        }
    }

    /// Whether servers that the active fault does not hit can serve now.
    pub(super) async fn can_others_serve(&self) -> bool {
        match self {
            Self::Redis(redis) => redis.can_others_serve().await,
            Self::Cluster(cluster) => cluster.can_others_serve().await,
            Self::Redlock(_) => true,
            Self::Zookeeper(zookeeper) => zookeeper.can_others_serve().await,
            Self::None | Self::Folder(_) | Self::Sql(_) => false,
        }
    }

    /// Ends the active fault; returns a note on the result.
    pub(super) async fn end_fault(&mut self, fault: FaultKind) -> Result<String, RunError> {
        match self {
            Self::None => Err(unsupported_fault(fault)),
            Self::Folder(folder) => folder.end_fault(fault),
            Self::Redis(redis) => redis.end_fault(fault).await,
            Self::Cluster(cluster) => cluster.end_fault(fault).await,
            Self::Redlock(redlock) => redlock.end_fault(fault).await,
            Self::Zookeeper(zookeeper) => zookeeper.end_fault(fault).await,
            Self::Sql(sql) => sql.end_fault(fault).await,
        }
    }
}

/// The error for a fault that the servers cannot have.
fn unsupported_fault(fault: FaultKind) -> RunError {
    RunError::new(format!("no server here supports the fault {fault}"))
}
