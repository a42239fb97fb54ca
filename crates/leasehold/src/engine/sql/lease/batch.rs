//! Batches: the requests of this client that are pending for one lock are decided together, and the
//! decision is written to the row of the lock with one statement.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::batch_outcome::BatchBasis;
use super::engine::LeaseEngine;
use super::lock_state::{CachedRow, ClockReading, LockState, OpResult, PendingOp, lock};
use super::state::{self, ContenderDetails, Contenders, Content, instant_from_micros, to_micros};
use super::step::{self, Op, OpOutcome};
use super::wire::{self, StoredRow, Swap};
use crate::clock::Instant;
use crate::engine::Claim;
use crate::engine::sql::connection::{Reply, Value, row_lock_timeout};
use crate::engine::sql::error::{ErrorClass, Failure};
use crate::engine::sql::pool::PooledConnection;
use crate::logic::lease as rules;
use crate::logic::local_hand_off::{LocalHandOff, ReservedTokens};
use crate::logic::table::{Contender, LockTable, ReleaseEffect};
use crate::types::{ClaimId, Error, ErrorKind, Token};

/// How many times a batch is decided again because another client wrote to the row first. After
/// that, its requests fail, and their callers retry.
const MAX_CONFLICTS: usize = 64;

/// How many claims may hold one lock or wait for it.
const MAX_CONTENDERS: usize = 10_000;

/// Marks that a task runs batches for this lock. If the task is dropped before it has finished,
/// because its runtime ended, this resets the lock's state, so that the next request can start a
/// new task.
struct BatchGuard {
    lock_state: Arc<LockState>,
    /// Whether the task ended in order.
    is_finished: bool,
}

impl BatchGuard {
    fn new(lock_state: Arc<LockState>) -> Self {
        Self { lock_state, is_finished: false }
    }
}

impl Drop for BatchGuard {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        let mut inner = self.lock_state.lock();
        inner.is_running_batches = false;
        inner.row = None;
        inner.has_uncertain_write = true;
        inner.stop_local_hand_offs();
        inner.pending.clear();
    }
}

