//! What a round rests on and what follows from it: who of ours has the lock, who is told, what is remembered.

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

/// What a round rests on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Basis {
    /// The tokens that our own may be given.
    pub(super) tokens: Tokens,
    /// How often others had told us of a change when it began.
    pub(super) heard: u64,
    pub(super) wrote: bool,
}

impl LeaseEngine {
    /// Brings what was read up to date with who of ours has the lock. If it is ours no longer, whoever has it is told.
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
        // Since when it holds is said by the write.
        for party in table.holders.iter_mut().filter(|party| cohort.has_passed(party.claim)) {
            party.note.since = None;
        }
        Some(cohort)
    }

    /// A claim that got the lock from another of ours has it no longer.
    fn lost(&self, inside: &Inside, claim: ClaimId) {
        if let Some(ear) = inside.ears.get(&claim) {
            ear.take_back();
        }
        self.losses.post(claim);
    }

    /// Tells who was let in, listens for who waits, and keeps the row while we have anybody there.
    pub(super) fn settle(&self, lot: &Lot, row: Row, basis: Basis, effects: &Effects, outs: &[Out], ops: &[Op]) {
        let mut inside = lot.lock();
        // Who got it from another of ours meanwhile is not in the row yet.
        let passed = |inside: &Inside, claim| inside.cohort.as_ref().is_some_and(|cohort| cohort.has_passed(claim));
        // Whoever let them in, we or somebody else.
        let is_old = inside.heard != basis.heard;
        for (claim, ear) in &inside.ears {
            if let Some(held) = row.table.holder(*claim) {
                ear.grant(held.token, row.reading.until(held.until));
            } else if ear.granted().is_some() && !is_old && !passed(&inside, *claim) {
                // It was evicted before anybody took what it was given.
                ear.take_back();
            } else if row.table.position(*claim).is_none() {
                ear.rung.notify_one();
            }
        }
        for (op, out) in ops.iter().zip(outs) {
            let claim = match op {
                Op::Attempt { claim, .. } => claim.id,
                Op::Look(claim) | Op::Depart(claim) => *claim,
                _ => continue,
            };
            match (out, row.table.waiters.iter().find(|party| party.claim == claim)) {
                (Out::Queued { .. }, _) if passed(&inside, claim) => {}
                (Out::Queued { .. }, Some(party)) => inside.listen(claim, party.ttl, row.reading.sent, row.token),
                // Whoever waits by it hears of it there.
                (Out::Granted(..), _) if matches!(op, Op::Look(_)) => {}
                _ => {
                    // Whoever waits by it asks again.
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
        // Found with every reading: where no message reaches us, or one was lost, the row says it.
        for party in row.table.holders.iter().filter(|party| party.note.release_requested) {
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
        inside.cohort = Cohort::after(before, &row.table, ours, basis.tokens, until);
        if let Some(claim) = had.filter(|had| inside.cohort.as_ref().and_then(Cohort::current) != Some(*had)) {
            // It was passed on while the row had gone to somebody else already.
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

    /// Keeps the row while any of ours is there.
    pub(super) fn put(&self, inside: &mut Inside, row: Row) {
        let parties = || row.table.holders.iter().chain(&row.table.waiters);
        let ours = || parties().filter(|party| party.note.inbox == self.inbox).map(|party| party.claim);
        if let Some(bells) = &self.bells {
            // Whoever waits in another process hears the bell of the party right before it.
            let is_ours = |party: &Party<Note>| party.note.inbox == self.inbox;
            // Several who may enter together wait for the same party: then it needs a bell, whoever is next.
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

    /// Whom to send a message: those who were granted, evicted or asked for a release and are not ours.
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
