//! The queue of a lock, for engines that store only an ordered list of claims (ZooKeeper: nodes).
//! Every client computes from the list which claims hold, which wait, and which node each waiter
//! watches, and reaches the same result:
//! 1. The longest prefix of compatible claims holds. New claims join at the end, and departures
//!    only shorten the list, so a holder stays a holder.
//! 2. A re-entrant claim has the position of its owner's first claim, ahead of all claims that wait
//!    behind that claim.
//! 3. A waiter watches one claim ahead of it. When that claim leaves, the waiter knows without a
//!    request whether it is next: the list ahead of it can only have become shorter.

use super::admission::{conflicting_limit, covers, fits_owned};
use super::table::Refusal;
use crate::types::{ClaimId, Mode};

/// One claim in the list: a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueNode {
    /// The claim's id.
    pub claim: ClaimId,
    /// The mode it holds, or requests.
    pub mode: Mode,
    /// The owner that may re-enter, as a number unique to that owner; `None`: the claim cannot
    /// re-enter.
    pub owner: Option<u64>,
    /// If the claim re-entered: its link to the owner's first claim.
    pub reentry: Option<ReentryLink>,
    /// The number that the server gave to the node, in the order of arrival; wraps around.
    pub sequence: i32,
}

/// The link from a re-entrant claim to its owner's first claim, the parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReentryLink {
    /// The position of the parent in the queue.
    pub parent_position: i32,
    /// The fencing token of the parent, which all claims of the owner share.
    pub token: u64,
}

/// Identifies a node: a claim and its sequence number. Neither is unique: a claim may have two
/// nodes for a while, and many nodes share a number once a server has used up its numbers.
pub type NodeId = (ClaimId, i32);

impl QueueNode {
    /// The node's id.
    pub fn id(&self) -> NodeId {
        (self.claim, self.sequence)
    }

    /// The position in the queue: the node's own sequence number, or its parent's position if it
    /// re-entered.
    pub fn position(&self) -> i32 {
        self.reentry.map_or(self.sequence, |reentry| reentry.parent_position)
    }
}

/// The state of a claim in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimState {
    /// The claim holds the lock.
    Held,
    /// The claim's owner holds the lock through this node, under which the claim may re-enter.
    MayReenter(NodeId),
    /// The claim waits.
    Waiting {
        /// The number of waiters ahead of it.
        ahead: usize,
        /// What it watches.
        watch: WatchTarget,
    },
    /// The claim can never be granted beside the claims in the list.
    Refused(Refusal),
    /// The claim is not in the list.
    Absent,
}

/// The node or nodes that a waiter watches for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchTarget {
    /// One node ahead of the waiter.
    Node(NodeId),
    /// All holders, by a watch on the list: any of them may free permits for the first waiter.
    AllHolders,
}

/// The nodes of one lock, in queue order. A claim may have two nodes while a session that its
/// client has abandoned has not expired yet. The first of the two then no longer belongs to the
/// client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeQueue(Vec<QueueNode>);

impl NodeQueue {
    /// The queue of these nodes, in any order. Their positions must lie less than half of the
    /// number range apart, so that the order holds across the wrap-around.
    pub fn new(mut nodes: Vec<QueueNode>) -> Self {
        let base = nodes.first().map_or(0, QueueNode::position);
        let after = |position: i32| position.wrapping_sub(base);
        nodes.sort_by_key(|node| (after(node.position()), node.reentry.is_some(), after(node.sequence)));
        Self(nodes)
    }

    /// The queue of these nodes, which are already in queue order.
    pub fn from_sorted(nodes: Vec<QueueNode>) -> Self {
        Self(nodes)
    }

    /// All nodes, in queue order.
    pub fn nodes(&self) -> &[QueueNode] {
        &self.0
    }

    /// The node with this id; `None` if it is not in the queue.
    pub fn find(&self, id: NodeId) -> Option<&QueueNode> {
        self.0.iter().find(|node| node.id() == id)
    }

