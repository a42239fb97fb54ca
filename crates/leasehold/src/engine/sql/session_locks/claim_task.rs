//! The task of one claim: it acquires, waits, holds and releases, on a connection of its own.

use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;

use super::super::error::{ErrorClass, Failure};
use super::claim_entry::{ClaimEntry, ClaimRequest, ClaimStage};
use super::claim_error::ClaimError;
use super::session::{Session, StopHandle};
use super::session_pool::{LocalQueue, SessionPool, Turn};
use crate::clock::Instant;
use crate::engine::ReleaseReply;
use crate::types::Token;

/// Pause between two tries to end a statement.
const STOP_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// How a claim ended.
enum ClaimEnd {
    /// Another claim has the lock, or the position is lost: it may try again.
    Busy,
    /// Something went wrong.
    Failed(ClaimError),
    /// It was released, or no caller wanted it any more.
    Left(ReleaseReply),
    /// It held, and its session ended.
    Lost,
}

impl From<ClaimError> for ClaimEnd {
    fn from(error: ClaimError) -> Self {
        Self::Failed(error)
    }
}

impl From<Failure> for ClaimEnd {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure.into())
    }
}

/// Requests to a claim.
struct ClaimRequests {
    receiver: UnboundedReceiver<ClaimRequest>,
    /// Callers that wait until it is released.
    releasing: Vec<oneshot::Sender<Result<ReleaseReply, ClaimError>>>,
}

impl ClaimRequests {
    /// Returns when its release is requested.
    async fn wait_for_release(&mut self) {
        while let Some(request) = self.receiver.recv().await {
            if let ClaimRequest::Release(answer) = request {
                self.releasing.push(answer);
                return;
            }
            // It does not hold: the request is dropped without an answer, which means exactly that.
        }
        // The claim's entry keeps the sender, so the channel does not close.
        std::future::pending().await
    }

    fn answer_all(mut self, result: &Result<ReleaseReply, ClaimError>) {
        self.receiver.close();
        while let Ok(request) = self.receiver.try_recv() {
            if let ClaimRequest::Release(answer) = request {
                self.releasing.push(answer);
            }
        }
        // The first caller gets the outcome; for the others there was no hold left to release.
        let mut is_answered = false;
        for answer in self.releasing {
            let result = if is_answered { Ok(ReleaseReply::Absent) } else { result.clone() };
            is_answered |= answer.send(result).is_ok();
        }
    }
}

/// Serves a claim until it ends.
pub(super) async fn run_claim(
    pool: Arc<SessionPool>,
    entry: Arc<ClaimEntry>,
    requests: UnboundedReceiver<ClaimRequest>,
    queue: bool,
) {
    let mut requests = ClaimRequests { receiver: requests, releasing: Vec::new() };
    let local_queue = pool.queue(&entry.name);
    let end = match acquire(&pool, &entry, &local_queue, &mut requests, queue).await {
        ControlFlow::Continue(held) => hold_lock(&pool, &entry, &mut requests, held).await,
        ControlFlow::Break(end) => end,
    };
    entry.connection.store(0, Ordering::Release);
    pool.remove_queue_if_empty(&entry.name, local_queue);
    pool.claims.remove(&entry);
    if let ClaimEnd::Lost = end {
        pool.losses.report_lost(entry.claim);
    }
    let (error, release_result) = match end {
        ClaimEnd::Busy | ClaimEnd::Lost => (None, Ok(ReleaseReply::Absent)),
        ClaimEnd::Failed(error) => (Some(error.clone()), Err(error)),
        ClaimEnd::Left(released) => (None, Ok(released)),
    };
    entry.stage.send_replace(ClaimStage::Ended(error));
    requests.answer_all(&release_result);
}

/// A lock that is held.
struct HeldLock {
    session: Session,
    permit: OwnedSemaphorePermit,
    token: Token,
    /// The lease counts from this moment.
    lease_start: Instant,
}

/// Retries until the lock is held.
async fn acquire(
    pool: &SessionPool,
    entry: &ClaimEntry,
    local_queue: &Arc<LocalQueue>,
    requests: &mut ClaimRequests,
    queue: bool,
) -> ControlFlow<ClaimEnd, HeldLock> {
    if pool.claims.is_excluded_locally(entry, pool.clock.now()) {
        // This check needs no connection.
        if !queue {
            return ControlFlow::Break(ClaimEnd::Busy);
        }
        entry.stage.send_replace(ClaimStage::Waiting);
    }
    let turn = unless_released(pool, entry, requests, turn(entry, local_queue, queue)).await?;
    let permit = unless_released(pool, entry, requests, permit(pool, entry, queue)).await?;
    let (mut session, is_acquired) = to_control_flow(try_acquire(pool, entry).await)?;
    if !is_acquired {
        if !queue {
            return_without_lock(pool, session).await;
            return ControlFlow::Break(ClaimEnd::Busy);
        }
        turn.mark_waiting();
        entry.stage.send_replace(ClaimStage::Waiting);
        session = wait_for_grant(pool, entry, requests, session).await?;
    }
    let granted = confirm_grant(pool, entry, &mut session).await;
    drop(turn);
    match granted {
        Ok((token, from)) => ControlFlow::Continue(HeldLock { session, permit, token, lease_start: from }),
        Err(error) => {
            // Releases what the session holds, in order or by closing the connection.
            if session.release_all(&pool.wire).await.is_ok() {
                pool.return_session(session).await;
            }
            ControlFlow::Break(ClaimEnd::Failed(error))
        }
    }
}

