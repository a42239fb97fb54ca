//! The basis of a round and its consequences: which of our claims has the lock, which callers are
//! notified, and which row is cached.

use std::sync::Arc;

use super::engine::LeaseEngine;
use super::lock_state::{CachedRow, LockState, LockStateInner};
use super::notifications;
use super::state::{self, ContenderDetails};
use super::step::{Effects, Op, OpOutcome};
use crate::clock::Instant;
use crate::logic::local_hand_off::{HandOffState, LocalHandOff, ReservedTokens};
use crate::logic::table::Contender;
use crate::types::{ClaimId, LockName, Mode, Token};

/// What a round is based on.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundBasis {
    /// The tokens that local hand-offs may use.
    pub(super) tokens: ReservedTokens,
    /// How many changes by others had been reported when it began.
    pub(super) foreign_changes: u64,
    pub(super) has_written: bool,
}

impl LeaseEngine {
    /// Updates the table that was read with the local hand-offs since. If the lock is no longer
    /// ours, its local holder is notified of the loss.
    pub(super) fn apply_local_hand_offs(
        &self,
        lock_state: &LockState,
        ops: &[Op],
        table: &mut state::Contenders,
        last: u64,
        now: Instant,
    ) -> Option<LocalHandOff> {
        let mut inner = lock_state.lock();
        let hand_offs = inner.local_hand_offs.clone()?;
        let hand_off_state = hand_offs.apply_to_table(table, last, inner.max_token_sent, now);
        let leaves = |claim| ops.iter().any(|op| matches!(op, Op::Release(departs) if *departs == claim));
        if hand_off_state != HandOffState::Intact
            && hand_offs.has_unwritten_hand_off()
            && let Some(claim) = hand_offs.current_holder().filter(|claim| !leaves(*claim))
        {
            self.report_loss(&inner, claim);
        }
        if hand_off_state == HandOffState::Lost {
            inner.local_hand_offs = None;
            return None;
        }
        if hand_off_state == HandOffState::TokenRefused {
            inner.stop_local_hand_offs();
        }
        // The write sets the time since when it holds.
        for contender in table.holders.iter_mut().filter(|contender| hand_offs.was_handed_to(contender.claim)) {
            contender.details.since = None;
        }
        Some(hand_offs)
    }

    /// Notifies a claim that got the lock by a local hand-off and has lost it.
    fn report_loss(&self, inner: &LockStateInner, claim: ClaimId) {
        if let Some(waiter) = inner.waiters.get(&claim) {
            waiter.revoke_grant();
        }
        self.losses.report_lost(claim);
    }

    /// Adds the requests that wait, and removes those that are decided.
    fn update_waiters(inner: &mut LockStateInner, row: &CachedRow, ops: &[Op], outcomes: &[OpOutcome]) {
        for (op, outcome) in ops.iter().zip(outcomes) {
            let claim = match op {
                Op::Attempt { claim, .. } => claim.id,
                Op::LookUp(claim) | Op::Release(claim) => *claim,
                _ => continue,
            };
            match (outcome, row.content.table.waiters.iter().find(|contender| contender.claim == claim)) {
                (OpOutcome::Queued { .. }, _) if inner.has_handed_to(claim) => {}
                (OpOutcome::Queued { .. }, Some(contender)) => {
                    inner.upsert_waiter(claim, contender.ttl, row.reading.sent, row.token)
                }
                // The waiting caller gets the grant from the waiter entry.
                (OpOutcome::Granted(..), _) if matches!(op, Op::LookUp(_)) => {}
                _ => {
                    // The waiting caller retries.
                    if let Some(waiter) = inner.waiters.remove(&claim) {
                        waiter.wakeup.notify_one();
                    }
                }
            }
        }
    }

