//! Implements the [`Engine`] trait with the lease table.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;

use super::lock_state::{ClockReading, LockState, lock};
use super::step::{Op, OpOutcome};
use super::wakeup_locks::WakeupLocks;
use super::wire::LeaseStatements;
use super::{inspect, notifications, version_poll};
use crate::clock::{Clock, Instant};
use crate::engine::Claim;
use crate::engine::sql::config::{Config, WakeMode};
use crate::engine::sql::connection::Connection;
use crate::engine::sql::connection_load;
use crate::engine::sql::ddl::Tables;
use crate::engine::sql::pool::Pool;
use crate::engine::sql::pooler::{self, PoolerProbe};
use crate::engine::sql::records::StoredRecords;
use crate::engine::sql::{Dialect, IS_GALERA_QUERY, create_tables, parse_is_galera};
use crate::engine::{
    AcquireReply, Capabilities, ContenderView, Engine, ForceReleaseOutcome, Grant, LockView, LossBroadcaster,
    LossEvents, Record, RecordStore, ReleaseReply, RenewReply, Step,
};
use crate::logic::connections::{self, WaitStrategy};
use crate::logic::lease as rules;
use crate::logic::local_hand_off::LocalHandOff;
use crate::types::{ClaimId, Error, ErrorKind, LockName, Result, Token};

/// The least time for a reply on a connection that may be dead.
const MIN_REPLY_TIMEOUT: Duration = Duration::from_millis(500);

/// The time limit of a step for which no claim's TTL sets one.
pub(super) const DEFAULT_STEP_TIMEOUT: Duration = Duration::from_secs(15);

/// The engine of `technique=row`, which keeps locks in a table of leases.
#[derive(Debug)]
pub(crate) struct LeaseEngine {
    pub(super) pool: Arc<Pool>,
    pub(super) clock: Clock,
    pub(super) sql: LeaseStatements,
    records: StoredRecords,
    capabilities: Capabilities,
    /// A random id of this client, which rows and notification channels use. It begins with `-` if
    /// the client receives no notifications.
    pub(super) client_id: Arc<str>,
    /// Whether this client can notify others: PostgreSQL can, MySQL cannot.
    pub(super) can_notify: bool,
    /// Whether notifications from other clients do not reach this one at present.
    is_unsubscribed: AtomicBool,
    /// The wake-up locks of this client's claims; `None` if the database sends notifications, or if
    /// waiters only poll.
    pub(super) wakeup_locks: Option<WakeupLocks>,
    /// One permit for each connection that may wait on another client's wake-up lock; `None` as for
    /// `wakeup_locks`.
    pub(super) wait_permits: Option<Arc<Semaphore>>,
    /// The locks that this client uses at present.
    pub(super) lock_states: Mutex<HashMap<LockName, Arc<LockState>>>,
    pub(super) losses: LossBroadcaster,
    /// The task that receives notifications, if the client does.
    listener: Mutex<Option<JoinHandle<()>>>,
    /// The claims of this client that hold a lock.
    held_claims: Mutex<HashMap<ClaimId, Duration>>,
    /// Notified when a client that gave up its connections acquires a lock: it needs the one that
    /// listens again.
    pub(super) first_hold: Arc<Notify>,
    /// Notified when a row is cached: `version_poll` must then check whether other clients write to
    /// it.
    pub(super) row_cached: Arc<Notify>,
}

