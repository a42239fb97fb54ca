//! The claims of this client, and what is known of the node of each at the servers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::session::{Session, WatchFuture};
use crate::engine::Claim;
use crate::logic::node_queue::{NodeId, NodeQueue, QueueNode, WatchTarget};
use crate::types::{ClaimId, Token};

/// All claims of one client.
#[derive(Debug, Default)]
pub(super) struct ClaimRegistry(Mutex<Claims>);

/// The claims of one client, with and without an entry.
#[derive(Debug, Default)]
struct Claims {
    /// The claims that this client works on.
    entries: HashMap<ClaimId, Arc<ClaimEntry>>,
    /// Claims without an entry that may have been force released since: their sessions ended, or no
    /// caller wanted them for a TTL. Only claims that still exist in this process are kept.
    unresolved: HashMap<ClaimId, Weak<Claim>>,
}

impl Claims {
    /// Notes that a claim may have been force released when its entry is removed.
    fn note_unresolved(&mut self, entry: &ClaimEntry) {
        self.unresolved.insert(entry.claim, Arc::downgrade(&entry.claim_ref));
    }
}

/// One claim of this client, and the session that has its node.
#[derive(Debug)]
pub(super) struct ClaimEntry {
    pub(super) claim: ClaimId,
    pub(super) session: Arc<Session>,
    /// The path of the lock's folder.
    pub(super) folder: String,
    /// The claim's TTL.
    ttl: Duration,
    /// When the claim is removed unless a caller shows before that it is still wanted. In
    /// nanoseconds of the client's clock.
    wanted_until: AtomicU64,
    /// The claim's node as the servers last reported it. Locked during each operation on the claim.
    pub(super) remote: tokio::sync::Mutex<RemoteState>,
    /// The path of its node while it holds the lock; `None` otherwise.
    held_path: Mutex<Option<String>>,
    /// Whether it was granted the lock with its current node.
    was_granted: AtomicBool,
    /// Whether its session has ended, and the claim with it.
    is_gone: AtomicBool,
    /// Whether it is being released.
    is_releasing: AtomicBool,
    /// Whether another claim of the same owner has deleted its node, because this one had ended.
    was_node_deleted: AtomicBool,
    /// Whether a request to create a node was not answered. It may be delayed on an abandoned
    /// connection, and still create a node later.
    has_unconfirmed_create: AtomicBool,
    /// The claim itself, which knows whether this process has released or lost it.
    claim_ref: Arc<Claim>,
}

/// What this client knows of a claim at the servers.
#[derive(Default)]
pub(super) struct RemoteState {
    pub(super) stage: NodeStage,
    /// The queue of the lock when it was last read.
    pub(super) queue: NodeQueue,
    /// The watch on the node ahead, while it waits.
    pub(super) armed_watch: Option<ArmedWatch>,
    /// The watch on its own node, while it waits.
    pub(super) own_watch: Option<WatchFuture>,
    /// Whether it was found to hold or wait. A new claim may still be refused.
    pub(super) is_established: bool,
}

impl RemoteState {
    /// The name of its node; `None` unless it certainly has one.
    pub(super) fn node(&self) -> Option<&str> {
        match &self.stage {
            NodeStage::Created(own) => Some(&own.node),
            _ => None,
        }
    }

    /// The id of its node; `None` if it has none, or one that shares the position of another by
    /// re-entry.
    pub(super) fn id(&self) -> Option<NodeId> {
        match &self.stage {
            NodeStage::Created(own) if own.entry.reentry.is_none() => Some(own.entry.id()),
            _ => None,
        }
    }
}

/// Whether a claim has a node at the servers.
#[derive(Debug, Default)]
pub(super) enum NodeStage {
    /// It has no node.
    #[default]
    New,
    /// It has no node any more: another client deleted it, or its session ended. If it was force
    /// released, there is a mark at the servers, which must be looked for before the claim gets
    /// another node.
    Gone,
    /// An operator force released the claim. This stays so until the claim is released.
    ForceReleased,
    /// It may have a node: the request to create one was sent, and has no answer yet.
    CreateSent,
    /// It has this node.
    Created(ClaimNode),
}

/// A claim's node.
#[derive(Clone, Debug)]
pub(super) struct ClaimNode {
    /// Its name in the lock's folder.
    pub(super) node: String,
    /// The parsed name.
    pub(super) entry: QueueNode,
    /// The number of the transaction that created it.
    pub(super) czxid: u64,
}

