//! This client's claims at the servers, and the state of each.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::session::{Event, Session};
use crate::claim::{Claim, ClaimId, Token};
use crate::logic::line::{Id, Line, Stand, Watch};

/// All claims of one client.
#[derive(Debug, Default)]
pub(super) struct Seats(Mutex<All>);

#[derive(Debug, Default)]
struct All {
    seats: HashMap<ClaimId, Arc<Seat>>,
    /// Claims without an entry that may have been evicted since: their sessions ended, or no caller
    /// wanted them for a TTL. Only claims that still exist in this process are kept.
    unresolved: HashMap<ClaimId, Weak<Claim>>,
}

impl All {
    fn note_unresolved(&mut self, seat: &Seat) {
        self.unresolved.insert(seat.claim, Arc::downgrade(&seat.asked));
    }
}

/// One claim, on its session.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) claim: ClaimId,
    pub(super) session: Arc<Session>,
    /// The lock's folder.
    pub(super) folder: String,
    ttl: Duration,
    /// When the claim or its queue position expires, unless a caller shows that it is still wanted.
    /// In nanoseconds.
    until: AtomicU64,
    /// Its state at the servers. The mutex allows one step at a time.
    pub(super) place: tokio::sync::Mutex<Place>,
    /// The path of its node while it holds.
    held: Mutex<Option<String>>,
    /// Whether it was granted with its current node.
    granted: AtomicBool,
    gone: AtomicBool,
    /// Whether it is being released.
    leaving: AtomicBool,
    /// Whether a later claim of its owner has deleted its node, because this one had ended.
    taken_out: AtomicBool,
    /// Whether the creation of a node was not answered. The request may be delayed on an abandoned
    /// connection and arrive unexpectedly.
    doubted: AtomicBool,
    asked: Arc<Claim>,
}

/// A claim's state at the servers.
#[derive(Default)]
pub(super) struct Place {
    pub(super) stage: Stage,
    /// The claims ahead when it last read the list, less those that have left since.
    pub(super) line: Line,
    pub(super) armed: Option<Armed>,
    /// The watch on its own node, while it waits.
    pub(super) own: Option<Event>,
    /// Whether it holds or is queued: it is not a new claim any more.
    pub(super) settled: bool,
}

impl Place {
    /// The name of its node, if it certainly has one.
    pub(super) fn node(&self) -> Option<&str> {
        match &self.stage {
            Stage::In(own) => Some(&own.node),
            _ => None,
        }
    }

    /// Its node, if that has a position of its own.
    pub(super) fn id(&self) -> Option<Id> {
        match &self.stage {
            Stage::In(own) if own.stand.ride.is_none() => Some(own.stand.id()),
            _ => None,
        }
    }
}

/// What the servers have of a claim.
#[derive(Debug, Default)]
pub(super) enum Stage {
    /// Nothing.
    #[default]
    New,
    /// No node that counts: another client deleted it, or its session ended. An eviction left a
    /// mark, which is looked for before the claim gets another node.
    Gone,
    /// An operator evicted the claim. It stays so until it is released.
    Evicted,
    /// Perhaps a node: its creation was sent, and not answered yet.
    Sent,
    /// A node.
    In(Own),
}

/// A claim's node.
#[derive(Clone, Debug)]
pub(super) struct Own {
    /// Its name, in the lock's folder.
    pub(super) node: String,
    pub(super) stand: Stand,
    /// The transaction that created it.
    pub(super) czxid: u64,
}

impl Own {
    /// Its own token, or that of the claim with which it re-entered.
    pub(super) fn token(&self) -> Token {
        Token(self.stand.ride.map_or(self.czxid, |ride| ride.token))
    }
}

/// A waiter's watch.
pub(super) struct Armed {
    pub(super) watch: Watch,
    pub(super) event: Event,
    /// Whether the list has been read so that this watch is sufficient. A step may break off before
    /// that.
    pub(super) enough: bool,
    /// The session's count of state changes, and its value when the watch was set.
    breaks: (Arc<AtomicU64>, u64),
}

impl Armed {
    /// `breaks`: read before the watch was requested.
    pub(super) fn new(watch: Watch, event: Event, breaks: (Arc<AtomicU64>, u64)) -> Self {
        Self { watch, event, enough: false, breaks }
    }

    /// Notes that the list was read after the watch was set.
    pub(super) fn enough(mut self) -> Self {
        self.enough = true;
        self
    }