impl LeaseEngine {
    /// Connects, and creates the table if it does not exist.
    pub(crate) async fn open(config: Config, capabilities: Capabilities, clock: &Clock) -> Result<Arc<Self>> {
        let config = Arc::new(config);
        let can_notify = config.dialect == Dialect::Postgres;
        let connections = config.connections;
        // Reserved: one connection to listen on; or one that holds this client's wake-up locks, and
        // some that wait for those of other clients. The rest run statements.
        let (reserved, wakeup_connections) = match (config.wake, can_notify) {
            (WakeMode::Poll, _) => (0, 0),
            (WakeMode::Auto, true) => (1, 0),
            (WakeMode::Auto, false) => (1 + connections / 3, connections / 3),
        };
        let pool = Pool::with_limit(&config, (connections - reserved).max(1));
        let sql = LeaseStatements::new(config.dialect, &Tables::from_config(&config));
        let second = check_pooler(&pool).await?;
        let mut connection = pool.borrow_or_error().await?;
        create_tables(&config, &mut connection).await.map_err(|failure| pool.to_error(&failure))?;
        // Other servers may consider a lease expired by the clock skew too early. It must still be
        // renewed in time.
        let mut capabilities = capabilities;
        capabilities.min_ttl = capabilities.min_ttl.max(config.clock_skew * 3);
        // In a Galera cluster, a named lock exists on one server only.
        let uses_wakeup_locks = wakeup_connections > 0
            && !parse_is_galera(connection.run(IS_GALERA_QUERY, &[]).await)
                .map_err(|failure| pool.to_error(&failure))?;
        drop(connection);
        let listens = can_notify && config.wake == WakeMode::Auto;
        let client_id = format!("{}{:016x}", if listens { "" } else { "-" }, crate::random::random_bits() as u64);
        let wakeup_pool = Arc::clone(&pool);
        let engine = Arc::new(Self {
            records: StoredRecords::new(&pool),
            pool,
            clock: clock.clone(),
            sql,
            capabilities,
            client_id: client_id.into(),
            can_notify,
            is_unsubscribed: AtomicBool::new(true),
            wakeup_locks: uses_wakeup_locks.then(|| WakeupLocks::start(Arc::clone(&wakeup_pool), clock.clone())),
            wait_permits: uses_wakeup_locks.then(|| Arc::new(Semaphore::new(wakeup_connections))),
            lock_states: Mutex::default(),
            losses: LossBroadcaster::default(),
            listener: Mutex::default(),
            held_claims: Mutex::default(),
            first_hold: Arc::default(),
            row_cached: Arc::default(),
        });
        tokio::spawn(version_poll::run(Arc::downgrade(&engine)));
        if listens {
            *lock(&engine.listener) = Some(tokio::spawn(notifications::listen(Arc::downgrade(&engine), second)));
        } else if let Some(second) = second {
            second.close().await;
        }
        Ok(engine)
    }

    /// The state of a lock in this client; creates it at the first use.
    pub(super) fn lock_state(&self, name: &LockName) -> Arc<LockState> {
        let mut lock_states = lock(&self.lock_states);
        Arc::clone(lock_states.entry(name.clone()).or_insert_with(|| Arc::new(LockState::new(name.clone()))))
    }

    /// Handles a notification that a claim of this client was granted the lock at `at`, on the
    /// database's clock.
    pub(super) fn on_grant_notification(&self, name: &LockName, claim: ClaimId, token: Token, at: Instant) {
        let Some(lock_state) = lock(&self.lock_states).get(name).cloned() else { return };
        let mut inner = lock_state.lock();
        let reading = inner.row.as_ref().map(|row| row.reading);
        inner.invalidate_row();
        if inner.local_hand_offs.as_ref().and_then(LocalHandOff::current_holder) == Some(claim) {
            // The lock was handed off to this claim locally before; this later grant replaces that.
            inner.local_hand_offs = None;
        }
        let Some(waiter) = inner.waiters.get(&claim).cloned() else {
            // The notification may arrive before the reply to the statement that queued the claim.
            inner.has_missed_notification |= inner.is_running_batches;
            return;
        };
        if !waiter.is_newer_grant(token) {
            // The notification is old, or the claim re-entered and has its owner's token. The
            // waiter reads the row to find out.
            waiter.wakeup.notify_one();
            return;
        }
        // The claim was granted after it was last seen waiting, so its lease lasts at least until a
        // TTL after that. The time in the notification may show an earlier end.
        let first = waiter.queued_at().saturating_add(waiter.ttl);
        let end = reading
            .map_or(first, |reading: ClockReading| first.min(reading.local_deadline(at.saturating_add(waiter.ttl))));
        waiter.grant(token, end);
    }

