//! Local hand-offs: claims of one process hold a lock one after the other, without a request to the
//! engine in between.
//!
//! The engine has recorded that the first claim holds and until when, which claims wait behind it,
//! and that some tokens above its own are reserved. As long as the next waiters belong to the same
//! process, the process hands the lock off locally, each time with the next token. It updates the
//! engine's record in the background.
//!
//! - No other client can acquire the lock: for the engine, the first claim still holds.
//! - No waiter is skipped: only the claims that are next in the queue follow.
//! - No token is used twice: the next grant by the engine starts above all reserved tokens, and so
//!   does the fence of a force release.

use std::collections::VecDeque;
use std::time::Duration;

use super::table::{Contender, LockTable};
use crate::types::Instant;
use crate::types::{ClaimId, Mode, Token};

/// How many claims may follow without a write.
pub const MAX_HAND_OFFS: usize = 64;

/// Which claim of this process has the lock, and which ones may have it next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalHandOff {
    /// The claims that had the lock since the last recorded state, each with its token. The first
    /// is the recorded holder, the last has the lock now.
    holders_since_write: Vec<(ClaimId, Token)>,
    next_claims: VecDeque<ClaimId>,
    reserved_tokens: ReservedTokens,
    ttl: Duration,
    expires_at: Instant,
    is_frozen: bool,
}

/// The tokens that were reserved; none if `from` is above `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedTokens {
    from: u64,
    to: u64,
}

/// What happened to the local hand-offs, according to the engine's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandOffState {
    /// It still has the lock.
    Intact,
    /// A force release removed the current holder or a local waiter. The current token may be
    /// rejected, so the holder must be notified. It stays recorded until it releases.
    TokenRefused,
    /// The lock is no longer its own: its first claim was force-released, or the lease expired.
    Lost,
}

impl ReservedTokens {
    /// Reserves one token per follower above `last`, and raises `last` to the highest. The tokens
    /// that `hand_off` left over are used first, if no other client has used tokens since.
    pub fn reserve<N>(
        hand_off: Option<&LocalHandOff>,
        table: &LockTable<N>,
        is_ours: impl Fn(&Contender<N>) -> bool,
        last: &mut u64,
    ) -> Self {
        let wanted = next_claims(table, is_ours).count() as u64;
        let left = hand_off
            .map(|hand_off| hand_off.reserved_tokens)
            .filter(|tokens| tokens.to == *last && tokens.from <= *last);
        let from = left.map_or(*last + 1, |tokens| tokens.from);
        *last = (*last).max(from + wanted - 1);
        Self { from, to: *last }
    }

    /// The reserved tokens that are left, if the state that was read has not changed since.
    pub fn remaining(hand_off: Option<&LocalHandOff>, last: u64) -> Self {
        let none = Self { from: last + 1, to: last };
        hand_off.map(|hand_off| hand_off.reserved_tokens).filter(|tokens| tokens.to == last).unwrap_or(none)
    }
}

impl LocalHandOff {
    /// The local hand-offs after a write or a read, if there is one. `table` is the engine's state,
    /// and `expires_at` maps the end of a lease to the time until which this process may rely on
    /// it. `before` may have handed the lock off meanwhile.
    pub fn rebuild<N>(
        before: Option<Self>,
        table: &LockTable<N>,
        is_ours: impl Fn(&Contender<N>) -> bool,
        tokens: ReservedTokens,
        until: impl Fn(Instant) -> Instant,
    ) -> Option<Self> {
        let [holder] = table.holders.as_slice() else { return None };
        if !is_eligible(holder) || !is_ours(holder) {
            return None;
        }
        let head = (holder.claim, holder.token);
        let mut handed_off = before.map(|before| before.holders_since_write).unwrap_or_default();
        match handed_off.iter().position(|previous| *previous == head) {
            Some(index) => handed_off.drain(..index).for_each(drop),
            None => handed_off = vec![head],
        }
        let has_had = |claim: &ClaimId| handed_off.iter().any(|(previous, _)| previous == claim);
        let followers = next_claims(table, &is_ours).filter(|claim| !has_had(claim)).collect();
        let above = handed_off.last().map_or(0, |(_, token)| token.0) + 1;
        Some(Self {
            next_claims: followers,
            reserved_tokens: ReservedTokens { from: tokens.from.max(above), to: tokens.to },
            ttl: holder.ttl,
            expires_at: until(holder.expires_at),
            is_frozen: false,
            holders_since_write: handed_off,
        })
    }

