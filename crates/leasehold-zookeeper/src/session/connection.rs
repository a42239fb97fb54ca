//! One connection: its two buffers, and its unanswered requests.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::pin::Pin;

use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, Sleep};

use super::buffers::{ReceiveBuffer, SendBuffer};
use super::{Request, SessionCommand};
use crate::client::Answer;
use crate::error::Error;
use crate::transport::ByteStream;
use crate::wire::{self, op, xid};

/// The maximum number of requests that are received at once.
const MAX_BATCH: usize = 64;
/// While more bytes than this are unwritten, no further request is received from clients.
const MAX_UNSENT: usize = 1024 * 1024;

/// The commands of clients that the session's task has not processed yet.
#[derive(Debug)]
pub(super) struct CommandQueue {
    receiver: UnboundedReceiver<SessionCommand>,
    /// Commands that were received from the channel together.
    pub(super) batch: Vec<SessionCommand>,
    /// Whether more commands are received on this connection: until the session is being closed.
    pub(super) is_open: bool,
}

impl CommandQueue {
    pub(super) fn new(receiver: UnboundedReceiver<SessionCommand>) -> Self {
        Self { receiver, batch: Vec::new(), is_open: true }
    }

    /// Fails all pending requests.
    pub(super) fn fail_all(mut self, error: &Error) {
        self.receiver.close();
        let taken = std::mem::take(&mut self.batch);
        for command in taken.into_iter().chain(std::iter::from_fn(|| self.receiver.try_recv().ok())) {
            if let SessionCommand::Request(request) = command {
                request.fail(error);
            }
        }
    }
}

impl Request {
    pub(super) fn fail(self, error: &Error) {
        self.answer(Answer { frame: Err(error.clone()), watcher: None });
    }

    pub(super) fn answer(self, answer: Answer) {
        if let Some(reply) = self.reply {
            // The caller may have stopped waiting.
            let _ = reply.send(answer);
        }
    }
}

/// What a session's task reacts to while it is connected.
#[derive(Debug)]
pub(super) enum ConnectionEvent {
    /// Bytes arrived.
    Received,
    /// Bytes were written.
    Written,
    /// Commands arrived in [`CommandQueue::batch`]; if that is empty, the last client was dropped.
    Commands,
    /// The time of [`Connection::set_alarm`] has come.
    Alarm,
}

/// A request that was sent and not answered.
#[derive(Debug)]
pub(super) struct PendingRequest {
    /// The request's number on its connection.
    pub(super) xid: i32,
    pub(super) request: Request,
}

/// A connection to one server, with its buffers, its unanswered requests and its timer.
#[derive(Debug)]
pub(super) struct Connection<S> {
    reader: ReadHalf<S>,
    writer: WriteHalf<S>,
    pub(super) received: ReceiveBuffer,
    unsent: SendBuffer,
    /// The unanswered requests, in order.
    pub(super) pending: VecDeque<PendingRequest>,
    last_xid: i32,
    pub(super) last_sent: Instant,
    /// Whether a ping is unanswered.
    pub(super) is_pinging: bool,
    /// The number of the request to close the session; `None` if it was not sent.
    pub(super) close_xid: Option<i32>,
    alarm: Pin<Box<Sleep>>,
}

impl<S: ByteStream> Connection<S> {
    pub(super) fn new(stream: S, alarm: Instant) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self {
            reader,
            writer,
            received: ReceiveBuffer::default(),
            unsent: SendBuffer::default(),
            pending: VecDeque::new(),
            last_xid: 0,
            last_sent: Instant::now(),
            is_pinging: false,
            close_xid: None,
            alarm: Box::pin(tokio::time::sleep_until(alarm)),
        }
    }

    pub(super) fn set_alarm(&mut self, at: Instant) {
        self.alarm.as_mut().reset(at);
    }

    /// Waits for the next event. Bytes that have arrived come before the timer, so that a process
    /// that was stopped for a while does not blame the server for its own pause.
    pub(super) async fn next_event(&mut self, commands: Option<&mut CommandQueue>) -> io::Result<ConnectionEvent> {
        let receives = self.unsent.len() < MAX_UNSENT && commands.as_ref().is_some_and(|commands| commands.is_open);
        let more = async {
            match commands {
                Some(commands) => commands.receiver.recv_many(&mut commands.batch, MAX_BATCH).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            filled = self.received.fill(&mut self.reader) => filled.map(|()| ConnectionEvent::Received),
            wrote = self.unsent.write_some(&mut self.writer), if self.unsent.has_pending() => wrote.map(|()| ConnectionEvent::Written),
            _ = more, if receives => Ok(ConnectionEvent::Commands),
            () = self.alarm.as_mut() => Ok(ConnectionEvent::Alarm),
        }
    }

    /// Sends a packet that already has its number.
    pub(super) fn send(&mut self, frame: &[u8]) {
        self.unsent.push(frame);
        self.last_sent = Instant::now();
    }

    /// Numbers a request and sends it; returns the number.
    pub(super) fn send_request(&mut self, mut request: Request) -> i32 {
        self.last_xid = self.last_xid.checked_add(1).unwrap_or(1);
        let mut frame = std::mem::take(&mut request.frame);
        wire::set_xid(&mut frame, self.last_xid);
        self.send(&frame);
        self.pending.push_back(PendingRequest { xid: self.last_xid, request });
        self.last_xid
    }

    pub(super) fn ping(&mut self) {
        self.send(&wire::new_packet(xid::PING, op::PING).finish());
        self.is_pinging = true;
    }

    /// Requests the end of the session.
    pub(super) fn close(&mut self) {
        let frame = wire::request(op::CLOSE_SESSION).finish();
        self.close_xid = Some(self.send_request(Request { frame, watch: None, reply: None }));
    }

    /// Fails all unanswered requests.
    pub(super) fn fail(&mut self, error: &Error) {
        self.pending.drain(..).for_each(|waiting| waiting.request.fail(error));
    }
}
