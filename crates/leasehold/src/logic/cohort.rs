//! Cohorts: claims of one process that hold a lock one after the other, without a request to the
//! engine in between.
//!
//! The engine has recorded that the first claim holds and until when, which claims wait behind it,
//! and that some tokens above its own are reserved. As long as the next waiters belong to the same
//! process, the process hands the lock off locally, each time with the next token. It updates the
//! engine's record in the background.
//!
//! - No other client can acquire the lock: for the engine, the first claim still holds.
//! - No waiter is skipped: only the claims that are next in the queue follow.
//! - No token is used twice: the next grant after the cohort starts above all reserved tokens, and
//!   so does the fence of a force release.

use std::collections::VecDeque;
use std::time::Duration;

use super::table::{Party, Table};
use crate::claim::{ClaimId, Mode, Token};
use crate::clock::Moment;

/// How many claims may follow without a write.
pub const MOST: usize = 64;

/// Which claim of this process has the lock, and which ones may have it next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cohort {
    /// The claims that had the lock since the last recorded state, each with its token. The first
    /// is the recorded holder, the last has the lock now.
    passed: Vec<(ClaimId, Token)>,
    followers: VecDeque<ClaimId>,
    tokens: Tokens,
    ttl: Duration,
    until: Moment,
    frozen: bool,
}

/// The tokens that were reserved; none if `from` is above `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    from: u64,
    to: u64,
}

/// What happened to a cohort, according to the engine's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It still has the lock.
    Stands,
    /// A force release removed the current holder or a waiter of the cohort. The current token may
    /// be rejected, so the holder must be notified. It stays recorded until it releases.
    Refused,
    /// The lock is no longer its own: its first claim was force-released, or the lease expired.
    Broken,
}

impl Tokens {
    /// Reserves one token per follower above `last`, and raises `last` to the highest. The tokens
    /// that `cohort` has left are used first, if no other client has taken tokens since.
    pub fn reserve<N>(
        cohort: Option<&Cohort>,
        table: &Table<N>,
        ours: impl Fn(&Party<N>) -> bool,
        last: &mut u64,
    ) -> Self {
        let wanted = followers(table, ours).count() as u64;
        let left = cohort.map(|cohort| cohort.tokens).filter(|tokens| tokens.to == *last && tokens.from <= *last);
        let from = left.map_or(*last + 1, |tokens| tokens.from);
        *last = (*last).max(from + wanted - 1);
        Self { from, to: *last }
    }

    /// The reserved tokens that are left, if the state that was read has not changed since.
    pub fn left(cohort: Option<&Cohort>, last: u64) -> Self {
        let none = Self { from: last + 1, to: last };
        cohort.map(|cohort| cohort.tokens).filter(|tokens| tokens.to == last).unwrap_or(none)
    }
}

impl Cohort {
    /// The cohort after a write or a read, if there is one. `table` is the engine's state, and
    /// `until` maps the end of a lease to the time until which this process may rely on it.
    /// `before` may have handed the lock off meanwhile.
    pub fn after<N>(
        before: Option<Self>,
        table: &Table<N>,
        ours: impl Fn(&Party<N>) -> bool,
        tokens: Tokens,
        until: impl Fn(Moment) -> Moment,
    ) -> Option<Self> {
        let [holder] = table.holders.as_slice() else { return None };
        if !may_lead(holder) || !ours(holder) {
            return None;
        }
        let head = (holder.claim, holder.token);
        let mut passed = before.map(|before| before.passed).unwrap_or_default();
        match passed.iter().position(|had| *had == head) {
            Some(place) => passed.drain(..place).for_each(drop),
            None => passed = vec![head],
        }
        let has_had = |claim: &ClaimId| passed.iter().any(|(had, _)| had == claim);
        let followers = followers(table, &ours).filter(|claim| !has_had(claim)).collect();
        let above = passed.last().map_or(0, |(_, token)| token.0) + 1;
        Some(Self {
            followers,
            tokens: Tokens { from: tokens.from.max(above), to: tokens.to },
            ttl: holder.ttl,
            until: until(holder.until),
            frozen: false,
            passed,
        })
    }

