//! A node that joins a cluster, and leaves it.

use std::net::SocketAddr;

use super::{Cluster, Node, START_BOUND, look_at};
use crate::{
    Error, Result, Server,
    redis::{Redis, ask},
    try_eventually,
};

impl Cluster {
    /// Starts one more node, which no other knows yet, and returns where it is.
    ///
    /// # Errors
    ///
    /// As [`Server::start`].
    pub async fn start_spare(&mut self, redis: Redis) -> Result<SocketAddr> {
        let spare = Server::start(Node { redis, timeout: self.timeout }).await?;
        let addr = spare.addr();
        self.spare = Some(spare);
        Ok(addr)
    }

    /// Has the [spare node](Cluster::start_spare) join as a master without slots, and returns its number, the last, when all nodes know it.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if there is none; [`Error::TimedOut`] if the nodes do not come to agree.
    pub async fn join_spare(&mut self) -> Result<usize> {
        let spare =
            self.spare.take().ok_or_else(|| Error::NotRunning { program: "a spare node of the cluster".to_owned() })?;
        // A node that left has another id from then on.
        let spare_is = look_at(&spare).await;
        let at = self.nodes.len();
        self.nodes.push(spare);
        let spare = match spare_is {
            Ok(found) => found,
            Err(error) => {
                self.spare = self.nodes.pop();
                return Err(error);
            }
        };
        self.ids.push(spare.id);
        let (port, bus) = (spare.addr.port().to_string(), spare.bus.to_string());
        for node in self.nodes.iter().take(at).filter(|node| node.is_awake()) {
            ask::ask(node.addr(), None, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await?;
        }
        self.settled(START_BOUND).await?;
        Ok(at)
    }

    /// Has the node that joined last leave again; its slots must have been moved away. It is a spare then, that knows no other.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if it still has keys; [`Error::TimedOut`] if the others do not come to agree.
    pub async fn leave_last(&mut self) -> Result<()> {
        let nowhere = || Error::NotRunning { program: "a node that joined the cluster".to_owned() };
        let (last, id) = (self.nodes.pop().ok_or_else(nowhere)?, self.ids.pop().ok_or_else(nowhere)?);
        let last = self.spare.insert(last).addr();
        for node in self.nodes.iter().filter(|node| node.is_awake()) {
            let words = ["CLUSTER", "FORGET", &id];
            try_eventually("node that forgets another", START_BOUND, || ask::ask(node.addr(), None, &words)).await?;
        }
        ask::ask(last, None, &["CLUSTER", "RESET", "HARD"]).await?;
        self.settled(START_BOUND).await
    }
}
