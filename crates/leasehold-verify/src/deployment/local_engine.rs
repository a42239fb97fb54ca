//! The engines that a test run can start, and the faults that each can have.

use std::time::Duration;

use crate::history::{FaultKind, name_variants};

/// An engine that a test run can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LocalEngine {
    /// The engine `memory:`, for the tasks of one process; it has no server.
    Memory,
    /// The engine `file:`, for the processes of this host; it has no server.
    File,
    /// One Redis server.
    Redis,
    /// A Redis master with a replica, and the Sentinels that replace it.
    RedisSentinel,
    /// Three Redis masters that share the slots, with a replica each.
    RedisCluster,
    /// Five independent Redis servers.
    Redlock,
    /// One ZooKeeper server, or an ensemble of three if a fault hits one of them.
    Zookeeper,
    /// One MariaDB server.
    Mysql,
    /// One PostgreSQL server.
    Postgres,
}

name_variants!(LocalEngine:
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

/// An option of the engine's URL, against the loss of data, with which a test run can start it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UrlOption {
    /// `strict`: a server that may have lost a lease grants nothing until the longest lease is
    /// over.
    Strict,
    /// `replicas=1`: a grant counts only after a replica acknowledged it.
    Replicas,
}

name_variants!(UrlOption:
    Strict "strict" "a server that may have lost a lease cools down first",
    Replicas "replicas" "a grant counts only after a replica acknowledged it",
);

/// What a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultDomain {
    /// A worker's process.
    Worker,
    /// The connections between workers and servers.
    Network,
    /// A server.
    Server,
}

/// What a fault of this kind hits.
pub(super) fn fault_domain(fault: FaultKind) -> FaultDomain {
    match fault {
        _ if fault.targets_workers() => FaultDomain::Worker,
        _ if fault.targets_servers() => FaultDomain::Server,
        _ => FaultDomain::Network,
    }
}

impl LocalEngine {
    /// The default TTL of a test run: as short as the engine allows.
    ///
    /// SQL's leases and ZooKeeper's sessions have minimum lengths. Redlock gives each node a tenth
    /// of the TTL to respond, and SQL a third of it to log in, which may take half a second on a
    /// busy machine.
    pub fn default_ttl(self) -> Duration {
        Duration::from_millis(match self {
            Self::Memory | Self::File | Self::Redis | Self::RedisSentinel => 500,
            Self::RedisCluster | Self::Redlock | Self::Zookeeper | Self::Mysql | Self::Postgres => 2000,
        })
    }

    /// The TTL of a test run with these faults. A lease must last longer than a restart, or a loss
    /// of data would not matter. A restart may take a second on a busy machine, and Sentinels need
    /// some seconds to replace a master.
    pub fn ttl_for(self, faults: &[FaultKind], option: Option<UrlOption>) -> Duration {
        match self {
            Self::RedisSentinel | Self::RedisCluster if faults.contains(&FaultKind::Failover) => Duration::from_secs(6),
            // With `replicas`, the master is replaced after its clock was set back.
            Self::RedisSentinel if option == Some(UrlOption::Replicas) && faults.contains(&FaultKind::Clock) => {
                Duration::from_secs(8)
            }
            Self::Redis | Self::RedisSentinel
                if faults.iter().any(|fault| [FaultKind::Wipe, FaultKind::Clock, FaultKind::Ahead].contains(fault)) =>
            {
                Duration::from_secs(2)
            }
            Self::Redlock if faults.contains(&FaultKind::Wipe) => Duration::from_secs(4),
            // A long TTL shows whether the kernel freed the lock at once, or its lease expired.
            Self::File if faults == [FaultKind::Kill] => Duration::from_secs(6),
            _ => self.default_ttl(),
        }
    }

    /// Checks that this fault can be caused with the engine on this machine.
    ///
    /// # Errors
    /// Why not, as a message for the user.
    pub fn check_fault(self, fault: FaultKind) -> Result<(), String> {
        let why = match self.unsupported_reason(fault) {
            None if fault == FaultKind::DiskFull && !rustix::process::geteuid().is_root() => {
                Some("disk-full mounts a small disk, which only root may do")
            }
            why => why,
        };
        why.map_or(Ok(()), |why| Err(format!("{self}: {why}")))
    }

