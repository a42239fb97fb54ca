//! One lock: its holders, its queue, and every step on them. This is the specification that engines are compared with.
//!
//! The rules, in the order in which a step applies them:
//! 1. A holder whose lease has ended is gone; then the queue is served.
//! 2. The queue is served strictly in order: the first waiter that does not fit stops those behind it. Consecutive readers
//!    therefore enter together, and readers that come after a waiting writer wait behind it (phase-fair).
//! 3. A waiter that has not shown itself for a TTL is passed over.
//! 4. A claim that is already there is the same request again: it gets the same answer.
//! 5. An owner that already holds enough when it asks enters at once and gets the same token, whoever waits.
//! 6. Each other grant has a token higher than all before.
//! 7. A claim that is evicted leaves at once. Its fence is above its own token and refuses no other holder ([`fence::advice`]).

use std::collections::VecDeque;
use std::time::Duration;

use super::admission::{covers, fits_owned, other_limit};
use super::fence;
use crate::claim::{ClaimId, Mode, Owner, Token};
use crate::clock::Moment;

/// A claim that holds or waits, with a `note` of the engine's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Party<N> {
    /// Which claim.
    pub claim: ClaimId,
    /// Who may re-enter.
    pub owner: Option<Owner>,
    /// How it holds, or wants to.
    pub mode: Mode,
    /// How long a grant, or a place in the queue, lasts unless renewed.
    pub ttl: Duration,
    /// The end of the lease, or of the place in the queue.
    pub until: Moment,
    /// The grant's token; zero while waiting.
    pub token: Token,
    /// The order of arrival in the queue, or of grants among the holders.
    pub place: u64,
    /// What the engine wants to remember.
    pub note: N,
}

/// The state of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table<N> {
    /// Who holds, in the order of the grants.
    pub holders: Vec<Party<N>>,
    /// Who waits, in the order of arrival.
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
    /// Held, with this token, until then.
    Granted(Token, Moment),
    /// In the queue, behind so many.
    Queued(usize),
    /// Not free, and not queued, because that was not asked for.
    Busy,
    /// It can never be granted beside what is there.
    Refused(Refusal),
}

/// Why a claim can never be granted beside what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The semaphore is in use with this other limit.
    OtherLimit(u32),
    /// The same owner holds less than it now asks for: waiting for itself would never end.
    Upgrade(Mode),
}

/// What a departure was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It held the lock.
    Released,
    /// It waited.
    LeftQueue,
    /// It was not there: released before, expired, or never seen.
    Absent,
}

/// A claim that was evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted<N> {
    /// The party as it was; its token is zero if it waited.
    pub party: Party<N>,
    /// What to write to the resource, if anything: see [`fence::advice`].
    pub advice: Option<Token>,
}

/// Claims that were granted by a step; whoever takes the step tells them.
pub type Granted = Vec<ClaimId>;

impl<N> Table<N> {
    /// Whether nobody holds and nobody waits.
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty()
    }

    /// The holder of this claim.
    pub fn holder(&self, claim: ClaimId) -> Option<&Party<N>> {
        self.holders.iter().find(|party| party.claim == claim)
    }

    /// The place of this claim in the queue, from 0.
    pub fn position(&self, claim: ClaimId) -> Option<usize> {
        self.waiters.iter().position(|party| party.claim == claim)
    }

    /// When the next lease ends: the lock may be free then without anybody's doing.
    pub fn next_expiry(&self) -> Option<Moment> {
        self.holders.iter().map(|party| party.until).min()
    }

    /// Lets time pass and serves the queue: rules 1 to 3.
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

    /// A claim arrives, or asks again. `party.token`, `until` and `place` are filled in here.
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

    /// How a claim stands; its lease, or its place in the queue, is extended. One that is not there is not let in: whoever asked
    /// may have given up meanwhile.
    pub fn look(&mut self, claim: ClaimId, now: Moment, token: &mut impl FnMut() -> Token) -> (Verdict, Granted) {
        let granted = self.settle(now, token);
        (self.known(claim, now).unwrap_or(Verdict::Busy), granted)
    }

    /// The answer to a claim that is there already.
    fn known(&mut self, claim: ClaimId, now: Moment) -> Option<Verdict> {
        if let Some(held) = self.holders.iter_mut().find(|held| held.claim == claim) {
            held.until = held.until.max(now.after(held.ttl));
            return Some(Verdict::Granted(held.token, held.until));
        }
        let place = self.position(claim)?;
        self.waiters[place].until = now.after(self.waiters[place].ttl);
        Some(Verdict::Queued(place))
    }

    /// Extends a claim's lease. `None`: it does not hold, or not any more.
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

    /// A claim leaves, whether it holds or waits; those who now fit are granted.
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

    /// A claim is evicted: it leaves, and if it held alone, the token is raised *before* the next waiter is granted, so that even that one comes
    /// after the fence. `None`: it is not there, and nothing is raised.
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

    /// Whether an owner holds already. What it asked for besides, and does not have, waits until it has given that back: one
    /// owner has one token at a time.
    fn holds(&self, owner: Option<Owner>) -> bool {
        owner.is_some() && self.holders.iter().any(|held| held.owner == owner)
    }

    /// Whether a claim fits beside the holders; the permits of an owner's nested claims count once.
    fn fits(&self, wanted: Mode) -> bool {
        fits_owned(wanted, self.holders.iter().map(|party| (party.owner, party.mode)))
    }

    fn grant(&mut self, mut party: Party<N>, token: &mut impl FnMut() -> Token) -> Token {
        // Somebody of the same owner may have been let in while this one waited.
        party.token = self.re_entered(party.owner, party.mode).unwrap_or_else(token);
        let granted = party.token;
        self.admit(party);
        granted
    }

    fn admit(&mut self, mut party: Party<N>) {
        party.place = self.next_place();
        // Most locks have one holder: a vector grows to four at once.
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
