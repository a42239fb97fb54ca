//! Keeps messages for claims that wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::clock::Instant;
use crate::types::{ClaimId, Token};

/// A message for a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notification {
    /// Granted with this token, after the moment at which the claim was last known to wait.
    Granted(Token, Instant),
    /// The claim should send a heartbeat now.
    Recheck,
    /// Force released.
    ForceReleased,
}

#[derive(Debug)]
struct WaiterEntry {
    /// When a request was sent whose answer was "queued": any grant was made later.
    last_known_waiting: Instant,
    /// The claim's queue position, once it is known. A grant for another position is old, and was
    /// delayed.
    position: Option<u64>,
    grant: Option<(Token, u64)>,
    /// The position at which the claim was force released. No grant counts any more, not even a
    /// later one: that grant is older. Positions rise, so a force release of an earlier position is
    /// old, too.
    force_released_at: Option<u64>,
    is_recheck_due: bool,
    /// The claim waited, and the last request about it had no answer.
    is_unanswered: bool,
    /// Notified when a message arrives; created with the first subscriber.
    wakeup: Option<Arc<Notify>>,
}

impl WaiterEntry {
    fn notify(&self) {
        if let Some(wakeup) = &self.wakeup {
            wakeup.notify_one();
        }
    }
}

/// One slot for each claim that waits or is about to.
#[derive(Debug, Default)]
pub(crate) struct PendingGrants(Mutex<HashMap<ClaimId, WaiterEntry>>);

impl PendingGrants {
    fn entries(&self) -> MutexGuard<'_, HashMap<ClaimId, WaiterEntry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a slot for a claim before its request is sent: a message may come before the answer.
    /// Dropping the returned value removes the slot, unless it was kept. If the claim waited
    /// before, the slot stays: it is unknown whether the claim still waits.
    pub(crate) fn begin_request(&self, claim: ClaimId, sent: Instant) -> WaiterRequest<'_> {
        let new = || WaiterEntry {
            last_known_waiting: sent,
            position: None,
            grant: None,
            force_released_at: None,
            is_recheck_due: false,
            is_unanswered: false,
            wakeup: None,
        };
        self.entries().entry(claim).or_insert_with(new);
        WaiterRequest { pending_grants: self, claim, is_settled: false }
    }

    /// The claim sends a new attempt: an earlier force release no longer counts.
    pub(crate) fn begin_attempt(&self, claim: ClaimId) {
        if let Some(slot) = self.entries().get_mut(&claim)
            && slot.force_released_at.take().is_some()
        {
            slot.position = None;
        }
    }

    /// Whether the last request about a waiting claim had no answer; if so, whether a message
    /// reported the claim's force release.
    pub(crate) fn unanswered_wait(&self, claim: ClaimId) -> Option<bool> {
        let slots = self.entries();
        slots.get(&claim).filter(|slot| slot.is_unanswered).map(|slot| slot.force_released_at.is_some())
    }

    /// An answer to a request sent at `sent` showed that the claim waits, at this position.
    pub(crate) fn set_waiting(&self, claim: ClaimId, sent: Instant, position: u64) {
        if let Some(slot) = self.entries().get_mut(&claim) {
            (slot.position, slot.is_unanswered) = (Some(position), false);
            slot.grant = slot.grant.filter(|(_, at)| *at == position);
            slot.force_released_at = slot.force_released_at.filter(|at| *at >= position);
            // A grant that is already here followed an earlier request: the earlier moment counts.
            if slot.grant.is_none() {
                slot.last_known_waiting = sent;
            }
        }
    }

    /// Removes and returns a claim's message, or what is notified when one arrives. `None`: the
    /// claim does not wait.
    pub(crate) fn take_notification(&self, claim: ClaimId) -> Option<Result<Notification, Arc<Notify>>> {
        let mut slots = self.entries();
        let slot = slots.get_mut(&claim)?;
        if slot.force_released_at.is_some() {
            return Some(Ok(Notification::ForceReleased));
        }
        if let Some((token, position)) = slot.grant.take()
            && slot.position == Some(position)
        {
            return Some(Ok(Notification::Granted(token, slot.last_known_waiting)));
        }
        if std::mem::take(&mut slot.is_recheck_due) {
            return Some(Ok(Notification::Recheck));
        }
        Some(Err(Arc::clone(slot.wakeup.get_or_insert_default())))
    }

    /// The claim no longer waits.
    pub(crate) fn remove(&self, claim: ClaimId) {
        self.entries().remove(&claim);
    }

    pub(crate) fn add_grant(&self, claim: ClaimId, token: Token, position: u64) {
        if let Some(slot) = self.entries().get_mut(&claim)
            && slot.position.is_none_or(|known| known == position)
        {
            slot.grant = Some((token, position));
            slot.notify();
        }
    }

    /// The claim was force released. Earlier messages no longer count, read or not.
    pub(crate) fn set_force_released(&self, claim: ClaimId, position: u64) {
        if let Some(slot) = self.entries().get_mut(&claim)
            && slot.position.is_none_or(|known| known <= position)
        {
            (slot.grant, slot.force_released_at) = (None, Some(position));
            slot.notify();
        }
    }

    /// Whether the claim was force released at this position or a later one, since its slot was
    /// added.
    pub(crate) fn is_force_released(&self, claim: ClaimId, from_position: u64) -> bool {
        self.entries().get(&claim).is_some_and(|slot| slot.force_released_at.is_some_and(|at| at >= from_position))
    }

    pub(crate) fn request_recheck(&self, claim: ClaimId) {
        if let Some(slot) = self.entries().get_mut(&claim) {
            slot.is_recheck_due = true;
            slot.notify();
        }
    }

    /// Messages may have been missed: all waiters send a heartbeat. A force release may have
    /// followed an unread grant, so that grant is discarded.
    pub(crate) fn request_recheck_all(&self) {
        for slot in self.entries().values_mut() {
            (slot.grant, slot.is_recheck_due) = (None, true);
            slot.notify();
        }
    }
}