    /// Whether the connection has lasted all the time: only then do events arrive in order.
    pub(super) fn is_steady(&self) -> bool {
        self.breaks.0.load(Ordering::Acquire) == self.breaks.1
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place").field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl Seat {
    fn new(claim: &Arc<Claim>, folder: String, session: Arc<Session>, stage: Stage) -> Self {
        let seat = Self {
            claim: claim.id,
            session,
            folder,
            ttl: claim.terms.ttl,
            until: AtomicU64::new(0),
            place: tokio::sync::Mutex::new(Place { stage, ..Place::default() }),
            held: Mutex::default(),
            granted: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            taken_out: AtomicBool::new(false),
            doubted: AtomicBool::new(false),
            asked: Arc::clone(claim),
        };
        seat.show();
        seat
    }

    /// Notes that a caller still wants it.
    pub(super) fn show(&self) {
        self.until.store(self.session.now().after(self.ttl).as_nanos(), Ordering::Release);
    }

    /// Whether no caller has wanted it for a TTL.
    pub(super) fn is_stale(&self) -> bool {
        self.session.now().as_nanos() >= self.until.load(Ordering::Acquire)
    }

    /// The path of its node.
    pub(super) fn path(&self, own: &Own) -> String {
        format!("{}/{}", self.folder, own.node)
    }

    fn held(&self) -> MutexGuard<'_, Option<String>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets whether it holds, and by which node. `true`: it held before.
    pub(super) fn set_held(&self, path: Option<String>) -> bool {
        std::mem::replace(&mut *self.held(), path).is_some()
    }

    /// The path of its node, if it holds.
    pub(super) fn held_path(&self) -> Option<String> {
        self.held().clone()
    }

    pub(super) fn is_held(&self) -> bool {
        self.held().is_some()
    }

    /// Notes that it was granted.
    pub(super) fn note_granted(&self) {
        self.granted.store(true, Ordering::Release);
    }

    /// Resets it: its former node and grant are not its own any more.
    pub(super) fn renew(&self) {
        self.set_held(None);
        self.granted.store(false, Ordering::Release);
        self.taken_out.store(false, Ordering::Release);
    }

    /// Whether it was granted, even if it is being released.
    pub(super) fn was_granted(&self) -> bool {
        self.granted.load(Ordering::Acquire)
    }

    /// Sets whether it is being released, or wanted again.
    pub(super) fn set_leaving(&self, leaving: bool) {
        self.leaving.store(leaving, Ordering::Release);
    }

    /// Whether its holder has released or lost it, though the servers may still have its node.
    pub(super) fn is_ending(&self) -> bool {
        self.leaving.load(Ordering::Acquire) || self.asked.is_over()
    }

    /// Notes that a later claim of its owner deletes its node.
    pub(super) fn note_taken_out(&self) {
        self.taken_out.store(true, Ordering::Release);
    }

    /// Whether a later claim of its owner has deleted its node.
    pub(super) fn was_taken_out(&self) -> bool {
        self.taken_out.load(Ordering::Acquire)
    }

    /// Notes that the creation of a node was not answered.
    pub(super) fn note_doubt(&self) {
        self.doubted.store(true, Ordering::Release);
    }

    /// Whether it may have, or get, a node that the client does not know of.
    pub(super) fn is_doubted(&self) -> bool {
        self.doubted.load(Ordering::Acquire)
    }

    /// Whether its session has ended, and the claim with it.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

impl Seats {
    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn find(&self, claim: ClaimId) -> Option<Arc<Seat>> {
        self.all().seats.get(&claim).cloned()
    }

    /// The claim's entry; a new one is on `session`.
    pub(super) fn take(&self, claim: &Arc<Claim>, folder: String, session: &Arc<Session>) -> Arc<Seat> {
        let mut all = self.all();
        let All { seats, unresolved } = &mut *all;
        let new = || {
            let stage = if unresolved.remove(&claim.id).is_some() { Stage::Gone } else { Stage::New };
            Arc::new(Seat::new(claim, folder, Arc::clone(session), stage))
        };
        Arc::clone(seats.entry(claim.id).or_insert_with(new))
    }

    /// Whether this is still the entry of its claim: it may have been removed while a step waited
    /// for its mutex.
    pub(super) fn has(&self, seat: &Arc<Seat>) -> bool {
        self.all().seats.get(&seat.claim).is_some_and(|there| Arc::ptr_eq(there, seat))
    }

    /// The claims of a session that no caller wants any more.
    pub(super) fn stale(&self, session: &Weak<Session>) -> Vec<Arc<Seat>> {
        let here = |seat: &&Arc<Seat>| std::ptr::eq(Arc::as_ptr(&seat.session), session.as_ptr()) && seat.is_stale();
        self.all().seats.values().filter(here).cloned().collect()
    }

    pub(super) fn leave(&self, seat: &Arc<Seat>) {
        let mut all = self.all();
        if all.seats.get(&seat.claim).is_some_and(|there| Arc::ptr_eq(there, seat)) {
            all.seats.remove(&seat.claim);
        }
    }

    /// Notes that a claim may have been evicted when its entry is removed: its next entry begins
    /// with [`Stage::Gone`].
    pub(super) fn note_unresolved(&self, seat: &Seat) {
        let mut all = self.all();
        all.unresolved.retain(|_, claim| claim.strong_count() > 0);
        all.note_unresolved(seat);
    }

    /// Drops that note: the claim is over, or its own client has deleted its node.
    pub(super) fn resolve(&self, claim: ClaimId) {
        self.all().unresolved.remove(&claim);
    }

    /// Whether a claim holds by this node.
    pub(super) fn holds(&self, claim: ClaimId, path: &str) -> bool {
        self.find(claim).is_some_and(|seat| seat.held().as_deref() == Some(path))
    }

    /// Removes the claims of a session that is over, and returns those that held.
    pub(super) fn clear(&self, session: &Arc<Session>) -> Vec<ClaimId> {
        let mut held = Vec::new();
        let mut all = self.all();
        all.unresolved.retain(|_, claim| claim.strong_count() > 0);
        let here: Vec<_> = all.seats.extract_if(|_, seat| Arc::ptr_eq(&seat.session, session)).collect();
        for (claim, seat) in here {
            seat.gone.store(true, Ordering::Release);
            all.note_unresolved(&seat);
            if seat.is_held() {
                held.push(claim);
            }
        }
        held
    }
}
