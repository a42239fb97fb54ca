//! The engines that can be started here, and the faults that each can have.

use std::time::Duration;

use crate::history::{FaultKind, named};

/// An engine to start here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Local {
    /// For the tasks of one process.
    Memory,
    /// For the processes of this host, in a folder.
    File,
    /// One Redis.
    Redis,
    /// A Redis master with a replica, and the Sentinels that replace it.
    RedisSentinel,
    /// Three Redis masters that share the slots, with a replica each.
    RedisCluster,
    /// Five independent Redis servers.
    Redlock,
    /// A ZooKeeper; an ensemble of three if a fault hits one of them.
    Zookeeper,
    /// A MariaDB.
    Mysql,
    /// A PostgreSQL.
    Postgres,
}

named!(Local:
    Memory "memory" "the tasks of one process",
    File "file" "the processes of this host, in a folder",
    Redis "redis" "a Redis server",
    RedisSentinel "redis-sentinel" "a Redis master, its replica and three Sentinels",
    RedisCluster "redis-cluster" "a Redis Cluster: three masters with a replica each",
    Redlock "redlock" "five independent Redis servers",
    Zookeeper "zookeeper" "a ZooKeeper server, or an ensemble of three",
    Mysql "mysql" "a MariaDB server",
    Postgres "postgres" "a PostgreSQL server",
);

/// An option of the engine's URL that a deployment can be started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UrlOption {
    /// `strict`: a server that may have lost a lease's record cools down for the longest lease.
    Strict,
    /// `replicas=1`: a grant counts only after a replica acknowledged it.
    Replicas,
}

named!(UrlOption:
    Strict "strict" "a server that may have forgotten a lease cools down first",
    Replicas "replicas" "a grant counts only when a replica has it",
);

/// What a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Worker,
    Network,
    Server,
}

pub(super) fn side(fault: FaultKind) -> Side {
    match fault {
        _ if fault.hits_workers() => Side::Worker,
        _ if fault.hits_servers() => Side::Server,
        _ => Side::Network,
    }
}

impl Local {
    /// A TTL that suits it: short, so that runs are short.
    ///
    /// SQL's leases and ZooKeeper's sessions have minimum lengths. Redlock gives each node a tenth
    /// of the TTL to respond, and SQL a third of it to log in: on a busy machine that may take half
    /// a second.
    pub fn ttl(self) -> Duration {
        Duration::from_millis(match self {
            Self::Memory | Self::File | Self::Redis | Self::RedisSentinel => 500,
            Self::RedisCluster | Self::Redlock | Self::Zookeeper | Self::Mysql | Self::Postgres => 2000,
        })
    }

    /// The same under these faults. If a lease expires before the server is back, it does not show
    /// the server's loss of data. A restart takes a good part of a second on a busy machine, and
    /// Sentinels need some seconds to replace a master.
    pub fn ttl_for(self, faults: &[FaultKind], option: Option<UrlOption>) -> Duration {
        match self {
            Self::RedisSentinel | Self::RedisCluster if faults.contains(&FaultKind::Failover) => Duration::from_secs(6),
            // There the master is replaced after its clock was set back.
            Self::RedisSentinel if option == Some(UrlOption::Replicas) && faults.contains(&FaultKind::Clock) => {
                Duration::from_secs(8)
            }
            Self::Redis | Self::RedisSentinel
                if faults.iter().any(|fault| [FaultKind::Wipe, FaultKind::Clock, FaultKind::Ahead].contains(fault)) =>
            {
                Duration::from_secs(2)
            }
            Self::Redlock if faults.contains(&FaultKind::Wipe) => Duration::from_secs(4),
            // A lock that the kernel frees at once must be distinguishable from an expired lease.
            Self::File if faults == [FaultKind::Kill] => Duration::from_secs(6),
            _ => self.ttl(),
        }
    }

    /// Whether this fault can be caused here.
    ///
    /// # Errors
    /// Why not, in words for the user.
    pub fn can(self, fault: FaultKind) -> Result<(), String> {
        let why = match self.why_not(fault) {
            None if fault == FaultKind::DiskFull && !rustix::process::geteuid().is_root() => {
                Some("disk-full needs a small disk of its own, which only root may mount")
            }
            why => why,
        };
        why.map_or(Ok(()), |why| Err(format!("{self}: {why}")))
    }