    /// Removes the node of a claim that left.
    pub fn remove(&mut self, id: NodeId) {
        self.0.retain(|node| node.id() != id);
    }

    /// Whether this node is not the last: some claim may wait for it.
    pub fn has_node_behind(&self, id: NodeId) -> bool {
        self.0.last().is_some_and(|last| last.id() != id)
    }

    /// How many nodes, counted from the first, hold the lock.
    pub fn holder_count(&self) -> usize {
        let mut count = 0;
        for node in &self.0 {
            let held = &self.0[..count];
            let holds_already = node.owner.is_some() && held.iter().any(|other| other.owner == node.owner);
            let enters = node.reentry.is_some()
                || (!holds_already && fits_owned(node.mode, held.iter().map(|held| (held.owner, held.mode))));
            if !enters {
                break;
            }
            count += 1;
        }
        count
    }

    /// Whether the claim of node `id` holds the lock as soon as the node that it watches is gone.
    pub fn is_next_after(&self, id: NodeId, watch: WatchTarget) -> bool {
        let WatchTarget::Node(other) = watch else { return false };
        let mut without = self.clone();
        without.remove(other);
        without.state_of(id, false) == ClaimState::Held
    }

    /// The state of the claim of node `id`. `has_just_joined`: the node is new, so the claim may
    /// still be refused.
    pub fn state_of(&self, id: NodeId, has_just_joined: bool) -> ClaimState {
        let Some(at) = self.0.iter().position(|node| node.id() == id) else { return ClaimState::Absent };
        let (me, ahead) = (&self.0[at], &self.0[..at]);
        if me.reentry.is_some() {
            return ClaimState::Held;
        }
        let holders = self.holder_count();
        let own = || self.0[..holders.min(at)].iter().filter(|held| me.owner.is_some() && held.owner == me.owner);
        let parent = own().find(|held| covers(held.mode, me.mode));
        if has_just_joined {
            // The first claim defines the limit: a claim with another limit is about to be refused,
            // too.
            let first = ahead.iter().find(|other| matches!(other.mode, Mode::Permits { .. }));
            if let Some(limit) = first.and_then(|first| conflicting_limit(me.mode, first.mode)) {
                return ClaimState::Refused(Refusal::LimitMismatch(limit));
            }
            if let (None, Some(held)) = (parent, own().next()) {
                return ClaimState::Refused(Refusal::Upgrade(held.mode));
            }
        }
        if at < holders {
            return ClaimState::Held;
        }
        if let Some(parent) = parent.filter(|_| has_just_joined || at == holders) {
            return ClaimState::MayReenter(parent.id());
        }
        ClaimState::Waiting { ahead: at - holders, watch: watch_target(me.mode, ahead, holders) }
    }
}

/// What a waiter in this mode watches, given the nodes ahead of it, the first `holders` of which
/// hold the lock.
fn watch_target(mode: Mode, ahead: &[QueueNode], holders: usize) -> WatchTarget {
    let last = |nodes: &[QueueNode]| nodes.last().map_or(WatchTarget::AllHolders, |node| WatchTarget::Node(node.id()));
    let is_compatible = |node: &&QueueNode| match mode {
        Mode::Exclusive => false,
        Mode::Shared => node.mode == Mode::Shared,
        Mode::Permits { .. } => matches!(node.mode, Mode::Permits { .. }),
    };
    match ahead.iter().rev().find(|node| !is_compatible(node)) {
        Some(conflicting) => WatchTarget::Node(conflicting.id()),
        // Only permits are ahead: the waiter watches the waiter just ahead of it or, as the first
        // waiter, all holders.
        None if ahead.len() > holders => last(ahead),
        None => WatchTarget::AllHolders,
    }
}

#[cfg(test)]
#[path = "node_queue_tests.rs"]
mod tests;