    /// Notifies the granted claims, adds the waiters, and caches the row while it has a claim of
    /// ours.
    pub(super) fn apply_outcome(
        &self,
        lock_state: &LockState,
        row: CachedRow,
        basis: RoundBasis,
        effects: &Effects,
        outcomes: &[OpOutcome],
        ops: &[Op],
    ) {
        let mut inner = lock_state.lock();
        // Applies to every holder in the row, whether we or another client granted the lock.
        let is_old = inner.foreign_changes != basis.foreign_changes;
        for (claim, waiter) in &inner.waiters {
            if let Some(held) = row.content.table.holder(*claim) {
                waiter.grant(held.token, row.reading.local_deadline(held.expires_at));
            } else if waiter.granted().is_some() && !is_old && !inner.has_handed_to(*claim) {
                // The claim was force released before its caller fetched the grant.
                waiter.revoke_grant();
            } else if row.content.table.position(*claim).is_none() {
                waiter.wakeup.notify_one();
            }
        }
        Self::update_waiters(&mut inner, &row, ops, outcomes);
        for (claim, inbox) in &effects.force_released {
            if *inbox == self.client_id {
                self.losses.report_lost(*claim);
            }
            if let Some(waiter) = inner.waiters.get(claim) {
                waiter.revoke_grant();
            }
        }
        // The row is checked for release requests with every read: their notification may be lost
        // or impossible.
        for contender in row.content.table.holders.iter().filter(|contender| contender.details.is_release_requested) {
            if contender.details.client_id == self.client_id {
                self.losses.report_release_request(contender.claim);
            }
        }
        if let Some(waiter) = effects.recheck_sooner.as_ref().and_then(|(claim, _)| inner.waiters.get(claim)) {
            waiter.wakeup.notify_one();
        }
        if std::mem::take(&mut inner.has_missed_notification) {
            for waiter in inner.waiters.values() {
                waiter.wakeup.notify_one();
            }
        }
        let is_ours = |contender: &Contender<ContenderDetails>| contender.details.client_id == self.client_id;
        let until = |until| row.reading.local_deadline(until);
        let before = inner.local_hand_offs.take();
        let holder = before
            .as_ref()
            .filter(|hand_offs| hand_offs.has_unwritten_hand_off())
            .and_then(LocalHandOff::current_holder);
        inner.local_hand_offs = LocalHandOff::rebuild(before, &row.content.table, is_ours, basis.tokens, until);
        if let Some(claim) = holder
            .filter(|holder| inner.local_hand_offs.as_ref().and_then(LocalHandOff::current_holder) != Some(*holder))
        {
            // The hand-off happened after the row had granted the lock to another claim.
            self.report_loss(&inner, claim);
        }
        inner.has_uncertain_write &= !basis.has_written;
        if inner.has_uncertain_write || is_old {
            inner.stop_local_hand_offs();
        }
        self.cache_row(&mut inner, row);
        if is_old {
            inner.row = None;
        }
        drop(inner);
        lock_state.row_changed.notify_one();
    }

    /// Caches the row while it has a claim of ours.
    pub(super) fn cache_row(&self, inner: &mut LockStateInner, row: CachedRow) {
        let contenders = || row.content.table.holders.iter().chain(&row.content.table.waiters);
        let own_claims = || {
            contenders()
                .filter(|contender| contender.details.client_id == self.client_id)
                .map(|contender| contender.claim)
        };
        if let Some(wakeup_locks) = &self.wakeup_locks {
            // A waiter in another process waits on the wake-up lock of the contender right before
            // it.
            let is_ours = |contender: &Contender<ContenderDetails>| contender.details.client_id == self.client_id;
            // Waiters that can be granted together wait for the same contender, which then needs a
            // wake-up lock in any case.
            let hears =
                |contender: &Contender<ContenderDetails>| !is_ours(contender) || contender.mode != Mode::Exclusive;
            let next = contenders().skip(1).map(hears).chain([true]);
            let rows = contenders().zip(next).filter(|(contender, _)| is_ours(contender));
            let commands =
                inner.wakeups.update(rows.map(|(contender, others_behind)| (contender.claim, others_behind)));
            wakeup_locks.submit(commands.into_iter());
        }
        let any = own_claims().next().is_some();
        inner.row = any.then_some(row);
        if any {
            self.row_cached.notify_one();
        }
    }

    /// The notifications to send: to other clients whose claims were granted, force released or
    /// asked for a release.
    pub(super) fn notifications(
        &self,
        name: &LockName,
        table: &state::Contenders,
        effects: &Effects,
    ) -> Vec<(String, String)> {
        let mut messages = Vec::new();
        if !self.can_notify {
            return messages;
        }
        let elsewhere = |inbox: &Arc<str>| *inbox != self.client_id && notifications::can_receive(inbox);
        for claim in &effects.granted {
            if let Some(held) = table.holder(*claim).filter(|held| elsewhere(&held.details.client_id)) {
                let text = notifications::text('g', *claim, held.token, name);
                messages.push((notifications::channel(&held.details.client_id), text));
            }
        }
        for (claim, inbox) in effects.recheck_sooner.iter().filter(|(_, inbox)| elsewhere(inbox)) {
            messages.push((notifications::channel(inbox), notifications::text('l', *claim, Token(0), name)));
        }
        for (claim, inbox) in effects.force_released.iter().filter(|(_, inbox)| elsewhere(inbox)) {
            messages.push((notifications::channel(inbox), notifications::text('e', *claim, Token(0), name)));
        }
        for (claim, inbox) in effects.release_requested.iter().filter(|(_, inbox)| elsewhere(inbox)) {
            messages.push((notifications::channel(inbox), notifications::text('r', *claim, Token(0), name)));
        }
        messages
    }
}
