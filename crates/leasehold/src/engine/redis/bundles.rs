//! Leases that are renewed together.
//!
//! Renewing 100,000 leases one by one costs the server more than most of its other work. So many leases of one TTL that are due
//! at once are put into a bundle: the moment of their last renewal is kept once, for all of them, and one write extends them all.
//!
//! A lease leaves its bundle when it is released, contended for or evicted; the script that does it counts the bundle down. A
//! bundle is only extended if it has as many leases as its owner believes; if not, each is asked for by itself. And each is
//! looked at by itself at every fourth renewal in any case: somebody may have deleted a lock's key by hand.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::claim::{Claim, ClaimId};
use crate::clock::Moment;

/// So many leases make a bundle, at least.
pub(crate) const FEWEST: usize = 16;

/// The bundles of one client.
#[derive(Debug, Default)]
pub(crate) struct Bundles(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    places: HashMap<ClaimId, Place>,
    /// How many places there may be before those of forgotten claims are looked for.
    most: usize,
    /// What was known before this may be wrong.
    doubted: Moment,
}

#[derive(Debug)]
struct Place {
    bundle: Arc<Bundle>,
    /// When the lease was last asked for by itself.
    seen: Moment,
    claim: Weak<Claim>,
}

/// A bundle.
#[derive(Debug)]
pub(crate) struct Bundle {
    pub(crate) key: String,
    pub(crate) ttl: Duration,
    leases: AtomicU32,
    /// When the last request was sent that extended it.
    renewed: AtomicU64,
    /// It is not what its owner believes, and no longer used.
    broken: AtomicBool,
}

impl Bundle {
    /// One that nothing has extended yet.
    pub(crate) fn new(key: String, ttl: Duration) -> Arc<Self> {
        Arc::new(Self {
            key,
            ttl,
            leases: AtomicU32::new(0),
            renewed: AtomicU64::new(0),
            broken: AtomicBool::new(false),
        })
    }

    pub(crate) fn leases(&self) -> u32 {
        self.leases.load(Ordering::SeqCst)
    }

    pub(crate) fn renewed(&self) -> Moment {
        Moment::from_nanos(self.renewed.load(Ordering::SeqCst))
    }

    pub(crate) fn extend(&self, sent: Moment) {
        self.renewed.fetch_max(sent.as_nanos(), Ordering::SeqCst);
    }

    /// Whether it was extended so lately that its leases need nothing more in this round.
    pub(crate) fn is_fresh(&self, now: Moment) -> bool {
        now.since(self.renewed()) < self.ttl / 6
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }

    pub(crate) fn give_up(&self) {
        self.broken.store(true, Ordering::SeqCst);
    }
}

/// Whether a lease is asked for by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Not yet.
    Later,
    /// It is its turn.
    Due,
    /// What is known of it, and of its bundle, may be another server's word.
    InDoubt,
}

impl Bundles {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bundle of a claim, and whether it should be asked for by itself now.
    pub(crate) fn find(&self, claim: &Claim, now: Moment) -> Option<(Arc<Bundle>, Turn)> {
        let mut state = self.state();
        let place = state.places.get(&claim.id)?;
        if place.bundle.is_broken() {
            state.places.remove(&claim.id);
            return None;
        }
        let turn = if place.seen <= state.doubted {
            Turn::InDoubt
        } else if now.since(place.seen) >= claim.terms.ttl {
            Turn::Due
        } else {
            Turn::Later
        };
        Some((Arc::clone(&place.bundle), turn))
    }

    /// Claims that were put into a bundle by a request sent then.
    pub(crate) fn join<'a>(&self, bundle: &Arc<Bundle>, claims: impl Iterator<Item = &'a Arc<Claim>>, sent: Moment) {
        let mut state = self.state();
        for claim in claims {
            bundle.leases.fetch_add(1, Ordering::SeqCst);
            let place = Place { bundle: Arc::clone(bundle), seen: sent, claim: Arc::downgrade(claim) };
            state.places.insert(claim.id, place);
        }
        // A claim that was released while this was under way may be among them.
        if state.places.len() > state.most {
            state.places.retain(|_, place| place.claim.strong_count() > 0);
            state.most = state.places.len() * 2;
        }
    }

    /// A claim was found in its bundle by a request sent then.
    pub(crate) fn seen(&self, claim: ClaimId, sent: Moment) {
        if let Some(place) = self.state().places.get_mut(&claim) {
            place.seen = sent;
        }
    }

    /// A claim is not in its bundle any more.
    pub(crate) fn forget(&self, claim: ClaimId) {
        self.state().places.remove(&claim);
    }

    /// Whatever is known may be wrong: all claims are asked for by themselves.
    pub(crate) fn doubt(&self, now: Moment) {
        self.state().doubted = now;
    }

    /// A claim is about to leave: to be said when it has.
    pub(crate) fn leave(&self, claim: ClaimId) -> Leaving {
        Leaving(self.state().places.remove(&claim).map(|place| place.bundle))
    }
}

/// A claim that is about to leave its bundle. If nobody says that it has, the bundle is not relied on any more.
pub(crate) struct Leaving(Option<Arc<Bundle>>);

impl Leaving {
    pub(crate) fn done(mut self) {
        if let Some(bundle) = self.0.take() {
            bundle.leases.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some(bundle) = &self.0 {
            bundle.give_up();
        }
    }
}
