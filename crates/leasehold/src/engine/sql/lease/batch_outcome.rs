//! What a batch takes into account besides its requests, and what follows from it: which claim of
//! this client has the lock, which waiters and clients are notified, and which row is cached. A
//! batch is one decision about all pending requests for a lock ([`super::batch`]).

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

/// What a batch was based on, for [`LeaseEngine::apply_outcome`].
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchBasis {
    /// The tokens that local hand-offs may use.
    pub(super) tokens: ReservedTokens,
    /// The lock's count of reported changes by other clients when the batch began.
    pub(super) foreign_changes: u64,
    /// Whether the batch wrote the row.
    pub(super) has_written: bool,
}

impl LeaseEngine {
    /// Brings the table that was read up to date with the local hand-offs since, and returns them.
    /// `None`: there are none, or the row shows that this client has lost the lock; then the claim
    /// that got it locally is notified of the loss. `last` is the highest token in the row.
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
        let is_being_released = |claim| ops.iter().any(|op| matches!(op, Op::Release(released) if *released == claim));
        if hand_off_state != HandOffState::Intact
            && hand_offs.has_unwritten_hand_off()
            && let Some(claim) = hand_offs.current_holder().filter(|claim| !is_being_released(*claim))
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
        // The batch's write sets the time since when these hold.
        for contender in table.holders.iter_mut().filter(|contender| hand_offs.was_handed_to(contender.claim)) {
            contender.details.since = None;
        }
        Some(hand_offs)
    }

    /// Reports that a claim which got the lock by a local hand-off has lost it.
    fn report_loss(&self, inner: &LockStateInner, claim: ClaimId) {
        if let Some(waiter) = inner.waiters.get(&claim) {
            waiter.revoke_grant();
        }
        self.losses.report_lost(claim);
    }

    /// Adds the claims that the batch queued to this client's waiters, and removes those that do
    /// not wait any more.
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
                // The caller of `wait` finds the grant in the waiter's entry, and removes that.
                (OpOutcome::Granted(..), _) if matches!(op, Op::LookUp(_)) => {}
                _ => {
                    // The caller of `wait` looks the claim up again.
                    if let Some(waiter) = inner.waiters.remove(&claim) {
                        waiter.wakeup.notify_one();
                    }
                }
            }
        }
    }

    /// Applies the outcome of a batch whose row is `row` now: notifies the claims of this client
    /// that were granted, force released or asked for a release, updates its waiters and local
    /// hand-offs, and caches the row.
    pub(super) fn apply_outcome(
        &self,
        lock_state: &LockState,
        row: CachedRow,
        basis: BatchBasis,
        effects: &Effects,
        outcomes: &[OpOutcome],
        ops: &[Op],
    ) {
        let mut inner = lock_state.lock();
        // Whether another client reported a change that `row` may not show yet.
        let is_stale = inner.foreign_changes != basis.foreign_changes;
        for (claim, waiter) in &inner.waiters {
            if let Some(held) = row.content.table.holder(*claim) {
                waiter.grant(held.token, row.reading.local_deadline(held.expires_at));
            } else if waiter.granted().is_some() && !is_stale && !inner.has_handed_to(*claim) {
                // The claim was force released before its caller fetched the grant.
                waiter.revoke_grant();
            } else if row.content.table.position(*claim).is_none() {
                waiter.wakeup.notify_one();
            }
        }
        Self::update_waiters(&mut inner, &row, ops, outcomes);
        for (claim, client_id) in &effects.force_released {
            if *client_id == self.client_id {
                self.losses.report_lost(*claim);
            }
            if let Some(waiter) = inner.waiters.get(claim) {
                waiter.revoke_grant();
            }
        }
        // A release request is also found in the row, because its notification may have been lost,
        // or the database may have none.
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
        let local_deadline = |until| row.reading.local_deadline(until);
        let hand_offs_before = inner.local_hand_offs.take();
        let local_holder = hand_offs_before
            .as_ref()
            .filter(|hand_offs| hand_offs.has_unwritten_hand_off())
            .and_then(LocalHandOff::current_holder);
        inner.local_hand_offs =
            LocalHandOff::rebuild(hand_offs_before, &row.content.table, is_ours, basis.tokens, local_deadline);
        if let Some(claim) = local_holder
            .filter(|holder| inner.local_hand_offs.as_ref().and_then(LocalHandOff::current_holder) != Some(*holder))
        {
            // The claim got the lock by a local hand-off, but the row had granted it to another one
            // before.
            self.report_loss(&inner, claim);
        }
        inner.has_uncertain_write &= !basis.has_written;
        if inner.has_uncertain_write || is_stale {
            inner.stop_local_hand_offs();
        }
        self.cache_row(&mut inner, row);
        if is_stale {
            inner.row = None;
        }
        drop(inner);
        lock_state.row_changed.notify_one();
    }

    /// Caches the row if it has a claim of this client, and else drops the cached one. Acquires and
    /// releases wake-up locks accordingly.
    pub(super) fn cache_row(&self, inner: &mut LockStateInner, row: CachedRow) {
        let contenders = || row.content.table.holders.iter().chain(&row.content.table.waiters);
        let own_claims = || {
            contenders()
                .filter(|contender| contender.details.client_id == self.client_id)
                .map(|contender| contender.claim)
        };
        if let Some(wakeup_locks) = &self.wakeup_locks {
            // A waiter of another client waits on the wake-up lock of the claim right before it, so
            // a claim needs one only if another client's claim is right behind it.
            let is_ours = |contender: &Contender<ContenderDetails>| contender.details.client_id == self.client_id;
            // Several waiters that can hold together wait for the same claim before them. It then
            // needs a wake-up lock even if a claim of this client is right behind it.
            let needs_wakeup_lock_before =
                |contender: &Contender<ContenderDetails>| !is_ours(contender) || contender.mode != Mode::Exclusive;
            let next = contenders().skip(1).map(needs_wakeup_lock_before).chain([true]);
            let own_with_next = contenders().zip(next).filter(|(contender, _)| is_ours(contender));
            let commands =
                inner.wakeups.update(own_with_next.map(|(contender, others_behind)| (contender.claim, others_behind)));
            wakeup_locks.submit(commands.into_iter());
        }
        let has_own_claim = own_claims().next().is_some();
        inner.row = has_own_claim.then_some(row);
        if has_own_claim {
            self.row_cached.notify_one();
        }
    }

    /// The notifications to send to other clients whose claims were granted, force released or
    /// asked for a release: channel and text of each. `notifications.rs` parses the texts.
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
        let is_receiver = |client_id: &Arc<str>| *client_id != self.client_id && notifications::can_receive(client_id);
        for claim in &effects.granted {
            if let Some(held) = table.holder(*claim).filter(|held| is_receiver(&held.details.client_id)) {
                let text = notifications::text('g', *claim, held.token, name);
                messages.push((notifications::channel(&held.details.client_id), text));
            }
        }
        for (claim, client_id) in effects.recheck_sooner.iter().filter(|(_, client_id)| is_receiver(client_id)) {
            messages.push((notifications::channel(client_id), notifications::text('l', *claim, Token(0), name)));
        }
        for (claim, client_id) in effects.force_released.iter().filter(|(_, client_id)| is_receiver(client_id)) {
            messages.push((notifications::channel(client_id), notifications::text('e', *claim, Token(0), name)));
        }
        for (claim, client_id) in effects.release_requested.iter().filter(|(_, client_id)| is_receiver(client_id)) {
            messages.push((notifications::channel(client_id), notifications::text('r', *claim, Token(0), name)));
        }
        messages
    }
}
