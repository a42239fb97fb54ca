//! The servers that were started here, and their faults.

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

/// The servers that were started here.
pub(super) enum LocalServers {
    /// None: the engine is in this process, or belongs to the user.
    None,
    Folder(Folder),
    Redis(Box<RedisServers>),
    Cluster(Box<ClusterServers>),
    Redlock(RedlockServers),
    Zookeeper(Box<ZookeeperServers>),
    Sql(Box<SqlServer>),
}

impl LocalServers {
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

    /// The URL for clients that bypass the proxies.
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

    /// The servers that report the addresses of the others to clients.
    pub(super) fn discovery_servers(&self) -> Vec<SocketAddr> {
        match self {
            Self::Redis(redis) => redis.sentinels(),
            _ => Vec::new(),
        }
    }

    /// The servers that get a proxy; none if that is impossible.
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
    pub(super) fn redirect_clients(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Names for locks.
    pub(super) fn lock_names(&mut self, base: &str, prefix: &str, count: usize) -> Vec<String> {
        match self {
            Self::Cluster(cluster) => cluster.lock_names(base, prefix),
            _ => (1..=count).map(|number| format!("{base}:{number}")).collect(),
        }
    }

    /// The same for locks that are held all the time.
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

    /// Whether half of the workers must not notice the beginning of a fault. ZooKeeper's clients
    /// have sessions, which do not depend on connections.
    fn silences_connections(&self, fault: FaultKind, has_safeguards: bool) -> bool {
        match self {
            // A cluster silences connections itself, so that its other masters are not disturbed.
            Self::None | Self::Folder(_) | Self::Zookeeper(_) | Self::Cluster(_) => false,
            Self::Redis(_) | Self::Redlock(_) | Self::Sql(_) => match fault {
                FaultKind::Crash | FaultKind::Wipe | FaultKind::Ahead => true,
                // After the clock went back, a holder that cannot renew leaves a claim that lasts
                // longer by as much.
                FaultKind::Clock => !has_safeguards,
                _ => false,
            },
        }
    }

    pub(super) async fn begin_fault(
        &mut self,
        fault: FaultKind,
        minority: &[usize],
        network: Option<&Network>,
        has_safeguards: bool,
        rng: &mut Rng,
    ) -> Result<ActiveFault, RunError> {
        // A fail-over silences connections later, when there are grants to lose.
        if let Some(lines) = network.filter(|_| self.silences_connections(fault, has_safeguards)) {
            lines.silence_half_of_connections(rng);
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

    /// Whether this fault may hit a majority of the voters with the safeguards on; if so, it does
    /// the next time.
    pub(super) fn hit_majority_next(&mut self, fault: FaultKind) -> bool {
        match self {
            Self::Redlock(redlock) if fault == FaultKind::Wipe => {
                redlock.hit_majority_next();
                true
            }
            _ => false,
        }
    }

    /// Remembers the servers' state.
    pub(super) async fn save_baseline(&mut self) -> Result<(), RunError> {
        match self {
            Self::Redis(redis) => redis.save_baseline().await,
            _ => Ok(()),
        }
    }

    /// Checks that the state has only changed by our own faults.
    pub(super) async fn check_no_foreign_failover(&self) -> Result<(), RunError> {
        match self {
            Self::Redis(redis) => redis.check_no_foreign_failover().await,
            _ => Ok(()),
        }
    }

    /// The leftovers on the servers.
    pub(super) async fn leftovers(&self, locks: &[String]) -> Result<Leftovers, RunError> {
        match self {
            Self::Redis(redis) => leftovers::unexpiring_keys(&redis.addrs()).await,
            Self::Cluster(cluster) => leftovers::unexpiring_keys(&cluster.addrs()).await,
            Self::Redlock(redlock) => redlock.leftovers(locks).await,
            Self::Zookeeper(zookeeper) => zookeeper.leftovers().await,
            Self::None | Self::Folder(_) | Self::Sql(_) => Ok(Leftovers::new()),
        }
    }

    /// The clients' sessions at a database.
    pub(super) async fn sessions(&self) -> Result<Leftovers, RunError> {
        match self {
            Self::Sql(sql) => sql.client_sessions().await,
            _ => Ok(Leftovers::new()),
        }
    }

    /// Whether the servers that were not hit can serve.
    pub(super) async fn can_others_serve(&self) -> bool {
        match self {
            Self::Redis(redis) => redis.can_others_serve().await,
            Self::Cluster(cluster) => cluster.can_others_serve().await,
            Self::Redlock(_) => true,
            Self::Zookeeper(zookeeper) => zookeeper.can_others_serve().await,
            Self::None | Self::Folder(_) | Self::Sql(_) => false,
        }
    }

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

/// A fault that no server here can have.
fn unsupported_fault(fault: FaultKind) -> RunError {
    RunError::new(format!("no server here supports the fault {fault}"))
}
