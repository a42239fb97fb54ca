//! A cluster: masters that share the slots, and replicas that can be promoted.

mod agreement;
mod formation;
mod membership;
mod migration;
mod node_spec;
mod slot;
mod view;

pub use migration::Migration;
pub use slot::slot_of;

use std::{net::SocketAddr, time::Duration};

use futures_util::future::try_join_all;

use super::{Redis, command};
use crate::{Error, Result, Server};
use formation::StandaloneNode;
use node_spec::ClusterNode;

/// The time limit for forming a cluster. Only a failing test waits this long.
const START_TIMEOUT: Duration = crate::TEST_TIMEOUT;
/// The default time after which an unresponsive node counts as down.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);

/// A cluster whose masters share the slots evenly.
///
/// The nodes are numbered from 0: the first masters, in the order of their slots, then the
/// replicas, the first of each master before the second of any. They keep their numbers over a
/// failover. A node counts as down if it does not respond for two seconds, or for [another
/// time](Cluster::start_with_node_timeout). A replica replaces it if most masters are up, so a
/// fail-over needs at least three masters.
///
/// A node may be restarted with [`Data::Keep`](crate::Data::Keep); with
/// [`Data::Wipe`](crate::Data::Wipe) the others would not recognize it.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
    /// The ids by which the nodes know each other, in the order of `nodes`.
    node_ids: Vec<String>,
    /// The number of the last known owner of each slot, to detect a failover.
    slot_owners: Vec<usize>,
    /// The numbers of the replicas that [`Cluster::cut_replication`] has paused.
    paused_replicas: Vec<usize>,
    /// A running node outside the cluster; see [`Cluster::start_spare_node`].
    spare_node: Option<Server>,
    node_timeout: Duration,
}

impl Cluster {
    /// Starts a cluster and waits until all nodes report it as healthy.
    ///
    /// # Errors
    ///
    /// As [`Server::start`]; [`Error::TimedOut`] if the nodes do not agree in time.
    ///
    /// # Panics
    ///
    /// Without masters.
    pub async fn start(masters: usize, replicas_per_master: usize) -> Result<Self> {
        Self::start_with_node_timeout(masters, replicas_per_master, NODE_TIMEOUT, |_| Redis::new()).await
    }

    /// Like [`Cluster::start`], with this time limit for unresponsive nodes; `node` returns the
    /// settings of each node by its number.
    ///
    /// # Errors
    ///
    /// As [`Cluster::start`].
    ///
    /// # Panics
    ///
    /// Without masters.
    pub async fn start_with_node_timeout(
        masters: usize,
        replicas_per_master: usize,
        timeout: Duration,
        node: impl Fn(usize) -> Redis,
    ) -> Result<Self> {
        assert!(masters > 0, "a cluster needs masters");
        let count = masters * (1 + replicas_per_master);
        let nodes =
            try_join_all((0..count).map(|at| Server::start(ClusterNode { redis: node(at), node_timeout: timeout })))
                .await?;
        let standalone = try_join_all(nodes.iter().map(read_identity)).await?;
        let owners = formation::assign_slots(masters);
        formation::form_cluster(&standalone, &owners).await?;
        let ids = standalone.into_iter().map(|node| node.id).collect();
        let cluster = Self {
            nodes,
            node_ids: ids,
            slot_owners: owners,
            paused_replicas: Vec::new(),
            spare_node: None,
            node_timeout: timeout,
        };
        cluster.wait_until_settled(START_TIMEOUT).await?;
        Ok(cluster)
    }

    /// The URL by which clients find the cluster: all of its nodes.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.addrs().iter().map(SocketAddr::to_string).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// The addresses of the nodes.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(Server::addr).collect()
    }

    /// The nodes.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// The nodes, to kill, pause and restart.
    pub fn nodes_mut(&mut self) -> &mut [Server] {
        &mut self.nodes
    }

    /// Kills a node.
    ///
    /// # Errors
    ///
    /// As [`Server::kill`].
    pub fn kill_node(&mut self, index: usize) -> Result<()> {
        self.nodes[index].kill()
    }

    /// Cuts off the replicas of a master, so that none of its later writes reaches them: they are
    /// paused, and the master drops its connections to them.
    ///
    /// The pause alone would lose no writes: the kernel buffers the master's writes for a paused
    /// replica, and delivers them when it resumes, even if the master has died meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the master is down; as [`Server::pause`].
    pub async fn cut_replication(&mut self, master: usize) -> Result<()> {
        let view = view::ClusterView::fetch(self.nodes[master].addr()).await?;
        for (index, node) in self.nodes.iter_mut().enumerate() {
            let follows = view.entry(&self.node_ids[index]).and_then(|entry| entry.master.as_ref())
                == Some(&self.node_ids[master]);
            if follows && node.is_awake() {
                node.pause()?;
                self.paused_replicas.push(index);
            }
        }
        command::drop_replicas(&self.nodes[master], None).await
    }

    /// Resumes the replicas that [`Cluster::cut_replication`] has paused. If the master is still
    /// alive, they catch up; kill it first to lose its last writes.
    ///
    /// # Errors
    ///
    /// As [`Server::resume`]; those that were killed meanwhile are skipped.
    pub fn resume_replicas(&mut self) -> Result<()> {
        command::resume_paused(&mut self.nodes, &mut self.paused_replicas)
    }
}

/// Reads the address, the bus port and the id of a node.
async fn read_identity(node: &Server) -> Result<StandaloneNode> {
    let addr = node.addr();
    let id = command::into_text(command::command_once(addr, None, &["CLUSTER", "MYID"]).await?)?;
    let bus_port = command::into_texts(command::command_once(addr, None, &["CONFIG", "GET", "cluster-port"]).await?)?;
    let bus_port = bus_port.get(1).and_then(|bus_port| bus_port.parse().ok()).ok_or_else(|| Error::Protocol {
        peer: "Redis".to_owned(),
        problem: format!("it has no cluster-port: {bus_port:?}"),
    })?;
    Ok(StandaloneNode { addr, bus_port, id })
}
