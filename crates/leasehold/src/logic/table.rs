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
//! 5. An owner whose hold already covers the request enters at once with the same token, ahead of
//!    all waiters.
//! 6. Every other grant has a higher token than all before.
//! 7. A force-released claim leaves at once. Its fence is above its own token and rejects no other
//!    holder ([`fence::force_release_token`]).

use std::collections::VecDeque;
use std::time::Duration;

use super::admission::{conflicting_limit, covers, fits_owned};
use super::fence;
use crate::types::Instant;
use crate::types::{ClaimId, Mode, Owner, Token};

/// A claim that holds or waits, with a `details` for the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contender<N> {
    /// The claim's id.
    pub claim: ClaimId,
    /// The owner that may re-enter.
    pub owner: Option<Owner>,
    /// The mode it holds, or requests.
    pub mode: Mode,
    /// How long a grant or a queue position lasts without renewal.
    pub ttl: Duration,
    /// When the lease or the queue position expires.
    pub expires_at: Instant,
    /// The token of the grant; zero while waiting.
    pub token: Token,
    /// The order of arrival among the waiters, or of the grants among the holders.
    pub order: u64,
    /// The engine's own data.
    pub details: N,
}

/// The state of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockTable<N> {
    /// The holders, in the order of the grants.
    pub holders: Vec<Contender<N>>,
    /// The waiters, in the order of arrival.
    pub waiters: VecDeque<Contender<N>>,
}

impl<N> Default for LockTable<N> {
    fn default() -> Self {
        Self { holders: Vec::new(), waiters: VecDeque::new() }
    }
}

/// The answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Held with this token, until this time.
    Granted(Token, Instant),
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
    LimitMismatch(u32),
    /// The same owner holds less than it requests now; it would wait for itself forever.
    Upgrade(Mode),
}

/// What a departed claim was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseEffect {
    /// It held the lock.
    Released,
    /// It waited.
    LeftQueue,
    /// It was not there: released before, expired, or never seen.
    Absent,
}

/// A claim that was force-released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForceReleased<N> {
    /// The claim as it was; its token is zero if it waited.
    pub contender: Contender<N>,
    /// The token to write to the resource, if any: see [`fence::force_release_token`].
    pub fence_token: Option<Token>,
}

/// Claims that an operation granted; its caller notifies them.
pub type Granted = Vec<ClaimId>;

