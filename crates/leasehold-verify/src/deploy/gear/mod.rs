//! The servers that were started here, and their faults.

mod clock;
mod cluster;
mod evict;
mod folder;
mod left;
mod read_only;
mod redis;
mod redlock;
mod sql;
mod zookeeper;

use std::net::SocketAddr;

pub(super) use self::cluster::Cluster;
pub(super) use self::folder::Folder;
pub(super) use self::left::Left;
pub(super) use self::redis::Redis;
pub(super) use self::redlock::Redlock;
pub(super) use self::sql::Sql;
pub(super) use self::zookeeper::Zookeeper;
use super::lines::Lines;
use super::{Local, Setup, Strike, Trouble};
use crate::dice::Dice;
use crate::history::FaultKind;

/// The servers that were started here.
pub(super) enum Gear {
    /// None: the engine is in this process, or belongs to the user.
    Nothing,
    Folder(Folder),
    Redis(Box<Redis>),
    Cluster(Box<Cluster>),
    Redlock(Redlock),
    Zookeeper(Box<Zookeeper>),
    Sql(Box<Sql>),
}

impl Gear {
    pub(super) async fn start(local: Local, setup: &Setup) -> Result<Self, Trouble> {
        Ok(match local {
            Local::Memory => Self::Nothing,
            Local::File => Self::Folder(Folder::make(setup)?),
            Local::Redis => Self::Redis(Box::new(Redis::start(setup, false).await?)),
            Local::RedisSentinel => Self::Redis(Box::new(Redis::start(setup, true).await?)),
            Local::RedisCluster => Self::Cluster(Box::new(Cluster::start(setup).await?)),
            Local::Redlock => Self::Redlock(Redlock::start(setup).await?),
            Local::Zookeeper => Self::Zookeeper(Box::new(Zookeeper::start(setup).await?)),
            Local::Mysql | Local::Postgres => Self::Sql(Box::new(Sql::start(local, setup).await?)),
        })
    }

    /// The URL for clients that bypass the proxies.
    pub(super) fn url(&self) -> String {
        match self {
            Self::Nothing => "memory:".to_owned(),
            Self::Folder(folder) => folder.url(),
            Self::Redis(redis) => redis.url(),
            Self::Cluster(cluster) => cluster.url(),
            Self::Redlock(redlock) => redlock.url(),
            Self::Zookeeper(zookeeper) => zookeeper.url(),
            Self::Sql(sql) => sql.url(),
        }
    }

    /// The servers that tell clients where the others are.
    pub(super) fn guides(&self) -> Vec<SocketAddr> {
        match self {
            Self::Redis(redis) => redis.sentinels(),
            _ => Vec::new(),
        }
    }

