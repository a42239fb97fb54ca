//! Local hand-offs: claims of one process hold a lock one after the other, without a request to the
//! engine in between.
//!
//! The engine has stored that the first claim holds and until when, which claims wait behind it,
//! and that some tokens above its own are reserved. As long as the next waiters belong to the same
//! process, the process hands the lock off locally, each time with the next token. It updates the
//! engine's state in the background.
//!
//! - No other client can acquire the lock: for the engine, the first claim still holds.
//! - No waiter is skipped: the lock is handed off only to the claims that are next in the queue.
//! - No token is used twice: the next token that the engine grants is above all reserved tokens,
//!   and so is the fence token of a force release.

use std::collections::VecDeque;
use std::time::Duration;

use super::table::{Contender, LockTable};
use crate::types::Instant;
use crate::types::{ClaimId, Mode, Token};

/// How many local hand-offs may follow one write to the engine.
pub const MAX_HAND_OFFS: usize = 64;

/// The local hand-offs of one lock: which claim of this process holds it now, and which may hold it
/// next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalHandOff {
    /// The claims that held the lock since the engine's stored state, each with its token. The
    /// first is the holder in that state, the last holds the lock now.
    holders_since_write: Vec<(ClaimId, Token)>,
    /// The claims of this process that may hold the lock next, in queue order.
    next_claims: VecDeque<ClaimId>,
    reserved_tokens: ReservedTokens,
    /// The TTL that all these claims have.
    ttl: Duration,
    /// Until when this process may rely on the lease of the stored holder.
    expires_at: Instant,
    /// Whether hand-offs are stopped until the engine's state is known again.
    is_frozen: bool,
}

/// The tokens that a process has reserved for local hand-offs: from `from` to `to`, both included;
/// none if `from` is above `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedTokens {
    from: u64,
    to: u64,
}

/// What the engine's state means for the local hand-offs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandOffState {
    /// This process still has the lock.
    Intact,
    /// An operator force released the current holder or a waiter of this process. The resource may
    /// reject the current token, so the holder must be notified. It holds the lock until it
    /// releases.
    TokenRefused,
    /// This process does not have the lock any more: the stored holder was force released, or its
    /// lease expired.
    Lost,
}

impl ReservedTokens {
    /// Reserves one token per claim of this client that may hold the lock next. They are above
    /// `last`, the highest token in the engine's state, which is raised to the highest reserved
    /// token. Tokens that `hand_off` has left over are used first, if no other client has used
    /// tokens since.
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

    /// The reserved tokens that `hand_off` has left, if `last`, the highest token in the engine's
    /// state, is still that of the reservation; none otherwise.
    pub fn remaining(hand_off: Option<&LocalHandOff>, last: u64) -> Self {
        let none = Self { from: last + 1, to: last };
        hand_off.map(|hand_off| hand_off.reserved_tokens).filter(|tokens| tokens.to == last).unwrap_or(none)
    }
}

impl LocalHandOff {
    /// The local hand-offs after a write to the engine or a read; `None` if the holder is not a
    /// claim of this process that may take part. `table` is the engine's state. `before` are the
    /// local hand-offs before, which may have handed the lock off during the call. `usable_until`
    /// maps the end of a lease to the time until which this process may rely on it.
    pub fn rebuild<N>(
        before: Option<Self>,
        table: &LockTable<N>,
        is_ours: impl Fn(&Contender<N>) -> bool,
        tokens: ReservedTokens,
        usable_until: impl Fn(Instant) -> Instant,
    ) -> Option<Self> {
        let [holder] = table.holders.as_slice() else { return None };
        if !is_eligible(holder) || !is_ours(holder) {
            return None;
        }
        let stored_holder = (holder.claim, holder.token);
        let mut holders_since_write = before.map(|before| before.holders_since_write).unwrap_or_default();
        match holders_since_write.iter().position(|previous| *previous == stored_holder) {
            Some(index) => holders_since_write.drain(..index).for_each(drop),
            None => holders_since_write = vec![stored_holder],
        }
        let has_held = |claim: &ClaimId| holders_since_write.iter().any(|(previous, _)| previous == claim);
        let next_claims = next_claims(table, &is_ours).filter(|claim| !has_held(claim)).collect();
        let above_current = holders_since_write.last().map_or(0, |(_, token)| token.0) + 1;
        Some(Self {
            next_claims,
            reserved_tokens: ReservedTokens { from: tokens.from.max(above_current), to: tokens.to },
            ttl: holder.ttl,
            expires_at: usable_until(holder.expires_at),
            is_frozen: false,
            holders_since_write,
        })
    }

