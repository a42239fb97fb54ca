//! The basis of a round and its consequences: which of our claims has the lock, which callers are
//! notified, and what is remembered.

use std::sync::Arc;

use super::engine::LeaseEngine;
use super::lot::{Inside, Lot, Row};
use super::state::{self, Note};
use super::step::{Effects, Op, Out};
use crate::claim::{ClaimId, Mode};
use crate::clock::Moment;
use crate::logic::cohort::{Cohort, Fate, Tokens};
use crate::logic::table::Party;
use crate::name::LockName;

/// What a round is based on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Basis {
    /// The tokens that local hand-offs may use.
    pub(super) tokens: Tokens,
    /// How many changes by others had been reported when it began.
    pub(super) heard: u64,
    pub(super) wrote: bool,
}

impl LeaseEngine {
    /// Updates the table that was read with the local hand-offs since. If the lock is no longer
    /// ours, its local holder is notified of the loss.
    pub(super) fn catch_up(
        &self,
        lot: &Lot,
        ops: &[Op],
        table: &mut state::Parties,
        last: u64,
        now: Moment,
    ) -> Option<Cohort> {
        let mut inside = lot.lock();
        let cohort = inside.cohort.clone()?;
        let fate = cohort.catch_up(table, last, inside.sent, now);
        let leaves = |claim| ops.iter().any(|op| matches!(op, Op::Depart(departs) if *departs == claim));
        if fate != Fate::Stands
            && cohort.is_behind()
            && let Some(claim) = cohort.current().filter(|claim| !leaves(*claim))
        {
            self.lost(&inside, claim);
        }
        if fate == Fate::Broken {
            inside.cohort = None;
            return None;
        }
        if fate == Fate::Refused {
            inside.freeze();
        }
        // The write sets the time since when it holds.
        for party in table.holders.iter_mut().filter(|party| cohort.has_passed(party.claim)) {
            party.note.since = None;
        }
        Some(cohort)
    }

    /// Notifies a claim that got the lock by a local hand-off and has lost it.
    fn lost(&self, inside: &Inside, claim: ClaimId) {
        if let Some(ear) = inside.ears.get(&claim) {
            ear.take_back();
        }
        self.losses.post(claim);
    }

    /// Notifies the granted claims, adds the waiters, and remembers the row while it has a claim of
    /// ours.
    pub(super) fn settle(&self, lot: &Lot, row: Row, basis: Basis, effects: &Effects, outs: &[Out], ops: &[Op]) {
        let mut inside = lot.lock();
        // A local hand-off meanwhile is not in the row yet.
        let passed = |inside: &Inside, claim| inside.cohort.as_ref().is_some_and(|cohort| cohort.has_passed(claim));
        // Applies to every holder in the row, whether we or another client granted the lock.
        let is_old = inside.heard != basis.heard;
        for (claim, ear) in &inside.ears {
            if let Some(held) = row.content.table.holder(*claim) {
                ear.grant(held.token, row.reading.until(held.until));
            } else if ear.granted().is_some() && !is_old && !passed(&inside, *claim) {
                // The claim was force released before its caller fetched the grant.
                ear.take_back();
            } else if row.content.table.position(*claim).is_none() {
                ear.rung.notify_one();
            }
        }
        for (op, out) in ops.iter().zip(outs) {
            let claim = match op {
                Op::Attempt { claim, .. } => claim.id,
                Op::Look(claim) | Op::Depart(claim) => *claim,
                _ => continue,
            };
            match (out, row.content.table.waiters.iter().find(|party| party.claim == claim)) {
                (Out::Queued { .. }, _) if passed(&inside, claim) => {}
                (Out::Queued { .. }, Some(party)) => inside.listen(claim, party.ttl, row.reading.sent, row.token),
                // The waiting caller gets the grant from the waiter entry.
                (Out::Granted(..), _) if matches!(op, Op::Look(_)) => {}
                _ => {
                    // The waiting caller asks again.
                    if let Some(ear) = inside.ears.remove(&claim) {
                        ear.rung.notify_one();
                    }
                }
            }
        }
        for (claim, inbox) in &effects.evicted {
            if *inbox == self.inbox {
                self.losses.post(*claim);
            }
            if let Some(ear) = inside.ears.get(claim) {
                ear.take_back();
            }
        }
        // The row is checked for release requests with every read: their notification may be lost
        // or impossible.
        for party in row.content.table.holders.iter().filter(|party| party.note.release_requested) {
            if party.note.inbox == self.inbox {
                self.losses.request_release(party.claim);
            }
        }
        if let Some(ear) = effects.sooner.as_ref().and_then(|(claim, _)| inside.ears.get(claim)) {
            ear.rung.notify_one();
        }
        if std::mem::take(&mut inside.missed) {
            for ear in inside.ears.values() {
                ear.rung.notify_one();
            }
        }
        let ours = |party: &Party<Note>| party.note.inbox == self.inbox;
        let until = |until| row.reading.until(until);
        let before = inside.cohort.take();
        let had = before.as_ref().filter(|cohort| cohort.is_behind()).and_then(Cohort::current);
        inside.cohort = Cohort::after(before, &row.content.table, ours, basis.tokens, until);
        if let Some(claim) = had.filter(|had| inside.cohort.as_ref().and_then(Cohort::current) != Some(*had)) {
            // The hand-off came when the row had already gone to another claim.
            self.lost(&inside, claim);
        }
        inside.uncertain &= !basis.wrote;
        if inside.uncertain || is_old {
            inside.freeze();
        }
        self.put(&mut inside, row);
        if is_old {
            inside.row = None;
        }
        drop(inside);
        lot.news.notify_one();
    }

