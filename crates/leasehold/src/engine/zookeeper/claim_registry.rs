//! This client's claims at the servers, and the state of each.

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
pub(super) struct ClaimRegistry(Mutex<All>);

#[derive(Debug, Default)]
struct All {
    seats: HashMap<ClaimId, Arc<ClaimEntry>>,
    /// Claims without an entry that may have been evicted since: their sessions ended, or no caller
    /// wanted them for a TTL. Only claims that still exist in this process are kept.
    unresolved: HashMap<ClaimId, Weak<Claim>>,
}

impl All {
    fn note_unresolved(&mut self, entry: &ClaimEntry) {
        self.unresolved.insert(entry.claim, Arc::downgrade(&entry.claim_ref));
    }
}

/// One claim, on its session.
#[derive(Debug)]
pub(super) struct ClaimEntry {
    pub(super) claim: ClaimId,
    pub(super) session: Arc<Session>,
    /// The lock's folder.
    pub(super) folder: String,
    ttl: Duration,
    /// When the claim or its queue position expires, unless a caller shows that it is still wanted.
    /// In nanoseconds.
    wanted_until: AtomicU64,
    /// Its state at the servers. The mutex allows one step at a time.
    pub(super) remote: tokio::sync::Mutex<RemoteState>,
    /// The path of its node while it holds.
    held_path: Mutex<Option<String>>,
    /// Whether it was granted with its current node.
    was_granted: AtomicBool,
    is_gone: AtomicBool,
    /// Whether it is being released.
    is_releasing: AtomicBool,
    /// Whether a later claim of its owner has deleted its node, because this one had ended.
    was_node_deleted: AtomicBool,
    /// Whether the creation of a node was not answered. The request may be delayed on an abandoned
    /// connection and arrive unexpectedly.
    has_unconfirmed_create: AtomicBool,
    claim_ref: Arc<Claim>,
}

/// A claim's state at the servers.
#[derive(Default)]
pub(super) struct RemoteState {
    pub(super) stage: NodeStage,
    /// The claims ahead when it last read the list, less those that have left since.
    pub(super) queue: NodeQueue,
    pub(super) armed_watch: Option<ArmedWatch>,
    /// The watch on its own node, while it waits.
    pub(super) own_watch: Option<WatchFuture>,
    /// Whether it holds or is queued: it is not a new claim any more.
    pub(super) is_established: bool,
}

impl RemoteState {
    /// The name of its node, if it certainly has one.
    pub(super) fn node(&self) -> Option<&str> {
        match &self.stage {
            NodeStage::Created(own) => Some(&own.node),
            _ => None,
        }
    }

    /// Its node, if that has its own position.
    pub(super) fn id(&self) -> Option<NodeId> {
        match &self.stage {
            NodeStage::Created(own) if own.entry.reentry.is_none() => Some(own.entry.id()),
            _ => None,
        }
    }
}

/// What the servers have of a claim.
#[derive(Debug, Default)]
pub(super) enum NodeStage {
    /// No node.
    #[default]
    New,
    /// No valid node: another client deleted it, or its session ended. An eviction left a mark,
    /// which is checked before the claim gets another node.
    Gone,
    /// An operator evicted the claim. It stays so until it is released.
    Evicted,
    /// Perhaps a node: its creation was sent, and not answered yet.
    CreateSent,
    /// A node.
    Created(ClaimNode),
}

/// A claim's node.
#[derive(Clone, Debug)]
pub(super) struct ClaimNode {
    /// Its name, in the lock's folder.
    pub(super) node: String,
    pub(super) entry: QueueNode,
    /// The transaction that created it.
    pub(super) czxid: u64,
}

impl ClaimNode {
    /// Its own token, or that of the claim with which it re-entered.
    pub(super) fn token(&self) -> Token {
        Token(self.entry.reentry.map_or(self.czxid, |reentry| reentry.token))
    }
}

/// A waiter's watch.
pub(super) struct ArmedWatch {
    pub(super) watch: WatchTarget,
    pub(super) event: WatchFuture,
    /// Whether the list has been read so that this watch is sufficient. A step may break off before
    /// that.
    pub(super) is_sufficient: bool,
    /// The session's count of state changes, and its value when the watch was set.
    connection_changes: (Arc<AtomicU64>, u64),
}

impl ArmedWatch {
    /// `connection_changes`: read before the watch was requested.
    pub(super) fn new(watch: WatchTarget, event: WatchFuture, connection_changes: (Arc<AtomicU64>, u64)) -> Self {
        Self { watch, event, is_sufficient: false, connection_changes }
    }

    /// Notes that the list was read after the watch was set.
    pub(super) fn mark_sufficient(mut self) -> Self {
        self.is_sufficient = true;
        self
    }

    /// Whether the connection has lasted all the time: only then do events arrive in order.
    pub(super) fn is_uninterrupted(&self) -> bool {
        self.connection_changes.0.load(Ordering::Acquire) == self.connection_changes.1
    }
}

