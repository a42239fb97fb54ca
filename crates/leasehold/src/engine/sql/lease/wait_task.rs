//! Waiting without notifications. For each lock, one task watches for all our waiters: by the
//! wake-up lock of the contender ahead, or by polling.

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
    /// The contender right before it, of another client. `None`: unknown, or our own.
    predecessor: Option<ClaimId>,
    /// How many waiters are before it.
    position: usize,
}

impl LockStateInner {
    /// Our first waiter in the queue, and the contender right before it.
    fn wait_target(&self, client_id: &str) -> Option<WaitTarget> {
        let (claim, waiter) = self.waiters.iter().find(|(_, waiter)| waiter.granted().is_none())?;
        let position = |row: &CachedRow| {
            row.content.table.waiters.iter().position(|contender| self.waiters.contains_key(&contender.claim))
        };
        let Some((row, position)) = self.row.as_ref().and_then(|row| Some((row, position(row)?))) else {
            return Some(WaitTarget { waiter: *claim, ttl: waiter.ttl, predecessor: None, position: 0 });
        };
        let own = &row.content.table.waiters[position];
        // Waiters that can be granted together wait for the same contender. If any of several
        // holders may free enough permits, there is no single one to wait for.
        let together =
            |contender: &&Contender<ContenderDetails>| own.mode != Mode::Exclusive && contender.mode != Mode::Exclusive;
        let before = row.content.table.waiters.range(..position).rev().find(|contender| !together(contender));
        let any_makes_room = matches!(own.mode, Mode::Permits { .. }) && row.content.table.holders.len() > 1;
        let before = before.or_else(|| row.content.table.holders.last().filter(|_| !any_makes_room));
        let wakeup_claim =
            before.filter(|contender| *contender.details.client_id != *client_id).map(|contender| contender.claim);
        Some(WaitTarget { waiter: own.claim, ttl: own.ttl, predecessor: wakeup_claim, position })
    }
}

impl LeaseEngine {
    /// Starts a watching task, if there is none and no notification would come.
    pub(super) fn ensure_wait_task(self: &Arc<Self>, lock_state: &Arc<LockState>) {
        if !self.is_unsubscribed() {
            return;
        }
        let mut inner = lock_state.lock();
        if inner.waiters.is_empty() || std::mem::replace(&mut inner.has_wait_task, true) {
            return;
        }
        drop(inner);
        tokio::spawn(run(Arc::downgrade(self), Arc::clone(lock_state)));
    }
}

/// Watches as long as a claim of ours waits for the lock.
async fn run(engine: Weak<LeaseEngine>, lock_state: Arc<LockState>) {
    let mut connection = None;
    let mut spurious_wakeups = 0u32;
    // When to read the row next, without a wake-up lock.
    let mut poll_at = None;
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
            let mut inner = lock_state.lock();
            let ahead = if strong.is_unsubscribed() { inner.wait_target(&strong.client_id) } else { None };
            if ahead.is_none() {
                inner.has_wait_task = false;
                drop(inner);
                strong.remove_if_idle(&lock_state);
                break;
            }
            ahead
        };
        let Some(ahead) = ahead else { break };
        let poll = strong.pool.config.poll;
        // If the server is short of connections, none is kept for wake-up locks.
        let is_saving = strong.pool.is_releasing_idle();
        let was_woken = match ahead.predecessor.filter(|_| strong.wait_permits.is_some() && !is_saving) {
            Some(wakeup_claim) => wait_for_wakeup(&strong, &mut connection, wakeup_claim).await,
            None => None,
        };
        if is_saving && let Some((idle, _permit)) = connection.take() {
            idle.close().await;
        }
        match was_woken {
            // The wake-up lock was released, or did not exist yet: back off in case of the latter.
            Some(true) if spurious_wakeups == 0 => {}
            Some(true) => {
                let pause = Duration::from_millis(1 << spurious_wakeups.min(6)).min(poll);
                strong.clock.sleep_until(strong.clock.now().saturating_add(pause)).await;
            }
            Some(false) => {}
            None => {
                let poll_interval = poll * u32::try_from(ahead.position.min(15) + 1).unwrap_or(1);
                let poll_interval = if is_saving { poll_pause() } else { poll_interval };
                let at = *poll_at.get_or_insert_with(|| strong.clock.now().saturating_add(poll_interval));
                tokio::select! {
                    () = strong.clock.sleep_until(at) => {}
                    // The row changed: there may be a wake-up lock to wait for now.
                    () = lock_state.row_changed.notified() => continue,
                }
            }
        }
        poll_at = None;
        if !lock_state.lock().waiters.contains_key(&ahead.waiter) {
            spurious_wakeups = 0;
            continue;
        }
        if let Err(error) = strong.submit(&lock_state, Op::LookUp(ahead.waiter), ahead.ttl).await {
            tracing::debug!(%error, name = %lock_state.name, "polling the row failed");
            strong.clock.sleep_until(strong.clock.now().saturating_add(poll)).await;
        }
        let still = lock_state
            .lock()
            .wait_target(&strong.client_id)
            .is_some_and(|now| now.waiter == ahead.waiter && now.predecessor == ahead.predecessor);
        spurious_wakeups = if still && was_woken == Some(true) { spurious_wakeups + 1 } else { 0 };
    }
}

/// Waits for a wake-up lock, on a connection kept for that. `None`: there is none to spare.
async fn wait_for_wakeup(
    engine: &Arc<LeaseEngine>,
    connection: &mut Option<(Connection, tokio::sync::OwnedSemaphorePermit)>,
    wakeup_claim: ClaimId,
) -> Option<bool> {
    if connection.is_none() {
        engine.pool.ensure_can_open().ok()?;
        let permit = Arc::clone(engine.wait_permits.as_ref()?).try_acquire_owned().ok()?;
        let opened = Connection::open(&engine.pool.config).await;
        *connection = Some((opened.inspect_err(|failure| engine.pool.note_refusal(failure)).ok()?, permit));
    }
    let (open, _) = connection.as_mut()?;
    let name = wakeup_locks::lock_name(wakeup_claim);
    let values = [Value::from(name.as_str()), Value::Int(MAX_WAKEUP_WAIT.as_secs() as i64), Value::from(name.as_str())];
    // Released at once: other waiters on it must not wait for us.
    let statement = open.run("SELECT GET_LOCK(?, ?), RELEASE_LOCK(?)", &values);
    let timed_out = || Err(Failure::ConnectionLost("waiting for a wake-up lock timed out".into()));
    match engine.clock.timeout(MAX_WAKEUP_WAIT * 2, statement).await.unwrap_or_else(|_| timed_out()) {
        Ok(reply) => Some(reply.value().and_then(Value::int) == Some(1)),
        Err(failure) => {
            tracing::debug!(?failure, "cannot wait for a wake-up lock");
            *connection = None;
            None
        }
    }
}
