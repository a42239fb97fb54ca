//! Moving a slot from one master to another while clients use it.

use std::time::Duration;

use super::{Cluster, view::ClusterView};
use crate::{
    Result,
    redis::{RespClient, command},
};

/// The maximum number of keys that move with one command.
const BATCH_SIZE: &str = "100";
/// The time limit of one batch, in milliseconds.
const BATCH_TIMEOUT_MS: &str = "5000";
/// The time limit for all nodes to learn of a slot's new owner.
const AGREEMENT_TIMEOUT: Duration = crate::TEST_TIMEOUT;

/// A slot that moves from one node to another; see [`Cluster::begin_migration`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the slot stays between two nodes until the migration is finished"]
pub struct Migration {
    /// The number of the slot.
    pub slot: u16,
    /// The number of the source node.
    pub from: usize,
    /// The number of the target node.
    pub to: usize,
}

impl Cluster {
    /// Moves a slot with all its keys to another master, and waits until all nodes know.
    ///
    /// Keys must be text. Has no effect if `to` already owns the slot.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`](crate::Error::Refused) if `to` is a replica, for instance;
    /// [`Error::Io`](crate::Error::Io) or [`Error::TimedOut`](crate::Error::TimedOut) if a node is
    /// down.
    pub async fn migrate_slot(&mut self, slot: u16, to: usize) -> Result<()> {
        if self.owner_of(slot).await? == to {
            return Ok(());
        }
        let migration = self.begin_migration(slot, to).await?;
        self.finish_migration(migration).await
    }

    /// Marks the slot as migrating at both masters, but moves no key yet.
    ///
    /// From now on the old owner serves only its remaining keys, and replies `ASK` for others; the
    /// new owner serves the slot only after `ASKING`.
    ///
    /// # Errors
    ///
    /// As [`Cluster::migrate_slot`].
    pub async fn begin_migration(&self, slot: u16, to: usize) -> Result<Migration> {
        let from = self.owner_of(slot).await?;
        let number = slot.to_string();
        // In this order: the old owner must not redirect clients to a node that does not expect
        // them.
        self.command_node(to, &["CLUSTER", "SETSLOT", &number, "IMPORTING", &self.node_ids[from]]).await?;
        self.command_node(from, &["CLUSTER", "SETSLOT", &number, "MIGRATING", &self.node_ids[to]]).await?;
        Ok(Migration { slot, from, to })
    }

    /// Moves the slot's present keys, but leaves the slot with its old owner, which replies `ASK`
    /// for all of them. Returns their number.
    ///
    /// # Errors
    ///
    /// As [`Cluster::migrate_slot`].
    pub async fn move_keys(&self, migration: &Migration) -> Result<usize> {
        let mut client = RespClient::connect(self.nodes[migration.from].addr()).await?;
        let (slot, port) = (migration.slot.to_string(), self.nodes[migration.to].port().to_string());
        let mut moved = 0;
        loop {
            let keys = command::command(&mut client, &["CLUSTER", "GETKEYSINSLOT", &slot, BATCH_SIZE]).await?;
            let keys = command::into_texts(keys)?;
            if keys.is_empty() {
                return Ok(moved);
            }
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", BATCH_TIMEOUT_MS, "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            command::command(&mut client, &words).await?;
            moved += keys.len();
        }
    }

    /// Moves the remaining keys, makes the new node the owner, and waits until all nodes know.
    ///
    /// # Errors
    ///
    /// As [`Cluster::migrate_slot`].
    pub async fn finish_migration(&mut self, migration: Migration) -> Result<()> {
        let Migration { slot, from, to } = migration;
        self.move_keys(&migration).await?;
        let number = slot.to_string();
        let words = ["CLUSTER", "SETSLOT", &number, "NODE", &self.node_ids[to]];
        // The new owner first: otherwise, if the new owner died in between, no node would own the
        // slot.
        self.command_node(to, &words).await?;
        self.command_node(from, &words).await?;
        let view = ClusterView::fetch(self.nodes[to].addr()).await?;
        for (index, id) in self.node_ids.iter().enumerate() {
            let is_master = view.entry(id).is_some_and(|entry| entry.has_flag("master"));
            if is_master && index != from && index != to && self.nodes[index].is_awake() {
                self.command_node(index, &words).await?;
            }
        }
        self.slot_owners[usize::from(slot)] = to;
        self.wait_for_agreed_owner(slot, |owner| owner == to, AGREEMENT_TIMEOUT).await.map(drop)
    }

    async fn command_node(&self, index: usize, arguments: &[&str]) -> Result<()> {
        command::command_once(self.nodes[index].addr(), None, arguments).await.map(drop)
    }
}