    /// Handles a notification that the row has changed for a claim of this client.
    pub(super) fn on_change_notification(&self, name: &LockName, claim: ClaimId) {
        if let Some(lock_state) = lock(&self.lock_states).get(name).cloned() {
            let mut inner = lock_state.lock();
            inner.invalidate_row();
            if let Some(waiter) = inner.waiters.get(&claim) {
                // It may have lost a grant that its caller has not fetched yet.
                waiter.revoke_grant();
            }
        }
    }

    /// Sets whether notifications do not reach this client any more, or reach it again.
    pub(super) fn set_unsubscribed(&self, is_unsubscribed: bool) {
        self.is_unsubscribed.store(is_unsubscribed, Ordering::SeqCst);
        // Without notifications, `version_poll` must read the versions of the rows.
        self.row_cached.notify_one();
        let lock_states: Vec<Arc<LockState>> = lock(&self.lock_states).values().cloned().collect();
        for lock_state in lock_states {
            let mut inner = lock_state.lock();
            inner.invalidate_row();
            // Each waiter reads the row, and then waits for notifications or polls, as is possible
            // now.
            for waiter in inner.waiters.values() {
                waiter.wakeup.notify_one();
            }
        }
        if !is_unsubscribed {
            // Claims that were force released in the meantime got no notification.
            self.losses.report_resync();
        }
    }

    /// Runs a request that returns the state of a claim, and converts that to the trait's answer.
    async fn run_op(self: &Arc<Self>, claim: &Arc<Claim>, op: Op) -> Result<AcquireReply> {
        let lock_state = self.lock_state(claim.name());
        let (outcome, reading) = self.submit(&lock_state, op, claim.options.ttl).await?;
        Self::to_answer(outcome, claim.options.ttl, reading)
    }

    /// Converts the state of a claim to the trait's answer. `reading` compares the database's clock
    /// with this process's.
    fn to_answer(outcome: OpOutcome, ttl: Duration, reading: ClockReading) -> Result<AcquireReply> {
        match outcome {
            OpOutcome::Granted(token, until) => {
                Ok(AcquireReply::Granted(Grant::until(token, reading.local_deadline(until), ttl)))
            }
            OpOutcome::Queued { ahead, recheck } => {
                Ok(AcquireReply::Queued { ahead, recheck_after: recheck, cool_down: None })
            }
            OpOutcome::Busy { recheck } => Ok(AcquireReply::Busy { recheck_after: recheck }),
            OpOutcome::ForceReleased => Ok(AcquireReply::ForceReleased),
            OpOutcome::Refused(refusal) => Ok(AcquireReply::Refused(refusal)),
            other => Err(unexpected(&other)),
        }
    }

    /// Whether notifications from other clients do not reach this one at present.
    pub(super) fn is_unsubscribed(&self) -> bool {
        self.is_unsubscribed.load(Ordering::SeqCst)
    }

    /// The shortest TTL of this client's claims that hold or wait; the longest duration if it has none.
    pub(super) fn shortest_ttl(&self) -> Duration {
        let held = lock(&self.held_claims).values().min().copied();
        let lock_states: Vec<Arc<LockState>> = lock(&self.lock_states).values().cloned().collect();
        let waiting = lock_states.iter().filter_map(|state| state.lock().waiters.values().map(|one| one.ttl).min());
        held.into_iter().chain(waiting).min().unwrap_or(Duration::MAX)
    }

    /// Time limit for a reply where a connection may have been dropped without an end, so that none
    /// comes: a third of the shortest TTL, but at least [`MIN_REPLY_TIMEOUT`], and at most the timeout
    /// of connecting.
    pub(super) fn reply_timeout(&self) -> Duration {
        self.pool.config.connect_timeout.min((self.shortest_ttl() / 3).max(MIN_REPLY_TIMEOUT))
    }

