//! The task of one claim. It acquires the lock, waits for it, holds it and releases it, on a
//! connection of its own. It goes on when a caller stops waiting.

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

/// The pause between two tries to cancel a waiting statement.
const STOP_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// How a claim ended.
enum ClaimEnd {
    /// Another claim holds the lock, or the queue position was lost: the caller may try again.
    Busy,
    /// The server, the connection or the pool failed.
    Failed(ClaimError),
    /// It was released, on request or because no caller wanted it any more. This is the answer.
    Left(ReleaseReply),
    /// It held the lock, and its session ended.
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

/// The requests that callers send to a claim's task.
struct ClaimRequests {
    receiver: UnboundedReceiver<ClaimRequest>,
    /// The callers that wait for the release.
    releasing: Vec<oneshot::Sender<Result<ReleaseReply, ClaimError>>>,
}

impl ClaimRequests {
    /// Completes when a caller requests the release; drops other requests. Only used while the
    /// claim does not hold the lock.
    async fn wait_for_release(&mut self) {
        while let Some(request) = self.receiver.recv().await {
            if let ClaimRequest::Release(answer) = request {
                self.releasing.push(answer);
                return;
            }
            // A request to confirm the hold. It is dropped without an answer, which means: not
            // held.
        }
        // Not reached: the claim's entry keeps the sender, so the channel does not close.
        std::future::pending().await
    }

    /// Answers all callers that wait for the release, after the claim has ended with `result`.
    fn answer_all(mut self, result: &Result<ReleaseReply, ClaimError>) {
        self.receiver.close();
        while let Ok(request) = self.receiver.try_recv() {
            if let ClaimRequest::Release(answer) = request {
                self.releasing.push(answer);
            }
        }
        // The first caller gets the result. The others get `Absent`: the claim had ended before.
        let mut is_answered = false;
        for answer in self.releasing {
            let result = if is_answered { Ok(ReleaseReply::Absent) } else { result.clone() };
            is_answered |= answer.send(result).is_ok();
        }
    }
}

/// Runs a claim until it ends. `queue`: whether it waits if the lock is not free.
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

/// A lock that the claim holds.
struct HeldLock {
    session: Session,
    permit: OwnedSemaphorePermit,
    token: Token,
    /// The TTL counts from this moment, when the last answered statement of the session was sent.
    lease_start: Instant,
}

/// Acquires the lock; waits for it if `queue` is set and it is not free. Breaks with how the claim
/// ended if it did not get the lock.
async fn acquire(
    pool: &SessionPool,
    entry: &ClaimEntry,
    local_queue: &Arc<LocalQueue>,
    requests: &mut ClaimRequests,
    queue: bool,
) -> ControlFlow<ClaimEnd, HeldLock> {
    if pool.claims.is_excluded_locally(entry, pool.clock.now()) {
        // Another claim of this client holds the lock, which is known without a connection.
        if !queue {
            return ControlFlow::Break(ClaimEnd::Busy);
        }
        entry.stage.send_replace(ClaimStage::Waiting);
    }
    let turn = await_unless_released(pool, entry, requests, wait_for_turn(entry, local_queue, queue)).await?;
    let permit = await_unless_released(pool, entry, requests, wait_for_permit(pool, entry, queue)).await?;
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
            // If the session cannot release its locks, it is dropped: that closes it, and the
            // server does.
            if session.release_all(&pool.wire).await.is_ok() {
                pool.return_session(session).await;
            }
            ControlFlow::Break(ClaimEnd::Failed(error))
        }
    }
}

/// Continues with the value, or breaks with the error.
fn to_control_flow<T, E: Into<ClaimEnd>>(result: Result<T, E>) -> ControlFlow<ClaimEnd, T> {
    match result {
        Ok(value) => ControlFlow::Continue(value),
        Err(error) => ControlFlow::Break(error.into()),
    }
}