impl std::fmt::Debug for RemoteState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place").field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl ClaimEntry {
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

    /// Notes that a caller still wants it.
    pub(super) fn mark_wanted(&self) {
        self.wanted_until.store(self.session.now().saturating_add(self.ttl).as_nanos(), Ordering::Release);
    }

    /// Whether no caller has wanted it for a TTL.
    pub(super) fn is_unwanted(&self) -> bool {
        self.session.now().as_nanos() >= self.wanted_until.load(Ordering::Acquire)
    }

    /// The path of its node.
    pub(super) fn path(&self, own: &ClaimNode) -> String {
        format!("{}/{}", self.folder, own.node)
    }

    fn lock_held_path(&self) -> MutexGuard<'_, Option<String>> {
        self.held_path.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets whether it holds, and by which node. `true`: it held before.
    pub(super) fn set_held(&self, path: Option<String>) -> bool {
        std::mem::replace(&mut *self.lock_held_path(), path).is_some()
    }

    /// The path of its node, if it holds.
    pub(super) fn held_path(&self) -> Option<String> {
        self.lock_held_path().clone()
    }

    pub(super) fn is_held(&self) -> bool {
        self.lock_held_path().is_some()
    }

    /// Notes that it was granted.
    pub(super) fn mark_granted(&self) {
        self.was_granted.store(true, Ordering::Release);
    }

    /// Resets it: its former node and grant are not its own any more.
    pub(super) fn reset(&self) {
        self.set_held(None);
        self.was_granted.store(false, Ordering::Release);
        self.was_node_deleted.store(false, Ordering::Release);
    }

    /// Whether it was granted, even if it is being released.
    pub(super) fn was_granted(&self) -> bool {
        self.was_granted.load(Ordering::Acquire)
    }

    /// Sets whether it is being released, or wanted again.
    pub(super) fn set_releasing(&self, leaving: bool) {
        self.is_releasing.store(leaving, Ordering::Release);
    }

    /// Whether its holder has released or lost it, though the servers may still have its node.
    pub(super) fn is_ending(&self) -> bool {
        self.is_releasing.load(Ordering::Acquire) || self.claim_ref.is_over()
    }

    /// Notes that a later claim of its owner deletes its node.
    pub(super) fn mark_node_deleted(&self) {
        self.was_node_deleted.store(true, Ordering::Release);
    }

    /// Whether a later claim of its owner has deleted its node.
    pub(super) fn was_node_deleted(&self) -> bool {
        self.was_node_deleted.load(Ordering::Acquire)
    }

    /// Notes that the creation of a node was not answered.
    pub(super) fn mark_unconfirmed_create(&self) {
        self.has_unconfirmed_create.store(true, Ordering::Release);
    }

    /// Whether it may have, or get, a node that the client does not know of.
    pub(super) fn has_unconfirmed_create(&self) -> bool {
        self.has_unconfirmed_create.load(Ordering::Acquire)
    }

    /// Whether its session has ended, and the claim with it.
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }
}

impl ClaimRegistry {
    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn find(&self, claim: ClaimId) -> Option<Arc<ClaimEntry>> {
        self.lock().seats.get(&claim).cloned()
    }

    /// The claim's entry; a new one is on `session`.
    pub(super) fn get_or_insert(&self, claim: &Arc<Claim>, folder: String, session: &Arc<Session>) -> Arc<ClaimEntry> {
        let mut all = self.lock();
        let All { seats: registry, unresolved } = &mut *all;
        let new = || {
            let stage = if unresolved.remove(&claim.id).is_some() { NodeStage::Gone } else { NodeStage::New };
            Arc::new(ClaimEntry::new(claim, folder, Arc::clone(session), stage))
        };
        Arc::clone(registry.entry(claim.id).or_insert_with(new))
    }

    /// Whether this is still the entry of its claim: it may have been removed while a step waited
    /// for its mutex.
    pub(super) fn is_current(&self, entry: &Arc<ClaimEntry>) -> bool {
        self.lock().seats.get(&entry.claim).is_some_and(|current| Arc::ptr_eq(current, entry))
    }

    /// The claims of a session that no caller wants any more.
    pub(super) fn unwanted_on(&self, session: &Weak<Session>) -> Vec<Arc<ClaimEntry>> {
        let is_unwanted = |entry: &&Arc<ClaimEntry>| {
            std::ptr::eq(Arc::as_ptr(&entry.session), session.as_ptr()) && entry.is_unwanted()
        };
        self.lock().seats.values().filter(is_unwanted).cloned().collect()
    }

    pub(super) fn remove(&self, entry: &Arc<ClaimEntry>) {
        let mut all = self.lock();
        if all.seats.get(&entry.claim).is_some_and(|current| Arc::ptr_eq(current, entry)) {
            all.seats.remove(&entry.claim);
        }
    }

    /// Notes that a claim may have been evicted when its entry is removed: its next entry begins
    /// with [`NodeStage::Gone`].
    pub(super) fn note_unresolved(&self, entry: &ClaimEntry) {
        let mut all = self.lock();
        all.unresolved.retain(|_, claim| claim.strong_count() > 0);
        all.note_unresolved(entry);
    }

    /// Drops that note: the claim is over, or its own client has deleted its node.
    pub(super) fn resolve(&self, claim: ClaimId) {
        self.lock().unresolved.remove(&claim);
    }

    /// Whether a claim holds by this node.
    pub(super) fn is_held_by(&self, claim: ClaimId, path: &str) -> bool {
        self.find(claim).is_some_and(|entry| entry.lock_held_path().as_deref() == Some(path))
    }

    /// Removes the claims of a session that is over, and returns those that held.
    pub(super) fn remove_session(&self, session: &Arc<Session>) -> Vec<ClaimId> {
        let mut held = Vec::new();
        let mut all = self.lock();
        all.unresolved.retain(|_, claim| claim.strong_count() > 0);
        let removed: Vec<_> = all.seats.extract_if(|_, entry| Arc::ptr_eq(&entry.session, session)).collect();
        for (claim, entry) in removed {
            entry.is_gone.store(true, Ordering::Release);
            all.note_unresolved(&entry);
            if entry.is_held() {
                held.push(claim);
            }
        }
        held
    }
}