    /// Whether this client holds any lock.
    pub(super) fn is_holder(&self) -> bool {
        !lock(&self.held_claims).is_empty()
    }

    /// Notes that a claim of this client holds its lock, or no longer does.
    fn set_held(self: &Arc<Self>, claim: &Claim, is_held: bool) {
        let mut held = lock(&self.held_claims);
        let was_releasing_idle = self.pool.is_releasing_idle();
        let changed =
            if is_held { held.insert(claim.id, claim.options.ttl).is_none() } else { held.remove(&claim.id).is_some() };
        if !changed {
            return;
        }
        self.pool.set_held_locks(held.len());
        if is_held && was_releasing_idle {
            // A holder needs a connection to renew its lease, and one to receive notifications of
            // force releases.
            let pool = Arc::clone(&self.pool);
            tokio::spawn(async move { pool.borrow().await.map(drop) });
            self.first_hold.notify_one();
        }
    }

    /// Asks MySQL how many connections it has left. If there are few, notes that the server is
    /// short of them, so that waiting clients close theirs.
    pub(super) async fn check_connection_load(&self) {
        let strategy = if self.pool.has_shortage() { WaitStrategy::Poll } else { WaitStrategy::Listen };
        let load = match self.pool.borrow().await {
            Ok(mut connection) => connection_load::query_mysql(&mut connection).await,
            Err(failure) => Err(failure),
        };
        if let Ok(load) = &load {
            self.pool.note_usage(*load);
        }
        match load {
            Ok(load) if connections::next_strategy(strategy, Some(load), self.is_holder()) == WaitStrategy::Poll => {
                self.pool.set_shortage_for(connection_load::CHECK_INTERVAL * 2);
            }
            Ok(_) => self.pool.set_shortage(false),
            // If this was a refused connection, the pool has noted it.
            Err(failure) => tracing::debug!(?failure, "the server does not report how many connections it has left"),
        }
    }

    /// Turns "too many connections" into `waiting`, so that the claim keeps its queue position.
    /// `refusals` is the number of refused connections before the request.
    fn keep_waiting_if_refused(
        &self,
        answer: Result<AcquireReply>,
        refusals: u64,
        waiting: AcquireReply,
    ) -> Result<AcquireReply> {
        match answer {
            Err(error) if error.is_retryable() && self.pool.refusals() > refusals => {
                tracing::debug!(%error, "the server has no connection left; the claim waits without one");
                Ok(waiting)
            }
            answer => answer,
        }
    }

    /// Renews the lease of one claim.
    async fn renew_one(self: &Arc<Self>, claim: &Claim) -> RenewReply {
        let lock_state = self.lock_state(claim.name());
        match self.submit(&lock_state, Op::Renew(claim.id), claim.options.ttl).await {
            Ok((OpOutcome::Renewed(Some(until)), reading)) => RenewReply::Renewed(reading.local_deadline(until)),
            Ok(_) => {
                self.set_held(claim, false);
                RenewReply::Lost
            }
            Err(error) => {
                tracing::warn!(%error, name = %claim.name(), "a lease could not be renewed");
                RenewReply::Unknown
            }
        }
    }
}

/// Refuses a PostgreSQL transaction pooler of which the URL says nothing. The check needs two
/// connections: the first goes to the pool, and the second is returned, for notifications. `None`:
/// there was no second connection, or no check, because the URL states that there is a pooler or
/// the database is MySQL.
async fn check_pooler(pool: &Arc<Pool>) -> Result<Option<Connection>> {
    let config = &pool.config;
    if config.dialect == Dialect::MySql || config.has_transaction_pooler {
        return Ok(None);
    }
    let PoolerProbe { first, second, has_transaction_pooler: pooled } =
        pooler::probe(config).await.map_err(|failure| pool.to_error(&failure))?;
    if pooled {
        first.close().await;
        if let Some(second) = second {
            second.close().await;
        }
        let message = format!(
            "{} is behind a pooler that gives each transaction another session: add pooler=transaction to the URL, or connect to the server itself",
            pool.server
        );
        return Err(Error::new(ErrorKind::Unsupported, message).at_engine(config.dialect.name()));
    }
    if second.is_some() {
        pool.mark_own_sessions();
    }
    pool.adopt(first);
    Ok(second)
}