/// A slot for the duration of one request.
pub(crate) struct WaiterRequest<'a> {
    pending_grants: &'a PendingGrants,
    claim: ClaimId,
    is_settled: bool,
}

impl WaiterRequest<'_> {
    /// The claim waits: its slot stays until it is forgotten.
    pub(crate) fn keep(mut self) {
        self.is_settled = true;
    }

    /// The claim does not wait.
    pub(crate) fn discard(mut self) {
        self.is_settled = true;
        self.pending_grants.remove(self.claim);
    }
}

impl Drop for WaiterRequest<'_> {
    fn drop(&mut self) {
        if self.is_settled {
            return;
        }
        let mut slots = self.pending_grants.entries();
        match slots.get_mut(&self.claim) {
            Some(slot) if slot.position.is_some() => slot.is_unanswered = true,
            _ => drop(slots.remove(&self.claim)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIM: ClaimId = ClaimId::from_bits(1);

    fn pending_grants_with_waiter() -> PendingGrants {
        let pending_grants = PendingGrants::default();
        pending_grants.begin_request(CLAIM, Instant::default()).keep();
        pending_grants.set_waiting(CLAIM, Instant::default(), 7);
        pending_grants
    }

    fn taken_notification(pending_grants: &PendingGrants) -> Option<Notification> {
        pending_grants.take_notification(CLAIM).and_then(Result::ok)
    }

    #[test]
    fn a_force_release_voids_an_unread_grant_and_every_late_one() {
        let pending_grants = pending_grants_with_waiter();
        pending_grants.add_grant(CLAIM, Token(3), 7);
        pending_grants.set_force_released(CLAIM, 9);
        assert_eq!(taken_notification(&pending_grants), Some(Notification::ForceReleased));
        // A cluster forwards messages: the same grant may arrive again over another connection.
        pending_grants.add_grant(CLAIM, Token(3), 7);
        assert_eq!(taken_notification(&pending_grants), Some(Notification::ForceReleased));
    }

    /// A cluster forwards messages: a force release may arrive again after the claim's next
    /// attempt.
    #[test]
    fn an_old_force_release_does_not_void_a_new_position() {
        let pending_grants = pending_grants_with_waiter();
        pending_grants.set_force_released(CLAIM, 7);
        pending_grants.begin_attempt(CLAIM);
        pending_grants.set_force_released(CLAIM, 7);
        pending_grants.set_waiting(CLAIM, Instant::default(), 12);
        pending_grants.set_force_released(CLAIM, 7);
        pending_grants.add_grant(CLAIM, Token(13), 12);
        assert_eq!(taken_notification(&pending_grants), Some(Notification::Granted(Token(13), Instant::default())));
    }

    /// After an unanswered request it is unknown whether the claim still waits; a claim that was
    /// never known to wait is forgotten.
    #[test]
    fn a_request_without_an_answer_interrupts_a_wait() {
        let pending_grants = pending_grants_with_waiter();
        assert_eq!(pending_grants.unanswered_wait(CLAIM), None);
        drop(pending_grants.begin_request(CLAIM, Instant::default()));
        assert_eq!(pending_grants.unanswered_wait(CLAIM), Some(false));
        pending_grants.set_force_released(CLAIM, 7);
        assert_eq!(pending_grants.unanswered_wait(CLAIM), Some(true));
        pending_grants.begin_request(CLAIM, Instant::default()).discard();
        assert_eq!(pending_grants.unanswered_wait(CLAIM), None);
        drop(pending_grants.begin_request(CLAIM, Instant::default()));
        assert!(pending_grants.entries().is_empty());
    }

    #[test]
    fn an_unread_grant_is_checked_again_after_a_reconnect() {
        let pending_grants = pending_grants_with_waiter();
        pending_grants.add_grant(CLAIM, Token(3), 7);
        pending_grants.request_recheck_all();
        assert_eq!(taken_notification(&pending_grants), Some(Notification::Recheck));
        assert_eq!(taken_notification(&pending_grants), None);
    }
}