    /// Hands the lock off from the claim `from`, which releases it, to the next waiter. Returns
    /// that claim, its token, and the end of its lease. `None`: the engine must release `from`,
    /// because the next waiter is another client's or not `is_ready`, too little of the lease is
    /// left, or hand-offs are stopped.
    pub fn hand_off(
        &mut self,
        from: ClaimId,
        now: Instant,
        is_ready: impl Fn(ClaimId) -> bool,
    ) -> Option<(ClaimId, Token, Instant)> {
        let is_current = self.holders_since_write.last().is_some_and(|(claim, _)| *claim == from);
        // The next holder needs time to renew the lease.
        let has_enough_time = self.expires_at.duration_since(now) >= self.ttl / 3 * 2;
        if !is_current || self.is_frozen || !has_enough_time || self.reserved_tokens.from > self.reserved_tokens.to {
            return None;
        }
        let next = self.next_claims.front().copied().filter(|claim| is_ready(*claim))?;
        self.next_claims.pop_front();
        let token = Token(self.reserved_tokens.from);
        self.reserved_tokens.from += 1;
        self.holders_since_write.push((next, token));
        Some((next, token, self.expires_at))
    }

    /// Stops local hand-offs until the next [`rebuild`](Self::rebuild).
    pub fn freeze(&mut self) {
        self.is_frozen = true;
    }

    /// Whether the lock has been handed off since the engine's stored state.
    pub fn has_unwritten_hand_off(&self) -> bool {
        self.holders_since_write.len() > 1
    }

    /// Whether this claim got the lock by a local hand-off since the engine's stored state. It may
    /// have released it already.
    pub fn was_handed_to(&self, claim: ClaimId) -> bool {
        self.holders_since_write.iter().skip(1).any(|(previous, _)| *previous == claim)
    }

    /// The claim that holds the lock now.
    pub fn current_holder(&self) -> Option<ClaimId> {
        self.holders_since_write.last().map(|(claim, _)| *claim)
    }

    /// The TTL of the claims that take part.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The highest token that was reserved.
    pub fn highest_token(&self) -> u64 {
        self.reserved_tokens.to
    }

    /// Updates the engine's state `table` with the local hand-offs: removes the claims that
    /// released, and makes the current one the holder from `now`. `last` is the highest token in
    /// that state, and `sent` the highest that this process ever sent in a write: a higher `last`
    /// means that a force release raised it.
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
        let stored_holder = match table.holders.as_slice() {
            [holder] if still_holds(holder) => Some(holder.claim),
            _ => None,
        };
        if previous.is_empty() {
            return if stored_holder.is_some() { HandOffState::Intact } else { HandOffState::Lost };
        }
        let state =
            if last > sent.max(self.reserved_tokens.to) { HandOffState::TokenRefused } else { HandOffState::Intact };
        if stored_holder == Some(current) {
            // An earlier write succeeded although its reply was lost. Only the claims that released
            // before it may be left in the queue.
            table.waiters.retain(|contender| !previous.iter().any(|(claim, _)| *claim == contender.claim));
            return state;
        }
        let contender = table.waiters.iter().find(|contender| contender.claim == current).cloned();
        let index = table.next_order();
        let was_handed_off =
            |contender: &Contender<N>| self.holders_since_write.iter().any(|(claim, _)| *claim == contender.claim);
        // If another client granted the current claim, with another token, that grant stays until
        // the claim releases: no claim may be granted beside it.
        table
            .holders
            .retain(|contender| !was_handed_off(contender) || (contender.claim == current && contender.token != token));
        table.waiters.retain(|contender| !was_handed_off(contender));
        match (stored_holder, contender) {
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

/// The claims of this process that may hold the lock after its holder, in queue order: the first
/// waiters of the queue, up to one that cannot take part.
fn next_claims<N>(table: &LockTable<N>, is_ours: impl Fn(&Contender<N>) -> bool) -> impl Iterator<Item = ClaimId> {
    let holder = match table.holders.as_slice() {
        [holder] if is_eligible(holder) && is_ours(holder) => Some(holder),
        _ => None,
    };
    let options = holder.map(|holder| (holder.ttl, holder.expires_at));
    // The TTL must be that of the holder, and the queue position must last as long as the lease: a
    // shorter one means that the waiter was force released.
    let lasts = move |contender: &Contender<N>| {
        options.is_some_and(|(ttl, until)| contender.ttl == ttl && contender.expires_at >= until)
    };
    let may_follow = move |contender: &&Contender<N>| is_eligible(contender) && is_ours(contender) && lasts(contender);
    table.waiters.iter().take_while(may_follow).take(MAX_HAND_OFFS).map(|contender| contender.claim)
}

#[cfg(test)]
#[path = "local_hand_off_tests.rs"]
mod tests;
