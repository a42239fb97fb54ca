//! Cohorts: claims of one process that hold a lock one after the other, without a message to the engine in between.
//!
//! The engine has written down that the first of them holds, until when, who waits behind it in which order, and that some tokens above
//! its own are taken. Then, as long as nobody else may come in between, the lock goes from hand to hand inside the process, each with the
//! next token, and what was written down is brought up to date meanwhile. Nobody else can be let in: in the engine's eyes the first still
//! holds. Nobody is passed over: only those follow who are next in line. A token is used once: whoever comes after the cohort, or puts one of it out,
//! begins above all that were taken.

use std::collections::VecDeque;
use std::time::Duration;

use super::table::{Party, Table};
use crate::claim::{ClaimId, Mode, Token};
use crate::clock::Moment;

/// How many follow without a write.
pub const MOST: usize = 64;

/// Who of one process has the lock, and who may have it next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cohort {
    /// Who had it since it was last written down, with its token; the first is who stands there, the last has it now.
    passed: Vec<(ClaimId, Token)>,
    followers: VecDeque<ClaimId>,
    tokens: Tokens,
    ttl: Duration,
    until: Moment,
    frozen: bool,
}

/// The tokens that were taken in advance; none if `from` is above `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    from: u64,
    to: u64,
}

/// What became of a cohort, by what was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It still has the lock.
    Stands,
    /// Who has the lock was put out, or one who waited was: its token may be refused, and it must be told. It is written down as long as it
    /// does not give back.
    Refused,
    /// What it had is not its own any more: the first of it was put out, or the lease ended.
    Broken,
}

impl Tokens {
    /// Takes as many as there are followers above `last`, which becomes the highest taken. What `cohort` has left is used first, if nobody
    /// has taken any since.
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

    /// Those that are left, if what was read has not changed since they were taken.
    pub fn left(cohort: Option<&Cohort>, last: u64) -> Self {
        let none = Self { from: last + 1, to: last };
        cohort.map(|cohort| cohort.tokens).filter(|tokens| tokens.to == last).unwrap_or(none)
    }
}

impl Cohort {
    /// The cohort after a write or a look, if there is one: `table` is what stands there now, and `until` how long its holder may be relied on
    /// here. `before` may have passed the lock on meanwhile.
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

    /// `from` gives the lock back: the next in line has it, if it is ours and `ready`, with this token until then.
    pub fn pass(
        &mut self,
        from: ClaimId,
        now: Moment,
        ready: impl Fn(ClaimId) -> bool,
    ) -> Option<(ClaimId, Token, Moment)> {
        let is_current = self.passed.last().is_some_and(|(claim, _)| *claim == from);
        // What is left of the lease must be enough to renew it in.
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

    /// Nothing is passed on until what stands there is known again.
    pub fn freeze(&mut self) {
        self.frozen = true;
    }

    /// Whether another has the lock than who stands there.
    pub fn is_behind(&self) -> bool {
        self.passed.len() > 1
    }

    /// Whether this claim got the lock by being passed on, and perhaps gave it back since.
    pub fn has_passed(&self, claim: ClaimId) -> bool {
        self.passed.iter().skip(1).any(|(had, _)| *had == claim)
    }

    /// Who has the lock.
    pub fn current(&self) -> Option<ClaimId> {
        self.passed.last().map(|(claim, _)| *claim)
    }

    /// How long a lease lasts.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The highest token that was taken in advance.
    pub fn highest(&self) -> u64 {
        self.tokens.to
    }

    /// Brings what was found up to date: those who gave back are gone, and who has it now holds it from `now`. `last` is the highest token
    /// there, and `sent` the highest that we ever asked to be written.
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
            // It was written after all; only those before it may be left in the queue.
            table.waiters.retain(|party| !had.iter().any(|(claim, _)| *claim == party.claim));
            return fate;
        }
        let party = table.waiters.iter().find(|party| party.claim == current).cloned();
        let place = table.next_place();
        let passed = |party: &Party<N>| self.passed.iter().any(|(claim, _)| *claim == party.claim);
        // Who was let in by somebody else meanwhile holds by that, until it gives back: nobody is let in beside it.
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

/// Whether a claim may have others follow it, or follow: alone, and not to be re-entered.
fn may_lead<N>(party: &Party<N>) -> bool {
    party.mode == Mode::Exclusive && party.owner.is_none()
}

/// Who may follow the holder, in line.
fn followers<N>(table: &Table<N>, ours: impl Fn(&Party<N>) -> bool) -> impl Iterator<Item = ClaimId> {
    let holder = match table.holders.as_slice() {
        [holder] if may_lead(holder) && ours(holder) => Some(holder),
        _ => None,
    };
    let terms = holder.map(|holder| (holder.ttl, holder.until));
    // Its place in the queue must last as long as the lease that it would live on: then, if it is not there any more, it was put out.
    let lasts = move |party: &Party<N>| terms.is_some_and(|(ttl, until)| party.ttl == ttl && party.until >= until);
    let like = move |party: &&Party<N>| may_lead(party) && ours(party) && lasts(party);
    table.waiters.iter().take_while(like).take(MOST).map(|party| party.claim)
}

#[cfg(test)]
#[path = "cohort_tests.rs"]
mod tests;
