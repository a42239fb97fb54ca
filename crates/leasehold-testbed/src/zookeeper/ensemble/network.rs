//! The network between the members: a proxy for each ordered pair.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use tokio::net::TcpSocket;

use super::socks_router::SocksRouter;
use crate::{Error, Proxy, Result};

/// The ports on which one member listens for the others.
#[derive(Debug)]
pub(super) struct PeerPorts {
    pub(super) quorum: TcpSocket,
    pub(super) election: TcpSocket,
}

/// The connections between all members. Each member has its own router, which it uses for all
/// outgoing connections.
///
/// Different addresses in each member's configuration would not work: the members exchange their
/// own addresses, and connect to those.
#[derive(Debug)]
pub(super) struct PeerNetwork {
    /// The SOCKS router of each member.
    routers: Vec<SocksRouter>,
    peer_proxies: Vec<PeerProxy>,
    /// Whether each member is cut off from all others.
    is_cut_off: Vec<bool>,
    /// The two addresses at which each member listens for the others.
    addrs: Vec<[SocketAddr; 2]>,
    /// Keeps the members' ports reserved, also while they are down.
    _reserved: Vec<PeerPorts>,
}

#[derive(Debug)]
struct PeerProxy {
    from: usize,
    to: usize,
    proxy: Proxy,
    /// The number of connections before the last heal; those are closed.
    ended_connections: u64,
}

impl PeerNetwork {
    pub(super) async fn start(ports: Vec<PeerPorts>) -> Result<Self> {
        let addr = |socket: &TcpSocket| socket.local_addr().map_err(Error::io("reading a reserved port"));
        let addrs = ports
            .iter()
            .map(|ports| Ok([addr(&ports.quorum)?, addr(&ports.election)?]))
            .collect::<Result<Vec<[SocketAddr; 2]>>>()?;
        let (mut routers, mut ways) = (Vec::new(), Vec::new());
        for from in 0..addrs.len() {
            let mut routes = HashMap::new();
            for (to, targets) in addrs.iter().enumerate().filter(|(to, _)| *to != from) {
                for &target in targets {
                    let proxy = Proxy::start(target).await?;
                    routes.insert(target, proxy.addr());
                    ways.push(PeerProxy { from, to, proxy, ended_connections: 0 });
                }
            }
            routers.push(SocksRouter::start(routes)?);
        }
        Ok(Self { routers, peer_proxies: ways, is_cut_off: vec![false; addrs.len()], addrs, _reserved: ports })
    }

    /// The lines that list all members in each member's configuration.
    pub(super) fn server_entries(&self) -> Vec<(String, String)> {
        let entry = |(index, [quorum, election]): (usize, &[SocketAddr; 2])| {
            let ports = format!("{}:{}:{}", Ipv4Addr::LOCALHOST, quorum.port(), election.port());
            (format!("server.{}", index + 1), ports)
        };
        self.addrs.iter().enumerate().map(entry).collect()
    }

    /// The port of a member's router.
    pub(super) fn router_port(&self, index: usize) -> u16 {
        self.routers[index].port()
    }

    pub(super) fn is_cut_off(&self, at: usize) -> bool {
        self.is_cut_off[at]
    }

    pub(super) fn cut_off(&mut self, at: usize) {
        self.is_cut_off[at] = true;
        for way in self.proxies_of(at) {
            way.proxy.freeze(true);
        }
    }

    pub(super) fn heal(&mut self, at: usize) {
        if !self.is_cut_off[at] {
            return;
        }
        self.is_cut_off[at] = false;
        let cut_off = &self.is_cut_off;
        let healed = |way: &&mut PeerProxy| (way.from == at || way.to == at) && !cut_off[way.from] && !cut_off[way.to];
        for way in self.peer_proxies.iter_mut().filter(healed) {
            // Reconnects the two members. While the proxy ends their old connections and counts
            // them, it refuses new ones.
            way.proxy.refuse(true);
            way.proxy.cut();
            way.ended_connections = way.proxy.counts().accepted;
            way.proxy.freeze(false);
            way.proxy.refuse(false);
        }
    }

    /// Whether a member has connected to the leader since both were last healed.
    pub(super) fn is_connected_to_leader(&self, member: usize, leader: usize) -> bool {
        let mut quorum = self.peer_proxies.iter().filter(|way| (way.from, way.to) == (member, leader));
        quorum.next().is_some_and(|way| way.proxy.counts().accepted > way.ended_connections)
    }

    pub(super) fn delay(&self, one: usize, other: usize, delay: Duration) {
        for way in self.proxies_of(one).filter(|way| way.from == other || way.to == other) {
            way.proxy.delay(delay);
        }
    }

    fn proxies_of(&self, at: usize) -> impl Iterator<Item = &PeerProxy> {
        self.peer_proxies.iter().filter(move |way| way.from == at || way.to == at)
    }
}
