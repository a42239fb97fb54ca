//! The basis of a round and its consequences: which of our claims has the lock, which callers are
//! notified, and what is remembered.

use std::sync::Arc;

use super::engine::LeaseEngine;
use super::lock_state::{CachedRow, LockState, LockStateInner};
use super::state::{self, ContenderDetails};
use super::step::{Effects, Op, OpOutcome};
use crate::clock::Instant;
use crate::logic::local_hand_off::{HandOffState, LocalHandOff, ReservedTokens};
use crate::logic::table::Contender;
use crate::types::{ClaimId, LockName, Mode};

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
        lot: &LockState,
        ops: &[Op],
        table: &mut state::Contenders,
        last: u64,
        now: Instant,
    ) -> Option<LocalHandOff> {
        let mut inside = lot.lock();
        let cohort = inside.local_hand_offs.clone()?;
        let fate = cohort.apply_to_table(table, last, inside.max_token_sent, now);
        let leaves = |claim| ops.iter().any(|op| matches!(op, Op::Release(departs) if *departs == claim));
        if fate != HandOffState::Intact
            && cohort.has_unwritten_hand_off()
            && let Some(claim) = cohort.current_holder().filter(|claim| !leaves(*claim))
        {
            self.report_loss(&inside, claim);
        }
        if fate == HandOffState::Lost {
            inside.local_hand_offs = None;
            return None;
        }
        if fate == HandOffState::TokenRefused {
            inside.stop_local_hand_offs();
        }
        // The write sets the time since when it holds.
        for party in table.holders.iter_mut().filter(|party| cohort.was_handed_to(party.claim)) {
            party.details.since = None;
        }
        Some(cohort)
    }

    /// Notifies a claim that got the lock by a local hand-off and has lost it.
    fn report_loss(&self, inside: &LockStateInner, claim: ClaimId) {
        if let Some(ear) = inside.waiters.get(&claim) {
            ear.revoke_grant();
        }
        self.losses.report_lost(claim);
    }

    /// Adds the requests that wait, and removes those that are decided.
    fn update_waiters(inside: &mut LockStateInner, row: &CachedRow, ops: &[Op], outs: &[OpOutcome]) {
        for (op, out) in ops.iter().zip(outs) {
            let claim = match op {
                Op::Attempt { claim, .. } => claim.id,
                Op::LookUp(claim) | Op::Release(claim) => *claim,
                _ => continue,
            };
            match (out, row.content.table.waiters.iter().find(|party| party.claim == claim)) {
                (OpOutcome::Queued { .. }, _) if inside.has_handed_to(claim) => {}
                (OpOutcome::Queued { .. }, Some(party)) => {
                    inside.upsert_waiter(claim, party.ttl, row.reading.sent, row.token)
                }
                // The waiting caller gets the grant from the waiter entry.
                (OpOutcome::Granted(..), _) if matches!(op, Op::LookUp(_)) => {}
                _ => {
                    // The waiting caller asks again.
                    if let Some(ear) = inside.waiters.remove(&claim) {
                        ear.wakeup.notify_one();
                    }
                }
            }
        }
    }

    /// Notifies the granted claims, adds the waiters, and remembers the row while it has a claim of
    /// ours.
    pub(super) fn apply_outcome(
        &self,
        lot: &LockState,
        row: CachedRow,
        basis: RoundBasis,
        effects: &Effects,
        outs: &[OpOutcome],
        ops: &[Op],
    ) {
        let mut inside = lot.lock();
        // Applies to every holder in the row, whether we or another client granted the lock.
        let is_old = inside.foreign_changes != basis.foreign_changes;
        for (claim, ear) in &inside.waiters {
            if let Some(held) = row.content.table.holder(*claim) {
                ear.grant(held.token, row.reading.local_deadline(held.expires_at));
            } else if ear.granted().is_some() && !is_old && !inside.has_handed_to(*claim) {
                // The claim was force released before its caller fetched the grant.
                ear.revoke_grant();
            } else if row.content.table.position(*claim).is_none() {
                ear.wakeup.notify_one();
            }
        }
        Self::update_waiters(&mut inside, &row, ops, outs);
        for (claim, inbox) in &effects.force_released {
            if *inbox == self.client_id {
                self.losses.report_lost(*claim);
            }
            if let Some(ear) = inside.waiters.get(claim) {
                ear.revoke_grant();
            }
        }
        // The row is checked for release requests with every read: their notification may be lost
        // or impossible.
        for party in row.content.table.holders.iter().filter(|party| party.details.is_release_requested) {
            if party.details.client_id == self.client_id {
                self.losses.report_release_request(party.claim);
            }
        }
        if let Some(ear) = effects.recheck_sooner.as_ref().and_then(|(claim, _)| inside.waiters.get(claim)) {
            ear.wakeup.notify_one();
        }
        if std::mem::take(&mut inside.has_missed_notification) {
            for ear in inside.waiters.values() {
                ear.wakeup.notify_one();
            }
        }
        let ours = |party: &Contender<ContenderDetails>| party.details.client_id == self.client_id;
        let until = |until| row.reading.local_deadline(until);
        let before = inside.local_hand_offs.take();
        let had =
            before.as_ref().filter(|cohort| cohort.has_unwritten_hand_off()).and_then(LocalHandOff::current_holder);
        inside.local_hand_offs = LocalHandOff::rebuild(before, &row.content.table, ours, basis.tokens, until);
        if let Some(claim) =
            had.filter(|had| inside.local_hand_offs.as_ref().and_then(LocalHandOff::current_holder) != Some(*had))
        {
            // The hand-off came when the row had already gone to another claim.
            self.report_loss(&inside, claim);
        }
        inside.has_uncertain_write &= !basis.has_written;
        if inside.has_uncertain_write || is_old {
            inside.stop_local_hand_offs();
        }
        self.cache_row(&mut inside, row);
        if is_old {
            inside.row = None;
        }
        drop(inside);
        lot.row_changed.notify_one();
    }

    /// Remembers the row while it has a claim of ours.
    pub(super) fn cache_row(&self, inside: &mut LockStateInner, row: CachedRow) {
        let parties = || row.content.table.holders.iter().chain(&row.content.table.waiters);
        let ours = || parties().filter(|party| party.details.client_id == self.client_id).map(|party| party.claim);
        if let Some(bells) = &self.wakeup_locks {
            // A waiter in another process waits on the wake-up lock of the party right before it.
            let is_ours = |party: &Contender<ContenderDetails>| party.details.client_id == self.client_id;
            // Waiters that can be granted together wait for the same party, which then needs a
            // wake-up lock in any case.
            let hears = |party: &Contender<ContenderDetails>| !is_ours(party) || party.mode != Mode::Exclusive;
            let next = parties().skip(1).map(hears).chain([true]);
            let rows = parties().zip(next).filter(|(party, _)| is_ours(party));
            let orders = inside.wakeups.update(rows.map(|(party, others_behind)| (party.claim, others_behind)));
            bells.submit(orders.into_iter());
        }
        let any = ours().next().is_some();
        inside.row = any.then_some(row);
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
        let elsewhere = |inbox: &Arc<str>| *inbox != self.client_id && super::notifications::can_receive(inbox);
        for claim in &effects.granted {
            if let Some(held) = table.holder(*claim).filter(|held| elsewhere(&held.details.client_id)) {
                let text = format!("g {:032x} {} {name}", claim.bits(), held.token);
                messages.push((super::notifications::channel(&held.details.client_id), text));
            }
        }
        for (claim, inbox) in effects.recheck_sooner.iter().filter(|(_, inbox)| elsewhere(inbox)) {
            messages.push((super::notifications::channel(inbox), format!("l {:032x} 0 {name}", claim.bits())));
        }
        for (claim, inbox) in effects.force_released.iter().filter(|(_, inbox)| elsewhere(inbox)) {
            messages.push((super::notifications::channel(inbox), format!("e {:032x} 0 {name}", claim.bits())));
        }
        for (claim, inbox) in effects.release_requested.iter().filter(|(_, inbox)| elsewhere(inbox)) {
            messages.push((super::notifications::channel(inbox), format!("r {:032x} 0 {name}", claim.bits())));
        }
        messages
    }
}