    /// Remembers the row while it has a claim of ours.
    pub(super) fn put(&self, inside: &mut Inside, row: Row) {
        let parties = || row.content.table.holders.iter().chain(&row.content.table.waiters);
        let ours = || parties().filter(|party| party.note.inbox == self.inbox).map(|party| party.claim);
        if let Some(bells) = &self.bells {
            // A waiter in another process waits on the wake-up lock of the party right before it.
            let is_ours = |party: &Party<Note>| party.note.inbox == self.inbox;
            // Waiters that can be granted together wait for the same party, which then needs a
            // wake-up lock in any case.
            let hears = |party: &Party<Note>| !is_ours(party) || party.mode != Mode::Exclusive;
            let next = parties().skip(1).map(hears).chain([true]);
            let rows = parties().zip(next).filter(|(party, _)| is_ours(party));
            let orders = inside.hung.now(rows.map(|(party, others_behind)| (party.claim, others_behind)));
            bells.order(orders.into_iter());
        }
        let any = ours().next().is_some();
        inside.row = any.then_some(row);
        if any {
            self.kept.notify_one();
        }
    }

    /// The notifications to send: to other clients whose claims were granted, force released or
    /// asked for a release.
    pub(super) fn messages(&self, name: &LockName, table: &state::Parties, effects: &Effects) -> Vec<(String, String)> {
        let mut messages = Vec::new();
        if !self.sends {
            return messages;
        }
        let elsewhere = |inbox: &Arc<str>| *inbox != self.inbox && super::news::listens(inbox);
        for claim in &effects.granted {
            if let Some(held) = table.holder(*claim).filter(|held| elsewhere(&held.note.inbox)) {
                let text = format!("g {:032x} {} {name}", claim.bits(), held.token);
                messages.push((super::news::channel(&held.note.inbox), text));
            }
        }
        for (claim, inbox) in effects.sooner.iter().filter(|(_, inbox)| elsewhere(inbox)) {
            messages.push((super::news::channel(inbox), format!("l {:032x} 0 {name}", claim.bits())));
        }
        for (claim, inbox) in effects.evicted.iter().filter(|(_, inbox)| elsewhere(inbox)) {
            messages.push((super::news::channel(inbox), format!("e {:032x} 0 {name}", claim.bits())));
        }
        for (claim, inbox) in effects.requested.iter().filter(|(_, inbox)| elsewhere(inbox)) {
            messages.push((super::news::channel(inbox), format!("r {:032x} 0 {name}", claim.bits())));
        }
        messages
    }
}