    /// Checks that the engine has this URL option.
    ///
    /// # Errors
    /// Why not, as a message for the user.
    pub fn check_option(self, option: UrlOption) -> Result<(), String> {
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

    /// All faults that can be caused with the engine on this machine.
    pub fn faults(self) -> Vec<FaultKind> {
        FaultKind::ALL.iter().copied().filter(|fault| self.check_fault(*fault).is_ok()).collect()
    }

    /// Why this fault cannot be caused with the engine; `None`: it can.
    fn unsupported_reason(self, fault: FaultKind) -> Option<&'static str> {
        match self {
            Self::Memory => unsupported_on_memory(fault),
            Self::File => unsupported_on_file(fault),
            Self::Redis => unsupported_on_redis(fault),
            Self::RedisSentinel => unsupported_on_sentinel(fault),
            Self::RedisCluster => unsupported_on_cluster(fault),
            Self::Redlock => unsupported_on_redlock(fault),
            Self::Zookeeper => unsupported_on_zookeeper(fault),
            Self::Mysql | Self::Postgres => unsupported_on_sql(fault),
        }
    }
}

/// Why this fault cannot be caused with `memory:`; `None`: it can.
fn unsupported_on_memory(fault: FaultKind) -> Option<&'static str> {
    match (fault_domain(fault), fault) {
        (_, FaultKind::Stop) => None,
        (FaultDomain::Worker, _) => Some("lives in one process: a kill ends all holders and waiters"),
        (FaultDomain::Network, _) => Some("lives in one process: there is no network to disturb"),
        (FaultDomain::Server, FaultKind::Clock | FaultKind::Ahead) => {
            Some("lives in one process, and uses a clock that never jumps")
        }
        (FaultDomain::Server, FaultKind::Evict | FaultKind::DiskFull) => {
            Some("lives in one process: there is no server to fill up")
        }
        (FaultDomain::Server, FaultKind::ReadOnly | FaultKind::Hang | FaultKind::Reshard | FaultKind::Grow) => {
            Some("lives in one process: there is no server")
        }
        (FaultDomain::Server, _) => Some("lives in one process: there is no server to kill"),
    }
}

/// Why this fault cannot be caused with `file:`; `None`: it can.
fn unsupported_on_file(fault: FaultKind) -> Option<&'static str> {
    match (fault_domain(fault), fault) {
        (FaultDomain::Worker, _) | (_, FaultKind::DiskFull) => None,
        (FaultDomain::Network, _) => Some("lives in a folder of this host: there is no network to disturb"),
        (FaultDomain::Server, FaultKind::Clock | FaultKind::Ahead) => Some("uses a clock that never jumps"),
        (FaultDomain::Server, FaultKind::Evict) => Some("lives in a folder of this host, which evicts no data"),
        (FaultDomain::Server, FaultKind::ReadOnly | FaultKind::Hang | FaultKind::Reshard | FaultKind::Grow) => {
            Some("lives in a folder of this host: there is no server")
        }
        (FaultDomain::Server, _) => Some("lives in a folder of this host: there is no server to kill"),
    }
}

/// Why this fault needs a Redis Cluster; `None`: it does not.
fn requires_cluster(fault: FaultKind) -> Option<&'static str> {
    match fault {
        FaultKind::Reshard | FaultKind::Grow => Some("only a cluster has slots: --local redis-cluster"),
        FaultKind::Hang => Some("this fault needs several masters: --local redis-cluster"),
        _ => None,
    }
}

/// Why this fault cannot be caused with one Redis server; `None`: it can.
fn unsupported_on_redis(fault: FaultKind) -> Option<&'static str> {
    match fault {
        FaultKind::Failover => Some("has one server: --local redis-sentinel and redis-cluster have replicas"),
        FaultKind::Leader => Some("has no leader; the closest fault is failover of --local redis-sentinel"),
        _ => requires_cluster(fault),
    }
}

/// Why this fault cannot be caused with Redis Sentinels; `None`: it can.
fn unsupported_on_sentinel(fault: FaultKind) -> Option<&'static str> {
    match fault {
        FaultKind::Evict | FaultKind::DiskFull => Some("this fault needs a single Redis: --local redis"),
        FaultKind::Leader => Some("has no leader; the closest fault is failover"),
        _ => requires_cluster(fault),
    }
}

/// Why this fault cannot be caused with a Redis Cluster; `None`: it can.
fn unsupported_on_cluster(fault: FaultKind) -> Option<&'static str> {
    match fault {
        FaultKind::Leader => Some("has no leader; the closest fault is failover"),
        FaultKind::Wipe => Some("the others do not recognize a node that restarts empty"),
        FaultKind::Ahead => Some("its nodes use their clocks to detect failures; use another Redis deployment"),
        FaultKind::Evict | FaultKind::DiskFull => Some("this fault needs a single Redis: --local redis"),
        _ => None,
    }
}