    /// Whether it has this option.
    ///
    /// # Errors
    /// Why not, in words for the user.
    pub fn has(self, option: UrlOption) -> Result<(), String> {
        let has = match option {
            UrlOption::Strict => {
                matches!(self, Self::Redis | Self::RedisSentinel | Self::RedisCluster | Self::Redlock)
            }
            UrlOption::Replicas => matches!(self, Self::RedisSentinel | Self::RedisCluster),
        };
        let why = || match option {
            UrlOption::Strict => {
                format!("{self}: strict is an option of redis, redis-sentinel, redis-cluster and redlock")
            }
            UrlOption::Replicas => format!("{self}: only redis-sentinel and redis-cluster are started with replicas"),
        };
        if has { Ok(()) } else { Err(why()) }
    }

    /// All faults that can be caused here.
    pub fn faults(self) -> Vec<FaultKind> {
        FaultKind::ALL.iter().copied().filter(|fault| self.can(*fault).is_ok()).collect()
    }

    fn why_not(self, fault: FaultKind) -> Option<&'static str> {
        match self {
            Self::Memory => of_memory(fault),
            Self::File => of_file(fault),
            Self::Redis => of_redis(fault),
            Self::RedisSentinel => of_sentinel(fault),
            Self::RedisCluster => of_cluster(fault),
            Self::Redlock => of_redlock(fault),
            Self::Zookeeper => of_zookeeper(fault),
            Self::Mysql | Self::Postgres => of_sql(fault),
        }
    }
}

fn of_memory(fault: FaultKind) -> Option<&'static str> {
    match (side(fault), fault) {
        (_, FaultKind::Stop) => None,
        (Side::Worker, _) => Some("lives in one process: with it, all who hold and wait are gone"),
        (Side::Network, _) => Some("lives in one process: there is no network to disturb"),
        (Side::Server, FaultKind::Clock | FaultKind::Ahead) => {
            Some("lives in one process, and counts by a clock that never jumps")
        }
        (Side::Server, FaultKind::Evict | FaultKind::DiskFull) => {
            Some("lives in one process: there is no server to fill up")
        }
        (Side::Server, FaultKind::ReadOnly | FaultKind::Hang | FaultKind::Reshard | FaultKind::Grow) => {
            Some("lives in one process: there is no server")
        }
        (Side::Server, _) => Some("lives in one process: there is no server to kill"),
    }
}

fn of_file(fault: FaultKind) -> Option<&'static str> {
    match (side(fault), fault) {
        (Side::Worker, _) | (_, FaultKind::DiskFull) => None,
        (Side::Network, _) => Some("lives in a folder of this host: there is no network to disturb"),
        (Side::Server, FaultKind::Clock | FaultKind::Ahead) => Some("counts by a clock that never jumps"),
        (Side::Server, FaultKind::Evict) => Some("lives in a folder of this host, which throws nothing away"),
        (Side::Server, FaultKind::ReadOnly | FaultKind::Hang | FaultKind::Reshard | FaultKind::Grow) => {
            Some("lives in a folder of this host: there is no server")
        }
        (Side::Server, _) => Some("lives in a folder of this host: there is no server to kill"),
    }
}

/// Only a cluster has slots, and other masters that go on.
fn of_cluster_alone(fault: FaultKind) -> Option<&'static str> {
    match fault {
        FaultKind::Reshard | FaultKind::Grow => Some("only a cluster has slots: --local redis-cluster"),
        FaultKind::Hang => Some("this is done to one master of several: --local redis-cluster"),
        _ => None,
    }
}

fn of_redis(fault: FaultKind) -> Option<&'static str> {
    match fault {
        FaultKind::Failover => {
            Some("one server is started here: --local redis-sentinel and redis-cluster have replicas")
        }
        FaultKind::Leader => Some("has no leader; what comes nearest is failover of --local redis-sentinel"),
        _ => of_cluster_alone(fault),
    }
}

fn of_sentinel(fault: FaultKind) -> Option<&'static str> {
    match fault {
        FaultKind::Evict | FaultKind::DiskFull => Some("this is done to one Redis alone: --local redis"),
        FaultKind::Leader => Some("has no leader; what comes nearest is failover"),
        _ => of_cluster_alone(fault),
    }
}

fn of_cluster(fault: FaultKind) -> Option<&'static str> {
    match fault {
        FaultKind::Leader => Some("has no leader; what comes nearest is failover"),
        FaultKind::Wipe => Some("a node that comes back without its data is a stranger to the others"),
        FaultKind::Ahead => {
            Some("its nodes judge each other by their clocks; this is done to the other Redis deployments")
        }
        FaultKind::Evict | FaultKind::DiskFull => Some("this is done to one Redis alone: --local redis"),
        _ => None,
    }
}

