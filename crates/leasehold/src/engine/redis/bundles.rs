//! Leases that are renewed together.
//!
//! Renewing 100,000 leases one by one costs the server more than most of its other work. So leases
//! of one TTL that are due at once join a bundle. The bundle stores the time of their last renewal
//! once, and one write renews them all.
//!
//! A lease leaves its bundle when it is released, contended for or force released; the same script
//! decrements the bundle's count. The server renews a bundle only if it has as many leases as its
//! owner expects; if not, the owner renews each lease on its own. Every fourth renewal checks each
//! lease on its own in any case: a lock's key may have been deleted by hand.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::claim::{Claim, ClaimId};
use crate::clock::Moment;

/// The fewest leases that make a bundle.
pub(crate) const FEWEST: usize = 16;

/// The bundles of one client.
#[derive(Debug, Default)]
pub(crate) struct Bundles(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    places: HashMap<ClaimId, Place>,
    /// Above this number of places, those of forgotten claims are removed.
    most: usize,
    /// What was learned before this moment may be wrong.
    doubted: Moment,
}

#[derive(Debug)]
struct Place {
    bundle: Arc<Bundle>,
    /// When the lease was last checked on its own.
    seen: Moment,
    claim: Weak<Claim>,
}

/// One bundle.
#[derive(Debug)]
pub(crate) struct Bundle {
    pub(crate) key: String,
    pub(crate) ttl: Duration,
    leases: AtomicU32,
    /// When the last successful renewal was sent.
    renewed: AtomicU64,
    /// The server's count may differ from ours: the bundle is no longer used.
    broken: AtomicBool,
}

impl Bundle {
    /// A bundle that has not been renewed yet.
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

    /// Whether it was renewed so recently that its leases need nothing more in this round.
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

/// Whether a lease is checked on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Not yet.
    Later,
    /// It is due.
    Due,
    /// What we know of the lease and its bundle may come from another server.
    InDoubt,
}

impl Bundles {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bundle of a claim, and whether the claim should be checked on its own now.
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

    /// Adds claims that joined a bundle by a request sent at `sent`.
    pub(crate) fn join<'a>(&self, bundle: &Arc<Bundle>, claims: impl Iterator<Item = &'a Arc<Claim>>, sent: Moment) {
        let mut state = self.state();
        for claim in claims {
            bundle.leases.fetch_add(1, Ordering::SeqCst);
            let place = Place { bundle: Arc::clone(bundle), seen: sent, claim: Arc::downgrade(claim) };
            state.places.insert(claim.id, place);
        }
        // A claim may have been released meanwhile.
        if state.places.len() > state.most {
            state.places.retain(|_, place| place.claim.strong_count() > 0);
            state.most = state.places.len() * 2;
        }
    }

    /// A request sent at `sent` found the claim in its bundle.
    pub(crate) fn seen(&self, claim: ClaimId, sent: Moment) {
        if let Some(place) = self.state().places.get_mut(&claim) {
            place.seen = sent;
        }
    }

    /// The claim is no longer in its bundle.
    pub(crate) fn forget(&self, claim: ClaimId) {
        self.state().places.remove(&claim);
    }

    /// All that we know may be wrong: each claim is checked on its own.
    pub(crate) fn doubt(&self, now: Moment) {
        self.state().doubted = now;
    }

    /// A claim is about to leave its bundle: call [`Leaving::done`] when it has.
    pub(crate) fn leave(&self, claim: ClaimId) -> Leaving {
        Leaving(self.state().places.remove(&claim).map(|place| place.bundle))
    }
}

/// A claim that is about to leave its bundle. If it is dropped before `done`, the bundle is no
/// longer used.
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
