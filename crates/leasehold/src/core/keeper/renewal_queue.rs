//! The held leases of the keeper, and when each is due for renewal or expiry.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Instant;
use crate::engine::Claim;
use crate::types::ClaimId;

/// The held leases, each with the time at which it is due. They are in no particular order, because
/// scanning 100,000 of them takes well under a millisecond.
#[derive(Debug)]
pub(super) struct RenewalQueue(Mutex<QueueState>);

#[derive(Debug)]
struct QueueState {
    entries: Vec<QueueEntry>,
    /// The indexes of the entries without a claim.
    free_slots: Vec<u32>,
    /// When the keeper checks next: no lease is due earlier.
    next_check: Instant,
}

#[derive(Debug)]
struct QueueEntry {
    /// When to renew the lease, or when it expires.
    due_at: Instant,
    /// `None`: the slot is free.
    claim: Option<Arc<Claim>>,
    /// Whether the lease may be lost: the keeper renews it to find out, even if it is at its
    /// maximum.
    maybe_lost: bool,
}

/// The leases that are due now.
pub(super) struct DueLeases {
    /// The leases whose deadline has passed.
    pub(super) expired: Vec<Arc<Claim>>,
    /// The leases to renew.
    pub(super) renew: Vec<Arc<Claim>>,
    /// When the keeper checks next; [`Instant::NEVER`] if there are no leases.
    pub(super) next_check: Instant,
}

impl Default for RenewalQueue {
    fn default() -> Self {
        Self(Mutex::new(QueueState { entries: Vec::new(), free_slots: Vec::new(), next_check: Instant::NEVER }))
    }
}

impl RenewalQueue {
    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of leases.
    pub(super) fn len(&self) -> usize {
        let queue = self.state();
        queue.entries.len() - queue.free_slots.len()
    }

    /// Adds a lease that is due at `due`. `true`: that is before the keeper checks next, so it must
    /// be woken.
    pub(super) fn add(&self, claim: &Arc<Claim>, due: Instant) -> bool {
        let mut queue = self.state();
        let entry = QueueEntry { due_at: due, claim: Some(Arc::clone(claim)), maybe_lost: false };
        let slot = if let Some(slot) = queue.free_slots.pop() {
            queue.entries[slot as usize] = entry;
            slot
        } else {
            queue.entries.push(entry);
            u32::try_from(queue.entries.len() - 1).unwrap_or(u32::MAX)
        };
        claim.lease.slot.store(slot, Ordering::Relaxed);
        queue.advance_next_check(due)
    }

    /// Removes a lease. `false`: it was not tracked.
    pub(super) fn remove(&self, claim: &Claim) -> bool {
        let mut queue = self.state();
        let Some((slot, entry)) = queue.entry_of(claim) else { return false };
        entry.due_at = Instant::NEVER;
        let removed = entry.claim.take();
        queue.free_slots.push(slot);
        drop(queue);
        removed.is_some()
    }

    /// Sets when a lease is due next. `true`: that is before the keeper checks next, so it must be
    /// woken.
    pub(super) fn set_due(&self, claim: &Claim, due: Instant) -> bool {
        let mut queue = self.state();
        match queue.entry_of(claim) {
            Some((_, entry)) => entry.due_at = due,
            None => return false,
        }
        queue.advance_next_check(due)
    }

    /// Marks a lease as due now because it may be lost, even if it is at its maximum. `true`: the
    /// keeper must be woken. `false`: it checks in time, or does not track the lease.
    pub(super) fn mark_maybe_lost(&self, claim: &Claim, now: Instant) -> bool {
        let mut queue = self.state();
        match queue.entry_of(claim) {
            Some((_, entry)) => (entry.due_at, entry.maybe_lost) = (now, true),
            None => return false,
        }
        queue.advance_next_check(now)
    }

    /// Marks all leases as due now, because any of them may be lost.
    pub(super) fn mark_all_due(&self, now: Instant) {
        let mut queue = self.state();
        for entry in queue.entries.iter_mut().filter(|entry| entry.claim.is_some()) {
            (entry.due_at, entry.maybe_lost) = (entry.due_at.min(now), true);
        }
        queue.next_check = queue.next_check.min(now);
    }

    /// Returns the leases that are due now. A lease to renew is due again at its deadline, in case
    /// the engine does not answer; an expired lease is due no more.
    pub(super) fn take_due(&self, now: Instant) -> DueLeases {
        let mut due = DueLeases { expired: Vec::new(), renew: Vec::new(), next_check: Instant::NEVER };
        let mut queue = self.state();
        if now < queue.next_check {
            due.next_check = queue.next_check;
            return due;
        }
        for entry in &mut queue.entries {
            if entry.due_at <= now
                && let Some(claim) = &entry.claim
            {
                let deadline = claim.lease.deadline();
                if deadline <= now || claim.lease.lost_reason().is_some() {
                    due.expired.push(Arc::clone(claim));
                    entry.due_at = Instant::NEVER;
                } else {
                    // A lease at its maximum is not renewed, unless it may be lost: the renewal
                    // then finds out.
                    if std::mem::take(&mut entry.maybe_lost) || deadline < claim.lease.max_deadline() {
                        due.renew.push(Arc::clone(claim));
                    }
                    entry.due_at = deadline;
                }
            }
            due.next_check = due.next_check.min(entry.due_at);
        }
        queue.next_check = due.next_check;
        due
    }

    /// The tracked claims among these.
    pub(super) fn find(&self, claims: &[ClaimId]) -> Vec<Arc<Claim>> {
        let queue = self.state();
        let tracked = queue.entries.iter().filter_map(|entry| entry.claim.as_ref());
        tracked.filter(|claim| claims.contains(&claim.id)).cloned().collect()
    }

    /// The age of the oldest lease, and the time left of the lease that ends first; `None` if there
    /// are no leases.
    pub(super) fn oldest_age_and_shortest_remaining(&self, now: Instant) -> Option<(Duration, Duration)> {
        let queue = self.state();
        let leases = || queue.entries.iter().filter_map(|entry| entry.claim.as_ref()).map(|claim| &claim.lease);
        let oldest = leases().map(|lease| now.duration_since(lease.granted_at())).max()?;
        let shortest = leases().map(|lease| lease.deadline().duration_since(now)).min()?;
        Some((oldest, shortest))
    }
}

impl QueueState {
    /// The slot and the entry of a claim; `None` if it is not tracked.
    fn entry_of(&mut self, claim: &Claim) -> Option<(u32, &mut QueueEntry)> {
        let slot = claim.lease.slot.load(Ordering::Relaxed);
        let entry = self.entries.get_mut(slot as usize)?;
        // Another claim may use the slot by now.
        let is_claim = entry.claim.as_ref().is_some_and(|tracked| std::ptr::eq(&raw const **tracked, claim));
        is_claim.then_some((slot, entry))
    }

    /// Makes the keeper check at `due` if it would check later; `true` in that case.
    fn advance_next_check(&mut self, due: Instant) -> bool {
        let is_sooner = due < self.next_check;
        if is_sooner {
            self.next_check = due;
        }
        is_sooner
    }
}