impl<N> LockTable<N> {
    /// Whether there are no holders and no waiters.
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty()
    }

    /// The holder with this claim.
    pub fn holder(&self, claim: ClaimId) -> Option<&Contender<N>> {
        self.holders.iter().find(|contender| contender.claim == claim)
    }

    /// The queue position of this claim, from 0.
    pub fn position(&self, claim: ClaimId) -> Option<usize> {
        self.waiters.iter().position(|contender| contender.claim == claim)
    }

    /// When the next lease expires: the lock may become free then without any request.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.holders.iter().map(|contender| contender.expires_at).min()
    }

    /// Applies the passage of time and serves the queue: rules 1 to 3.
    pub fn expire_and_grant(&mut self, now: Instant, next_token: &mut impl FnMut() -> Token) -> Granted {
        self.holders.retain(|contender| contender.expires_at > now);
        let mut granted = Vec::new();
        while let Some(first) = self.waiters.front() {
            if first.expires_at <= now {
                self.waiters.pop_front();
            } else if self.reentry_token(first.owner, first.mode).is_some()
                || (!self.owner_holds(first.owner) && self.fits(first.mode))
            {
                let Some(mut contender) = self.waiters.pop_front() else { break };
                granted.push(contender.claim);
                contender.expires_at = now.saturating_add(contender.ttl);
                self.grant(contender, next_token);
            } else {
                break;
            }
        }
        granted
    }

    /// A claim arrives, or is repeated. This sets `contender.token`, `expires_at` and `order`.
    pub fn attempt(
        &mut self,
        contender: Contender<N>,
        queue: bool,
        now: Instant,
        token: &mut impl FnMut() -> Token,
    ) -> (Verdict, Granted) {
        let granted = self.expire_and_grant(now, token);
        (self.decide(contender, queue, now, token), granted)
    }

    fn decide(
        &mut self,
        mut contender: Contender<N>,
        queue: bool,
        now: Instant,
        token: &mut impl FnMut() -> Token,
    ) -> Verdict {
        contender.expires_at = now.saturating_add(contender.ttl);
        if self.is_empty() {
            let until = contender.expires_at;
            return Verdict::Granted(self.grant(contender, token), until);
        }
        if let Some(verdict) = self.known_verdict(contender.claim, now) {
            return verdict;
        }
        if let Some(refusal) = self.refusal(&contender) {
            return Verdict::Refused(refusal);
        }
        if let Some(same) = self.reentry_token(contender.owner, contender.mode) {
            contender.token = same;
            let until = contender.expires_at;
            self.add_holder(contender);
            return Verdict::Granted(same, until);
        }
        if self.waiters.is_empty() && self.fits(contender.mode) {
            let until = contender.expires_at;
            return Verdict::Granted(self.grant(contender, token), until);
        }
        if !queue {
            return Verdict::Busy;
        }
        contender.order = self.next_order();
        self.waiters.push_back(contender);
        Verdict::Queued(self.waiters.len() - 1)
    }

    /// The state of a claim; extends its lease or its queue position. An absent claim is not added:
    /// its client may have stopped waiting.
    pub fn refresh(
        &mut self,
        claim: ClaimId,
        now: Instant,
        next_token: &mut impl FnMut() -> Token,
    ) -> (Verdict, Granted) {
        let granted = self.expire_and_grant(now, next_token);
        (self.known_verdict(claim, now).unwrap_or(Verdict::Busy), granted)
    }

    /// The answer to a claim that is already there.
    fn known_verdict(&mut self, claim: ClaimId, now: Instant) -> Option<Verdict> {
        if let Some(held) = self.holders.iter_mut().find(|held| held.claim == claim) {
            held.expires_at = held.expires_at.max(now.saturating_add(held.ttl));
            return Some(Verdict::Granted(held.token, held.expires_at));
        }
        let position = self.position(claim)?;
        self.waiters[position].expires_at = now.saturating_add(self.waiters[position].ttl);
        Some(Verdict::Queued(position))
    }

    /// Extends the lease of a claim. `None`: it does not hold, or not any more.
    pub fn renew(
        &mut self,
        claim: ClaimId,
        now: Instant,
        token: &mut impl FnMut() -> Token,
    ) -> (Option<Instant>, Granted) {
        let granted = self.expire_and_grant(now, token);
        let contender = self.holders.iter_mut().find(|contender| contender.claim == claim);
        let until = contender.map(|contender| {
            contender.expires_at = contender.expires_at.max(now.saturating_add(contender.ttl));
            contender.expires_at
        });
        (until, granted)
    }

    /// Removes a claim, whether it holds or waits, and grants those that now fit.
    pub fn release(
        &mut self,
        claim: ClaimId,
        now: Instant,
        next_token: &mut impl FnMut() -> Token,
    ) -> (ReleaseEffect, Granted) {
        let mut granted = self.expire_and_grant(now, next_token);
        let effect = if let Some(index) = self.holders.iter().position(|contender| contender.claim == claim) {
            self.holders.remove(index);
            ReleaseEffect::Released
        } else if let Some(position) = self.position(claim) {
            self.waiters.remove(position);
            ReleaseEffect::LeftQueue
        } else {
            ReleaseEffect::Absent
        };
        if effect != ReleaseEffect::Absent && !self.waiters.is_empty() {
            granted.extend(self.expire_and_grant(now, next_token));
        }
        (effect, granted)
    }

    /// Force-releases a claim. If it was the only holder, the token rises *before* the next waiter
    /// is granted, so that the next grant is above the fence, too. `None`: the claim is absent, and
    /// no token is used.
    pub fn force_release(
        &mut self,
        claim: ClaimId,
        now: Instant,
        token: &mut impl FnMut() -> Token,
    ) -> (Option<ForceReleased<N>>, Granted) {
        let mut granted = self.expire_and_grant(now, token);
        let held =
            self.holders.iter().position(|contender| contender.claim == claim).map(|index| self.holders.remove(index));
        let evicted = match held {
            Some(contender) => {
                let others = || self.holders.iter().map(|contender| contender.token);
                let fresh = if self.holders.is_empty() { token() } else { Token::default() };
                Some(ForceReleased {
                    fence_token: fence::force_release_token(Some(contender.token), others(), fresh),
                    contender,
                })
            }
            None => {
                let waited = self.position(claim).and_then(|position| self.waiters.remove(position));
                waited.map(|contender| ForceReleased { contender, fence_token: None })
            }
        };
        if evicted.is_some() {
            granted.extend(self.expire_and_grant(now, token));
        }
        (evicted, granted)
    }

    fn refusal(&self, contender: &Contender<N>) -> Option<Refusal> {
        let mut present = self.holders.iter().chain(&self.waiters);
        if let Some(limit) = present.find_map(|other| conflicting_limit(contender.mode, other.mode)) {
            return Some(Refusal::LimitMismatch(limit));
        }
        let owner = contender.owner?;
        let own = || self.holders.iter().filter(|held| held.owner == Some(owner));
        if own().any(|held| covers(held.mode, contender.mode)) {
            return None;
        }
        own().next().map(|held| Refusal::Upgrade(held.mode))
    }

    fn reentry_token(&self, owner: Option<Owner>, mode: Mode) -> Option<Token> {
        let owner = owner?;
        let mut own = self.holders.iter().filter(|held| held.owner == Some(owner) && covers(held.mode, mode));
        own.next().map(|held| held.token)
    }

    /// Whether an owner already holds. If it requests more than it holds, it waits until it has
    /// released that: an owner has one token at a time.
    fn owner_holds(&self, owner: Option<Owner>) -> bool {
        owner.is_some() && self.holders.iter().any(|held| held.owner == owner)
    }

    /// Whether a claim fits beside the holders. Nested permits of one owner count once.
    fn fits(&self, wanted: Mode) -> bool {
        fits_owned(wanted, self.holders.iter().map(|contender| (contender.owner, contender.mode)))
    }

    fn grant(&mut self, mut contender: Contender<N>, token: &mut impl FnMut() -> Token) -> Token {
        // Another claim of the same owner may have been granted while this one waited.
        contender.token = self.reentry_token(contender.owner, contender.mode).unwrap_or_else(token);
        let granted = contender.token;
        self.add_holder(contender);
        granted
    }

    fn add_holder(&mut self, mut contender: Contender<N>) {
        contender.order = self.next_order();
        // Most locks have one holder, and a vector would grow to four at once.
        if self.holders.capacity() == 0 {
            self.holders.reserve_exact(1);
        }
        self.holders.push(contender);
    }

    pub(super) fn next_order(&self) -> u64 {
        let last_holder = self.holders.last().map_or(0, |contender| contender.order);
        let last_waiter = self.waiters.back().map_or(0, |contender| contender.order);
        last_holder.max(last_waiter) + 1
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
