//! Waiting without notifications. For each lock, one task waits on behalf of all waiters of this
//! client: on the wake-up lock of the claim ahead of the first of them, or by polling the row.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::engine::LeaseEngine;
use super::lock_state::{CachedRow, LockState, LockStateInner};
use super::state::ContenderDetails;
use super::step::Op;
use super::wakeup_locks;
use crate::engine::sql::connection::{Connection, Value};
use crate::engine::sql::connection_load;
use crate::engine::sql::error::Failure;
use crate::logic::table::Contender;
use crate::types::{ClaimId, Mode};

/// How long one statement waits for a wake-up lock at most; then the row is read.
const MAX_WAKEUP_WAIT: Duration = Duration::from_secs(5);

/// What the first waiter of this client at a lock waits for.
struct WaitTarget {
    /// That waiter.
    waiter: ClaimId,
    /// Its TTL.
    ttl: Duration,
    /// The claim of another client whose end lets it acquire the lock. `None`: unknown, there are
    /// several, or it is a claim of this client.
    predecessor: Option<ClaimId>,
    /// How many waiters are ahead of it.
    position: usize,
}

impl LockStateInner {
    /// The first waiter of this client, and what it waits for; `None` if no claim of this client
    /// waits.
    fn wait_target(&self, client_id: &str) -> Option<WaitTarget> {
        let (claim, waiter) = self.waiters.iter().find(|(_, waiter)| waiter.granted().is_none())?;
        let position = |row: &CachedRow| {
            row.content.table.waiters.iter().position(|contender| self.waiters.contains_key(&contender.claim))
        };
        let Some((row, position)) = self.row.as_ref().and_then(|row| Some((row, position(row)?))) else {
            return Some(WaitTarget { waiter: *claim, ttl: waiter.ttl, predecessor: None, position: 0 });
        };
        let own = &row.content.table.waiters[position];
        // Waiters that can hold together wait for the same claim. If each of several holders may
        // free enough permits, there is no single claim to wait for.
        let can_hold_together =
            |contender: &&Contender<ContenderDetails>| own.mode != Mode::Exclusive && contender.mode != Mode::Exclusive;
        let before = row.content.table.waiters.range(..position).rev().find(|contender| !can_hold_together(contender));
        let has_many_predecessors = matches!(own.mode, Mode::Permits { .. }) && row.content.table.holders.len() > 1;
        let before = before.or_else(|| row.content.table.holders.last().filter(|_| !has_many_predecessors));
        let predecessor =
            before.filter(|contender| *contender.details.client_id != *client_id).map(|contender| contender.claim);
        Some(WaitTarget { waiter: own.claim, ttl: own.ttl, predecessor, position })
    }
}