impl Drop for LeaseEngine {
    fn drop(&mut self) {
        if let Some(listen_task) = lock(&self.listener).take() {
            listen_task.abort();
        }
    }
}

/// The error if a request had the outcome of another kind of request, which would be a bug.
fn unexpected(outcome: &OpOutcome) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("a request had the outcome of another one: {outcome:?}; this is a bug in leasehold"),
    )
    .effect_unknown()
}

impl Engine for LeaseEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn url(&self) -> String {
        self.pool.config.redacted_url.clone()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>, queue: bool) -> Step<AcquireReply> {
        Step::new(async move {
            let refusals = self.pool.refusals();
            let answer = self.run_op(&claim, Op::Attempt { claim: Arc::clone(&claim), queue }).await;
            if matches!(answer, Ok(AcquireReply::Granted(_))) {
                self.set_held(&claim, true);
            }
            if !queue || answer.is_ok() {
                return answer;
            }
            let pause = self.pool.poll_pause().min(claim.options.ttl / 6);
            let answer =
                self.keep_waiting_if_refused(answer, refusals, AcquireReply::Busy { recheck_after: Some(pause) });
            if answer.is_ok() {
                self.clock.sleep(pause).await;
            }
            answer
        })
    }

    fn attempt_all(self: Arc<Self>, _claims: Vec<Arc<Claim>>) -> Step<Option<Vec<Grant>>> {
        Step::ready(Ok(None))
    }

    fn wait(self: Arc<Self>, claim: Arc<Claim>, timeout: Duration) -> Step<AcquireReply> {
        Step::new(async move {
            let lock_state = self.lock_state(claim.name());
            let waiter = lock_state.lock().waiters.get(&claim.id).cloned();
            if let Some(waiter) = &waiter {
                waiter.mark_polled(self.clock.now());
                self.ensure_wait_task(&lock_state);
                let until = self.clock.now().saturating_add(timeout);
                if waiter.granted().is_none() {
                    tokio::select! {
                        () = waiter.wakeup.notified() => {}
                        () = self.clock.sleep_until(until) => {}
                    }
                }
                if let Some((token, end)) = waiter.granted() {
                    lock_state.lock().waiters.remove(&claim.id);
                    self.set_held(&claim, true);
                    return Ok(AcquireReply::Granted(Grant::until(token, end, claim.options.ttl)));
                }
            }
            let refusals = self.pool.refusals();
            let answer = self.run_op(&claim, Op::LookUp(claim.id)).await;
            let waiting =
                AcquireReply::Queued { ahead: 0, recheck_after: Some(self.pool.poll_pause()), cool_down: None };
            let answer = self.keep_waiting_if_refused(answer, refusals, waiting);
            if matches!(answer, Ok(AcquireReply::Granted(_))) {
                self.set_held(&claim, true);
            }
            match &answer {
                Ok(AcquireReply::Queued { .. }) => {}
                Ok(_) => {
                    lock_state.lock().waiters.remove(&claim.id);
                }
                Err(_) => {
                    if let Some(waiter) = lock_state.lock().waiters.get(&claim.id) {
                        waiter.mark_backing_off();
                    }
                }
            }
            answer
        })
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<RenewReply>> {
        let within = rules::renewal_timeout(claims.iter().map(|claim| claim.options.ttl));
        Step::new(async move {
            let one = async |claim: &Arc<Claim>| {
                // Another transaction may have locked one of the rows: that must not delay the
                // others.
                self.clock.timeout(within, self.renew_one(claim)).await.unwrap_or_else(|_| {
                    tracing::warn!(name = %claim.name(), "a lease was not renewed within {within:?}");
                    RenewReply::Unknown
                })
            };
            Ok(futures_util::future::join_all(claims.iter().map(one)).await)
        })
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<ReleaseReply> {
        Step::new(async move {
            let lock_state = self.lock_state(claim.name());
            let answer = self.submit(&lock_state, Op::Release(claim.id), claim.options.ttl).await;
            // Also after an error: no caller waits for this claim any more, and its position
            // expires.
            lock_state.lock().waiters.remove(&claim.id);
            self.set_held(&claim, false);
            match answer?.0 {
                OpOutcome::Released(departure) => Ok(departure.into()),
                other => Err(unexpected(&other)),
            }
        })
    }

    fn loss_events(&self) -> LossEvents {
        self.losses.subscribe()
    }

    fn watch(self: Arc<Self>, name: LockName, timeout: Duration) -> Step<Step<()>> {
        Step::new(async move {
            let first = self.row_version(&name).await?;
            Ok(Step::new(async move {
                let until = self.clock.now().saturating_add(timeout);
                loop {
                    let left = until.duration_since(self.clock.now());
                    if left.is_zero() {
                        return Ok(());
                    }
                    self.clock.sleep_until(self.clock.now().saturating_add(left.min(self.pool.config.poll))).await;
                    if self.row_version(&name).await? != first {
                        return Ok(());
                    }
                }
            }))
        })
    }

    fn inspect(self: Arc<Self>, name: LockName) -> Step<LockView> {
        Step::new(async move { inspect::inspect_lock(&self, name).await })
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockView>> {
        Step::new(async move { inspect::list_locks(&self, &prefix).await })
    }

    fn force_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<ForceReleaseOutcome> {
        Step::new(async move {
            let lock_state = self.lock_state(&name);
            match self.submit(&lock_state, Op::ForceRelease(claim), DEFAULT_STEP_TIMEOUT).await?.0 {
                OpOutcome::ForceReleaseDone(contender, token) => {
                    tracing::warn!(%name, ?claim, ?token, reason, "a claim was force released");
                    Ok(ForceReleaseOutcome { contender, fence_token: token })
                }
                OpOutcome::Unknown => {
                    let message =
                        "the reply was lost, and the claim does not exist any more: it was force released or released";
                    Err(Error::new(ErrorKind::Unavailable, message).effect_unknown())
                }
                other => Err(unexpected(&other)),
            }
        })
    }

    fn request_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<Option<ContenderView>> {
        Step::new(async move {
            let lock_state = self.lock_state(&name);
            match self.submit(&lock_state, Op::RequestRelease(claim), DEFAULT_STEP_TIMEOUT).await?.0 {
                OpOutcome::ReleaseRequested(contender) => {
                    tracing::info!(%name, ?claim, reason, there = contender.is_some(), "release requested");
                    Ok(contender)
                }
                other => Err(unexpected(&other)),
            }
        })
    }

    fn shutdown(self: Arc<Self>) -> Step<()> {
        Step::new(async move {
            if let Some(listen_task) = lock(&self.listener).take() {
                listen_task.abort();
            }
            for lock_state in lock(&self.lock_states).values() {
                let mut inner = lock_state.lock();
                inner.waiters.clear();
                inner.row = None;
            }
            if let Some(wakeup_locks) = &self.wakeup_locks {
                wakeup_locks.close();
            }
            self.pool.close().await;
            Ok(())
        })
    }

    fn records(self: Arc<Self>) -> Option<Arc<dyn RecordStore>> {
        Some(self)
    }
}

impl RecordStore for LeaseEngine {
    fn get(self: Arc<Self>, name: LockName) -> Step<Record> {
        Step::new(async move { self.records.get(&name).await })
    }

    fn compare_and_set(self: Arc<Self>, name: LockName, expected_version: u64, value: String) -> Step<Option<Record>> {
        Step::new(async move { self.records.compare_and_set(&name, expected_version, value).await })
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockName>> {
        Step::new(async move { self.records.list(&prefix).await })
    }
}
