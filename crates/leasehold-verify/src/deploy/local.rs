//! Which engines can be started here, and what can go wrong with each.

use std::time::Duration;

use crate::history::{FaultKind, named};

/// Which engine to start here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Local {
    /// The tasks of one process.
    Memory,
    /// The processes of this host, in a folder.
    File,
    /// One Redis; with Sentinels and a replica where the master is to be replaced.
    Redis,
    /// Five Redis servers that know nothing of each other.
    Redlock,
    /// A ZooKeeper; an ensemble of three where one of them is to be hit.
    Zookeeper,
    /// A MariaDB.
    Mysql,
    /// A PostgreSQL.
    Postgres,
}

named!(Local:
    Memory "memory" "the tasks of one process",
    File "file" "the processes of this host, in a folder",
    Redis "redis" "a Redis server; Sentinels and a replica for failover",
    Redlock "redlock" "five independent Redis servers",
    Zookeeper "zookeeper" "a ZooKeeper server, or an ensemble of three",
    Mysql "mysql" "a MariaDB server",
    Postgres "postgres" "a PostgreSQL server",
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
    /// SQL's leases and ZooKeeper's sessions have least lengths; Redlock gives each node a tenth of the TTL to answer, and SQL a third of it
    /// to log in: on a busy machine that may take half a second.
    pub fn ttl(self) -> Duration {
        Duration::from_millis(match self {
            Self::Memory | Self::File | Self::Redis => 500,
            Self::Redlock | Self::Zookeeper | Self::Mysql | Self::Postgres => 2000,
        })
    }

    /// The same where these faults are to happen. A lease that has ended before the server is back shows nothing of what the server
    /// forgot: a restart takes a good part of a second on a busy machine, and Sentinels need some seconds to replace a master.
    pub fn ttl_for(self, faults: &[FaultKind]) -> Duration {
        match self {
            Self::Redis if faults.contains(&FaultKind::Failover) => Duration::from_secs(6),
            Self::Redis
                if faults.iter().any(|fault| [FaultKind::Wipe, FaultKind::Clock, FaultKind::Ahead].contains(fault)) =>
            {
                Duration::from_secs(2)
            }
            Self::Redlock if faults.contains(&FaultKind::Wipe) => Duration::from_secs(4),
            // What the kernel frees at once must be told from what a lease's end frees.
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

    /// All faults that can be caused here.
    pub fn faults(self) -> Vec<FaultKind> {
        FaultKind::ALL.iter().copied().filter(|fault| self.can(*fault).is_ok()).collect()
    }

    fn why_not(self, fault: FaultKind) -> Option<&'static str> {
        match self {
            Self::Memory => of_memory(fault),
            Self::File => of_file(fault),
            Self::Redis => of_redis(fault),
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
        (Side::Server, _) => Some("lives in one process: there is no server to kill"),
    }
}

fn of_file(fault: FaultKind) -> Option<&'static str> {
    match (side(fault), fault) {
        (Side::Worker, _) | (_, FaultKind::DiskFull) => None,
        (Side::Network, _) => Some("lives in a folder of this host: there is no network to disturb"),
        (Side::Server, FaultKind::Clock | FaultKind::Ahead) => Some("counts by a clock that never jumps"),
        (Side::Server, FaultKind::Evict) => Some("lives in a folder of this host, which throws nothing away"),
        (Side::Server, _) => Some("lives in a folder of this host: there is no server to kill"),
    }
}

fn of_redis(fault: FaultKind) -> Option<&'static str> {
    match fault {
        FaultKind::Leader => Some("has no leader; what comes nearest is failover"),
        _ => None,
    }
}

fn of_redlock(fault: FaultKind) -> Option<&'static str> {
    match fault {
        FaultKind::Failover => Some("its servers have no replicas: there is nobody to fail over to"),
        FaultKind::Leader => Some("its servers know nothing of each other: none of them leads"),
        FaultKind::Evict | FaultKind::DiskFull => Some("this is done to one Redis alone: --local redis"),
        _ => None,
    }
}

fn of_zookeeper(fault: FaultKind) -> Option<&'static str> {
    match fault {
        FaultKind::Failover => Some("it elects a leader: the fault is called leader"),
        FaultKind::Wipe => Some("promises nothing when a server comes back without its data"),
        FaultKind::Clock | FaultKind::Ahead => Some("counts sessions by a clock that does not jump"),
        FaultKind::Evict => Some("throws nothing away"),
        FaultKind::DiskFull => Some("this is done to redis, mysql, postgres and file only"),
        _ => None,
    }
}

fn of_sql(fault: FaultKind) -> Option<&'static str> {
    match fault {
        FaultKind::Wipe => Some("promises nothing when a database comes back without its data"),
        FaultKind::Failover => Some("one server is started here: there is no replica to fail over to"),
        FaultKind::Leader => Some("one server is started here: it has no leader"),
        FaultKind::Evict => Some("throws nothing away"),
        _ => None,
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
            for local in [Local::Redis, Local::Redlock, Local::Zookeeper, Local::Mysql, Local::Postgres] {
                assert_eq!(local.can(*fault), Ok(()), "{local} {fault}");
            }
        }
        assert!(Local::Redis.faults().contains(&FaultKind::Failover));
        assert!(Local::Zookeeper.faults().contains(&FaultKind::Leader));
    }

    #[test]
    fn ttls_are_short_where_they_can_be() {
        assert!(Local::Redis.ttl() <= Duration::from_millis(500));
        assert!(Local::Redis.ttl_for(&[FaultKind::Failover]) >= Duration::from_secs(4));
        assert_eq!(Local::Mysql.ttl_for(&[FaultKind::Failover]), Local::Mysql.ttl());
        assert!(Local::File.ttl_for(&[FaultKind::Kill]) >= Duration::from_secs(3));
    }
}
