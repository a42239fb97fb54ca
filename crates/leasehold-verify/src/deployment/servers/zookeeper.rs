//! One ZooKeeper server, or an ensemble of three.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold_testbed::zookeeper::{self, Ensemble, ZooKeeper};
use leasehold_testbed::{Data, Server};

use super::leftovers::{self, Leftovers};
use super::unsupported_fault;
use crate::deployment::{ActiveFault, DeploymentOptions, RunError, format};
use crate::history::FaultKind;
use crate::rng::Rng;

/// How many members an ensemble has.
const MEMBERS: usize = 3;
/// The longest wait for the ensemble to recover.
const RECOVERY_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;
/// How soon members notice that one is cut off; shorter than a partition.
const PARTITION_TIMEOUT: Duration = Duration::from_secs(2);
/// The parent path of the locks.
const ROOT_PATH: &str = "/verify";

/// One ZooKeeper server, or an ensemble of three.
pub(in crate::deployment) struct ZookeeperServers {
    servers: Topology,
    /// The index of the member that was hit last.
    target: usize,
    ttl: Duration,
}

enum Topology {
    Single(Server),
    Ensemble(Ensemble),
}

impl ZookeeperServers {
    pub(super) async fn start(options: &DeploymentOptions) -> Result<Self, RunError> {
        let needs_ensemble = [FaultKind::Leader, FaultKind::Partition, FaultKind::Crash];
        let servers = if needs_ensemble.iter().any(|fault| options.has_fault(*fault)) {
            let mut member = ZooKeeper::new();
            if options.has_fault(FaultKind::Partition) {
                member = member.peer_timeout(PARTITION_TIMEOUT);
            }
            Topology::Ensemble(Ensemble::start_with(MEMBERS, &member).await?)
        } else {
            Topology::Single(zookeeper::start().await?)
        };
        Ok(Self { servers, target: 0, ttl: options.ttl })
    }

    /// The engine's URL without the proxies.
    pub(super) fn url(&self) -> String {
        let hosts: Vec<String> = self.addrs().iter().map(SocketAddr::to_string).collect();
        format!("zookeeper://{}{ROOT_PATH}", hosts.join(","))
    }

    /// The addresses of the servers that get a proxy.
    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        match &self.servers {
            Topology::Single(server) => vec![server.addr()],
            Topology::Ensemble(ensemble) => ensemble.servers().iter().map(Server::addr).collect(),
        }
    }

    /// The ephemeral nodes that are left although all workers have ended.
    pub(super) async fn leftovers(&self) -> Result<Leftovers, RunError> {
        leftovers::ephemeral_nodes(&self.addrs(), ROOT_PATH).await
    }

    /// The versions that the servers report, such as `redis-server 7.0.15`.
    pub(super) async fn versions(&self) -> Result<Vec<String>, RunError> {
        let mut versions = Vec::new();
        for addr in self.addrs() {
            let answer = zookeeper::send_word(addr, "srvr").await?;
            let line = answer.lines().find_map(|line| line.strip_prefix("Zookeeper version: ")).unwrap_or_default();
            let number = line.split(['-', ',']).next().unwrap_or_default();
            versions.push(format!("zookeeper {number}"));
        }
        versions.dedup();
        Ok(versions)
    }

    /// Begins a fault. Fails if these servers cannot have it.
    pub(super) async fn begin_fault(&mut self, fault: FaultKind, rng: &mut Rng) -> Result<ActiveFault, RunError> {
        let Topology::Ensemble(ensemble) = &mut self.servers else { return Err(unsupported_fault(fault)) };
        let leader = ensemble.leader().await?;
        let any = rng.below(MEMBERS as u64) as usize;
        self.target = match fault {
            FaultKind::Leader => leader,
            FaultKind::Partition if rng.one_in(2) => leader,
            _ => any,
        };
        let role = if self.target == leader { ", the leader" } else { ", a follower" };
        let target = format!("{}{role}", format::server_name(self.target, MEMBERS));
        match fault {
            FaultKind::Leader | FaultKind::Crash => {
                ensemble.server_mut(self.target).kill()?;
                Ok(ActiveFault::new(target, ActiveFault::outage_duration(self.ttl, rng)).with_others_serving())
            }
            FaultKind::Partition => {
                ensemble.cut_off(self.target);
                let target = format!("{target}: cut off from the others, but not from its clients");
                Ok(ActiveFault::new(target, rng.duration_in(self.ttl * 6 / 5, self.ttl * 5 / 2)).with_others_serving())
            }
            _ => Err(unsupported_fault(fault)),
        }
    }

    /// Whether a member that was not hit leads, which means that a majority follows it.
    pub(super) async fn can_others_serve(&self) -> bool {
        for (at, addr) in self.addrs().into_iter().enumerate() {
            if at != self.target
                && zookeeper::send_word(addr, "srvr").await.is_ok_and(|answer| answer.contains("Mode: leader"))
            {
                return true;
            }
        }
        false
    }

    /// Ends the active fault, and waits until the servers respond. Returns a note on the result.
    pub(super) async fn end_fault(&mut self, fault: FaultKind) -> Result<String, RunError> {
        let Topology::Ensemble(ensemble) = &mut self.servers else { return Err(unsupported_fault(fault)) };
        match fault {
            FaultKind::Leader | FaultKind::Crash => ensemble.server_mut(self.target).restart(Data::Keep).await?,
            FaultKind::Partition => ensemble.heal(self.target),
            _ => return Err(unsupported_fault(fault)),
        }
        ensemble.wait_until_settled(RECOVERY_TIMEOUT).await?;
        Ok(format!("{} leads now", format::server_name(ensemble.leader().await?, MEMBERS)))
    }
}
