//! Waiting without notifications. For each lock, one task watches for all our waiters: by the
//! wake-up lock of the party ahead, or by polling.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::bells;
use super::engine::{LeaseEngine, look_pause};
use super::lot::{Inside, Lot, Row};
use super::state::Note;
use super::step::Op;
use crate::claim::{ClaimId, Mode};
use crate::engine::sql::error::Failure;
use crate::engine::sql::link::{Link, Value};
use crate::engine::sql::load;
use crate::logic::table::Party;

/// How long one statement waits for a wake-up lock.
const SLICE: Duration = Duration::from_secs(5);

/// What our first waiter at a lock waits for.
struct Ahead {
    /// Our first waiter.
    ours: ClaimId,
    ttl: Duration,
    /// The party right before it, of another client. `None`: unknown, or our own.
    bell: Option<ClaimId>,
    /// How many waiters are before it.
    place: usize,
}

impl Inside {
    /// Our first waiter in the queue, and the party right before it.
    fn ahead(&self, me: &str) -> Option<Ahead> {
        let (claim, ear) = self.ears.iter().find(|(_, ear)| ear.granted().is_none())?;
        let place = |row: &Row| row.content.table.waiters.iter().position(|party| self.ears.contains_key(&party.claim));
        let Some((row, place)) = self.row.as_ref().and_then(|row| Some((row, place(row)?))) else {
            return Some(Ahead { ours: *claim, ttl: ear.ttl, bell: None, place: 0 });
        };
        let ours = &row.content.table.waiters[place];
        // Waiters that can be granted together wait for the same party. If any of several holders
        // may free enough permits, there is no single party to wait for.
        let together = |party: &&Party<Note>| ours.mode != Mode::Exclusive && party.mode != Mode::Exclusive;
        let before = row.content.table.waiters.range(..place).rev().find(|party| !together(party));
        let any_makes_room = matches!(ours.mode, Mode::Permits { .. }) && row.content.table.holders.len() > 1;
        let before = before.or_else(|| row.content.table.holders.last().filter(|_| !any_makes_room));
        let bell = before.filter(|party| *party.note.inbox != *me).map(|party| party.claim);
        Some(Ahead { ours: ours.claim, ttl: ours.ttl, bell, place })
    }
}

impl LeaseEngine {
    /// Starts a watching task, if there is none and no notification would come.
    pub(super) fn follow(self: &Arc<Self>, lot: &Arc<Lot>) {
        if !self.is_deaf() {
            return;
        }
        let mut inside = lot.lock();
        if inside.ears.is_empty() || std::mem::replace(&mut inside.watched, true) {
            return;
        }
        drop(inside);
        tokio::spawn(watch(Arc::downgrade(self), Arc::clone(lot)));
    }
}

/// Watches as long as a claim of ours waits there.
async fn watch(engine: Weak<LeaseEngine>, lot: Arc<Lot>) {
    let mut link = None;
    let mut in_vain = 0u32;
    // When to look next, without a wake-up lock.
    let mut look_at = None;
    // When to check how many connections the server has left.
    let mut check_at = None;
    loop {
        let Some(strong) = engine.upgrade() else { return };
        if strong.bells.is_some()
            && strong.clock.now() >= *check_at.get_or_insert_with(|| load::next_check(&strong.clock))
        {
            strong.weigh().await;
            check_at = None;
        }
        let ahead = {
            let mut inside = lot.lock();
            let ahead = if strong.is_deaf() { inside.ahead(&strong.inbox) } else { None };
            if ahead.is_none() {
                inside.watched = false;
                drop(inside);
                strong.tidy(&lot);
                break;
            }
            ahead
        };
        let Some(ahead) = ahead else { break };
        let poll = strong.pool.config.poll;
        // If the server is short of connections, none is kept for wake-up locks.
        let spares = strong.pool.spares();
        let rung = match ahead.bell.filter(|_| strong.ears.is_some() && !spares) {
            Some(bell) => hear(&strong, &mut link, bell).await,
            None => None,
        };
        if spares && let Some((idle, _permit)) = link.take() {
            idle.close().await;
        }
        match rung {
            // The wake-up lock was released, or did not exist yet: back off in case of the latter.
            Some(true) if in_vain == 0 => {}
            Some(true) => {
                let pause = Duration::from_millis(1 << in_vain.min(6)).min(poll);
                strong.clock.sleep_until(strong.clock.now().after(pause)).await;
            }
            Some(false) => {}
            None => {
                let pace = poll * u32::try_from(ahead.place.min(15) + 1).unwrap_or(1);
                let pace = if spares { look_pause() } else { pace };
                let at = *look_at.get_or_insert_with(|| strong.clock.now().after(pace));
                tokio::select! {
                    () = strong.clock.sleep_until(at) => {}
                    // The row changed: there may be a wake-up lock to wait for now.
                    () = lot.news.notified() => continue,
                }
            }
        }
        look_at = None;
        if !lot.lock().ears.contains_key(&ahead.ours) {
            in_vain = 0;
            continue;
        }
        if let Err(error) = strong.ask(&lot, Op::Look(ahead.ours), ahead.ttl).await {
            tracing::debug!(%error, name = %lot.name, "a look failed");
            strong.clock.sleep_until(strong.clock.now().after(poll)).await;
        }
        let still = lot.lock().ahead(&strong.inbox).is_some_and(|now| now.ours == ahead.ours && now.bell == ahead.bell);
        in_vain = if still && rung == Some(true) { in_vain + 1 } else { 0 };
    }
}

/// Waits for a wake-up lock, on a connection kept for that. `None`: there is none to spare.
async fn hear(
    engine: &Arc<LeaseEngine>,
    link: &mut Option<(Link, tokio::sync::OwnedSemaphorePermit)>,
    bell: ClaimId,
) -> Option<bool> {
    if link.is_none() {
        engine.pool.may_open().ok()?;
        let permit = Arc::clone(engine.ears.as_ref()?).try_acquire_owned().ok()?;
        let opened = Link::open(&engine.pool.config).await;
        *link = Some((opened.inspect_err(|failure| engine.pool.note_refusal(failure)).ok()?, permit));
    }
    let (open, _) = link.as_mut()?;
    let name = bells::name(bell);
    let values = [Value::from(name.as_str()), Value::Int(SLICE.as_secs() as i64), Value::from(name.as_str())];
    // Released at once: other waiters on it must not wait for us.
    let asked = open.run("SELECT GET_LOCK(?, ?), RELEASE_LOCK(?)", &values);
    let late = || Err(Failure::Broken("a bell gave no answer".into()));
    match engine.clock.timeout(SLICE * 2, asked).await.unwrap_or_else(|_| late()) {
        Ok(reply) => Some(reply.value().and_then(Value::int) == Some(1)),
        Err(failure) => {
            tracing::debug!(?failure, "a bell cannot be heard");
            *link = None;
            None
        }
    }
}