impl LeaseEngine {
    /// Adds a request to the next batch of a lock, and returns its outcome. `ttl` bounds the time
    /// limit.
    pub(super) async fn submit(self: &Arc<Self>, lock_state: &Arc<LockState>, op: Op, ttl: Duration) -> OpResult {
        let (reply_sender, reply_receiver) = oneshot::channel();
        let mut lock_state = Arc::clone(lock_state);
        let start = loop {
            let mut inner = lock_state.lock();
            if inner.is_removed {
                drop(inner);
                lock_state = self.lock_state(&lock_state.name.clone());
                continue;
            }
            if let Op::Release(claim) = op {
                if inner.hand_off_locally(claim, self.clock.now()) {
                    let start = !std::mem::replace(&mut inner.is_running_batches, true);
                    drop(inner);
                    if start {
                        tokio::spawn(Arc::clone(self).run_batches(BatchGuard::new(lock_state)));
                    }
                    return Ok((OpOutcome::Released(ReleaseEffect::Released), ClockReading::default()));
                }
                if let Some(waiter) = inner.waiters.get(&claim) {
                    waiter.mark_releasing();
                }
            }
            inner.pending.push(PendingOp { op, timeout: rules::call_timeout(ttl), reply: reply_sender });
            break !std::mem::replace(&mut inner.is_running_batches, true);
        };
        // In a task of its own, because this caller may stop waiting while others wait for the same
        // batches.
        if start {
            tokio::spawn(Arc::clone(self).run_batches(BatchGuard::new(lock_state)));
        }
        match reply_receiver.await {
            Ok(answer) => answer,
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "the runtime ended during a step").effect_unknown()),
        }
    }

    /// Runs batches until no request is pending and the row needs no write for a local hand-off.
    async fn run_batches(self: Arc<Self>, mut guard: BatchGuard) {
        let lock_state = &guard.lock_state;
        loop {
            let requests = {
                let mut inner = lock_state.lock();
                // Drops requests whose caller has stopped waiting. That caller releases the claim.
                inner.pending.retain(|request| !request.reply.is_closed() || matches!(request.op, Op::Release(_)));
                let requests = std::mem::take(&mut inner.pending);
                if requests.iter().any(|request| matches!(request.op, Op::Release(_) | Op::ForceRelease(_))) {
                    inner.stop_local_hand_offs();
                }
                if requests.is_empty() && !inner.has_unwritten_holder() {
                    inner.is_running_batches = false;
                    guard.is_finished = true;
                    drop(inner);
                    self.remove_if_idle(lock_state);
                    return;
                }
                requests
            };
            let within = requests.iter().map(|request| request.timeout).min();
            let within = within.unwrap_or_else(|| lock_state.lock().write_timeout());
            let (ops, replies): (Vec<Op>, Vec<_>) =
                requests.into_iter().map(|request| (request.op, request.reply)).unzip();
            let result = match self.clock.timeout(within, self.run_batch(lock_state, &ops, &replies, within)).await {
                Ok(result) => result,
                Err(_) => {
                    lock_state.lock().row = None;
                    Err(Failure::timed_out(within))
                }
            };
            match result {
                Ok((outcomes, reading)) => {
                    for (reply, outcome) in replies.into_iter().zip(outcomes) {
                        let _ = reply.send(Ok((outcome, reading)));
                    }
                }
                Err(failure) => {
                    // If a local hand-off was not written, the next renewal writes it.
                    let mut inner = lock_state.lock();
                    inner.has_uncertain_write = true;
                    inner.stop_local_hand_offs();
                    let is_idle = replies.is_empty() && inner.pending.is_empty();
                    inner.is_running_batches = !is_idle;
                    guard.is_finished = is_idle;
                    drop(inner);
                    if is_idle {
                        tracing::warn!(?failure, name = %lock_state.name, "the present holder could not be written to the row yet");
                        return;
                    }
                    for reply in replies {
                        let _ = reply.send(Err(self.pool.to_error(&failure)));
                    }
                }
            }
        }
    }

    /// Runs one batch with the time limit `within`. If the connection turns out to be broken, runs
    /// it once more on a new one: the server may have restarted, and every request is safe to
    /// repeat.
    async fn run_batch(
        self: &Arc<Self>,
        lock_state: &Arc<LockState>,
        ops: &[Op],
        replies: &[oneshot::Sender<OpResult>],
        within: Duration,
    ) -> Result<(Vec<OpOutcome>, ClockReading), Failure> {
        // Which of the claims to release hold the lock by way of this client.
        let own_holders: Vec<ClaimId> = {
            let inner = lock_state.lock();
            let local_holder = inner.local_hand_offs.as_ref().and_then(LocalHandOff::current_holder);
            let is_ours = |claim: ClaimId| {
                local_holder == Some(claim)
                    || inner.row.as_ref().is_some_and(|row| row.content.table.holder(claim).is_some())
            };
            ops.iter().filter_map(Op::released_claim).filter(|claim| is_ours(*claim)).collect()
        };
        let writes_before = lock_state.lock().writes_begun;
        match self.decide(lock_state, ops, replies, within).await {
            Err(failure) if failure.is_connection_lost(self.pool.config.dialect) => {
                tracing::debug!(?failure, name = %lock_state.name, "retrying on another connection");
                {
                    let mut inner = lock_state.lock();
                    inner.row = None;
                    inner.has_uncertain_write = true;
                    inner.stop_local_hand_offs();
                }
                self.pool.discard_idle();
                let may_have_written = lock_state.lock().writes_begun > writes_before;
                let (mut outcomes, reading) = Box::pin(self.decide(lock_state, ops, replies, within)).await?;
                // A claim of this client held and does not exist any more: the first try released
                // it.
                for (op, outcome) in ops.iter().zip(&mut outcomes) {
                    if let (Op::Release(claim), OpOutcome::Released(effect @ ReleaseEffect::Absent)) =
                        (op, &mut *outcome)
                        && own_holders.contains(claim)
                    {
                        *effect = ReleaseEffect::Released;
                    }
                    // A claim to force release does not exist any more: the first try may have
                    // removed it, or its own client did.
                    if may_have_written && *outcome == OpOutcome::ForceReleaseDone(None, None) {
                        *outcome = OpOutcome::Unknown;
                    }
                }
                Ok((outcomes, reading))
            }
            result => result,
        }
    }

    /// Reads the row if necessary, applies the requests to it, and writes the result; starts over
    /// while other clients write first. Returns one outcome per request, and the clock reading to
    /// which their times refer.
    async fn decide(
        self: &Arc<Self>,
        lock_state: &Arc<LockState>,
        ops: &[Op],
        replies: &[oneshot::Sender<OpResult>],
        within: Duration,
    ) -> Result<(Vec<OpOutcome>, ClockReading), Failure> {
        let mut connection = self.pool.borrow().await?;
        let lock_timeout = row_lock_timeout(within);
        let mut row = lock_state.lock().row.take();
        // Whether the row was read in this batch. If not, it is only good for a write that succeeds
        // if the row is still the same.
        let mut is_fresh = false;
        let mut may_be_free = row.is_none() && !lock_state.lock().has_unwritten_holder();
        for _ in 0..MAX_CONFLICTS {
            let foreign_changes = lock_state.lock().foreign_changes;
            let found = match row.take() {
                Some(row) => Some(row),
                None => {
                    let (may_be_free, is_fresh) = (&mut may_be_free, &mut is_fresh);
                    self.acquire_or_read(lock_state, ops, &lock_timeout, &mut connection, may_be_free, is_fresh).await?
                }
            };
            let Some(found) = found else { continue };
            if !is_fresh && may_be_free && ops.len() == 1 {
                return Ok(self.cache_and_grant(lock_state, found));
            }
            let ops = &*without_abandoned(ops, replies);
            let local = self.clock.now();
            let now = if is_fresh { found.reading.server_time } else { found.reading.min_server_time(local) };
            let now = now.saturating_sub(self.pool.config.clock_skew);
            let mut content = found.content.clone();
            let mut last = found.token;
            let hand_offs = self.apply_local_hand_offs(lock_state, ops, &mut content.table, last, now);
            let is_polled =
                |claim: ClaimId| lock_state.lock().waiters.get(&claim).is_some_and(|waiter| waiter.is_polled(local));
            let (mut outcomes, effects) =
                step::apply_all(ops, &found.content, &mut content, &mut last, now, &self.client_id, &is_polled);
            let table = &content.table;
            check_contender_count(table)?;
            let changed = content != found.content || last != found.token || found.needs_rewrite;
            if !changed && !is_fresh {
                // No write would show that the cached row is still the same, so it must be read.
                continue;
            }
            if !changed || found.version < 0 {
                let reading = found.reading;
                let tokens = ReservedTokens::remaining(hand_offs.as_ref(), last);
                let basis = BatchBasis { tokens, foreign_changes, has_written: false };
                self.apply_outcome(lock_state, found, basis, &effects, &outcomes, ops);
                return Ok((outcomes, reading));
            }
            let is_ours = |contender: &Contender<ContenderDetails>| contender.details.client_id == self.client_id;
            let tokens = ReservedTokens::reserve(hand_offs.as_ref(), table, is_ours, &mut last);
            let messages = self.notifications(&lock_state.name, table, &effects);
            let swap = Swap {
                row_lock_timeout: &lock_timeout,
                ..swap(lock_state.name.as_str(), found.version, last, &content, now, &messages)
            };
            // If nothing is left in the row, no answer needs the time of the write.
            let clears = content.is_empty() && messages.is_empty() && outcomes.iter().all(OpOutcome::is_release);
            lock_state.lock().record_write(last);
            let sent = self.clock.now();
            let Some(at) = self.write(&mut connection, &swap, clears.then_some(now)).await? else { continue };
            let reading = ClockReading { sent, received: self.clock.now(), server_time: at };
            let written = CachedRow {
                version: found.version + 1,
                token: last,
                content: rebase_leases(content, now, at),
                needs_rewrite: false,
                reading,
            };
            step::set_deadlines(&mut outcomes, ops, &written.content.table);
            let basis = BatchBasis { tokens, foreign_changes, has_written: true };
            self.apply_outcome(lock_state, written, basis, &effects, &outcomes, ops);
            return Ok((outcomes, reading));
        }
        Err(Failure::Contended(format!("other clients wrote first {MAX_CONFLICTS} times in a row")))
    }

    /// Writes the decision if the row still has the version that was read. Returns the time of the
    /// write on the database's clock, or `None` if another client wrote first. `clears` is set if
    /// the row becomes empty: then the statement does not ask for the time, and this returns
    /// `clears` instead.
    async fn write(
        &self,
        connection: &mut PooledConnection,
        swap: &Swap<'_>,
        clears: Option<Instant>,
    ) -> Result<Option<Instant>, Failure> {
        let Some(now) = clears else {
            let (sql, values) = self.sql.swap(swap);
            let reply = self.run(connection, sql, &values).await?;
            return Ok(self.sql.write_time(&reply).map_err(unexpected_reply)?.map(instant_from_micros));
        };
        let (sql, values) = self.sql.clear(swap);
        Ok((self.run(connection, sql, &values).await?.rows_changed > 0).then_some(now))
    }

    /// If a request wants the lock and it may be free, acquires it in one statement; otherwise
    /// reads the row, and sets `is_fresh`. `None`: there is no row and a request wants the lock;
    /// the caller tries again, and then acquires it.
    async fn acquire_or_read(
        &self,
        lock_state: &LockState,
        ops: &[Op],
        lock_timeout: &str,
        connection: &mut PooledConnection,
        may_be_free: &mut bool,
        is_fresh: &mut bool,
    ) -> Result<Option<CachedRow>, Failure> {
        let wanted = ops.iter().find_map(|op| if let Op::Attempt { claim, .. } = op { Some(claim) } else { None });
        if let Some(claim) = wanted.filter(|_| *may_be_free)
            && let Some(acquired) = self.acquire_free(lock_state, claim, lock_timeout, connection).await?
        {
            return Ok(Some(acquired));
        }
        *may_be_free = false;
        *is_fresh = true;
        let found = self.read(lock_state, connection).await?;
        if found.is_none() && wanted.is_some() {
            *may_be_free = true;
            *is_fresh = false;
            return Ok(None);
        }
        if found.is_some() {
            return Ok(found);
        }
        // There is no row: the lock was never acquired, or its row was deleted by hand. The
        // requests still need the database's time, because no token is below it.
        let sent = self.clock.now();
        let reply = self.run(connection, self.sql.clock(), &[]).await?;
        let server_time = reply.value().and_then(Value::int).ok_or_else(|| unexpected_reply("no time"))?;
        let reading = ClockReading { sent, received: self.clock.now(), server_time: instant_from_micros(server_time) };
        Ok(Some(CachedRow { version: -1, token: 0, content: Content::default(), needs_rewrite: false, reading }))
    }

    /// Runs one statement. Repeats it after a deadlock or serialization failure, and after creating
    /// the table if that does not exist.
    pub(super) async fn run(
        &self,
        connection: &mut PooledConnection,
        sql: &str,
        values: &[Value],
    ) -> Result<Reply, Failure> {
        let (mut conflicts, mut has_created_tables) = (0, false);
        loop {
            match connection.run(sql, values).await {
                Err(failure) => match failure.class(self.pool.config.dialect) {
                    // The server aborted this transaction in favour of another: it had no effect.
                    Some(ErrorClass::Conflict) if conflicts < 8 => conflicts += 1,
                    Some(ErrorClass::NoTable) if !has_created_tables => {
                        has_created_tables = true;
                        Box::pin(super::super::create_tables(&self.pool.config, connection)).await?;
                    }
                    _ => return Err(failure),
                },
                result => return result,
            }
        }
    }

    /// Acquires the lock for a claim if it is free, with one statement, and returns the row as
    /// written. `None`: it is not free.
    async fn acquire_free(
        &self,
        lock_state: &LockState,
        claim: &Claim,
        lock_timeout: &str,
        connection: &mut PooledConnection,
    ) -> Result<Option<CachedRow>, Failure> {
        let mut contender = step::new_contender(claim, &self.client_id);
        // Placeholders, for which the statement inserts its time and the new token.
        contender.expires_at = Instant::default().saturating_add(contender.ttl);
        contender.token = Token(u64::MAX);
        contender.order = 1;
        let mut content = Content::from(LockTable { holders: vec![contender], waiters: Default::default() });
        let text = state::write(&content, Instant::default());
        let ttl = i64::try_from(claim.options.ttl.as_micros()).unwrap_or(i64::MAX / 4);
        let skew = i64::try_from(self.pool.config.clock_skew.as_micros()).unwrap_or(0);
        let (sql, values) = self.sql.acquire(lock_state.name.as_str(), ttl, &text, skew, lock_timeout);
        let sent = self.clock.now();
        let reply = self.run(connection, sql, &values).await?;
        let Some(at) = self.sql.write_time(&reply).map_err(unexpected_reply)? else { return Ok(None) };
        let token = u64::try_from(at).map_err(|_| unexpected_reply("a time below zero"))?;
        if let Some(lost) = lock_state
            .lock()
            .local_hand_offs
            .take()
            .filter(LocalHandOff::has_unwritten_hand_off)
            .and_then(|hand_offs| hand_offs.current_holder())
        {
            self.losses.report_lost(lost);
        }
        let reading = ClockReading { sent, received: self.clock.now(), server_time: instant_from_micros(at) };
        for contender in &mut content.table.holders {
            contender.token = Token(token);
            contender.expires_at = instant_from_micros(at).saturating_add(contender.ttl);
            contender.details.since = Some(instant_from_micros(at));
        }
        Ok(Some(CachedRow { version: at, token, content, needs_rewrite: false, reading }))
    }

    /// Caches a row that [`acquire_free`](Self::acquire_free) has written, and returns the grant to
    /// its only claim.
    fn cache_and_grant(&self, lock_state: &LockState, row: CachedRow) -> (Vec<OpOutcome>, ClockReading) {
        let reading = row.reading;
        let outcome = row
            .content
            .table
            .holders
            .first()
            .map(|contender| OpOutcome::Granted(contender.token, contender.expires_at));
        self.cache_row(&mut lock_state.lock(), row);
        (outcome.into_iter().collect(), reading)
    }

    /// Reads the row of a lock. `None`: there is no row, because the lock was never acquired, or
    /// because the row was deleted by hand.
    pub(super) async fn read(
        &self,
        lock_state: &LockState,
        connection: &mut PooledConnection,
    ) -> Result<Option<CachedRow>, Failure> {
        let (sql, values) = self.sql.read(lock_state.name.as_str());
        let sent = self.clock.now();
        let reply = self.run(connection, sql, &values).await?;
        let received = self.clock.now();
        let Some(found) = reply.row() else { return Ok(None) };
        let StoredRow { version, token, now, state } = wire::parse_row(found)?;
        let server_time = instant_from_micros(now);
        let (content, needs_rewrite) = state::read_and_correct(&state, server_time)
            .map_err(|reason| corrupt_row(lock_state.name.as_str(), reason))?;
        Ok(Some(CachedRow {
            version,
            token,
            content,
            needs_rewrite,
            reading: ClockReading { sent, received, server_time },
        }))
    }

    /// Drops the state of a lock that no claim of this client uses.
    pub(super) fn remove_if_idle(&self, lock_state: &Arc<LockState>) {
        let mut lock_states = lock(&self.lock_states);
        let mut inner = lock_state.lock();
        if inner.is_idle() && lock_states.get(&lock_state.name).is_some_and(|cached| Arc::ptr_eq(cached, lock_state)) {
            inner.is_removed = true;
            if let Some(wakeup_locks) = &self.wakeup_locks {
                wakeup_locks.submit(inner.wakeups.update(std::iter::empty()).into_iter());
            }
            lock_states.remove(&lock_state.name);
        }
    }
}

