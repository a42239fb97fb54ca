//! Waits until the nodes of a cluster agree.

use std::{collections::HashMap, time::Duration};

use super::{Cluster, slot::SLOTS, view::ClusterView};
use crate::{Error, Result, Server, redis::command, try_eventually};

impl Cluster {
    /// The number of the node that owns `slot`, according to the first node that is awake.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if all nodes are down; [`Error::Io`] or [`Error::TimedOut`] if it does
    /// not respond; [`Error::Protocol`] if no node owns the slot.
    pub async fn owner_of(&self, slot: u16) -> Result<usize> {
        let Some(node) = self.nodes.iter().find(|node| node.is_awake()) else {
            return Err(Error::NotRunning { program: "every node of the cluster".to_owned() });
        };
        let view = ClusterView::fetch(node.addr()).await?;
        self.owner_in(&view, slot)
            .ok_or_else(|| Error::Protocol { peer: "Redis".to_owned(), problem: format!("no node owns slot {slot}") })
    }

    /// Waits until `slot` has a new owner, all nodes that are awake agree on it, and all report a
    /// healthy cluster. Returns the owner's number, and stores it as the last known owner.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`].
    pub async fn wait_for_failover(&mut self, slot: u16, bound: Duration) -> Result<usize> {
        let old = self.slot_owners[usize::from(slot)];
        let new = self.wait_for_agreed_owner(slot, |owner| owner != old, bound).await?;
        let view = ClusterView::fetch(self.nodes[new].addr()).await?;
        for slot in 0..SLOTS {
            if let Some(owner) = self.owner_in(&view, slot) {
                self.slot_owners[usize::from(slot)] = owner;
            }
        }
        Ok(new)
    }

    /// Waits until all nodes that are awake agree that all of these are healthy, agree on masters
    /// and replicas, and every replica follows its master. A cluster that has just been started is
    /// settled.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`].
    pub async fn wait_until_settled(&self, bound: Duration) -> Result<()> {
        try_eventually("settled cluster", bound, || self.check_settled()).await
    }

    /// Waits until all nodes that are awake agree on an owner of `slot` for which `is_wanted` is
    /// true; returns its number.
    pub(super) async fn wait_for_agreed_owner(
        &self,
        slot: u16,
        is_wanted: impl Fn(usize) -> bool,
        bound: Duration,
    ) -> Result<usize> {
        let (awaited, wanted) = (format!("new owner of slot {slot}"), &is_wanted);
        try_eventually(&awaited, bound, || async move {
            match self.agreed_owner(slot).await? {
                owner if wanted(owner) => Ok(owner),
                owner => Err(format!("node {owner} is the owner")),
            }
        })
        .await
    }

    fn awake_nodes(&self) -> impl Iterator<Item = (usize, &Server)> {
        self.nodes.iter().enumerate().filter(|(_, node)| node.is_awake())
    }

    /// The number of the node that owns `slot` in this view; `None` if none of these nodes does.
    fn owner_in(&self, view: &ClusterView, slot: u16) -> Option<usize> {
        let owner = view.owner_of(slot)?;
        self.node_ids.iter().position(|id| *id == owner.id)
    }

    /// The number of the owner of `slot`, if all nodes that are awake name the same one and are
    /// healthy; otherwise what was observed.
    async fn agreed_owner(&self, slot: u16) -> std::result::Result<usize, String> {
        let mut owners = Vec::new();
        for (index, node) in self.awake_nodes() {
            check_state(node).await.map_err(|seen| format!("node {index}: {seen}"))?;
            let view = ClusterView::fetch(node.addr()).await.map_err(|error| error.to_string())?;
            owners.push(self.owner_in(&view, slot));
        }
        match owners.first() {
            Some(&Some(owner)) if owners.iter().all(|&other| other == Some(owner)) => Ok(owner),
            _ => Err(format!("the nodes name {owners:?}")),
        }
    }

    async fn check_settled(&self) -> std::result::Result<(), String> {
        let mut masters = HashMap::new();
        for (index, node) in self.awake_nodes() {
            check_state(node).await.map_err(|seen| format!("node {index}: {seen}"))?;
            let view = ClusterView::fetch(node.addr()).await.map_err(|error| error.to_string())?;
            for (other, _) in self.awake_nodes() {
                let id = &self.node_ids[other];
                let entry = view.entry(id).filter(|entry| entry.is_healthy());
                let entry = entry.ok_or_else(|| format!("node {index} does not see node {other} as healthy"))?;
                let known = masters.entry(other).or_insert_with(|| entry.master.clone());
                if *known != entry.master {
                    return Err(format!("node {index} has another master for node {other}"));
                }
            }
            if view.entry(&self.node_ids[index]).is_some_and(|entry| entry.has_flag("slave")) {
                command::check_replica_linked(node.addr(), None).await?;
            }
        }
        Ok(())
    }
}

/// `Ok` if the node reports that the cluster is healthy and all slots have owners.
async fn check_state(node: &Server) -> std::result::Result<(), String> {
    let fields =
        command::info_fields(node.addr(), None, &["CLUSTER", "INFO"]).await.map_err(|error| error.to_string())?;
    command::check_fields(&fields, &[("cluster_state", "ok"), ("cluster_slots_assigned", "16384")])
}
