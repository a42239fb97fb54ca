//! Leases that are renewed together.
//!
//! Renewing 100,000 leases one by one costs the server more than most of its other work. So leases
//! of one TTL that are due at once join a group. The group stores the time of their last renewal
//! once, and one write renews them all.
//!
//! A lease leaves its group when it is released, contended for or force released; the same script
//! decrements the group's count. The server renews a group only if it has as many leases as its
//! owner expects; if not, the owner renews each lease on its own. Every fourth renewal checks each
//! lease on its own in any case: a lock's key may have been deleted by hand.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::clock::Instant;
use crate::engine::Claim;
use crate::types::ClaimId;

/// The fewest leases that make a group.
pub(crate) const MIN_GROUP_SIZE: usize = 16;

/// The groups of one client.
#[derive(Debug, Default)]
pub(crate) struct RenewalGroups(Mutex<GroupTable>);

#[derive(Debug, Default)]
struct GroupTable {
    memberships: HashMap<ClaimId, Membership>,
    /// Above this number of memberships, those of forgotten claims are removed.
    prune_threshold: usize,
    /// Facts from before this moment may be wrong.
    resync_since: Instant,
}

#[derive(Debug)]
struct Membership {
    group: Arc<RenewalGroup>,
    /// When the lease was last checked on its own.
    checked_at: Instant,
    claim: Weak<Claim>,
}

/// One group.
#[derive(Debug)]
pub(crate) struct RenewalGroup {
    pub(crate) key: String,
    pub(crate) ttl: Duration,
    lease_count: AtomicU32,
    /// When the last successful renewal was sent.
    renewed_at: AtomicU64,
    /// The server's count may differ from this client's: the group is no longer used.
    is_broken: AtomicBool,
}

impl RenewalGroup {
    /// A group that has not been renewed yet.
    pub(crate) fn new(key: String, ttl: Duration) -> Arc<Self> {
        Arc::new(Self {
            key,
            ttl,
            lease_count: AtomicU32::new(0),
            renewed_at: AtomicU64::new(0),
            is_broken: AtomicBool::new(false),
        })
    }

    pub(crate) fn lease_count(&self) -> u32 {
        self.lease_count.load(Ordering::SeqCst)
    }

    pub(crate) fn renewed_at(&self) -> Instant {
        Instant::from_nanos(self.renewed_at.load(Ordering::SeqCst))
    }

    pub(crate) fn record_renewal(&self, sent: Instant) {
        self.renewed_at.fetch_max(sent.as_nanos(), Ordering::SeqCst);
    }

    /// Whether it was renewed so recently that its leases need no renewal in this round.
    pub(crate) fn is_fresh(&self, now: Instant) -> bool {
        now.duration_since(self.renewed_at()) < self.ttl / 6
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::SeqCst)
    }

    pub(crate) fn mark_broken(&self) {
        self.is_broken.store(true, Ordering::SeqCst);
    }
}

/// Whether a lease is checked on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseCheck {
    /// Not yet.
    NotDue,
    /// It is due.
    Due,
    /// The stored facts about the lease and its group may come from another server.
    Resync,
}

impl RenewalGroups {
    fn state(&self) -> MutexGuard<'_, GroupTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The group of a claim, and whether the claim should be checked on its own now.
    pub(crate) fn find(&self, claim: &Claim, now: Instant) -> Option<(Arc<RenewalGroup>, LeaseCheck)> {
        let mut state = self.state();
        let membership = state.memberships.get(&claim.id)?;
        if membership.group.is_broken() {
            state.memberships.remove(&claim.id);
            return None;
        }
        let turn = if membership.checked_at <= state.resync_since {
            LeaseCheck::Resync
        } else if now.duration_since(membership.checked_at) >= claim.options.ttl {
            LeaseCheck::Due
        } else {
            LeaseCheck::NotDue
        };
        Some((Arc::clone(&membership.group), turn))
    }

    /// Adds claims that joined a group by a request sent at `sent`.
    pub(crate) fn join<'a>(
        &self,
        group: &Arc<RenewalGroup>,
        claims: impl Iterator<Item = &'a Arc<Claim>>,
        sent: Instant,
    ) {
        let mut state = self.state();
        for claim in claims {
            group.lease_count.fetch_add(1, Ordering::SeqCst);
            let membership = Membership { group: Arc::clone(group), checked_at: sent, claim: Arc::downgrade(claim) };
            state.memberships.insert(claim.id, membership);
        }
        // A claim may have been released since.
        if state.memberships.len() > state.prune_threshold {
            state.memberships.retain(|_, membership| membership.claim.strong_count() > 0);
            state.prune_threshold = state.memberships.len() * 2;
        }
    }

    /// A request sent at `sent` found the claim in its group.
    pub(crate) fn record_check(&self, claim: ClaimId, sent: Instant) {
        if let Some(membership) = self.state().memberships.get_mut(&claim) {
            membership.checked_at = sent;
        }
    }

    /// The claim is no longer in its group.
    pub(crate) fn remove(&self, claim: ClaimId) {
        self.state().memberships.remove(&claim);
    }

    /// All stored facts may be wrong: each claim is checked on its own.
    pub(crate) fn require_resync(&self, now: Instant) {
        self.state().resync_since = now;
    }

    /// A claim is about to leave its group: call [`PendingLeave::complete`] when it has.
    pub(crate) fn begin_leave(&self, claim: ClaimId) -> PendingLeave {
        PendingLeave(self.state().memberships.remove(&claim).map(|membership| membership.group))
    }
}

/// A claim that is about to leave its group. If it is dropped before `complete`, the group is no
/// longer used.
pub(crate) struct PendingLeave(Option<Arc<RenewalGroup>>);

impl PendingLeave {
    pub(crate) fn complete(mut self) {
        if let Some(group) = self.0.take() {
            group.lease_count.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Drop for PendingLeave {
    fn drop(&mut self) {
        if let Some(group) = &self.0 {
            group.mark_broken();
        }
    }
}