    /// `from` releases the lock. If the next waiter belongs to this process and is `ready`, it gets
    /// the lock with this token until this time.
    pub fn pass(
        &mut self,
        from: ClaimId,
        now: Moment,
        ready: impl Fn(ClaimId) -> bool,
    ) -> Option<(ClaimId, Token, Moment)> {
        let is_current = self.passed.last().is_some_and(|(claim, _)| *claim == from);
        // The rest of the lease must leave enough time to renew it.
        let enough = self.until.since(now) >= self.ttl / 3 * 2;
        if !is_current || self.frozen || !enough || self.tokens.from > self.tokens.to {
            return None;
        }
        let next = self.followers.front().copied().filter(|claim| ready(*claim))?;
        self.followers.pop_front();
        let token = Token(self.tokens.from);
        self.tokens.from += 1;
        self.passed.push((next, token));
        Some((next, token, self.until))
    }

    /// Stops local hand-offs until the engine's state is known again.
    pub fn freeze(&mut self) {
        self.frozen = true;
    }

    /// Whether the lock has been handed off since the engine's recorded state.
    pub fn is_behind(&self) -> bool {
        self.passed.len() > 1
    }

    /// Whether this claim got the lock by a local hand-off; it may have released it since.
    pub fn has_passed(&self, claim: ClaimId) -> bool {
        self.passed.iter().skip(1).any(|(had, _)| *had == claim)
    }

    /// The claim that has the lock.
    pub fn current(&self) -> Option<ClaimId> {
        self.passed.last().map(|(claim, _)| *claim)
    }

    /// The TTL of a lease.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The highest reserved token.
    pub fn highest(&self) -> u64 {
        self.tokens.to
    }

    /// Updates the engine's state `table` with the local hand-offs: removes the claims that
    /// released, and makes the current one the holder from `now`. `last` is the highest token
    /// there, and `sent` the highest that this process ever sent in a write.
    pub fn catch_up<N: Clone>(&self, table: &mut Table<N>, last: u64, sent: u64, now: Moment) -> Fate {
        let Some((&(current, token), had)) = self.passed.split_last() else { return Fate::Broken };
        let stands = |party: &Party<N>| self.passed.contains(&(party.claim, party.token)) && party.until > now;
        let head = match table.holders.as_slice() {
            [holder] if stands(holder) => Some(holder.claim),
            _ => None,
        };
        if had.is_empty() {
            return if head.is_some() { Fate::Stands } else { Fate::Broken };
        }
        let fate = if last > sent.max(self.tokens.to) { Fate::Refused } else { Fate::Stands };
        if head == Some(current) {
            // The write succeeded after all; only claims before it may be left in the queue.
            table.waiters.retain(|party| !had.iter().any(|(claim, _)| *claim == party.claim));
            return fate;
        }
        let party = table.waiters.iter().find(|party| party.claim == current).cloned();
        let place = table.next_place();
        let passed = |party: &Party<N>| self.passed.iter().any(|(claim, _)| *claim == party.claim);
        // A claim that another client granted meanwhile holds by that grant until it releases: no
        // claim is granted beside it.
        table.holders.retain(|party| !passed(party) || (party.claim == current && party.token != token));
        table.waiters.retain(|party| !passed(party));
        match (head, party) {
            (Some(_), Some(mut party)) => {
                (party.token, party.until, party.place) = (token, now.after(party.ttl), place);
                table.holders.push(party);
                fate
            }
            _ => Fate::Broken,
        }
    }
}

/// Whether a claim may lead or follow in a cohort: it must be exclusive and not re-entrant.
fn may_lead<N>(party: &Party<N>) -> bool {
    party.mode == Mode::Exclusive && party.owner.is_none()
}

/// The claims that may follow the holder, in queue order.
fn followers<N>(table: &Table<N>, ours: impl Fn(&Party<N>) -> bool) -> impl Iterator<Item = ClaimId> {
    let holder = match table.holders.as_slice() {
        [holder] if may_lead(holder) && ours(holder) => Some(holder),
        _ => None,
    };
    let terms = holder.map(|holder| (holder.ttl, holder.until));
    // The queue position must last as long as the lease. If the position is gone before that, the
    // claim was force-released.
    let lasts = move |party: &Party<N>| terms.is_some_and(|(ttl, until)| party.ttl == ttl && party.until >= until);
    let like = move |party: &&Party<N>| may_lead(party) && ours(party) && lasts(party);
    table.waiters.iter().take_while(like).take(MOST).map(|party| party.claim)
}

#[cfg(test)]
#[path = "cohort_tests.rs"]
mod tests;
