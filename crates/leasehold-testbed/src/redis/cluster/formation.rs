//! Forms a cluster of nodes that were started alone.

use std::net::SocketAddr;

use futures_util::future::try_join_all;

use super::{START_TIMEOUT, slot::SLOTS};
use crate::{Result, redis::command, try_eventually};

/// A node before it belongs to a cluster.
pub(super) struct StandaloneNode {
    pub(super) addr: SocketAddr,
    /// The port for the other nodes.
    pub(super) bus_port: u16,
    /// The id by which the other nodes will know it.
    pub(super) id: String,
}

/// The index of the owner of each slot, if `masters` share them evenly.
pub(super) fn assign_slots(masters: usize) -> Vec<usize> {
    let slots = usize::from(SLOTS);
    (0..slots).map(|slot| slot * masters / slots).collect()
}

/// Makes the nodes a cluster: assigns the slots to `owners` (one index for each slot), introduces
/// the nodes to each other, and makes each replica follow its master.
pub(super) async fn form_cluster(nodes: &[StandaloneNode], owners: &[usize]) -> Result<()> {
    let masters = owners.iter().max().map_or(0, |last| last + 1);
    for (index, node) in nodes.iter().enumerate() {
        // Different epochs from the start, so that the masters have no conflicts to resolve.
        command(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]).await?;
        let first = owners.iter().position(|&owner| owner == index);
        let last = owners.iter().rposition(|&owner| owner == index);
        if let (Some(first), Some(last)) = (first, last) {
            command(node, &["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]).await?;
        }
    }
    // Every node meets every other: gossip is slower.
    for (index, node) in nodes.iter().enumerate() {
        for other in &nodes[index + 1..] {
            let (port, bus_port) = (other.addr.port().to_string(), other.bus_port.to_string());
            command(node, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus_port]).await?;
        }
    }
    let replicas = nodes[masters..].iter().zip(nodes[..masters].iter().cycle());
    try_join_all(replicas.map(|(replica, master)| replicate(replica, master))).await?;
    Ok(())
}

/// Makes a replica follow its master; retries until the replica knows the master.
async fn replicate(replica: &StandaloneNode, master: &StandaloneNode) -> Result<()> {
    let words = ["CLUSTER", "REPLICATE", &master.id];
    try_eventually("replica that follows its master", START_TIMEOUT, || command(replica, &words)).await
}

async fn command(node: &StandaloneNode, arguments: &[&str]) -> Result<()> {
    command::command_once(node.addr, None, arguments).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_an_owner_and_slots_are_shared_evenly() {
        for masters in 1..8 {
            let shares = assign_slots(masters);
            assert_eq!(shares.len(), 16384);
            assert!(shares.is_sorted(), "one range for each");
            let sizes: Vec<usize> = (0..masters).map(|m| shares.iter().filter(|&&owner| owner == m).count()).collect();
            assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{sizes:?}");
        }
    }
}