impl ClaimNode {
    /// The claim's token: `czxid`, or after a re-entry the token of the owner's first claim.
    pub(super) fn token(&self) -> Token {
        Token(self.entry.reentry.map_or(self.czxid, |reentry| reentry.token))
    }
}

/// A waiter's watch on what is ahead of it.
pub(super) struct ArmedWatch {
    /// What is watched.
    pub(super) watch: WatchTarget,
    /// Completes with the event.
    pub(super) event: WatchFuture,
    /// Whether the list was read after the watch was set, so that no event is missed. An operation
    /// may be dropped before that.
    pub(super) is_sufficient: bool,
    /// The session's live count of connection changes, and its value before the watch was
    /// requested.
    connection_changes: (Arc<AtomicU64>, u64),
}

impl ArmedWatch {
    /// A watch that is not sufficient yet. `connection_changes` was read before the watch was
    /// requested.
    pub(super) fn new(watch: WatchTarget, event: WatchFuture, connection_changes: (Arc<AtomicU64>, u64)) -> Self {
        Self { watch, event, is_sufficient: false, connection_changes }
    }

    /// Notes that the list was read after the watch was set.
    pub(super) fn mark_sufficient(mut self) -> Self {
        self.is_sufficient = true;
        self
    }

    /// Whether the connection has not changed since the watch was requested. Only then do events
    /// arrive in order.
    pub(super) fn is_uninterrupted(&self) -> bool {
        self.connection_changes.0.load(Ordering::Acquire) == self.connection_changes.1
    }
}

impl std::fmt::Debug for RemoteState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteState").field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl ClaimEntry {
    /// A new entry for a claim that a caller wants.
    fn new(claim: &Arc<Claim>, folder: String, session: Arc<Session>, stage: NodeStage) -> Self {
        let entry = Self {
            claim: claim.id,
            session,
            folder,
            ttl: claim.options.ttl,
            wanted_until: AtomicU64::new(0),
            remote: tokio::sync::Mutex::new(RemoteState { stage, ..RemoteState::default() }),
            held_path: Mutex::default(),
            was_granted: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            is_releasing: AtomicBool::new(false),
            was_node_deleted: AtomicBool::new(false),
            has_unconfirmed_create: AtomicBool::new(false),
            claim_ref: Arc::clone(claim),
        };
        entry.mark_wanted();
        entry
    }

    /// Notes that a caller still wants the claim, for another TTL.
    pub(super) fn mark_wanted(&self) {
        self.wanted_until.store(self.session.now().saturating_add(self.ttl).as_nanos(), Ordering::Release);
    }

    /// Whether no caller has wanted the claim for a TTL.
    pub(super) fn is_unwanted(&self) -> bool {
        self.session.now().as_nanos() >= self.wanted_until.load(Ordering::Acquire)
    }

    /// The path of a node in the lock's folder.
    pub(super) fn path(&self, own: &ClaimNode) -> String {
        format!("{}/{}", self.folder, own.node)
    }

    fn lock_held_path(&self) -> MutexGuard<'_, Option<String>> {
        self.held_path.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the path of the node by which the claim holds the lock, or `None` if it does not.
    /// `true`: it held before.
    pub(super) fn set_held(&self, path: Option<String>) -> bool {
        std::mem::replace(&mut *self.lock_held_path(), path).is_some()
    }

    /// The path of the node by which the claim holds the lock; `None` if it does not.
    pub(super) fn held_path(&self) -> Option<String> {
        self.lock_held_path().clone()
    }

    /// Whether the claim holds the lock.
    pub(super) fn is_held(&self) -> bool {
        self.lock_held_path().is_some()
    }

    /// Notes that the claim was granted the lock with its current node.
    pub(super) fn mark_granted(&self) {
        self.was_granted.store(true, Ordering::Release);
    }

    /// Forgets the claim's node and grant, before it gets another node.
    pub(super) fn reset(&self) {
        self.set_held(None);
        self.was_granted.store(false, Ordering::Release);
        self.was_node_deleted.store(false, Ordering::Release);
    }

    /// Whether the claim was granted the lock with its current node, even if it is being released.
    pub(super) fn was_granted(&self) -> bool {
        self.was_granted.load(Ordering::Acquire)
    }

    /// Sets whether the claim is being released.
    pub(super) fn set_releasing(&self, is_releasing: bool) {
        self.is_releasing.store(is_releasing, Ordering::Release);
    }

    /// Whether the claim was released or lost in this process, though the servers may still have
    /// its node.
    pub(super) fn is_ending(&self) -> bool {
        self.is_releasing.load(Ordering::Acquire) || self.claim_ref.is_over()
    }

    /// Notes that another claim of the same owner deletes this one's node.
    pub(super) fn mark_node_deleted(&self) {
        self.was_node_deleted.store(true, Ordering::Release);
    }

    /// Whether another claim of the same owner has deleted this one's node.
    pub(super) fn was_node_deleted(&self) -> bool {
        self.was_node_deleted.load(Ordering::Acquire)
    }

    /// Notes that a request to create a node was not answered.
    pub(super) fn mark_unconfirmed_create(&self) {
        self.has_unconfirmed_create.store(true, Ordering::Release);
    }

    /// Whether the claim may have, or later get, a node of which this client does not know.
    pub(super) fn has_unconfirmed_create(&self) -> bool {
        self.has_unconfirmed_create.load(Ordering::Acquire)
    }

    /// Whether the claim has ended with its session.
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }
}

