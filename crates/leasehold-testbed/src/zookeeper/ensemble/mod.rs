//! Servers that elect a leader and vote on each write.

mod member_spec;
mod network;
mod socks_router;
mod status;

use std::{net::SocketAddr, time::Duration};

use futures_util::future::try_join_all;

use super::ZooKeeper;
use crate::{Error, Result, Server, process::reserve_port};
use member_spec::EnsembleMember;
use network::{PeerNetwork, PeerPorts};

/// The time limit of the first election. Only a failing test waits this long.
const START_TIMEOUT: Duration = crate::TEST_TIMEOUT;

/// Servers that elect a leader; writes need more than half of them.
///
/// They are numbered from 0, and ZooKeeper counts from 1: server 0 has `myid` 1. They communicate
/// through [`Proxy`](crate::Proxy)s, so that one can be cut off from the others while its clients
/// still reach it:
///
/// ```no_run
/// # async fn example() -> leasehold_testbed::Result<()> {
/// use leasehold_testbed::zookeeper::Ensemble;
///
/// let mut ensemble = Ensemble::start(3).await?;
/// let old = ensemble.leader().await?;
/// ensemble.cut_off(old);
/// let new = ensemble.leader().await?;
/// assert_ne!(old, new);
/// ensemble.heal(old);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Ensemble {
    // The servers must end before the network: fields drop in this order.
    servers: Vec<Server>,
    network: PeerNetwork,
}

impl Ensemble {
    /// Starts `count` servers, usually three, and waits until they have a leader and all serve.
    ///
    /// # Errors
    ///
    /// As [`Server::start`]; [`Error::TimedOut`] if they elect no leader.
    pub async fn start(count: usize) -> Result<Self> {
        Self::start_with(count, &ZooKeeper::new()).await
    }

    /// Like [`Ensemble::start`], with the settings of `template` for each server.
    ///
    /// # Errors
    ///
    /// As [`Ensemble::start`].
    pub async fn start_with(count: usize, template: &ZooKeeper) -> Result<Self> {
        let reserving = || Error::io("reserving ports for an ensemble");
        let mut ports = Vec::new();
        for _ in 0..count {
            let (quorum, election) = (reserve_port().map_err(reserving())?, reserve_port().map_err(reserving())?);
            ports.push(PeerPorts { quorum, election });
        }
        let network = PeerNetwork::start(ports).await?;
        let starting = (0..count).map(|index| {
            let entries = network.server_entries();
            Server::start(EnsembleMember {
                zookeeper: template.clone(),
                index,
                server_entries: entries,
                router_port: network.router_port(index),
            })
        });
        let servers = try_join_all(starting).await?;
        let ensemble = Self { servers, network };
        ensemble.wait_until_settled(START_TIMEOUT).await?;
        Ok(ensemble)
    }

    /// ZooKeeper's connect string with all servers: `127.0.0.1:2181,127.0.0.1:2182,…`
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.servers.iter().map(|server| server.addr().to_string()).collect();
        hosts.join(",")
    }

    /// The address at which the server with this number, counted from 0, accepts clients.
    pub fn addr(&self, at: usize) -> SocketAddr {
        self.servers[at].addr()
    }

    /// The server with this number, counted from 0.
    pub fn server(&self, at: usize) -> &Server {
        &self.servers[at]
    }

    /// The server with this number, counted from 0: to kill, pause or restart it.
    ///
    /// A restart only waits until it responds, because it may be the only one that is up;
    /// [`Ensemble::wait_until_settled`] waits until it serves.
    pub fn server_mut(&mut self, at: usize) -> &mut Server {
        &mut self.servers[at]
    }

    /// All servers.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Cuts a server off from the others, but not from its clients. Messages are dropped in both
    /// directions without notice, as in a network failure.
    pub fn cut_off(&mut self, at: usize) {
        self.network.cut_off(at);
    }

    /// Reconnects a server that was cut off, over new connections: messages sent meanwhile are
    /// lost.
    pub fn heal(&mut self, at: usize) {
        self.network.heal(at);
    }

    /// Delays all messages between two servers, in each direction.
    pub fn delay(&self, one: usize, other: usize, delay: Duration) {
        self.network.delay(one, other, delay);
    }
}
