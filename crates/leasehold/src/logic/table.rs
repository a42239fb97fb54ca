//! One lock: its holders, its queue, and every operation on them. This is the specification with
//! which tests compare every engine.
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

/// A claim that holds the lock or waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contender<N> {
    /// The claim's id.
    pub claim: ClaimId,
    /// The owner that may re-enter; `None`: no re-entry.
    pub owner: Option<Owner>,
    /// The mode in which it holds, or which it requests.
    pub mode: Mode,
    /// How long a grant or a queue position lasts without renewal.
    pub ttl: Duration,
    /// When the lease or the queue position expires.
    pub expires_at: Instant,
    /// The token of the grant; zero while waiting.
    pub token: Token,
    /// The order of arrival among the waiters, or of the grants among the holders.
    pub order: u64,
    /// What the engine stores with the claim.
    pub details: N,
}

/// The state of one lock. `N` is what the engine stores with each claim.
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
    /// The claim holds the lock with this token, until this time.
    Granted(Token, Instant),
    /// The claim is in the queue, behind this many waiters.
    Queued(usize),
    /// The lock is not free, and the claim is not in the queue, because it did not ask to queue.
    Busy,
    /// The claim can never be granted beside the present holders and waiters.
    Refused(Refusal),
}

/// Why a claim can never be granted beside the present holders and waiters.
///
/// ```
/// use leasehold::engine::{AcquireReply, Refusal};
///
/// // The semaphore is open with 3 permits, and the claim asks for another limit.
/// let reply = AcquireReply::Refused(Refusal::LimitMismatch(3));
/// # drop(reply);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The semaphore is in use with this other limit.
    LimitMismatch(u32),
    /// The same owner holds less than it requests now; it would wait for itself forever.
    Upgrade(Mode),
}

/// What a release changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseEffect {
    /// The claim held the lock, and released it.
    Released,
    /// The claim waited, and left the queue.
    LeftQueue,
    /// Nothing: the claim was released before, has expired, or is unknown.
    Absent,
}

/// A claim that was force-released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForceReleased<N> {
    /// The claim as it was before; its token is zero if it waited.
    pub contender: Contender<N>,
    /// The token to write to the resource, if any: see [`fence::force_release_token`].
    pub fence_token: Option<Token>,
}

/// The claims that were granted by an operation of another claim, in order; the caller notifies
/// them.
pub type Granted = Vec<ClaimId>;

impl<N> LockTable<N> {
    /// Whether there are no holders and no waiters.
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty()
    }

    /// The holder with this claim id; `None`: the claim does not hold the lock.
    pub fn holder(&self, claim: ClaimId) -> Option<&Contender<N>> {
        self.holders.iter().find(|contender| contender.claim == claim)
    }

    /// The queue position of this claim, counted from 0; `None`: it does not wait.
    pub fn position(&self, claim: ClaimId) -> Option<usize> {
        self.waiters.iter().position(|contender| contender.claim == claim)
    }

    /// When the next lease expires; `None` without holders. The lock may become free then without
    /// any request.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.holders.iter().map(|contender| contender.expires_at).min()
    }

    /// Removes expired holders and waiters, and grants the waiters that fit (rules 1 to 3). Calls
    /// `next_token` once per new grant.
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

    /// Grants a new or repeated claim, queues it if `queue` is set, or answers why not. Sets the
    /// contender's `token`, `expires_at` and `order`. Also returns the other claims that it
    /// granted.
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

    /// The answer to a new or repeated claim, once expired claims are removed.
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

    /// The state of a claim, whose lease or queue position it extends. An absent claim is `Busy`
    /// and is not added, because its client may have stopped waiting. Also returns the claims that
    /// it granted.
    pub fn refresh(
        &mut self,
        claim: ClaimId,
        now: Instant,
        next_token: &mut impl FnMut() -> Token,
    ) -> (Verdict, Granted) {
        let granted = self.expire_and_grant(now, next_token);
        (self.known_verdict(claim, now).unwrap_or(Verdict::Busy), granted)
    }

    /// The answer to a claim that holds or waits already, whose time it extends; `None` for others.
    fn known_verdict(&mut self, claim: ClaimId, now: Instant) -> Option<Verdict> {
        if let Some(held) = self.holders.iter_mut().find(|held| held.claim == claim) {
            held.expires_at = held.expires_at.max(now.saturating_add(held.ttl));
            return Some(Verdict::Granted(held.token, held.expires_at));
        }
        let position = self.position(claim)?;
        self.waiters[position].expires_at = now.saturating_add(self.waiters[position].ttl);
        Some(Verdict::Queued(position))
    }

    /// Extends the lease of a claim by its TTL from now, and returns its new end. `None`: it does
    /// not hold, or not any more. Also returns the claims that it granted.
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

    /// Removes a claim, whether it holds or waits, and grants those that now fit. Returns what that
    /// changed, and the granted claims.
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

    /// Force releases a claim, whether it holds or waits. If it was the only holder, the token
    /// rises *before* the next waiter is granted, so that the next grant is above the fence token,
    /// too. `None`: the claim is absent, and no token is used. Also returns the claims that it
    /// granted.
    pub fn force_release(
        &mut self,
        claim: ClaimId,
        now: Instant,
        token: &mut impl FnMut() -> Token,
    ) -> (Option<ForceReleased<N>>, Granted) {
        let mut granted = self.expire_and_grant(now, token);
        let held =
            self.holders.iter().position(|contender| contender.claim == claim).map(|index| self.holders.remove(index));
        let force_released = match held {
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
        if force_released.is_some() {
            granted.extend(self.expire_and_grant(now, token));
        }
        (force_released, granted)
    }

    /// Why a new claim can never be granted; `None`: it can.
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

    /// The token with which an owner may enter at once in this mode; `None`: it holds nothing that
    /// covers the mode.
    fn reentry_token(&self, owner: Option<Owner>, mode: Mode) -> Option<Token> {
        let owner = owner?;
        let mut own = self.holders.iter().filter(|held| held.owner == Some(owner) && covers(held.mode, mode));
        own.next().map(|held| held.token)
    }

    /// Whether an owner holds the lock. If it requests more than it holds, it waits until it has
    /// released what it holds, because an owner has one token at a time.
    fn owner_holds(&self, owner: Option<Owner>) -> bool {
        owner.is_some() && self.holders.iter().any(|held| held.owner == owner)
    }

    /// Whether a claim fits beside the holders. Nested permits of one owner count once.
    fn fits(&self, wanted: Mode) -> bool {
        fits_owned(wanted, self.holders.iter().map(|contender| (contender.owner, contender.mode)))
    }

    /// Makes a contender a holder, and returns its token: a new one, or that of its owner.
    fn grant(&mut self, mut contender: Contender<N>, token: &mut impl FnMut() -> Token) -> Token {
        // Another claim of the same owner may have been granted while this one waited.
        contender.token = self.reentry_token(contender.owner, contender.mode).unwrap_or_else(token);
        let granted = contender.token;
        self.add_holder(contender);
        granted
    }

    /// Makes a contender with a token a holder.
    fn add_holder(&mut self, mut contender: Contender<N>) {
        contender.order = self.next_order();
        // Most locks have one holder, and a vector would grow to four at once.
        if self.holders.capacity() == 0 {
            self.holders.reserve_exact(1);
        }
        self.holders.push(contender);
    }

    /// An order above those of all present holders and waiters.
    pub(super) fn next_order(&self) -> u64 {
        let last_holder = self.holders.last().map_or(0, |contender| contender.order);
        let last_waiter = self.waiters.back().map_or(0, |contender| contender.order);
        last_holder.max(last_waiter) + 1
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
