//! One connection: its two buffers, and the requests that wait for an answer on it.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::pin::Pin;

use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, Sleep};

use super::buffers::{Inbox, Outbox};
use super::{Asked, Request};
use crate::client::Answer;
use crate::dial::Stream;
use crate::error::Error;
use crate::wire::{self, op, xid};

/// How many requests are taken at once.
const BATCH: usize = 64;
/// While more than this is unwritten, no request is taken.
const UNSENT: usize = 1024 * 1024;

/// The source of requests.
#[derive(Debug)]
pub(super) struct Intake {
    asked: UnboundedReceiver<Asked>,
    /// Messages that were taken, and are not processed yet.
    pub(super) batch: Vec<Asked>,
    /// Whether more may come on this connection.
    pub(super) open: bool,
}

impl Intake {
    pub(super) fn new(asked: UnboundedReceiver<Asked>) -> Self {
        Self { asked, batch: Vec::new(), open: true }
    }

    /// Fails all pending requests.
    pub(super) fn end(mut self, error: &Error) {
        self.asked.close();
        let taken = std::mem::take(&mut self.batch);
        for asked in taken.into_iter().chain(std::iter::from_fn(|| self.asked.try_recv().ok())) {
            if let Asked::Request(request) = asked {
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

/// An event on a connection.
#[derive(Debug)]
pub(super) enum Turn {
    /// Bytes arrived.
    Heard,
    /// Bytes were written.
    Wrote,
    /// Requests arrived; if there are none, the last client was dropped.
    Asked,
    /// The alarm fired.
    Alarm,
}

/// A request that was sent.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) xid: i32,
    pub(super) request: Request,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Link<S> {
    reader: ReadHalf<S>,
    writer: WriteHalf<S>,
    pub(super) inbox: Inbox,
    outbox: Outbox,
    /// The unanswered requests, in order.
    pub(super) waiting: VecDeque<Waiting>,
    last_xid: i32,
    pub(super) last_sent: Instant,
    /// Whether a ping is unanswered.
    pub(super) pinging: bool,
    /// The number of the request to close the session.
    pub(super) closing: Option<i32>,
    alarm: Pin<Box<Sleep>>,
}

impl<S: Stream> Link<S> {
    pub(super) fn new(stream: S, alarm: Instant) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self {
            reader,
            writer,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            waiting: VecDeque::new(),
            last_xid: 0,
            last_sent: Instant::now(),
            pinging: false,
            closing: None,
            alarm: Box::pin(tokio::time::sleep_until(alarm)),
        }
    }

    pub(super) fn set_alarm(&mut self, at: Instant) {
        self.alarm.as_mut().reset(at);
    }

    /// Waits for the next event. Bytes that have arrived come before the alarm, so that a process
    /// that was stopped for a while does not take its own pause for the server's.
    pub(super) async fn turn(&mut self, intake: Option<&mut Intake>) -> io::Result<Turn> {
        let takes = self.outbox.len() < UNSENT && intake.as_ref().is_some_and(|intake| intake.open);
        let more = async {
            match intake {
                Some(intake) => intake.asked.recv_many(&mut intake.batch, BATCH).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            heard = self.inbox.fill(&mut self.reader) => heard.map(|()| Turn::Heard),
            wrote = self.outbox.step(&mut self.writer), if self.outbox.is_busy() => wrote.map(|()| Turn::Wrote),
            _ = more, if takes => Ok(Turn::Asked),
            () = self.alarm.as_mut() => Ok(Turn::Alarm),
        }
    }

    /// Sends a packet that has its number.
    pub(super) fn send(&mut self, frame: &[u8]) {
        self.outbox.push(frame);
        self.last_sent = Instant::now();
    }

    /// Numbers a request and sends it.
    pub(super) fn ask(&mut self, mut request: Request) -> i32 {
        self.last_xid = self.last_xid.checked_add(1).unwrap_or(1);
        let mut frame = std::mem::take(&mut request.frame);
        wire::set_xid(&mut frame, self.last_xid);
        self.send(&frame);
        self.waiting.push_back(Waiting { xid: self.last_xid, request });
        self.last_xid
    }

    pub(super) fn ping(&mut self) {
        self.send(&wire::numbered(xid::PING, op::PING).finish());
        self.pinging = true;
    }

    /// Asks the server to end the session.
    pub(super) fn close(&mut self) {
        let frame = wire::request(op::CLOSE_SESSION).finish();
        self.closing = Some(self.ask(Request { frame, watch: None, reply: None }));
    }

    /// Fails all unanswered requests.
    pub(super) fn fail(&mut self, error: &Error) {
        self.waiting.drain(..).for_each(|waiting| waiting.request.fail(error));
    }
}
