//! One lock: its holders, its queue, and every operation on them. Engines are compared with this
//! specification.
//!
//! The rules, in the order in which an operation applies them:
//! 1. Remove the holders whose lease has expired, then serve the queue.
//! 2. Serve the queue strictly in order: the first waiter that does not fit blocks those behind it.
//!    Consecutive readers are therefore granted together, and readers behind a waiting writer wait
//!    (phase-fair).
//! 3. Skip a waiter that sent no heartbeat for its TTL.
//! 4. A repeated claim is the same request: it gets the same answer.
//! 5. An owner whose hold already covers the request enters at once with the same token, whatever
//!    waits.
//! 6. Every other grant has a higher token than all before.
//! 7. A force-released claim leaves at once. Its fence is above its own token and rejects no other
//!    holder ([`fence::advice`]).

use std::collections::VecDeque;
use std::time::Duration;

use super::admission::{covers, fits_owned, other_limit};
use super::fence;
use crate::claim::{ClaimId, Mode, Owner, Token};
use crate::clock::Moment;

/// A claim that holds or waits, with a `note` for the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Party<N> {
    /// The claim's id.
    pub claim: ClaimId,
    /// The owner that may re-enter.
    pub owner: Option<Owner>,
    /// The mode it holds, or requests.
    pub mode: Mode,
    /// How long a grant or a queue position lasts without renewal.
    pub ttl: Duration,
    /// When the lease or the queue position expires.
    pub until: Moment,
    /// The token of the grant; zero while waiting.
    pub token: Token,
    /// The order of arrival among the waiters, or of the grants among the holders.
    pub place: u64,
    /// The engine's own data.
    pub note: N,
}

/// The state of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table<N> {
    /// The holders, in the order of the grants.
    pub holders: Vec<Party<N>>,
    /// The waiters, in the order of arrival.
    pub waiters: VecDeque<Party<N>>,
}

impl<N> Default for Table<N> {
    fn default() -> Self {
        Self { holders: Vec::new(), waiters: VecDeque::new() }
    }
}

/// The answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Held with this token, until this time.
    Granted(Token, Moment),
    /// In the queue, behind this many waiters.
    Queued(usize),
    /// Not free, and not queued, because the request did not ask for that.
    Busy,
    /// It can never be granted beside the claims that are there.
    Refused(Refusal),
}

/// Why a claim can never be granted beside the claims that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The semaphore is in use with this other limit.
    OtherLimit(u32),
    /// The same owner holds less than it requests now; it would wait for itself forever.
    Upgrade(Mode),
}

/// What a departed claim was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It held the lock.
    Released,
    /// It waited.
    LeftQueue,
    /// It was not there: released before, expired, or never seen.
    Absent,
}

/// A claim that was force-released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted<N> {
    /// The claim as it was; its token is zero if it waited.
    pub party: Party<N>,
    /// The token to write to the resource, if any: see [`fence::advice`].
    pub advice: Option<Token>,
}

/// Claims that an operation granted; its caller notifies them.
pub type Granted = Vec<ClaimId>;

