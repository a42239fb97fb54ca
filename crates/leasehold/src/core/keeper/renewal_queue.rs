//! The held leases, and when each is due.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Instant;
use crate::engine::Claim;
use crate::types::ClaimId;

/// The leases in a row, each with the moment of its next task. Scanning them all is one walk over
/// memory: 100,000 take well under a millisecond, so they are kept in no particular order.
#[derive(Debug)]
pub(super) struct RenewalQueue(Mutex<QueueState>);

#[derive(Debug)]
struct QueueState {
    entries: Vec<QueueEntry>,
    free_slots: Vec<u32>,
    /// When the keeper checks next.
    next_check: Instant,
}

#[derive(Debug)]
struct QueueEntry {
    due_at: Instant,
    claim: Option<Arc<Claim>>,
    /// The lease may be lost: the keeper renews it to find out, even at its cap.
    maybe_lost: bool,
}

/// The leases that are due now, and when to check next.
pub(super) struct DueLeases {
    pub(super) expired: Vec<Arc<Claim>>,
    pub(super) renew: Vec<Arc<Claim>>,
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

    pub(super) fn len(&self) -> usize {
        let queue = self.state();
        queue.entries.len() - queue.free_slots.len()
    }

    /// Adds a lease. `true`: it is due before the keeper checks next.
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

    /// Sets when a lease is due next. `true`: before the keeper checks next.
    pub(super) fn set_due(&self, claim: &Claim, due: Instant) -> bool {
        let mut queue = self.state();
        match queue.entry_of(claim) {
            Some((_, row)) => row.due_at = due,
            None => return false,
        }
        queue.advance_next_check(due)
    }

    /// Marks a lease that may be lost as due now, even if it is not to be renewed any more. `true`:
    /// before the keeper checks next.
    pub(super) fn mark_maybe_lost(&self, claim: &Claim, now: Instant) -> bool {
        let mut queue = self.state();
        match queue.entry_of(claim) {
            Some((_, row)) => (row.due_at, row.maybe_lost) = (now, true),
            None => return false,
        }
        queue.advance_next_check(now)
    }

    /// Marks all leases as due, because any of them may be lost.
    pub(super) fn mark_all_due(&self, now: Instant) {
        let mut queue = self.state();
        for entry in queue.entries.iter_mut().filter(|entry| entry.claim.is_some()) {
            (entry.due_at, entry.maybe_lost) = (entry.due_at.min(now), true);
        }
        queue.next_check = queue.next_check.min(now);
    }

    /// Takes everything that is due now. A lease that is handed out for renewal stays due at its
    /// deadline, in case no answer comes.
    pub(super) fn take_due(&self, now: Instant) -> DueLeases {
        let mut round = DueLeases { expired: Vec::new(), renew: Vec::new(), next_check: Instant::NEVER };
        let mut queue = self.state();
        if now < queue.next_check {
            round.next_check = queue.next_check;
            return round;
        }
        for entry in &mut queue.entries {
            if entry.due_at <= now
                && let Some(claim) = &entry.claim
            {
                let deadline = claim.lease.deadline();
                if deadline <= now || claim.lease.lost_reason().is_some() {
                    round.expired.push(Arc::clone(claim));
                    entry.due_at = Instant::NEVER;
                } else {
                    // At its cap a lease expires. One that may be lost is renewed, so that its
                    // holder learns of the loss.
                    if std::mem::take(&mut entry.maybe_lost) || deadline < claim.lease.max_deadline() {
                        round.renew.push(Arc::clone(claim));
                    }
                    entry.due_at = deadline;
                }
            }
            round.next_check = round.next_check.min(entry.due_at);
        }
        queue.next_check = round.next_check;
        round
    }

    pub(super) fn find(&self, claims: &[ClaimId]) -> Vec<Arc<Claim>> {
        let queue = self.state();
        let tracked = queue.entries.iter().filter_map(|entry| entry.claim.as_ref());
        tracked.filter(|claim| claims.contains(&claim.id)).cloned().collect()
    }

    /// The age of the oldest lease, and the time left of the one that ends first.
    pub(super) fn oldest_age_and_shortest_remaining(&self, now: Instant) -> Option<(Duration, Duration)> {
        let queue = self.state();
        let leases = || queue.entries.iter().filter_map(|entry| entry.claim.as_ref()).map(|claim| &claim.lease);
        let oldest = leases().map(|lease| now.duration_since(lease.granted_at())).max()?;
        let shortest = leases().map(|lease| lease.deadline().duration_since(now)).min()?;
        Some((oldest, shortest))
    }
}

impl QueueState {
    fn entry_of(&mut self, claim: &Claim) -> Option<(u32, &mut QueueEntry)> {
        let slot = claim.lease.slot.load(Ordering::Relaxed);
        let entry = self.entries.get_mut(slot as usize)?;
        let same = entry.claim.as_ref().is_some_and(|tracked| std::ptr::eq(&raw const **tracked, claim));
        same.then_some((slot, entry))
    }

    fn advance_next_check(&mut self, due: Instant) -> bool {
        let sooner = due < self.next_check;
        if sooner {
            self.next_check = due;
        }
        sooner
    }
}