/// The requests, but without the force releases and the requests to release whose caller has
/// stopped waiting, each replaced by a `Check`. Its caller was told that the outcome is unknown. It
/// must not end a claim long after that, when a connection that hung continues or is replaced.
fn without_abandoned<'a>(ops: &'a [Op], replies: &[oneshot::Sender<OpResult>]) -> Cow<'a, [Op]> {
    let is_abandoned = |(op, reply): (&Op, &oneshot::Sender<OpResult>)| {
        matches!(op, Op::ForceRelease(_) | Op::RequestRelease(_)) && reply.is_closed()
    };
    if !ops.iter().zip(replies).any(is_abandoned) {
        return Cow::Borrowed(ops);
    }
    let applied = |(op, reply)| if is_abandoned((op, reply)) { Op::Check } else { op.clone() };
    ops.iter().zip(replies).map(applied).collect()
}

/// The failure for a row whose state cannot be parsed.
pub(super) fn corrupt_row(name: &str, reason: &str) -> Failure {
    Failure::CorruptRow(format!("the row of lock {name:?} is damaged ({reason}); delete the row to free the lock"))
}

/// The failure for a reply that this statement cannot have; `detail` says what is wrong with it.
pub(super) fn unexpected_reply(detail: &'static str) -> Failure {
    Failure::UnexpectedReply(detail.to_owned())
}