/// Why this fault cannot be caused with Redlock; `None`: it can.
fn unsupported_on_redlock(fault: FaultKind) -> Option<&'static str> {
    match fault {
        FaultKind::Failover => Some("its servers have no replicas to fail over to"),
        FaultKind::Leader => Some("its servers are independent: it has no leader"),
        FaultKind::Evict | FaultKind::DiskFull => Some("this fault needs a single Redis: --local redis"),
        _ => requires_cluster(fault),
    }
}

/// Why this fault cannot be caused with ZooKeeper; `None`: it can.
fn unsupported_on_zookeeper(fault: FaultKind) -> Option<&'static str> {
    match fault {
        FaultKind::Failover => Some("it elects a leader: use the fault leader"),
        FaultKind::Wipe => Some("guarantees nothing after a server restarts empty"),
        FaultKind::Clock | FaultKind::Ahead => Some("times sessions with a clock that does not jump"),
        FaultKind::Evict => Some("evicts no data"),
        FaultKind::DiskFull => Some("this fault needs redis, mysql, postgres or file"),
        FaultKind::ReadOnly => Some("has no read-only mode"),
        _ => requires_cluster(fault),
    }
}

/// Why this fault cannot be caused with MariaDB or PostgreSQL; `None`: it can.
fn unsupported_on_sql(fault: FaultKind) -> Option<&'static str> {
    match fault {
        FaultKind::Wipe => Some("guarantees nothing after a database restarts empty"),
        FaultKind::Failover => Some("has one server: there is no replica to fail over to"),
        FaultKind::Leader => Some("has one server: there is no leader"),
        FaultKind::Evict => Some("evicts no data"),
        _ => requires_cluster(fault),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_names_round_trip() {
        for local in LocalEngine::ALL {
            assert_eq!(local.as_str().parse::<LocalEngine>(), Ok(*local));
        }
        assert!("sqlite".parse::<LocalEngine>().unwrap_err().contains("zookeeper"));
    }

    #[test]
    fn unsupported_faults_are_refused_with_a_reason() {
        let why = |local: LocalEngine, fault| local.check_fault(fault).unwrap_err();
        assert_eq!(
            why(LocalEngine::Memory, FaultKind::Crash),
            "memory: lives in one process: there is no server to kill"
        );
        assert!(why(LocalEngine::File, FaultKind::Cut).contains("no network"));
        assert!(why(LocalEngine::Redis, FaultKind::Leader).contains("failover"));
        assert!(why(LocalEngine::Redis, FaultKind::Failover).contains("--local redis-sentinel"));
        assert!(why(LocalEngine::RedisSentinel, FaultKind::Reshard).contains("--local redis-cluster"));
        assert!(why(LocalEngine::Zookeeper, FaultKind::Failover).contains("leader"));
        assert!(why(LocalEngine::Redlock, FaultKind::Evict).contains("--local redis"));
        for local in LocalEngine::ALL {
            let refused = FaultKind::ALL.iter().filter_map(|fault| local.check_fault(*fault).err());
            for words in refused {
                assert!(words.starts_with(&format!("{local}: ")), "{words}");
            }
        }
    }

    #[test]
    fn each_engine_supports_its_faults() {
        assert_eq!(LocalEngine::Memory.faults(), [FaultKind::Stop]);
        assert_eq!(LocalEngine::File.faults()[..2], [FaultKind::Kill, FaultKind::Stop]);
        let networks = FaultKind::ALL.iter().filter(|fault| fault_domain(**fault) == FaultDomain::Network);
        for fault in networks {
            for local in
                LocalEngine::ALL.iter().filter(|local| ![LocalEngine::Memory, LocalEngine::File].contains(local))
            {
                assert_eq!(local.check_fault(*fault), Ok(()), "{local} {fault}");
            }
        }
        for fault in [FaultKind::Failover, FaultKind::Hang, FaultKind::Reshard, FaultKind::Grow] {
            assert!(LocalEngine::RedisCluster.faults().contains(&fault), "{fault}");
        }
        assert!(LocalEngine::RedisSentinel.faults().contains(&FaultKind::Failover));
        assert!(LocalEngine::Zookeeper.faults().contains(&FaultKind::Leader));
    }

    #[test]
    fn ttls_are_short_where_they_can_be() {
        assert!(LocalEngine::Redis.default_ttl() <= Duration::from_millis(500));
        assert!(LocalEngine::RedisSentinel.ttl_for(&[FaultKind::Failover], None) >= Duration::from_secs(4));
        assert_eq!(LocalEngine::Mysql.ttl_for(&[FaultKind::Failover], None), LocalEngine::Mysql.default_ttl());
        assert!(LocalEngine::File.ttl_for(&[FaultKind::Kill], None) >= Duration::from_secs(3));
    }
}