fn to_control_flow<T, E: Into<ClaimEnd>>(result: Result<T, E>) -> ControlFlow<ClaimEnd, T> {
    match result {
        Ok(value) => ControlFlow::Continue(value),
        Err(error) => ControlFlow::Break(error.into()),
    }
}

/// Runs a step, unless the claim's release is requested or no caller wants it any more.
async fn unless_released<T>(
    pool: &SessionPool,
    entry: &ClaimEntry,
    requests: &mut ClaimRequests,
    step: impl Future<Output = Result<T, ClaimEnd>>,
) -> ControlFlow<ClaimEnd, T> {
    tokio::select! {
        biased;
        () = requests.wait_for_release() => ControlFlow::Break(ClaimEnd::Left(ReleaseReply::LeftQueue)),
        () = entry.wait_until_unwanted(&pool.clock) => ControlFlow::Break(ClaimEnd::Left(ReleaseReply::LeftQueue)),
        done = step => to_control_flow(done),
    }
}

/// The claim's turn among those of this client.
async fn turn(entry: &ClaimEntry, local_queue: &Arc<LocalQueue>, queue: bool) -> Result<Turn, ClaimEnd> {
    match local_queue.next_turn_unless_waiting().await? {
        Some(turn) => Ok(turn),
        None if queue => {
            entry.stage.send_replace(ClaimStage::Waiting);
            Ok(local_queue.turn().await?)
        }
        None => Err(ClaimEnd::Busy),
    }
}

/// A permit for a connection.
async fn permit(pool: &SessionPool, entry: &ClaimEntry, queue: bool) -> Result<OwnedSemaphorePermit, ClaimEnd> {
    if let Some(permit) = pool.try_permit() {
        return Ok(permit);
    }
    if queue {
        entry.stage.send_replace(ClaimStage::Waiting);
        return Ok(pool.next_permit().await?);
    }
    // A permit may just be about to return.
    match pool.clock.timeout(pool.connection_timeout().min(entry.ttl / 4), pool.next_permit()).await {
        Ok(permit) => Ok(permit?),
        Err(_) => Err(ClaimEnd::Failed(ClaimError::PoolExhausted)),
    }
}

/// Acquires the lock if it is free. The server may have closed an idle connection: then a new one
/// is opened.
async fn try_acquire(pool: &SessionPool, entry: &ClaimEntry) -> Result<(Session, bool), Failure> {
    while let Some(mut session) = pool.take_idle_session() {
        match session.try_acquire(pool, &entry.name, entry.mode, entry.ttl).await {
            Ok(is_acquired) => return Ok((session, is_acquired)),
            Err(failure) if failure.ends_connection(pool.wire.dialect) => {}
            Err(failure) => return Err(failure),
        }
    }
    let mut session = Session::open(pool).await?;
    let is_acquired = session.try_acquire(pool, &entry.name, entry.mode, entry.ttl).await?;
    Ok((session, is_acquired))
}

/// Returns a connection without a lock, for reuse.
async fn return_without_lock(pool: &SessionPool, mut session: Session) {
    if !pool.wire.opens_transaction() || session.release_all(&pool.wire).await.is_ok() {
        pool.return_session(session).await;
    }
}

/// Waits at the server until the lock is granted.
async fn wait_for_grant(
    pool: &SessionPool,
    entry: &ClaimEntry,
    requests: &mut ClaimRequests,
    mut session: Session,
) -> ControlFlow<ClaimEnd, Session> {
    let stopper = session.stop_handle(entry.claim);
    let (answer, leaves) = {
        let waiting = session.wait(&pool.wire, &entry.name, entry.mode, &stopper.statement_mark);
        let mut waiting = std::pin::pin!(waiting);
        let answer = tokio::select! {
            biased;
            answer = &mut waiting => Some(answer),
            () = requests.wait_for_release() => None,
            () = entry.wait_until_unwanted(&pool.clock) => None,
        };
        match answer {
            Some(answer) => (Some(answer), false),
            None => (stop_waiting(pool, &stopper, waiting).await, true),
        }
    };
    if leaves {
        // The lock may have been granted in the last moment, even if the statement reports that it
        // was ended.
        if answer.is_some() && session.release_all(&pool.wire).await.is_ok() {
            pool.return_session(session).await;
        }
        return ControlFlow::Break(ClaimEnd::Left(ReleaseReply::LeftQueue));
    }
    match answer {
        Some(Ok(true)) => ControlFlow::Continue(session),
        Some(Err(failure)) if !is_position_lost(&failure, pool) => ControlFlow::Break(failure.into()),
        Some(Err(_)) => ControlFlow::Break(ClaimEnd::Busy),
        Some(Ok(false)) | None => {
            // The row does not exist any more, or the server stopped waiting.
            pool.set_row_known(&entry.name, false);
            return_without_lock(pool, session).await;
            ControlFlow::Break(ClaimEnd::Busy)
        }
    }
}