/// Awaits `step`; breaks if the claim's release is requested first, or no caller has wanted it for
/// a TTL.
async fn await_unless_released<T>(
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

/// Waits for the claim's turn among the claims of this client for the same lock. `Busy` if the
/// claim ahead waits at the server and `queue` is not set.
async fn wait_for_turn(entry: &ClaimEntry, local_queue: &Arc<LocalQueue>, queue: bool) -> Result<Turn, ClaimEnd> {
    match local_queue.next_turn_unless_waiting().await? {
        Some(turn) => Ok(turn),
        None if queue => {
            entry.stage.send_replace(ClaimStage::Waiting);
            Ok(local_queue.turn().await?)
        }
        None => Err(ClaimEnd::Busy),
    }
}

/// Waits for the permit to use one more connection: as long as necessary if `queue` is set, else
/// briefly.
async fn wait_for_permit(
    pool: &SessionPool,
    entry: &ClaimEntry,
    queue: bool,
) -> Result<OwnedSemaphorePermit, ClaimEnd> {
    if let Some(permit) = pool.try_permit() {
        return Ok(permit);
    }
    if queue {
        entry.stage.send_replace(ClaimStage::Waiting);
        return Ok(pool.next_permit().await?);
    }
    // A claim that has just been released returns its permit in a moment.
    match pool.clock.timeout(pool.connection_timeout().min(entry.ttl / 4), pool.next_permit()).await {
        Ok(permit) => Ok(permit?),
        Err(_) => Err(ClaimEnd::Failed(ClaimError::PoolExhausted)),
    }
}

/// Acquires the lock if it is free, and returns the session and whether it holds the lock. Uses an
/// idle connection; if the server has closed those, opens a new one.
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

/// Returns a session without a lock to the pool. Drops it if its transaction cannot be ended.
async fn return_without_lock(pool: &SessionPool, mut session: Session) {
    if !pool.wire.opens_transaction() || session.release_all(&pool.wire).await.is_ok() {
        pool.return_session(session).await;
    }
}

/// Waits at the server until the session holds the lock. Breaks if the claim's release is
/// requested, no caller wants it any more, or the wait fails.
async fn wait_for_grant(
    pool: &SessionPool,
    entry: &ClaimEntry,
    requests: &mut ClaimRequests,
    mut session: Session,
) -> ControlFlow<ClaimEnd, Session> {
    let stop_handle = session.stop_handle(entry.claim);
    let (answer, gives_up) = {
        let waiting = session.wait(&pool.wire, &entry.name, entry.mode, &stop_handle.statement_mark);
        let mut waiting = std::pin::pin!(waiting);
        let answer = tokio::select! {
            biased;
            answer = &mut waiting => Some(answer),
            () = requests.wait_for_release() => None,
            () = entry.wait_until_unwanted(&pool.clock) => None,
        };
        match answer {
            Some(answer) => (Some(answer), false),
            None => (stop_waiting(pool, &stop_handle, waiting).await, true),
        }
    };
    if gives_up {
        // The lock may have been granted at the last moment, even if the statement reports that it
        // was cancelled. So the session releases everything.
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
            // The row to lock was deleted, or the server's own time limit for the wait has passed.
            pool.set_row_known(&entry.name, false);
            return_without_lock(pool, session).await;
            ControlFlow::Break(ClaimEnd::Busy)
        }
    }
}

/// Cancels a waiting statement, and returns its last answer. `None`: there was none within the
/// connect timeout.
async fn stop_waiting<T>(
    pool: &SessionPool,
    stop_handle: &StopHandle,
    mut waiting: Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    let stopping = async {
        loop {
            if let Err(reason) = stop_handle.stop(pool).await {
                tracing::debug!(reason, "a waiting statement could not be cancelled; trying again");
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

/// Whether this failure of a wait only means that the queue position was lost, and the claim may
/// try again.
fn is_position_lost(failure: &Failure, pool: &SessionPool) -> bool {
    use ErrorClass::{Conflict, RowLocked, TemporarilyUnavailable, Terminated};
    match failure.class(pool.wire.dialect) {
        Some(meaning) => matches!(meaning, Conflict | Terminated | TemporarilyUnavailable | RowLocked),
        None => matches!(failure, Failure::ConnectionLost(_)),
    }
}

/// After the lock was acquired: increments its token counter, and checks that the lock is still
/// held after that. Returns the token, and the moment from which the TTL counts.
async fn confirm_grant(
    pool: &SessionPool,
    entry: &ClaimEntry,
    session: &mut Session,
) -> Result<(Token, Instant), ClaimError> {
    if !pool.wire.opens_transaction() {
        // The session itself runs this statement, so the answer shows that it held the lock
        // meanwhile.
        let token = pool.next_token_on_session(session, &entry.name).await?;
        return Ok((token, session.last_answered_sent));
    }
    let token = pool.next_token_on_side_pool(&entry.name).await?;
    if !session.confirm_held(&pool.wire, &entry.name, entry.ttl.min(pool.connection_timeout())).await? {
        return Err(Failure::ConnectionLost("the lock was lost before its token was known".into()).into());
    }
    Ok((token, session.last_answered_sent))
}

/// Holds the lock and answers requests until the lock is released or lost.
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
            // The caller stopped waiting while the task waited for the answer to an earlier
            // request.
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

/// Releases the lock. The session is returned to the pool only if it certainly holds no lock any
/// more.
async fn release(pool: &SessionPool, entry: &ClaimEntry, mut session: Session) -> ClaimEnd {
    match session.release(&pool.wire, &entry.name, entry.mode).await {
        Ok(true) => {
            pool.return_session(session).await;
            ClaimEnd::Left(ReleaseReply::Released)
        }
        Ok(false) => ClaimEnd::Left(ReleaseReply::Absent),
        // The session may have ended a while ago, and another client may have held the lock since:
        // the release reports that this claim did not hold it to the end.
        Err(failure) if failure.ends_connection(pool.wire.dialect) => ClaimEnd::Left(ReleaseReply::Absent),
        Err(failure) => failure.into(),
    }
}
