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
    /// It was asked to leave, or no caller wanted it any more.
    Left(ReleaseReply),
    /// It held, and its session ended.
    Lost,
}

impl From<ClaimError> for ClaimEnd {
    fn from(trouble: ClaimError) -> Self {
        Self::Failed(trouble)
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
    /// Callers that wait until it has left.
    releasing: Vec<oneshot::Sender<Result<ReleaseReply, ClaimError>>>,
}

impl ClaimRequests {
    /// Returns when it is asked to leave.
    async fn wait_for_release(&mut self) {
        while let Some(order) = self.receiver.recv().await {
            if let ClaimRequest::Release(answer) = order {
                self.releasing.push(answer);
                return;
            }
            // It does not hold: the request is dropped without an answer, which means just that.
        }
        // The claim's entry keeps the sender, so the channel does not close.
        std::future::pending().await
    }

    fn answer_all(mut self, what: &Result<ReleaseReply, ClaimError>) {
        self.receiver.close();
        while let Ok(order) = self.receiver.try_recv() {
            if let ClaimRequest::Release(answer) = order {
                self.releasing.push(answer);
            }
        }
        // The first caller gets the outcome; for the others there was nothing left to release.
        let mut told = false;
        for answer in self.releasing {
            let what = if told { Ok(ReleaseReply::Absent) } else { what.clone() };
            told |= answer.send(what).is_ok();
        }
    }
}

/// Serves a claim until it ends.
pub(super) async fn run_claim(
    room: Arc<SessionPool>,
    seat: Arc<ClaimEntry>,
    orders: UnboundedReceiver<ClaimRequest>,
    queue: bool,
) {
    let mut orders = ClaimRequests { receiver: orders, releasing: Vec::new() };
    let line = room.queue(&seat.name);
    let end = match acquire(&room, &seat, &line, &mut orders, queue).await {
        ControlFlow::Continue(held) => hold_lock(&room, &seat, &mut orders, held).await,
        ControlFlow::Break(end) => end,
    };
    seat.connection.store(0, Ordering::Release);
    room.remove_queue_if_empty(&seat.name, line);
    room.claims.remove(&seat);
    if let ClaimEnd::Lost = end {
        room.losses.report_lost(seat.claim);
    }
    let (trouble, said) = match end {
        ClaimEnd::Busy | ClaimEnd::Lost => (None, Ok(ReleaseReply::Absent)),
        ClaimEnd::Failed(trouble) => (Some(trouble.clone()), Err(trouble)),
        ClaimEnd::Left(released) => (None, Ok(released)),
    };
    seat.stage.send_replace(ClaimStage::Ended(trouble));
    orders.answer_all(&said);
}

/// A lock that is held.
struct HeldLock {
    session: Session,
    permit: OwnedSemaphorePermit,
    token: Token,
    /// The lease counts from this moment.
    lease_start: Instant,
}

/// Tries until the lock is held.
async fn acquire(
    room: &SessionPool,
    seat: &ClaimEntry,
    line: &Arc<LocalQueue>,
    orders: &mut ClaimRequests,
    queue: bool,
) -> ControlFlow<ClaimEnd, HeldLock> {
    if room.claims.is_excluded_locally(seat, room.clock.now()) {
        // No connection is needed to know that.
        if !queue {
            return ControlFlow::Break(ClaimEnd::Busy);
        }
        seat.stage.send_replace(ClaimStage::Waiting);
    }
    let turn = unless_released(room, seat, orders, turn(seat, line, queue)).await?;
    let permit = unless_released(room, seat, orders, permit(room, seat, queue)).await?;
    let (mut session, taken) = to_control_flow(try_acquire(room, seat).await)?;
    if !taken {
        if !queue {
            return_without_lock(room, session).await;
            return ControlFlow::Break(ClaimEnd::Busy);
        }
        turn.mark_waiting();
        seat.stage.send_replace(ClaimStage::Waiting);
        session = wait_for_grant(room, seat, orders, session).await?;
    }
    let granted = confirm_grant(room, seat, &mut session).await;
    drop(turn);
    match granted {
        Ok((token, from)) => ControlFlow::Continue(HeldLock { session, permit, token, lease_start: from }),
        Err(trouble) => {
            // Releases what it has, in order or with the connection.
            if session.release_all(&room.wire).await.is_ok() {
                room.return_session(session).await;
            }
            ControlFlow::Break(ClaimEnd::Failed(trouble))
        }
    }
}

fn to_control_flow<T, E: Into<ClaimEnd>>(result: Result<T, E>) -> ControlFlow<ClaimEnd, T> {
    match result {
        Ok(value) => ControlFlow::Continue(value),
        Err(error) => ControlFlow::Break(error.into()),
    }
}

/// Runs a step, unless the claim is asked to leave or no caller wants it any more.
async fn unless_released<T>(
    room: &SessionPool,
    seat: &ClaimEntry,
    orders: &mut ClaimRequests,
    step: impl Future<Output = Result<T, ClaimEnd>>,
) -> ControlFlow<ClaimEnd, T> {
    tokio::select! {
        biased;
        () = orders.wait_for_release() => ControlFlow::Break(ClaimEnd::Left(ReleaseReply::LeftQueue)),
        () = seat.wait_until_unwanted(&room.clock) => ControlFlow::Break(ClaimEnd::Left(ReleaseReply::LeftQueue)),
        done = step => to_control_flow(done),
    }
}

/// The claim's turn among those of this client.
async fn turn(seat: &ClaimEntry, line: &Arc<LocalQueue>, queue: bool) -> Result<Turn, ClaimEnd> {
    match line.next_turn_unless_waiting().await? {
        Some(turn) => Ok(turn),
        None if queue => {
            seat.stage.send_replace(ClaimStage::Waiting);
            Ok(line.turn().await?)
        }
        None => Err(ClaimEnd::Busy),
    }
}

/// A permit for a connection.
async fn permit(room: &SessionPool, seat: &ClaimEntry, queue: bool) -> Result<OwnedSemaphorePermit, ClaimEnd> {
    if let Some(permit) = room.try_permit() {
        return Ok(permit);
    }
    if queue {
        seat.stage.send_replace(ClaimStage::Waiting);
        return Ok(room.next_permit().await?);
    }
    // A permit may just be about to return.
    match room.clock.timeout(room.connection_timeout().min(seat.ttl / 4), room.next_permit()).await {
        Ok(permit) => Ok(permit?),
        Err(_) => Err(ClaimEnd::Failed(ClaimError::PoolExhausted)),
    }
}

/// Acquires the lock if it is free. The server may have closed an idle connection meanwhile: then a
/// new one is opened.
async fn try_acquire(room: &SessionPool, seat: &ClaimEntry) -> Result<(Session, bool), Failure> {
    while let Some(mut session) = room.take_idle_session() {
        match session.try_acquire(room, &seat.name, seat.mode, seat.ttl).await {
            Ok(taken) => return Ok((session, taken)),
            Err(failure) if failure.ends_connection(room.wire.dialect) => {}
            Err(failure) => return Err(failure),
        }
    }
    let mut session = Session::open(room).await?;
    let taken = session.try_acquire(room, &seat.name, seat.mode, seat.ttl).await?;
    Ok((session, taken))
}

/// Returns a connection that was granted nothing, for reuse.
async fn return_without_lock(room: &SessionPool, mut session: Session) {
    if !room.wire.opens_transaction() || session.release_all(&room.wire).await.is_ok() {
        room.return_session(session).await;
    }
}

/// Waits at the server until the lock is granted.
async fn wait_for_grant(
    room: &SessionPool,
    seat: &ClaimEntry,
    orders: &mut ClaimRequests,
    mut session: Session,
) -> ControlFlow<ClaimEnd, Session> {
    let stopper = session.stop_handle(seat.claim);
    let (answer, leaves) = {
        let waiting = session.wait(&room.wire, &seat.name, seat.mode, &stopper.statement_mark);
        let mut waiting = std::pin::pin!(waiting);
        let answer = tokio::select! {
            biased;
            answer = &mut waiting => Some(answer),
            () = orders.wait_for_release() => None,
            () = seat.wait_until_unwanted(&room.clock) => None,
        };
        match answer {
            Some(answer) => (Some(answer), false),
            None => (stop_waiting(room, &stopper, waiting).await, true),
        }
    };
    if leaves {
        // The lock may have been granted in the last moment, even if the statement reports that it
        // was ended.
        if answer.is_some() && session.release_all(&room.wire).await.is_ok() {
            room.return_session(session).await;
        }
        return ControlFlow::Break(ClaimEnd::Left(ReleaseReply::LeftQueue));
    }
    match answer {
        Some(Ok(true)) => ControlFlow::Continue(session),
        Some(Err(failure)) if !is_position_lost(&failure, room) => ControlFlow::Break(failure.into()),
        Some(Err(_)) => ControlFlow::Break(ClaimEnd::Busy),
        Some(Ok(false)) | None => {
            // The row is gone, or the server stopped waiting.
            room.set_row_known(&seat.name, false);
            return_without_lock(room, session).await;
            ControlFlow::Break(ClaimEnd::Busy)
        }
    }
}

/// Ends a waiting statement; returns its last answer, if there is one.
async fn stop_waiting<T>(
    room: &SessionPool,
    stopper: &StopHandle,
    mut waiting: Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    let stopping = async {
        loop {
            if let Err(why) = stopper.stop(room).await {
                tracing::debug!(why, "a statement that waits was not ended");
            }
            room.clock.sleep(STOP_RETRY_PAUSE).await;
        }
    };
    tokio::select! {
        biased;
        answer = &mut waiting => Some(answer),
        _ = room.clock.timeout(room.connection_timeout(), stopping) => None,
    }
}

/// Whether the position in the queue was lost, and nothing else is wrong.
fn is_position_lost(failure: &Failure, room: &SessionPool) -> bool {
    use ErrorClass::{Conflict, RowLocked, TemporarilyUnavailable, Terminated};
    match failure.class(room.wire.dialect) {
        Some(meaning) => matches!(meaning, Conflict | Terminated | TemporarilyUnavailable | RowLocked),
        None => matches!(failure, Failure::ConnectionLost(_)),
    }
}

/// Increments the counter of a lock just acquired, and checks that the lock is still held after
/// that. Also returns the moment from which the lease counts.
async fn confirm_grant(
    room: &SessionPool,
    seat: &ClaimEntry,
    session: &mut Session,
) -> Result<(Token, Instant), ClaimError> {
    if !room.wire.opens_transaction() {
        // The session holds its lock while its own statement runs.
        let token = room.next_token_on_session(session, &seat.name).await?;
        return Ok((token, session.last_answered_sent));
    }
    let token = room.next_token_on_side_pool(&seat.name).await?;
    if !session.confirm_held(&room.wire, &seat.name, seat.ttl.min(room.connection_timeout())).await? {
        return Err(Failure::ConnectionLost("the lock was lost at once".into()).into());
    }
    Ok((token, session.last_answered_sent))
}

/// Holds the lock until it is released or lost.
async fn hold_lock(room: &SessionPool, seat: &ClaimEntry, orders: &mut ClaimRequests, held: HeldLock) -> ClaimEnd {
    let HeldLock { mut session, token, lease_start: mut from, permit: _permit } = held;
    seat.connection.store(session.id(), Ordering::Release);
    loop {
        seat.stage.send_replace(ClaimStage::Held { token, until: from.saturating_add(seat.ttl) });
        let order = tokio::select! {
            biased;
            order = orders.receiver.recv() => order,
            () = session.wait_closed() => return ClaimEnd::Lost,
            () = seat.recheck.notified() => None,
        };
        if let Some(ClaimRequest::Release(answer)) = order {
            orders.releasing.push(answer);
            return release(room, seat, session).await;
        }
        if let Some(ClaimRequest::ConfirmHeld(answer)) = &order
            && answer.is_closed()
        {
            // The caller stopped waiting while the last answer was late.
            continue;
        }
        match session.confirm_held(&room.wire, &seat.name, seat.ttl).await {
            Ok(true) => from = session.last_answered_sent,
            said => {
                tracing::debug!(?said, name = %seat.name, "a session that held a lock is over");
                return ClaimEnd::Lost;
            }
        }
        if let Some(ClaimRequest::ConfirmHeld(answer)) = order {
            // The caller may have stopped waiting.
            let _ = answer.send(from.saturating_add(seat.ttl));
        }
    }
}

/// Releases the lock. The connection is reused only if it certainly has nothing.
async fn release(room: &SessionPool, seat: &ClaimEntry, mut session: Session) -> ClaimEnd {
    match session.release(&room.wire, &seat.name, seat.mode).await {
        Ok(true) => {
            room.return_session(session).await;
            ClaimEnd::Left(ReleaseReply::Released)
        }
        Ok(false) => ClaimEnd::Left(ReleaseReply::Absent),
        // The connection may have ended a while ago and another client may hold the lock: it is
        // unknown whether it was ours to the end.
        Err(failure) if failure.ends_connection(room.wire.dialect) => ClaimEnd::Left(ReleaseReply::Absent),
        Err(failure) => failure.into(),
    }
}