fn of_redlock(fault: FaultKind) -> Option<&'static str> {
    match fault {
        FaultKind::Failover => Some("its servers have no replicas: there is nobody to fail over to"),
        FaultKind::Leader => Some("its servers know nothing of each other: none of them leads"),
        FaultKind::Evict | FaultKind::DiskFull => Some("this is done to one Redis alone: --local redis"),
        _ => of_cluster_alone(fault),
    }
}

fn of_zookeeper(fault: FaultKind) -> Option<&'static str> {
    match fault {
        FaultKind::Failover => Some("it elects a leader: the fault is called leader"),
        FaultKind::Wipe => Some("promises nothing when a server comes back without its data"),
        FaultKind::Clock | FaultKind::Ahead => Some("counts sessions by a clock that does not jump"),
        FaultKind::Evict => Some("throws nothing away"),
        FaultKind::DiskFull => Some("this is done to redis, mysql, postgres and file only"),
        FaultKind::ReadOnly => Some("has no switch that makes a server read-only"),
        _ => of_cluster_alone(fault),
    }
}

fn of_sql(fault: FaultKind) -> Option<&'static str> {
    match fault {
        FaultKind::Wipe => Some("promises nothing when a database comes back without its data"),
        FaultKind::Failover => Some("one server is started here: there is no replica to fail over to"),
        FaultKind::Leader => Some("one server is started here: it has no leader"),
        FaultKind::Evict => Some("throws nothing away"),
        _ => of_cluster_alone(fault),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for local in Local::ALL {
            assert_eq!(local.as_str().parse::<Local>(), Ok(*local));
        }
        assert!("sqlite".parse::<Local>().unwrap_err().contains("zookeeper"));
    }

    #[test]
    fn what_cannot_be_is_refused_in_words() {
        let why = |local: Local, fault| local.can(fault).unwrap_err();
        assert_eq!(why(Local::Memory, FaultKind::Crash), "memory: lives in one process: there is no server to kill");
        assert!(why(Local::File, FaultKind::Cut).contains("no network"));
        assert!(why(Local::Redis, FaultKind::Leader).contains("failover"));
        assert!(why(Local::Redis, FaultKind::Failover).contains("--local redis-sentinel"));
        assert!(why(Local::RedisSentinel, FaultKind::Reshard).contains("--local redis-cluster"));
        assert!(why(Local::Zookeeper, FaultKind::Failover).contains("leader"));
        assert!(why(Local::Redlock, FaultKind::Evict).contains("--local redis"));
        for local in Local::ALL {
            let refused = FaultKind::ALL.iter().filter_map(|fault| local.can(*fault).err());
            for words in refused {
                assert!(words.starts_with(&format!("{local}: ")), "{words}");
            }
        }
    }

    #[test]
    fn each_can_do_what_it_should() {
        assert_eq!(Local::Memory.faults(), [FaultKind::Stop]);
        assert_eq!(Local::File.faults()[..2], [FaultKind::Kill, FaultKind::Stop]);
        let networks = FaultKind::ALL.iter().filter(|fault| side(**fault) == Side::Network);
        for fault in networks {
            for local in Local::ALL.iter().filter(|local| ![Local::Memory, Local::File].contains(local)) {
                assert_eq!(local.can(*fault), Ok(()), "{local} {fault}");
            }
        }
        for fault in [FaultKind::Failover, FaultKind::Hang, FaultKind::Reshard, FaultKind::Grow] {
            assert!(Local::RedisCluster.faults().contains(&fault), "{fault}");
        }
        assert!(Local::RedisSentinel.faults().contains(&FaultKind::Failover));
        assert!(Local::Zookeeper.faults().contains(&FaultKind::Leader));
    }

    #[test]
    fn ttls_are_short_where_they_can_be() {
        assert!(Local::Redis.ttl() <= Duration::from_millis(500));
        assert!(Local::RedisSentinel.ttl_for(&[FaultKind::Failover], None) >= Duration::from_secs(4));
        assert_eq!(Local::Mysql.ttl_for(&[FaultKind::Failover], None), Local::Mysql.ttl());
        assert!(Local::File.ttl_for(&[FaultKind::Kill], None) >= Duration::from_secs(3));
    }
}
