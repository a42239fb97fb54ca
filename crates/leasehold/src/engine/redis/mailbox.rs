//! Keeps messages for claims that wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::claim::{ClaimId, Token};
use crate::clock::Moment;

/// A message for a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Granted with this token, after the moment at which the claim was last known to wait.
    Granted(Token, Moment),
    /// The claim should send a `look`.
    Look,
    /// Force released.
    Evicted,
}

#[derive(Debug)]
struct Slot {
    /// When a request was sent whose answer was "queued": any grant was made later.
    asked: Moment,
    /// The claim's queue position, once it is known. A grant for another position is old, and was
    /// delayed.
    place: Option<u64>,
    granted: Option<(Token, u64)>,
    /// The position at which the claim was force released. No grant counts any more, not even a
    /// later one: that grant is older. Positions rise, so a force release of an earlier position is
    /// old, too.
    evicted: Option<u64>,
    look: bool,
    /// The claim waited, and the last request about it had no answer.
    interrupted: bool,
    /// Notified when a message arrives; created with the first subscriber.
    bell: Option<Arc<Notify>>,
}

impl Slot {
    fn ring(&self) {
        if let Some(bell) = &self.bell {
            bell.notify_one();
        }
    }
}

/// One slot for each claim that waits or is about to.
#[derive(Debug, Default)]
pub(crate) struct Mailbox(Mutex<HashMap<ClaimId, Slot>>);

impl Mailbox {
    fn slots(&self) -> MutexGuard<'_, HashMap<ClaimId, Slot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a slot for a claim before its request is sent: a message may come before the answer.
    /// Dropping the returned value removes the slot, unless it was kept. If the claim waited
    /// before, the slot stays: it is unknown whether the claim still waits.
    pub(crate) fn expect(&self, claim: ClaimId, sent: Moment) -> Expected<'_> {
        let new = || Slot {
            asked: sent,
            place: None,
            granted: None,
            evicted: None,
            look: false,
            interrupted: false,
            bell: None,
        };
        self.slots().entry(claim).or_insert_with(new);
        Expected { mailbox: self, claim, done: false }
    }

    /// The claim sends a new attempt: an earlier force release no longer counts.
    pub(crate) fn anew(&self, claim: ClaimId) {
        if let Some(slot) = self.slots().get_mut(&claim)
            && slot.evicted.take().is_some()
        {
            slot.place = None;
        }
    }

    /// Whether the last request about a waiting claim had no answer; if so, whether a message
    /// reported the claim's force release.
    pub(crate) fn interrupted(&self, claim: ClaimId) -> Option<bool> {
        let slots = self.slots();
        slots.get(&claim).filter(|slot| slot.interrupted).map(|slot| slot.evicted.is_some())
    }

    /// The claim was known to wait, at this position, by the answer to a request sent at `sent`.
    pub(crate) fn waits(&self, claim: ClaimId, sent: Moment, place: u64) {
        if let Some(slot) = self.slots().get_mut(&claim) {
            (slot.place, slot.interrupted) = (Some(place), false);
            slot.granted = slot.granted.filter(|(_, at)| *at == place);
            slot.evicted = slot.evicted.filter(|at| *at >= place);
            // A grant that is already here followed an earlier request: the earlier moment counts.
            if slot.granted.is_none() {
                slot.asked = sent;
            }
        }
    }

    /// Removes and returns a claim's message, or what is notified when one arrives. `None`: the
    /// claim does not wait.
    pub(crate) fn take(&self, claim: ClaimId) -> Option<Result<News, Arc<Notify>>> {
        let mut slots = self.slots();
        let slot = slots.get_mut(&claim)?;
        if slot.evicted.is_some() {
            return Some(Ok(News::Evicted));
        }
        if let Some((token, place)) = slot.granted.take()
            && slot.place == Some(place)
        {
            return Some(Ok(News::Granted(token, slot.asked)));
        }
        if std::mem::take(&mut slot.look) {
            return Some(Ok(News::Look));
        }
        Some(Err(Arc::clone(slot.bell.get_or_insert_default())))
    }

    /// The claim no longer waits.
    pub(crate) fn forget(&self, claim: ClaimId) {
        self.slots().remove(&claim);
    }

    pub(crate) fn granted(&self, claim: ClaimId, token: Token, place: u64) {
        if let Some(slot) = self.slots().get_mut(&claim)
            && slot.place.is_none_or(|known| known == place)
        {
            slot.granted = Some((token, place));
            slot.ring();
        }
    }

    /// The claim was force released. Earlier messages no longer count, read or not.
    pub(crate) fn evicted(&self, claim: ClaimId, place: u64) {
        if let Some(slot) = self.slots().get_mut(&claim)
            && slot.place.is_none_or(|known| known <= place)
        {
            (slot.granted, slot.evicted) = (None, Some(place));
            slot.ring();
        }
    }

    /// Whether the claim was force released at this position or a later one, since its slot was
    /// added.
    pub(crate) fn is_evicted(&self, claim: ClaimId, from: u64) -> bool {
        self.slots().get(&claim).is_some_and(|slot| slot.evicted.is_some_and(|at| at >= from))
    }

    pub(crate) fn look(&self, claim: ClaimId) {
        if let Some(slot) = self.slots().get_mut(&claim) {
            slot.look = true;
            slot.ring();
        }
    }

    /// Messages may have been missed: all waiters send a `look`. A force release may have followed
    /// an unread grant, so that grant is discarded.
    pub(crate) fn look_all(&self) {
        for slot in self.slots().values_mut() {
            (slot.granted, slot.look) = (None, true);
            slot.ring();
        }
    }
}