/// Returns an error if more than [`MAX_CONTENDERS`] claims would hold or wait.
fn check_contender_count(table: &Contenders) -> Result<(), Failure> {
    if table.holders.len() + table.waiters.len() > MAX_CONTENDERS {
        return Err(Failure::Full(format!(
            "{MAX_CONTENDERS} claims hold this lock or wait for it, and that is the limit; retry when one has ended"
        )));
    }
    Ok(())
}

/// The parameters of the statement that writes `content`, decided at `now`, over the row with this
/// version. The caller sets the row-lock timeout.
fn swap<'a>(
    name: &'a str,
    version: i64,
    token: u64,
    content: &Content,
    now: Instant,
    messages: &'a [(String, String)],
) -> Swap<'a> {
    let Content { table, force_released_claims } = content;
    let ends = || {
        let contenders =
            table.holders.iter().chain(&table.waiters).map(|contender| (contender.ttl, contender.expires_at));
        // Notes of force releases count, too: otherwise the statement that acquires a free lock
        // would overwrite them.
        contenders.chain(force_released_claims.iter().map(|claim| (claim.ttl, claim.until)))
    };
    let begins = |(ttl, until): &(Duration, Instant)| *until == now.saturating_add(*ttl);
    let max_new_ttl = ends().filter(begins).map(|(ttl, _)| ttl).max();
    let max_new_ttl = max_new_ttl.map(|ttl| i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX / 4));
    let busy = ends().filter(|end| !begins(end)).map(|(_, until)| to_micros(until)).max().unwrap_or(0);
    Swap {
        name,
        version,
        token,
        busy,
        max_new_ttl,
        state: state::write(content, now),
        notifications: messages,
        row_lock_timeout: "",
    }
}

/// The content as the row has it after it was decided at `now` and written at `at`: leases that
/// began with the decision begin at `at`.
fn rebase_leases(mut content: Content, now: Instant, at: Instant) -> Content {
    // Also, no lease lasts longer than its TTL from `at`: the database's clock may have been set
    // back since the row was read.
    let rebase = |until: &mut Instant, ttl| {
        let max_end = at.saturating_add(ttl);
        *until = if *until == now.saturating_add(ttl) { max_end } else { (*until).min(max_end) };
    };
    let Content { table, force_released_claims } = &mut content;
    for contender in table.holders.iter_mut().chain(&mut table.waiters) {
        rebase(&mut contender.expires_at, contender.ttl);
        contender.details.since.get_or_insert(at);
    }
    for claim in force_released_claims.iter_mut() {
        rebase(&mut claim.until, claim.ttl);
    }
    content
}