    /// `from` releases the lock. If the next waiter belongs to this process and is `ready`, it gets
    /// the lock with this token until this time.
    pub fn hand_off(
        &mut self,
        from: ClaimId,
        now: Instant,
        ready: impl Fn(ClaimId) -> bool,
    ) -> Option<(ClaimId, Token, Instant)> {
        let is_current = self.holders_since_write.last().is_some_and(|(claim, _)| *claim == from);
        // The rest of the lease must leave enough time to renew it.
        let enough = self.expires_at.duration_since(now) >= self.ttl / 3 * 2;
        if !is_current || self.is_frozen || !enough || self.reserved_tokens.from > self.reserved_tokens.to {
            return None;
        }
        let next = self.next_claims.front().copied().filter(|claim| ready(*claim))?;
        self.next_claims.pop_front();
        let token = Token(self.reserved_tokens.from);
        self.reserved_tokens.from += 1;
        self.holders_since_write.push((next, token));
        Some((next, token, self.expires_at))
    }

    /// Stops local hand-offs until the engine's state is known again.
    pub fn freeze(&mut self) {
        self.is_frozen = true;
    }

    /// Whether the lock has been handed off since the engine's recorded state.
    pub fn has_unwritten_hand_off(&self) -> bool {
        self.holders_since_write.len() > 1
    }

    /// Whether this claim got the lock by a local hand-off; it may have released it since.
    pub fn was_handed_to(&self, claim: ClaimId) -> bool {
        self.holders_since_write.iter().skip(1).any(|(previous, _)| *previous == claim)
    }

    /// The claim that has the lock.
    pub fn current_holder(&self) -> Option<ClaimId> {
        self.holders_since_write.last().map(|(claim, _)| *claim)
    }

    /// The TTL of a lease.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The highest reserved token.
    pub fn highest_token(&self) -> u64 {
        self.reserved_tokens.to
    }

    /// Updates the engine's state `table` with the local hand-offs: removes the claims that
    /// released, and makes the current one the holder from `now`. `last` is the highest token
    /// there, and `sent` the highest that this process ever sent in a write.
    pub fn apply_to_table<N: Clone>(
        &self,
        table: &mut LockTable<N>,
        last: u64,
        sent: u64,
        now: Instant,
    ) -> HandOffState {
        let Some((&(current, token), previous)) = self.holders_since_write.split_last() else {
            return HandOffState::Lost;
        };
        let still_holds = |contender: &Contender<N>| {
            self.holders_since_write.contains(&(contender.claim, contender.token)) && contender.expires_at > now
        };
        let head = match table.holders.as_slice() {
            [holder] if still_holds(holder) => Some(holder.claim),
            _ => None,
        };
        if previous.is_empty() {
            return if head.is_some() { HandOffState::Intact } else { HandOffState::Lost };
        }
        let state =
            if last > sent.max(self.reserved_tokens.to) { HandOffState::TokenRefused } else { HandOffState::Intact };
        if head == Some(current) {
            // The write succeeded after all; only claims before it may be left in the queue.
            table.waiters.retain(|contender| !previous.iter().any(|(claim, _)| *claim == contender.claim));
            return state;
        }
        let contender = table.waiters.iter().find(|contender| contender.claim == current).cloned();
        let index = table.next_order();
        let was_handed_off =
            |contender: &Contender<N>| self.holders_since_write.iter().any(|(claim, _)| *claim == contender.claim);
        // A claim that another client granted meanwhile holds by that grant until it releases: no
        // claim is granted beside it.
        table
            .holders
            .retain(|contender| !was_handed_off(contender) || (contender.claim == current && contender.token != token));
        table.waiters.retain(|contender| !was_handed_off(contender));
        match (head, contender) {
            (Some(_), Some(mut contender)) => {
                (contender.token, contender.expires_at, contender.order) =
                    (token, now.saturating_add(contender.ttl), index);
                table.holders.push(contender);
                state
            }
            _ => HandOffState::Lost,
        }
    }
}

/// Whether a claim may take part in local hand-offs: it must be exclusive and not re-entrant.
fn is_eligible<N>(contender: &Contender<N>) -> bool {
    contender.mode == Mode::Exclusive && contender.owner.is_none()
}

/// The claims that may follow the holder, in queue order.
fn next_claims<N>(table: &LockTable<N>, is_ours: impl Fn(&Contender<N>) -> bool) -> impl Iterator<Item = ClaimId> {
    let holder = match table.holders.as_slice() {
        [holder] if is_eligible(holder) && is_ours(holder) => Some(holder),
        _ => None,
    };
    let options = holder.map(|holder| (holder.ttl, holder.expires_at));
    // The queue position must last as long as the lease. If the position ends before that, the
    // claim was force-released.
    let lasts = move |contender: &Contender<N>| {
        options.is_some_and(|(ttl, until)| contender.ttl == ttl && contender.expires_at >= until)
    };
    let like = move |contender: &&Contender<N>| is_eligible(contender) && is_ours(contender) && lasts(contender);
    table.waiters.iter().take_while(like).take(MAX_HAND_OFFS).map(|contender| contender.claim)
}

#[cfg(test)]
#[path = "local_hand_off_tests.rs"]
mod tests;