/// A slot for the duration of one request.
pub(crate) struct Expected<'a> {
    mailbox: &'a Mailbox,
    claim: ClaimId,
    done: bool,
}

impl Expected<'_> {
    /// The claim waits: its slot stays until it is forgotten.
    pub(crate) fn keep(mut self) {
        self.done = true;
    }

    /// The claim does not wait.
    pub(crate) fn forget(mut self) {
        self.done = true;
        self.mailbox.forget(self.claim);
    }
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut slots = self.mailbox.slots();
        match slots.get_mut(&self.claim) {
            Some(slot) if slot.place.is_some() => slot.interrupted = true,
            _ => drop(slots.remove(&self.claim)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIM: ClaimId = ClaimId::from_bits(1);

    fn waiting() -> Mailbox {
        let mailbox = Mailbox::default();
        mailbox.expect(CLAIM, Moment::default()).keep();
        mailbox.waits(CLAIM, Moment::default(), 7);
        mailbox
    }

    fn taken(mailbox: &Mailbox) -> Option<News> {
        mailbox.take(CLAIM).and_then(Result::ok)
    }

    #[test]
    fn an_eviction_voids_the_grant_that_nobody_has_taken_and_every_late_one() {
        let mailbox = waiting();
        mailbox.granted(CLAIM, Token(3), 7);
        mailbox.evicted(CLAIM, 9);
        assert_eq!(taken(&mailbox), Some(News::Evicted));
        // A cluster forwards messages: the same grant may arrive again over another connection.
        mailbox.granted(CLAIM, Token(3), 7);
        assert_eq!(taken(&mailbox), Some(News::Evicted));
    }

    /// A cluster forwards messages: a force release may arrive again after the claim's next
    /// attempt.
    #[test]
    fn an_old_eviction_does_not_void_a_new_place() {
        let mailbox = waiting();
        mailbox.evicted(CLAIM, 7);
        mailbox.anew(CLAIM);
        mailbox.evicted(CLAIM, 7);
        mailbox.waits(CLAIM, Moment::default(), 12);
        mailbox.evicted(CLAIM, 7);
        mailbox.granted(CLAIM, Token(13), 12);
        assert_eq!(taken(&mailbox), Some(News::Granted(Token(13), Moment::default())));
    }

    /// After an unanswered request it is open whether the claim still waits; a claim that was never
    /// known to wait is forgotten.
    #[test]
    fn a_request_without_an_answer_interrupts_a_wait() {
        let mailbox = waiting();
        assert_eq!(mailbox.interrupted(CLAIM), None);
        drop(mailbox.expect(CLAIM, Moment::default()));
        assert_eq!(mailbox.interrupted(CLAIM), Some(false));
        mailbox.evicted(CLAIM, 7);
        assert_eq!(mailbox.interrupted(CLAIM), Some(true));
        mailbox.expect(CLAIM, Moment::default()).forget();
        assert_eq!(mailbox.interrupted(CLAIM), None);
        drop(mailbox.expect(CLAIM, Moment::default()));
        assert!(mailbox.slots().is_empty());
    }

    #[test]
    fn after_a_break_a_grant_that_nobody_has_taken_is_asked_for_again() {
        let mailbox = waiting();
        mailbox.granted(CLAIM, Token(3), 7);
        mailbox.look_all();
        assert_eq!(taken(&mailbox), Some(News::Look));
        assert_eq!(taken(&mailbox), None);
    }
}
