//! The task of one claim: it acquires, waits, holds and releases, on a connection of its own.

use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;

use super::super::error::{Failure, Meaning};
use super::room::{Line, Room, Turn};
use super::seat::{Order, Seat, Stage};
use super::session::{Session, Stopper};
use super::trouble::Trouble;
use crate::claim::Token;
use crate::clock::Moment;
use crate::engine::Released;

/// Pause between two tries to end a statement.
const AGAIN: Duration = Duration::from_millis(100);

/// How a claim ended.
enum End {
    /// Another claim has the lock, or the position is lost: it may try again.
    Busy,
    /// Something went wrong.
    Trouble(Trouble),
    /// It was asked to leave, or no caller wanted it any more.
    Left(Released),
    /// It held, and its session ended.
    Lost,
}

impl From<Trouble> for End {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        Self::Trouble(failure.into())
    }
}

/// Requests to a claim.
struct Orders {
    orders: UnboundedReceiver<Order>,
    /// Callers that wait until it has left.
    leaving: Vec<oneshot::Sender<Result<Released, Trouble>>>,
}

impl Orders {
    /// Returns when it is asked to leave.
    async fn leave(&mut self) {
        while let Some(order) = self.orders.recv().await {
            if let Order::Leave(answer) = order {
                self.leaving.push(answer);
                return;
            }
            // It does not hold: the request is dropped without an answer, which means just that.
        }
        // The claim's entry keeps the sender, so the channel does not close.
        std::future::pending().await
    }

    fn finish(mut self, what: &Result<Released, Trouble>) {
        self.orders.close();
        while let Ok(order) = self.orders.try_recv() {
            if let Order::Leave(answer) = order {
                self.leaving.push(answer);
            }
        }
        // The first caller gets the outcome; for the others there was nothing left to release.
        let mut told = false;
        for answer in self.leaving {
            let what = if told { Ok(Released::Absent) } else { what.clone() };
            told |= answer.send(what).is_ok();
        }
    }
}

/// Serves a claim until it ends.
pub(super) async fn serve(room: Arc<Room>, seat: Arc<Seat>, orders: UnboundedReceiver<Order>, queue: bool) {
    let mut orders = Orders { orders, leaving: Vec::new() };
    let line = room.line(&seat.name);
    let end = match ask(&room, &seat, &line, &mut orders, queue).await {
        ControlFlow::Continue(held) => hold(&room, &seat, &mut orders, held).await,
        ControlFlow::Break(end) => end,
    };
    seat.connection.store(0, Ordering::Release);
    room.tidy(&seat.name, line);
    room.seats.leave(&seat);
    if let End::Lost = end {
        room.board.post(seat.claim);
    }
    let (trouble, said) = match end {
        End::Busy | End::Lost => (None, Ok(Released::Absent)),
        End::Trouble(trouble) => (Some(trouble.clone()), Err(trouble)),
        End::Left(released) => (None, Ok(released)),
    };
    seat.stage.send_replace(Stage::Gone(trouble));
    orders.finish(&said);
}

/// A lock that is held.
struct Held {
    session: Session,
    permit: OwnedSemaphorePermit,
    token: Token,
    /// The lease counts from this moment.
    from: Moment,
}

/// Tries until the lock is held.
async fn ask(room: &Room, seat: &Seat, line: &Arc<Line>, orders: &mut Orders, queue: bool) -> ControlFlow<End, Held> {
    if room.seats.excludes(seat, room.clock.now()) {
        // No connection is needed to know that.
        if !queue {
            return ControlFlow::Break(End::Busy);
        }
        seat.stage.send_replace(Stage::Waiting);
    }
    let turn = or_leave(room, seat, orders, turn(seat, line, queue)).await?;
    let permit = or_leave(room, seat, orders, permit(room, seat, queue)).await?;
    let (mut session, taken) = broken(take(room, seat).await)?;
    if !taken {
        if !queue {
            give_back_nothing(room, session).await;
            return ControlFlow::Break(End::Busy);
        }
        turn.block();
        seat.stage.send_replace(Stage::Waiting);
        session = wait(room, seat, orders, session).await?;
    }
    let granted = confirm(room, seat, &mut session).await;
    drop(turn);
    match granted {
        Ok((token, from)) => ControlFlow::Continue(Held { session, permit, token, from }),
        Err(trouble) => {
            // Releases what it has, in order or with the connection.
            if session.clear(&room.wire).await.is_ok() {
                room.keep(session).await;
            }
            ControlFlow::Break(End::Trouble(trouble))
        }
    }
}

