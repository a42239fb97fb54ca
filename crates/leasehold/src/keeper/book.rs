//! The held leases, and when each is due.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::claim::{Claim, ClaimId};
use crate::clock::Moment;

/// The leases in a row, each with the moment of its next task. Scanning them all is one walk over
/// memory: 100,000 take well under a millisecond, so they are kept in no particular order.
#[derive(Debug)]
pub(super) struct Book(Mutex<Pages>);

#[derive(Debug)]
struct Pages {
    rows: Vec<Row>,
    free: Vec<u32>,
    /// When the keeper checks next.
    next: Moment,
}

#[derive(Debug)]
struct Row {
    due: Moment,
    claim: Option<Arc<Claim>>,
    /// The lease may be lost: the keeper renews it to find out, even at its cap.
    doubtful: bool,
}

/// What is due now, and when to check next.
pub(super) struct Round {
    pub(super) expired: Vec<Arc<Claim>>,
    pub(super) renew: Vec<Arc<Claim>>,
    pub(super) next: Moment,
}

impl Default for Book {
    fn default() -> Self {
        Self(Mutex::new(Pages { rows: Vec::new(), free: Vec::new(), next: Moment::NEVER }))
    }
}

impl Book {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        let pages = self.pages();
        pages.rows.len() - pages.free.len()
    }

    /// Adds a lease. `true`: it is due before the keeper checks next.
    pub(super) fn add(&self, claim: &Arc<Claim>, due: Moment) -> bool {
        let mut pages = self.pages();
        let row = Row { due, claim: Some(Arc::clone(claim)), doubtful: false };
        let slot = if let Some(slot) = pages.free.pop() {
            pages.rows[slot as usize] = row;
            slot
        } else {
            pages.rows.push(row);
            u32::try_from(pages.rows.len() - 1).unwrap_or(u32::MAX)
        };
        claim.lease.slot.store(slot, Ordering::Relaxed);
        pages.wake_for(due)
    }

    /// Removes a lease. `false`: it was not in the book any more.
    pub(super) fn remove(&self, claim: &Claim) -> bool {
        let mut pages = self.pages();
        let Some((slot, row)) = pages.row_of(claim) else { return false };
        row.due = Moment::NEVER;
        let kept = row.claim.take();
        pages.free.push(slot);
        drop(pages);
        kept.is_some()
    }

    /// Sets when a lease is due next. `true`: before the keeper checks next.
    pub(super) fn set_due(&self, claim: &Claim, due: Moment) -> bool {
        let mut pages = self.pages();
        match pages.row_of(claim) {
            Some((_, row)) => row.due = due,
            None => return false,
        }
        pages.wake_for(due)
    }

    /// Marks a lease that may be lost as due now, even if it is not to be renewed any more. `true`:
    /// before the keeper checks next.
    pub(super) fn check(&self, claim: &Claim, now: Moment) -> bool {
        let mut pages = self.pages();
        match pages.row_of(claim) {
            Some((_, row)) => (row.due, row.doubtful) = (now, true),
            None => return false,
        }
        pages.wake_for(now)
    }

    /// Marks all leases as due, because any of them may be lost.
    pub(super) fn all_due(&self, now: Moment) {
        let mut pages = self.pages();
        for row in pages.rows.iter_mut().filter(|row| row.claim.is_some()) {
            (row.due, row.doubtful) = (row.due.min(now), true);
        }
        pages.next = pages.next.min(now);
    }

    /// Takes everything that is due now. A lease that is handed out for renewal stays due at its
    /// deadline, in case no answer comes.
    pub(super) fn due(&self, now: Moment) -> Round {
        let mut round = Round { expired: Vec::new(), renew: Vec::new(), next: Moment::NEVER };
        let mut pages = self.pages();
        if now < pages.next {
            round.next = pages.next;
            return round;
        }
        for row in &mut pages.rows {
            if row.due <= now
                && let Some(claim) = &row.claim
            {
                let deadline = claim.lease.deadline();
                if deadline <= now || claim.lease.lost_reason().is_some() {
                    round.expired.push(Arc::clone(claim));
                    row.due = Moment::NEVER;
                } else {
                    // At its cap a lease is left to expire. If it may be lost, it is renewed, so
                    // that its holder learns of the loss.
                    if std::mem::take(&mut row.doubtful) || deadline < claim.lease.cap() {
                        round.renew.push(Arc::clone(claim));
                    }
                    row.due = deadline;
                }
            }
            round.next = round.next.min(row.due);
        }
        pages.next = round.next;
        round
    }

    pub(super) fn find(&self, claims: &[ClaimId]) -> Vec<Arc<Claim>> {
        let pages = self.pages();
        let kept = pages.rows.iter().filter_map(|row| row.claim.as_ref());
        kept.filter(|claim| claims.contains(&claim.id)).cloned().collect()
    }

    /// The age of the oldest lease, and the time left of the one that ends first.
    pub(super) fn extremes(&self, now: Moment) -> Option<(Duration, Duration)> {
        let pages = self.pages();
        let leases = || pages.rows.iter().filter_map(|row| row.claim.as_ref()).map(|claim| &claim.lease);
        let oldest = leases().map(|lease| now.since(lease.granted())).max()?;
        let shortest = leases().map(|lease| lease.deadline().since(now)).min()?;
        Some((oldest, shortest))
    }
}

impl Pages {
    fn row_of(&mut self, claim: &Claim) -> Option<(u32, &mut Row)> {
        let slot = claim.lease.slot.load(Ordering::Relaxed);
        let row = self.rows.get_mut(slot as usize)?;
        let same = row.claim.as_ref().is_some_and(|kept| std::ptr::eq(&raw const **kept, claim));
        same.then_some((slot, row))
    }

    fn wake_for(&mut self, due: Moment) -> bool {
        let sooner = due < self.next;
        if sooner {
            self.next = due;
        }
        sooner
    }
}