    /// The servers that get a proxy; none if that is impossible.
    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        match self {
            Self::Nothing | Self::Folder(_) => Vec::new(),
            Self::Redis(redis) => redis.addrs(),
            Self::Cluster(cluster) => cluster.addrs(),
            Self::Redlock(redlock) => redlock.addrs(),
            Self::Zookeeper(zookeeper) => zookeeper.addrs(),
            Self::Sql(sql) => sql.addrs(),
        }
    }

    /// The versions that the servers report.
    pub(super) async fn versions(&self) -> Result<Vec<String>, Trouble> {
        match self {
            Self::Nothing | Self::Folder(_) => Ok(Vec::new()),
            Self::Redis(redis) => redis.versions().await,
            Self::Cluster(cluster) => cluster.versions().await,
            Self::Redlock(redlock) => redlock.versions().await,
            Self::Zookeeper(zookeeper) => zookeeper.versions().await,
            Self::Sql(sql) => sql.versions().await,
        }
    }

    /// Whether the servers redirect clients to each other.
    pub(super) fn name_each_other(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Names for locks.
    pub(super) fn names(&mut self, base: &str, prefix: &str, count: usize) -> Vec<String> {
        match self {
            Self::Cluster(cluster) => cluster.names(base, prefix),
            _ => (1..=count).map(|number| format!("{base}:{number}")).collect(),
        }
    }

    /// The same for locks that are held all the time.
    pub(super) fn anchors(&mut self, base: &str) -> Vec<String> {
        match self {
            Self::Cluster(cluster) => cluster.anchors(base),
            _ => Vec::new(),
        }
    }

    /// Whether the servers cause this fault themselves, and not the proxies.
    pub(super) fn causes(&self, fault: FaultKind) -> bool {
        matches!((self, fault), (Self::Zookeeper(_), FaultKind::Partition))
    }

    /// Whether half of the workers do not notice the beginning of a fault. ZooKeeper's clients have
    /// sessions, which do not depend on connections.
    fn goes_quietly(&self, fault: FaultKind, guard: bool) -> bool {
        match self {
            // A cluster silences connections itself, so that its other masters are not disturbed.
            Self::Nothing | Self::Folder(_) | Self::Zookeeper(_) | Self::Cluster(_) => false,
            Self::Redis(_) | Self::Redlock(_) | Self::Sql(_) => match fault {
                FaultKind::Crash | FaultKind::Wipe | FaultKind::Ahead => true,
                // A holder that cannot renew after the clock went back leaves a claim that lasts
                // longer by as much.
                FaultKind::Clock => !guard,
                _ => false,
            },
        }
    }

    pub(super) async fn begin(
        &mut self,
        fault: FaultKind,
        minority: &[usize],
        lines: Option<&Lines>,
        guard: bool,
        dice: &mut Dice,
    ) -> Result<Strike, Trouble> {
        // A fail-over silences connections later, when there are grants to lose.
        if let Some(lines) = lines.filter(|_| self.goes_quietly(fault, guard)) {
            lines.silence_half(dice);
        }
        match self {
            Self::Nothing => Err(unfit(fault)),
            Self::Folder(folder) => folder.begin(fault, dice),
            Self::Redis(redis) => redis.begin(fault, lines, dice).await,
            Self::Cluster(cluster) => cluster.begin(fault, lines, dice).await,
            Self::Redlock(redlock) => redlock.begin(fault, minority, dice).await,
            Self::Zookeeper(zookeeper) => zookeeper.begin(fault, dice).await,
            Self::Sql(sql) => sql.begin(fault, dice).await,
        }
    }

    /// Whether this fault may hit a majority of the voters with the guard on; if so, it does the
    /// next time.
    pub(super) fn widen(&mut self, fault: FaultKind) -> bool {
        match self {
            Self::Redlock(redlock) if fault == FaultKind::Wipe => {
                redlock.widen();
                true
            }
            _ => false,
        }
    }

    /// Remembers the servers' state.
    pub(super) async fn remember(&mut self) -> Result<(), Trouble> {
        match self {
            Self::Redis(redis) => redis.remember().await,
            _ => Ok(()),
        }
    }

    /// Checks that the state has only changed by our own faults.
    pub(super) async fn surprised(&self) -> Result<(), Trouble> {
        match self {
            Self::Redis(redis) => redis.surprised().await,
            _ => Ok(()),
        }
    }

    /// The leftovers on the servers.
    pub(super) async fn left(&self, locks: &[String]) -> Result<Left, Trouble> {
        match self {
            Self::Redis(redis) => left::keys(&redis.addrs()).await,
            Self::Cluster(cluster) => left::keys(&cluster.addrs()).await,
            Self::Redlock(redlock) => redlock.left(locks).await,
            Self::Zookeeper(zookeeper) => zookeeper.left().await,
            Self::Nothing | Self::Folder(_) | Self::Sql(_) => Ok(Left::new()),
        }
    }

    /// The clients' sessions at a database.
    pub(super) async fn sessions(&self) -> Result<Left, Trouble> {
        match self {
            Self::Sql(sql) => sql.sessions().await,
            _ => Ok(Left::new()),
        }
    }

    /// Whether the servers that were not hit can serve.
    pub(super) async fn others_serve(&self) -> bool {
        match self {
            Self::Redis(redis) => redis.others_serve().await,
            Self::Cluster(cluster) => cluster.others_serve().await,
            Self::Redlock(_) => true,
            Self::Zookeeper(zookeeper) => zookeeper.others_serve().await,
            Self::Nothing | Self::Folder(_) | Self::Sql(_) => false,
        }
    }

    pub(super) async fn end(&mut self, fault: FaultKind) -> Result<String, Trouble> {
        match self {
            Self::Nothing => Err(unfit(fault)),
            Self::Folder(folder) => folder.end(fault),
            Self::Redis(redis) => redis.end(fault).await,
            Self::Cluster(cluster) => cluster.end(fault).await,
            Self::Redlock(redlock) => redlock.end(fault).await,
            Self::Zookeeper(zookeeper) => zookeeper.end(fault).await,
            Self::Sql(sql) => sql.end(fault).await,
        }
    }
}

/// A fault that no server here can have.
fn unfit(fault: FaultKind) -> Trouble {
    Trouble::new(format!("nothing was started here that {fault} could hit"))
}