impl ClaimRegistry {
    fn lock(&self) -> MutexGuard<'_, Claims> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry of a claim; `None` if it has none.
    pub(super) fn find(&self, claim: ClaimId) -> Option<Arc<ClaimEntry>> {
        self.lock().entries.get(&claim).cloned()
    }

    /// The claim's entry. If there is none, creates one on `session`; `folder` is the path of the
    /// lock's folder.
    pub(super) fn get_or_insert(&self, claim: &Arc<Claim>, folder: String, session: &Arc<Session>) -> Arc<ClaimEntry> {
        let mut claims = self.lock();
        let Claims { entries, unresolved } = &mut *claims;
        let new = || {
            let stage = if unresolved.remove(&claim.id).is_some() { NodeStage::Gone } else { NodeStage::New };
            Arc::new(ClaimEntry::new(claim, folder, Arc::clone(session), stage))
        };
        Arc::clone(entries.entry(claim.id).or_insert_with(new))
    }

    /// Whether this is still the entry of its claim. It may have been removed while a caller waited
    /// for its mutex.
    pub(super) fn is_current(&self, entry: &Arc<ClaimEntry>) -> bool {
        self.lock().entries.get(&entry.claim).is_some_and(|current| Arc::ptr_eq(current, entry))
    }

    /// The claims on a session that no caller has wanted for a TTL.
    pub(super) fn unwanted_on(&self, session: &Weak<Session>) -> Vec<Arc<ClaimEntry>> {
        let is_unwanted = |entry: &&Arc<ClaimEntry>| {
            std::ptr::eq(Arc::as_ptr(&entry.session), session.as_ptr()) && entry.is_unwanted()
        };
        self.lock().entries.values().filter(is_unwanted).cloned().collect()
    }

    /// Removes an entry, unless its claim has a newer one.
    pub(super) fn remove(&self, entry: &Arc<ClaimEntry>) {
        let mut claims = self.lock();
        if claims.entries.get(&entry.claim).is_some_and(|current| Arc::ptr_eq(current, entry)) {
            claims.entries.remove(&entry.claim);
        }
    }

    /// Notes that a claim may have been force released when its entry is removed. Its next entry
    /// begins with [`NodeStage::Gone`].
    pub(super) fn note_unresolved(&self, entry: &ClaimEntry) {
        let mut claims = self.lock();
        claims.unresolved.retain(|_, claim| claim.strong_count() > 0);
        claims.note_unresolved(entry);
    }

    /// Drops the note that a claim may have been force released: the claim was released, or this
    /// client itself has deleted its node.
    pub(super) fn resolve(&self, claim: ClaimId) {
        self.lock().unresolved.remove(&claim);
    }

    /// Whether a claim holds its lock by the node with this path.
    pub(super) fn is_held_by(&self, claim: ClaimId, path: &str) -> bool {
        self.find(claim).is_some_and(|entry| entry.lock_held_path().as_deref() == Some(path))
    }

    /// Removes the claims on a session that is over, and returns those that held a lock.
    pub(super) fn remove_session(&self, session: &Arc<Session>) -> Vec<ClaimId> {
        let mut held = Vec::new();
        let mut claims = self.lock();
        claims.unresolved.retain(|_, claim| claim.strong_count() > 0);
        let removed: Vec<_> = claims.entries.extract_if(|_, entry| Arc::ptr_eq(&entry.session, session)).collect();
        for (claim, entry) in removed {
            entry.is_gone.store(true, Ordering::Release);
            claims.note_unresolved(&entry);
            if entry.is_held() {
                held.push(claim);
            }
        }
        held
    }
}