/// Ends a waiting statement; returns its last answer, if there is one.
async fn stop_waiting<T>(
    pool: &SessionPool,
    stopper: &StopHandle,
    mut waiting: Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    let stopping = async {
        loop {
            if let Err(reason) = stopper.stop(pool).await {
                tracing::debug!(reason, "a waiting statement could not be ended");
            }
            pool.clock.sleep(STOP_RETRY_PAUSE).await;
        }
    };
    tokio::select! {
        biased;
        answer = &mut waiting => Some(answer),
        _ = pool.clock.timeout(pool.connection_timeout(), stopping) => None,
    }
}

/// Whether the position in the queue was lost, without another fault.
fn is_position_lost(failure: &Failure, pool: &SessionPool) -> bool {
    use ErrorClass::{Conflict, RowLocked, TemporarilyUnavailable, Terminated};
    match failure.class(pool.wire.dialect) {
        Some(meaning) => matches!(meaning, Conflict | Terminated | TemporarilyUnavailable | RowLocked),
        None => matches!(failure, Failure::ConnectionLost(_)),
    }
}

/// Increments the counter of a lock just acquired, and checks that the lock is still held after
/// that. Also returns the moment from which the lease counts.
async fn confirm_grant(
    pool: &SessionPool,
    entry: &ClaimEntry,
    session: &mut Session,
) -> Result<(Token, Instant), ClaimError> {
    if !pool.wire.opens_transaction() {
        // The session holds its lock while its own statement runs.
        let token = pool.next_token_on_session(session, &entry.name).await?;
        return Ok((token, session.last_answered_sent));
    }
    let token = pool.next_token_on_side_pool(&entry.name).await?;
    if !session.confirm_held(&pool.wire, &entry.name, entry.ttl.min(pool.connection_timeout())).await? {
        return Err(Failure::ConnectionLost("the lock was lost at once".into()).into());
    }
    Ok((token, session.last_answered_sent))
}

/// Holds the lock until it is released or lost.
async fn hold_lock(pool: &SessionPool, entry: &ClaimEntry, requests: &mut ClaimRequests, held: HeldLock) -> ClaimEnd {
    let HeldLock { mut session, token, lease_start: mut from, permit: _permit } = held;
    entry.connection.store(session.id(), Ordering::Release);
    loop {
        entry.stage.send_replace(ClaimStage::Held { token, until: from.saturating_add(entry.ttl) });
        let request = tokio::select! {
            biased;
            request = requests.receiver.recv() => request,
            () = session.wait_closed() => return ClaimEnd::Lost,
            () = entry.recheck.notified() => None,
        };
        if let Some(ClaimRequest::Release(answer)) = request {
            requests.releasing.push(answer);
            return release(pool, entry, session).await;
        }
        if let Some(ClaimRequest::ConfirmHeld(answer)) = &request
            && answer.is_closed()
        {
            // The caller stopped waiting while the last answer was late.
            continue;
        }
        match session.confirm_held(&pool.wire, &entry.name, entry.ttl).await {
            Ok(true) => from = session.last_answered_sent,
            release_result => {
                tracing::debug!(?release_result, name = %entry.name, "a session that held a lock has ended");
                return ClaimEnd::Lost;
            }
        }
        if let Some(ClaimRequest::ConfirmHeld(answer)) = request {
            // The caller may have stopped waiting.
            let _ = answer.send(from.saturating_add(entry.ttl));
        }
    }
}

/// Releases the lock. The connection is reused only if it certainly holds no lock.
async fn release(pool: &SessionPool, entry: &ClaimEntry, mut session: Session) -> ClaimEnd {
    match session.release(&pool.wire, &entry.name, entry.mode).await {
        Ok(true) => {
            pool.return_session(session).await;
            ClaimEnd::Left(ReleaseReply::Released)
        }
        Ok(false) => ClaimEnd::Left(ReleaseReply::Absent),
        // The connection may have ended a while ago and another client may hold the lock: it is
        // unknown whether we held it to the end.
        Err(failure) if failure.ends_connection(pool.wire.dialect) => ClaimEnd::Left(ReleaseReply::Absent),
        Err(failure) => failure.into(),
    }
}
