//! Waiting without notifications. For each lock, one task watches for all our waiters: by the
//! wake-up lock of the party ahead, or by polling.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::engine::{LeaseEngine, poll_pause};
use super::lock_state::{CachedRow, LockState, LockStateInner};
use super::state::ContenderDetails;
use super::step::Op;
use super::wakeup_locks;
use crate::engine::sql::connection::{Connection, Value};
use crate::engine::sql::connection_load;
use crate::engine::sql::error::Failure;
use crate::logic::table::Contender;
use crate::types::{ClaimId, Mode};

/// How long one statement waits for a wake-up lock.
const MAX_WAKEUP_WAIT: Duration = Duration::from_secs(5);

/// What our first waiter at a lock waits for.
struct WaitTarget {
    /// Our first waiter.
    waiter: ClaimId,
    ttl: Duration,
    /// The party right before it, of another client. `None`: unknown, or our own.
    predecessor: Option<ClaimId>,
    /// How many waiters are before it.
    position: usize,
}

impl LockStateInner {
    /// Our first waiter in the queue, and the party right before it.
    fn wait_target(&self, client_id: &str) -> Option<WaitTarget> {
        let (claim, ear) = self.waiters.iter().find(|(_, ear)| ear.granted().is_none())?;
        let place = |row: &CachedRow| {
            row.content.table.waiters.iter().position(|party| self.waiters.contains_key(&party.claim))
        };
        let Some((row, place)) = self.row.as_ref().and_then(|row| Some((row, place(row)?))) else {
            return Some(WaitTarget { waiter: *claim, ttl: ear.ttl, predecessor: None, position: 0 });
        };
        let ours = &row.content.table.waiters[place];
        // Waiters that can be granted together wait for the same party. If any of several holders
        // may free enough permits, there is no single party to wait for.
        let together =
            |party: &&Contender<ContenderDetails>| ours.mode != Mode::Exclusive && party.mode != Mode::Exclusive;
        let before = row.content.table.waiters.range(..place).rev().find(|party| !together(party));
        let any_makes_room = matches!(ours.mode, Mode::Permits { .. }) && row.content.table.holders.len() > 1;
        let before = before.or_else(|| row.content.table.holders.last().filter(|_| !any_makes_room));
        let bell = before.filter(|party| *party.details.client_id != *client_id).map(|party| party.claim);
        Some(WaitTarget { waiter: ours.claim, ttl: ours.ttl, predecessor: bell, position: place })
    }
}

impl LeaseEngine {
    /// Starts a watching task, if there is none and no notification would come.
    pub(super) fn ensure_wait_task(self: &Arc<Self>, lot: &Arc<LockState>) {
        if !self.is_unsubscribed() {
            return;
        }
        let mut inside = lot.lock();
        if inside.waiters.is_empty() || std::mem::replace(&mut inside.has_wait_task, true) {
            return;
        }
        drop(inside);
        tokio::spawn(run(Arc::downgrade(self), Arc::clone(lot)));
    }
}

/// Watches as long as a claim of ours waits there.
async fn run(engine: Weak<LeaseEngine>, lot: Arc<LockState>) {
    let mut link = None;
    let mut in_vain = 0u32;
    // When to look next, without a wake-up lock.
    let mut look_at = None;
    // When to check how many connections the server has left.
    let mut check_at = None;
    loop {
        let Some(strong) = engine.upgrade() else { return };
        if strong.wakeup_locks.is_some()
            && strong.clock.now() >= *check_at.get_or_insert_with(|| connection_load::next_check(&strong.clock))
        {
            strong.check_connection_load().await;
            check_at = None;
        }
        let ahead = {
            let mut inside = lot.lock();
            let ahead = if strong.is_unsubscribed() { inside.wait_target(&strong.client_id) } else { None };
            if ahead.is_none() {
                inside.has_wait_task = false;
                drop(inside);
                strong.remove_if_idle(&lot);
                break;
            }
            ahead
        };
        let Some(ahead) = ahead else { break };
        let poll = strong.pool.config.poll;
        // If the server is short of connections, none is kept for wake-up locks.
        let spares = strong.pool.is_releasing_idle();
        let rung = match ahead.predecessor.filter(|_| strong.wait_permits.is_some() && !spares) {
            Some(bell) => wait_for_wakeup(&strong, &mut link, bell).await,
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
                strong.clock.sleep_until(strong.clock.now().saturating_add(pause)).await;
            }
            Some(false) => {}
            None => {
                let pace = poll * u32::try_from(ahead.position.min(15) + 1).unwrap_or(1);
                let pace = if spares { poll_pause() } else { pace };
                let at = *look_at.get_or_insert_with(|| strong.clock.now().saturating_add(pace));
                tokio::select! {
                    () = strong.clock.sleep_until(at) => {}
                    // The row changed: there may be a wake-up lock to wait for now.
                    () = lot.row_changed.notified() => continue,
                }
            }
        }
        look_at = None;
        if !lot.lock().waiters.contains_key(&ahead.waiter) {
            in_vain = 0;
            continue;
        }
        if let Err(error) = strong.submit(&lot, Op::LookUp(ahead.waiter), ahead.ttl).await {
            tracing::debug!(%error, name = %lot.name, "a look failed");
            strong.clock.sleep_until(strong.clock.now().saturating_add(poll)).await;
        }
        let still = lot
            .lock()
            .wait_target(&strong.client_id)
            .is_some_and(|now| now.waiter == ahead.waiter && now.predecessor == ahead.predecessor);
        in_vain = if still && rung == Some(true) { in_vain + 1 } else { 0 };
    }
}

/// Waits for a wake-up lock, on a connection kept for that. `None`: there is none to spare.
async fn wait_for_wakeup(
    engine: &Arc<LeaseEngine>,
    link: &mut Option<(Connection, tokio::sync::OwnedSemaphorePermit)>,
    bell: ClaimId,
) -> Option<bool> {
    if link.is_none() {
        engine.pool.ensure_can_open().ok()?;
        let permit = Arc::clone(engine.wait_permits.as_ref()?).try_acquire_owned().ok()?;
        let opened = Connection::open(&engine.pool.config).await;
        *link = Some((opened.inspect_err(|failure| engine.pool.note_refusal(failure)).ok()?, permit));
    }
    let (open, _) = link.as_mut()?;
    let name = wakeup_locks::lock_name(bell);
    let values = [Value::from(name.as_str()), Value::Int(MAX_WAKEUP_WAIT.as_secs() as i64), Value::from(name.as_str())];
    // Released at once: other waiters on it must not wait for us.
    let asked = open.run("SELECT GET_LOCK(?, ?), RELEASE_LOCK(?)", &values);
    let late = || Err(Failure::ConnectionLost("a bell gave no answer".into()));
    match engine.clock.timeout(MAX_WAKEUP_WAIT * 2, asked).await.unwrap_or_else(|_| late()) {
        Ok(reply) => Some(reply.value().and_then(Value::int) == Some(1)),
        Err(failure) => {
            tracing::debug!(?failure, "a bell cannot be heard");
            *link = None;
            None
        }
    }
}