impl LeaseEngine {
    /// Starts the task that waits on behalf of this client's waiters, unless there is one or
    /// notifications reach this client.
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

/// Waits as long as a claim of this client waits for the lock and notifications do not reach it.
async fn run(engine: Weak<LeaseEngine>, lock_state: Arc<LockState>) {
    let mut connection = None;
    let mut spurious_wakeups = 0u32;
    // When to read the row next, if there is no wake-up lock to wait for.
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
        let target = {
            let mut inner = lock_state.lock();
            let target = if strong.is_unsubscribed() { inner.wait_target(&strong.client_id) } else { None };
            if target.is_none() {
                inner.has_wait_task = false;
                drop(inner);
                strong.remove_if_idle(&lock_state);
                break;
            }
            target
        };
        let Some(target) = target else { break };
        let poll = strong.pool.config.poll;
        // Whether this client has closed its connections because the server is short of them. Then
        // it waits for no wake-up locks.
        let is_releasing_idle = strong.pool.is_releasing_idle();
        let was_woken = match target.predecessor.filter(|_| strong.wait_permits.is_some() && !is_releasing_idle) {
            Some(predecessor) => wait_for_wakeup(&strong, &mut connection, predecessor, target.ttl).await,
            None => None,
        };
        if is_releasing_idle && let Some((idle, _permit)) = connection.take() {
            idle.close().await;
        }
        match was_woken {
            // The wake-up lock was free: it was released, or did not exist yet. In the latter case
            // waiting on it again would return at once, so back off.
            Some(true) if spurious_wakeups == 0 => {}
            Some(true) => {
                let pause = Duration::from_millis(1 << spurious_wakeups.min(6)).min(poll);
                strong.clock.sleep_until(strong.clock.now().saturating_add(pause)).await;
            }
            Some(false) => {}
            None => {
                let poll_interval = poll * u32::try_from(target.position.min(15) + 1).unwrap_or(1);
                let poll_interval = if is_releasing_idle { strong.pool.poll_pause() } else { poll_interval };
                let at = *poll_at.get_or_insert_with(|| strong.clock.now().saturating_add(poll_interval));
                tokio::select! {
                    () = strong.clock.sleep_until(at) => {}
                    // The row changed: there may be a wake-up lock to wait for now.
                    () = lock_state.row_changed.notified() => continue,
                }
            }
        }
        poll_at = None;
        if !lock_state.lock().waiters.contains_key(&target.waiter) {
            spurious_wakeups = 0;
            continue;
        }
        if let Err(error) = strong.submit(&lock_state, Op::LookUp(target.waiter), target.ttl).await {
            tracing::debug!(%error, name = %lock_state.name, "polling the row failed");
            strong.clock.sleep_until(strong.clock.now().saturating_add(poll)).await;
        }
        let is_same_target = lock_state
            .lock()
            .wait_target(&strong.client_id)
            .is_some_and(|now| now.waiter == target.waiter && now.predecessor == target.predecessor);
        spurious_wakeups = if is_same_target && was_woken == Some(true) { spurious_wakeups + 1 } else { 0 };
    }
}

/// Waits on the wake-up lock of a claim, on `connection`, which is opened if necessary and kept.
/// `Some(true)`: the wake-up lock is free. `Some(false)`: it was not released within a third of the
/// waiter's TTL, or [`MAX_WAKEUP_WAIT`]. `None`: there is no connection for that, or it broke.
async fn wait_for_wakeup(
    engine: &Arc<LeaseEngine>,
    connection: &mut Option<(Connection, tokio::sync::OwnedSemaphorePermit)>,
    claim: ClaimId,
    waiter_ttl: Duration,
) -> Option<bool> {
    if connection.is_none() {
        engine.pool.ensure_can_open().ok()?;
        let permit = Arc::clone(engine.wait_permits.as_ref()?).try_acquire_owned().ok()?;
        let opened = Connection::open(&engine.pool.config).await;
        *connection = Some((opened.inspect_err(|failure| engine.pool.note_refusal(failure)).ok()?, permit));
    }
    let (open, _) = connection.as_mut()?;
    let name = wakeup_locks::lock_name(claim);
    // MySQL waits for whole seconds.
    let wait = (waiter_ttl / 3).clamp(Duration::from_secs(1), MAX_WAKEUP_WAIT).as_secs();
    let values = [Value::from(name.as_str()), Value::Int(wait as i64), Value::from(name.as_str())];
    // Released at once, so that other waiters on it do not wait for this client.
    let statement = open.run("SELECT GET_LOCK(?, ?), RELEASE_LOCK(?)", &values);
    let timed_out = || Err(Failure::ConnectionLost("waiting for a wake-up lock timed out".into()));
    let within = Duration::from_secs(wait) + engine.reply_timeout();
    match engine.clock.timeout(within, statement).await.unwrap_or_else(|_| timed_out()) {
        Ok(reply) => Some(reply.value().and_then(Value::int) == Some(1)),
        Err(failure) => {
            tracing::debug!(?failure, "cannot wait for a wake-up lock");
            *connection = None;
            None
        }
    }
}