fn broken<T, E: Into<End>>(result: Result<T, E>) -> ControlFlow<End, T> {
    match result {
        Ok(value) => ControlFlow::Continue(value),
        Err(error) => ControlFlow::Break(error.into()),
    }
}

/// Runs a step, unless the claim is asked to leave or no caller wants it any more.
async fn or_leave<T>(
    room: &Room,
    seat: &Seat,
    orders: &mut Orders,
    step: impl Future<Output = Result<T, End>>,
) -> ControlFlow<End, T> {
    tokio::select! {
        biased;
        () = orders.leave() => ControlFlow::Break(End::Left(Released::LeftQueue)),
        () = seat.stale(&room.clock) => ControlFlow::Break(End::Left(Released::LeftQueue)),
        done = step => broken(done),
    }
}

/// The claim's turn among those of this client.
async fn turn(seat: &Seat, line: &Arc<Line>, queue: bool) -> Result<Turn, End> {
    match line.turn_or_blocked().await? {
        Some(turn) => Ok(turn),
        None if queue => {
            seat.stage.send_replace(Stage::Waiting);
            Ok(line.turn().await?)
        }
        None => Err(End::Busy),
    }
}

/// A permit for a connection.
async fn permit(room: &Room, seat: &Seat, queue: bool) -> Result<OwnedSemaphorePermit, End> {
    if let Some(permit) = room.permit() {
        return Ok(permit);
    }
    if queue {
        seat.stage.send_replace(Stage::Waiting);
        return Ok(room.next_permit().await?);
    }
    // A permit may just be about to return.
    match room.clock.timeout(room.bound().min(seat.ttl / 4), room.next_permit()).await {
        Ok(permit) => Ok(permit?),
        Err(_) => Err(End::Trouble(Trouble::Crowded)),
    }
}

/// Acquires the lock if it is free. The server may have closed an idle connection meanwhile: then a
/// new one is opened.
async fn take(room: &Room, seat: &Seat) -> Result<(Session, bool), Failure> {
    while let Some(mut session) = room.used_session() {
        match session.take(room, &seat.name, seat.mode, seat.ttl).await {
            Ok(taken) => return Ok((session, taken)),
            Err(failure) if failure.is_end(room.wire.dialect) => {}
            Err(failure) => return Err(failure),
        }
    }
    let mut session = Session::open(room).await?;
    let taken = session.take(room, &seat.name, seat.mode, seat.ttl).await?;
    Ok((session, taken))
}

/// Returns a connection that was granted nothing, for reuse.
async fn give_back_nothing(room: &Room, mut session: Session) {
    if !room.wire.begins() || session.clear(&room.wire).await.is_ok() {
        room.keep(session).await;
    }
}

/// Waits at the server until the lock is granted.
async fn wait(room: &Room, seat: &Seat, orders: &mut Orders, mut session: Session) -> ControlFlow<End, Session> {
    let stopper = session.stopper(seat.claim);
    let (answer, leaves) = {
        let waiting = session.wait(&room.wire, &seat.name, seat.mode, &stopper.mark);
        let mut waiting = std::pin::pin!(waiting);
        let answer = tokio::select! {
            biased;
            answer = &mut waiting => Some(answer),
            () = orders.leave() => None,
            () = seat.stale(&room.clock) => None,
        };
        match answer {
            Some(answer) => (Some(answer), false),
            None => (stop(room, &stopper, waiting).await, true),
        }
    };
    if leaves {
        // The lock may have been granted in the last moment, even if the statement reports that it
        // was ended.
        if answer.is_some() && session.clear(&room.wire).await.is_ok() {
            room.keep(session).await;
        }
        return ControlFlow::Break(End::Left(Released::LeftQueue));
    }
    match answer {
        Some(Ok(true)) => ControlFlow::Continue(session),
        Some(Err(failure)) if !is_lapse(&failure, room) => ControlFlow::Break(failure.into()),
        Some(Err(_)) => ControlFlow::Break(End::Busy),
        Some(Ok(false)) | None => {
            // The row is gone, or the server stopped waiting.
            room.note_row(&seat.name, false);
            give_back_nothing(room, session).await;
            ControlFlow::Break(End::Busy)
        }
    }
}

