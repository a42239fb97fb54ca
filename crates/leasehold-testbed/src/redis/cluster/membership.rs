//! A node that joins a cluster, and leaves it.

use std::net::SocketAddr;

use super::{Cluster, ClusterNode, START_TIMEOUT, read_identity};
use crate::{
    Error, Result, Server,
    redis::{Redis, command},
    try_eventually,
};

impl Cluster {
    /// Starts one more node outside the cluster, and returns its address.
    ///
    /// # Errors
    ///
    /// As [`Server::start`].
    pub async fn start_spare_node(&mut self, redis: Redis) -> Result<SocketAddr> {
        let spare = Server::start(ClusterNode { redis, node_timeout: self.node_timeout }).await?;
        let addr = spare.addr();
        self.spare_node = Some(spare);
        Ok(addr)
    }

    /// Makes the [spare node](Cluster::start_spare_node) join as a master without slots. Returns
    /// its number, the last, once all nodes know it.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if there is none; [`Error::TimedOut`] if the nodes do not agree in
    /// time.
    pub async fn join_spare_node(&mut self) -> Result<usize> {
        let spare = self
            .spare_node
            .take()
            .ok_or_else(|| Error::NotRunning { program: "a spare node of the cluster".to_owned() })?;
        // Read again: a node that has left a cluster has a new id.
        let identity = read_identity(&spare).await;
        let at = self.nodes.len();
        self.nodes.push(spare);
        let spare = match identity {
            Ok(found) => found,
            Err(error) => {
                self.spare_node = self.nodes.pop();
                return Err(error);
            }
        };
        self.node_ids.push(spare.id);
        let (port, bus_port) = (spare.addr.port().to_string(), spare.bus_port.to_string());
        for node in self.nodes.iter().take(at).filter(|node| node.is_awake()) {
            command::command_once(node.addr(), None, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus_port]).await?;
        }
        self.wait_until_settled(START_TIMEOUT).await?;
        Ok(at)
    }

    /// Makes the node that joined last leave again; its slots must have been moved away. Then it is
    /// a spare node, which knows no other.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if it still has keys; [`Error::TimedOut`] if the others do not agree in
    /// time.
    pub async fn remove_last_node(&mut self) -> Result<()> {
        let not_joined = || Error::NotRunning { program: "a node that joined the cluster".to_owned() };
        let (last, id) = (self.nodes.pop().ok_or_else(not_joined)?, self.node_ids.pop().ok_or_else(not_joined)?);
        let last = self.spare_node.insert(last).addr();
        for node in self.nodes.iter().filter(|node| node.is_awake()) {
            let words = ["CLUSTER", "FORGET", &id];
            try_eventually("node that forgets another", START_TIMEOUT, || {
                command::command_once(node.addr(), None, &words)
            })
            .await?;
        }
        command::command_once(last, None, &["CLUSTER", "RESET", "HARD"]).await?;
        self.wait_until_settled(START_TIMEOUT).await
    }
}
