//! The queue of a lock, computed by every client from the same list: which claims hold, which wait,
//! and which claim each waiter watches.
//!
//! For engines that keep only one ordered list of claims. Every client that reads the
//! list reaches the same result:
//! 1. The longest prefix of compatible claims holds. New claims join at the end, and departures
//!    only shorten the list, so a holder stays a holder.
//! 2. A re-entrant claim shares the position of its owner's first claim, ahead of all claims that
//!    wait behind that claim.
//! 3. A waiter watches one claim ahead of it. When that claim leaves, the waiter knows without a
//!    request whether it is next: the list ahead of it can only have become shorter.

use super::admission::{conflicting_limit, covers, fits_owned};
use super::table::Refusal;
use crate::types::{ClaimId, Mode};

/// One claim in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueNode {
    /// The claim's id.
    pub claim: ClaimId,
    /// The mode it holds, or requests.
    pub mode: Mode,
    /// The owner that may re-enter, as a number unique to that owner.
    pub owner: Option<u64>,
    /// The first claim of its owner, if this one re-entered.
    pub reentry: Option<ReentryLink>,
    /// The order of arrival; wraps around.
    pub sequence: i32,
}

/// The position of a re-entrant claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReentryLink {
    /// The position of the owner's first claim.
    pub parent_position: i32,
    /// The owner's token.
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

    /// Its position: its own, or that of the claim it rides on.
    pub fn position(&self) -> i32 {
        self.reentry.map_or(self.sequence, |reentry| reentry.parent_position)
    }
}

/// The state of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimState {
    /// It holds.
    Held,
    /// Its owner holds through this claim: the new one may ride on it.
    MayReenter(NodeId),
    /// It waits behind this many other waiters.
    Waiting {
        /// The number of waiters ahead.
        ahead: usize,
        /// The claim that it watches.
        watch: WatchTarget,
    },
    /// It can never be granted beside the claims in the list.
    Refused(Refusal),
    /// It is not in the list.
    Absent,
}

/// What a waiter watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchTarget {
    /// One claim.
    Node(NodeId),
    /// All holders: any of them may free permits for the first waiter for permits.
    AllHolders,
}

/// The list, in order. A claim may appear twice while a session that its client has given up is not
/// over yet. The first of the two then no longer belongs to the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeQueue(Vec<QueueNode>);

impl NodeQueue {
    /// Sorts claims. Their positions must lie less than half of the number range apart, so that the
    /// order holds across the wrap-around.
    pub fn new(mut nodes: Vec<QueueNode>) -> Self {
        let base = nodes.first().map_or(0, QueueNode::position);
        let after = |position: i32| position.wrapping_sub(base);
        nodes.sort_by_key(|node| (after(node.position()), node.reentry.is_some(), after(node.sequence)));
        Self(nodes)
    }

    /// Takes claims that are already in order.
    pub fn from_sorted(nodes: Vec<QueueNode>) -> Self {
        Self(nodes)
    }

    /// All claims, in order.
    pub fn nodes(&self) -> &[QueueNode] {
        &self.0
    }

    /// One claim.
    pub fn find(&self, id: NodeId) -> Option<&QueueNode> {
        self.0.iter().find(|node| node.id() == id)
    }

    /// Removes a claim that left.
    pub fn remove(&mut self, id: NodeId) {
        self.0.retain(|node| node.id() != id);
    }

    /// Whether there is a claim behind this one.
    pub fn has_node_behind(&self, id: NodeId) -> bool {
        self.0.last().is_some_and(|last| last.id() != id)
    }

    /// How many claims hold, counted from the first.
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

    /// Whether a claim holds as soon as the claim that it watches has left.
    pub fn is_next_after(&self, id: NodeId, watch: WatchTarget) -> bool {
        let WatchTarget::Node(other) = watch else { return false };
        let mut without = self.clone();
        without.remove(other);
        without.state_of(id, false) == ClaimState::Held
    }

    /// The state of a claim; `has_just_joined` if it has just joined.
    pub fn state_of(&self, id: NodeId, has_just_joined: bool) -> ClaimState {
        let Some(at) = self.0.iter().position(|node| node.id() == id) else { return ClaimState::Absent };
        let (me, ahead) = (&self.0[at], &self.0[..at]);
        if me.reentry.is_some() {
            return ClaimState::Held;
        }
        let holders = self.holder_count();
        let own = || self.0[..holders.min(at)].iter().filter(|held| me.owner.is_some() && held.owner == me.owner);
        let host = own().find(|held| covers(held.mode, me.mode));
        if has_just_joined {
            // The first claim defines the limit: a claim with another limit is about to be refused,
            // too.
            let first = ahead.iter().find(|other| matches!(other.mode, Mode::Permits { .. }));
            if let Some(limit) = first.and_then(|first| conflicting_limit(me.mode, first.mode)) {
                return ClaimState::Refused(Refusal::LimitMismatch(limit));
            }
            if let (None, Some(held)) = (host, own().next()) {
                return ClaimState::Refused(Refusal::Upgrade(held.mode));
            }
        }
        if at < holders {
            return ClaimState::Held;
        }
        if let Some(host) = host.filter(|_| has_just_joined || at == holders) {
            return ClaimState::MayReenter(host.id());
        }
        ClaimState::Waiting { ahead: at - holders, watch: watch_target(me.mode, ahead, holders) }
    }
}

/// What a claim in this mode watches, given the claims ahead of it, the first `holder_count` of which
/// hold.
fn watch_target(mode: Mode, ahead: &[QueueNode], holders: usize) -> WatchTarget {
    let last = |nodes: &[QueueNode]| nodes.last().map_or(WatchTarget::AllHolders, |node| WatchTarget::Node(node.id()));
    let is_compatible = |node: &&QueueNode| match mode {
        Mode::Exclusive => false,
        Mode::Shared => node.mode == Mode::Shared,
        Mode::Permits { .. } => matches!(node.mode, Mode::Permits { .. }),
    };
    match ahead.iter().rev().find(|node| !is_compatible(node)) {
        Some(conflicting) => WatchTarget::Node(conflicting.id()),
        // Permits only: wait for the grant of the waiter just ahead, or, as the first waiter, for
        // any holder.
        None if ahead.len() > holders => last(ahead),
        None => WatchTarget::AllHolders,
    }
}

#[cfg(test)]
#[path = "node_queue_tests.rs"]
mod tests;