/// Ends a waiting statement; returns its last answer, if there is one.
async fn stop<T>(room: &Room, stopper: &Stopper, mut waiting: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    let stopping = async {
        loop {
            if let Err(why) = stopper.stop(room).await {
                tracing::debug!(why, "a statement that waits was not ended");
            }
            room.clock.sleep(AGAIN).await;
        }
    };
    tokio::select! {
        biased;
        answer = &mut waiting => Some(answer),
        _ = room.clock.timeout(room.bound(), stopping) => None,
    }
}

/// Whether the position in the queue was lost, and nothing else is wrong.
fn is_lapse(failure: &Failure, room: &Room) -> bool {
    use Meaning::{Collision, Killed, NotNow, Occupied};
    match failure.meaning(room.wire.dialect) {
        Some(meaning) => matches!(meaning, Collision | Killed | NotNow | Occupied),
        None => matches!(failure, Failure::Broken(_)),
    }
}

/// Increments the counter of a lock just acquired, and checks that the lock is still held after
/// that. Also returns the moment from which the lease counts.
async fn confirm(room: &Room, seat: &Seat, session: &mut Session) -> Result<(Token, Moment), Trouble> {
    if !room.wire.begins() {
        // The session holds its lock while its own statement runs.
        let token = room.own_token(session, &seat.name).await?;
        return Ok((token, session.used));
    }
    let token = room.side_token(&seat.name).await?;
    if !session.prove(&room.wire, &seat.name, seat.ttl.min(room.bound())).await? {
        return Err(Failure::Broken("the lock was lost at once".into()).into());
    }
    Ok((token, session.used))
}

/// Holds the lock until it is released or lost.
async fn hold(room: &Room, seat: &Seat, orders: &mut Orders, held: Held) -> End {
    let Held { mut session, token, mut from, permit: _permit } = held;
    seat.connection.store(session.id(), Ordering::Release);
    loop {
        seat.stage.send_replace(Stage::Held { token, until: from.after(seat.ttl) });
        let order = tokio::select! {
            biased;
            order = orders.orders.recv() => order,
            () = session.ended() => return End::Lost,
            () = seat.doubt.notified() => None,
        };
        if let Some(Order::Leave(answer)) = order {
            orders.leaving.push(answer);
            return give_back(room, seat, session).await;
        }
        if let Some(Order::Prove(answer)) = &order
            && answer.is_closed()
        {
            // The caller stopped waiting while the last answer was late.
            continue;
        }
        match session.prove(&room.wire, &seat.name, seat.ttl).await {
            Ok(true) => from = session.used,
            said => {
                tracing::debug!(?said, name = %seat.name, "a session that held a lock is over");
                return End::Lost;
            }
        }
        if let Some(Order::Prove(answer)) = order {
            // The caller may have stopped waiting.
            let _ = answer.send(from.after(seat.ttl));
        }
    }
}

/// Releases the lock. The connection is reused only if it certainly has nothing.
async fn give_back(room: &Room, seat: &Seat, mut session: Session) -> End {
    match session.give_back(&room.wire, &seat.name, seat.mode).await {
        Ok(true) => {
            room.keep(session).await;
            End::Left(Released::Released)
        }
        Ok(false) => End::Left(Released::Absent),
        // The connection may have ended a while ago and another client may hold the lock: it is
        // unknown whether it was ours to the end.
        Err(failure) if failure.is_end(room.wire.dialect) => End::Left(Released::Absent),
        Err(failure) => failure.into(),
    }
}