impl<N> Table<N> {
    /// Whether there are no holders and no waiters.
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty()
    }

    /// The holder with this claim.
    pub fn holder(&self, claim: ClaimId) -> Option<&Party<N>> {
        self.holders.iter().find(|party| party.claim == claim)
    }

    /// The queue position of this claim, from 0.
    pub fn position(&self, claim: ClaimId) -> Option<usize> {
        self.waiters.iter().position(|party| party.claim == claim)
    }

    /// When the next lease expires: the lock may become free then without any request.
    pub fn next_expiry(&self) -> Option<Moment> {
        self.holders.iter().map(|party| party.until).min()
    }

    /// Applies the passage of time and serves the queue: rules 1 to 3.
    pub fn settle(&mut self, now: Moment, token: &mut impl FnMut() -> Token) -> Granted {
        self.holders.retain(|party| party.until > now);
        let mut granted = Vec::new();
        while let Some(first) = self.waiters.front() {
            if first.until <= now {
                self.waiters.pop_front();
            } else if self.re_entered(first.owner, first.mode).is_some()
                || (!self.holds(first.owner) && self.fits(first.mode))
            {
                let Some(mut party) = self.waiters.pop_front() else { break };
                granted.push(party.claim);
                party.until = now.after(party.ttl);
                self.grant(party, token);
            } else {
                break;
            }
        }
        granted
    }

    /// A claim arrives, or is repeated. This sets `party.token`, `until` and `place`.
    pub fn attempt(
        &mut self,
        party: Party<N>,
        queue: bool,
        now: Moment,
        token: &mut impl FnMut() -> Token,
    ) -> (Verdict, Granted) {
        let granted = self.settle(now, token);
        (self.answer(party, queue, now, token), granted)
    }

    fn answer(&mut self, mut party: Party<N>, queue: bool, now: Moment, token: &mut impl FnMut() -> Token) -> Verdict {
        party.until = now.after(party.ttl);
        if self.is_empty() {
            let until = party.until;
            return Verdict::Granted(self.grant(party, token), until);
        }
        if let Some(verdict) = self.known(party.claim, now) {
            return verdict;
        }
        if let Some(refusal) = self.refusal(&party) {
            return Verdict::Refused(refusal);
        }
        if let Some(same) = self.re_entered(party.owner, party.mode) {
            party.token = same;
            let until = party.until;
            self.admit(party);
            return Verdict::Granted(same, until);
        }
        if self.waiters.is_empty() && self.fits(party.mode) {
            let until = party.until;
            return Verdict::Granted(self.grant(party, token), until);
        }
        if !queue {
            return Verdict::Busy;
        }
        party.place = self.next_place();
        self.waiters.push_back(party);
        Verdict::Queued(self.waiters.len() - 1)
    }

    /// The state of a claim; extends its lease or its queue position. A claim that is absent is not
    /// added: its client may have given up meanwhile.
    pub fn look(&mut self, claim: ClaimId, now: Moment, token: &mut impl FnMut() -> Token) -> (Verdict, Granted) {
        let granted = self.settle(now, token);
        (self.known(claim, now).unwrap_or(Verdict::Busy), granted)
    }

    /// The answer to a claim that is already there.
    fn known(&mut self, claim: ClaimId, now: Moment) -> Option<Verdict> {
        if let Some(held) = self.holders.iter_mut().find(|held| held.claim == claim) {
            held.until = held.until.max(now.after(held.ttl));
            return Some(Verdict::Granted(held.token, held.until));
        }
        let place = self.position(claim)?;
        self.waiters[place].until = now.after(self.waiters[place].ttl);
        Some(Verdict::Queued(place))
    }

    /// Extends the lease of a claim. `None`: it does not hold, or not any more.
    pub fn renew(
        &mut self,
        claim: ClaimId,
        now: Moment,
        token: &mut impl FnMut() -> Token,
    ) -> (Option<Moment>, Granted) {
        let granted = self.settle(now, token);
        let party = self.holders.iter_mut().find(|party| party.claim == claim);
        let until = party.map(|party| {
            party.until = party.until.max(now.after(party.ttl));
            party.until
        });
        (until, granted)
    }

    /// Removes a claim, whether it holds or waits, and grants those that now fit.
    pub fn depart(&mut self, claim: ClaimId, now: Moment, token: &mut impl FnMut() -> Token) -> (Departure, Granted) {
        let mut granted = self.settle(now, token);
        let departure = if let Some(index) = self.holders.iter().position(|party| party.claim == claim) {
            self.holders.remove(index);
            Departure::Released
        } else if let Some(place) = self.position(claim) {
            self.waiters.remove(place);
            Departure::LeftQueue
        } else {
            Departure::Absent
        };
        if departure != Departure::Absent && !self.waiters.is_empty() {
            granted.extend(self.settle(now, token));
        }
        (departure, granted)
    }

    /// Force-releases a claim. If it was the only holder, the token rises *before* the next waiter
    /// is granted, so that the next grant is above the fence, too. `None`: the claim is absent, and
    /// no token is used.
    pub fn evict(
        &mut self,
        claim: ClaimId,
        now: Moment,
        token: &mut impl FnMut() -> Token,
    ) -> (Option<Evicted<N>>, Granted) {
        let mut granted = self.settle(now, token);
        let held = self.holders.iter().position(|party| party.claim == claim).map(|index| self.holders.remove(index));
        let evicted = match held {
            Some(party) => {
                let others = || self.holders.iter().map(|party| party.token);
                let fresh = if self.holders.is_empty() { token() } else { Token::default() };
                Some(Evicted { advice: fence::advice(Some(party.token), others(), fresh), party })
            }
            None => {
                let waited = self.position(claim).and_then(|place| self.waiters.remove(place));
                waited.map(|party| Evicted { party, advice: None })
            }
        };
        if evicted.is_some() {
            granted.extend(self.settle(now, token));
        }
        (evicted, granted)
    }

    fn refusal(&self, party: &Party<N>) -> Option<Refusal> {
        let mut present = self.holders.iter().chain(&self.waiters);
        if let Some(limit) = present.find_map(|other| other_limit(party.mode, other.mode)) {
            return Some(Refusal::OtherLimit(limit));
        }
        let owner = party.owner?;
        let own = || self.holders.iter().filter(|held| held.owner == Some(owner));
        if own().any(|held| covers(held.mode, party.mode)) {
            return None;
        }
        own().next().map(|held| Refusal::Upgrade(held.mode))
    }

    fn re_entered(&self, owner: Option<Owner>, mode: Mode) -> Option<Token> {
        let owner = owner?;
        let mut own = self.holders.iter().filter(|held| held.owner == Some(owner) && covers(held.mode, mode));
        own.next().map(|held| held.token)
    }

    /// Whether an owner already holds. If it requests more than it holds, it waits until it has
    /// released that: an owner has one token at a time.
    fn holds(&self, owner: Option<Owner>) -> bool {
        owner.is_some() && self.holders.iter().any(|held| held.owner == owner)
    }

    /// Whether a claim fits beside the holders. Nested permits of one owner count once.
    fn fits(&self, wanted: Mode) -> bool {
        fits_owned(wanted, self.holders.iter().map(|party| (party.owner, party.mode)))
    }

    fn grant(&mut self, mut party: Party<N>, token: &mut impl FnMut() -> Token) -> Token {
        // Another claim of the same owner may have been granted while this one waited.
        party.token = self.re_entered(party.owner, party.mode).unwrap_or_else(token);
        let granted = party.token;
        self.admit(party);
        granted
    }

    fn admit(&mut self, mut party: Party<N>) {
        party.place = self.next_place();
        // Most locks have one holder, and a vector would grow to four at once.
        if self.holders.capacity() == 0 {
            self.holders.reserve_exact(1);
        }
        self.holders.push(party);
    }

    pub(super) fn next_place(&self) -> u64 {
        let last_holder = self.holders.last().map_or(0, |party| party.place);
        let last_waiter = self.waiters.back().map_or(0, |party| party.place);
        last_holder.max(last_waiter) + 1
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
