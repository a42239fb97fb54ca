//! Serves a connection while it lasts.

use tokio::time::Instant;

use super::connection::{CommandQueue, Connection, ConnectionEvent};
use super::{Request, Session, SessionCommand, WatchKind};
use crate::client::Answer;
use crate::error::{Error, Result};
use crate::jute::Reader;
use crate::transport::Transport;
use crate::types::EventType;
use crate::wire::{self, Header, op, xid};

impl<D: Transport> Session<D> {
    /// Serves requests until the connection breaks or the session ends, and returns the reason.
    pub(super) async fn serve(&mut self, link: &mut Connection<D::Stream>, intake: &mut CommandQueue) -> Error {
        intake.is_open = true;
        link.set_alarm(Instant::now());
        loop {
            let done = match link.next_event(Some(intake)).await {
                Err(why) => {
                    tracing::debug!(%why, "the connection broke");
                    Err(Error::ConnectionLoss)
                }
                Ok(ConnectionEvent::Received) => self.read_frames(link),
                Ok(ConnectionEvent::Written) => Ok(()),
                Ok(ConnectionEvent::Alarm) => self.check_timers(link),
                Ok(ConnectionEvent::Commands) => {
                    self.send_commands(link, intake);
                    Ok(())
                }
            };
            if let Err(why) = done {
                return why;
            }
        }
    }

    /// Sends a ping when it is due, and closes the connection to an unresponsive server.
    fn check_timers(&self, link: &mut Connection<D::Stream>) -> Result<()> {
        let (now, silence) = (Instant::now(), self.max_silence());
        let given_up = self.last_heard + silence;
        if now >= given_up {
            return Err(Error::ConnectionLoss);
        }
        if !link.is_pinging && now >= link.last_sent + silence / 2 {
            link.ping();
        }
        link.set_alarm(if link.is_pinging { given_up } else { given_up.min(link.last_sent + silence / 2) });
        Ok(())
    }

    fn send_commands(&mut self, link: &mut Connection<D::Stream>, intake: &mut CommandQueue) {
        if intake.batch.is_empty() {
            // The last client was dropped.
            intake.is_open = false;
            link.close();
        }
        for command in intake.batch.drain(..) {
            match command {
                SessionCommand::Request(request) => drop(link.send_request(request)),
                SessionCommand::Unwatch { interest, path } => self.unwatch(link, interest, &path),
            }
        }
    }

    /// A watcher was dropped: removes the server's watch, unless another watcher needs it.
    fn unwatch(&mut self, link: &mut Connection<D::Stream>, interest: WatchKind, path: &str) {
        let wanted = |watch: &Option<(WatchKind, String)>| {
            watch.as_ref().is_some_and(|(other, at)| other.watcher_type() == interest.watcher_type() && at == path)
        };
        // The removal would also remove a watch that was requested before it, and is not confirmed
        // yet.
        let pending = link.pending.iter().any(|waiting| wanted(&waiting.request.watch));
        if self.watches.remove_dropped(interest, path) && !pending {
            let mut writer = wire::request(op::REMOVE_WATCHES);
            writer.text(path);
            writer.int(interest.watcher_type());
            link.send_request(Request { frame: writer.finish(), watch: None, reply: None });
        }
    }

    /// Reads the frames that have arrived.
    pub(super) fn read_frames(&mut self, link: &mut Connection<D::Stream>) -> Result<()> {
        self.last_heard = Instant::now();
        while let Some(frame) = link.received.next()? {
            self.handle_frame(link, frame)?;
        }
        Ok(())
    }

    fn handle_frame(&mut self, link: &mut Connection<D::Stream>, frame: Vec<u8>) -> Result<()> {
        let header = Header::read(&mut Reader::new(&frame))?;
        let failed = (header.code != 0).then(|| Error::from_code(header.code));
        if let Some(error) = failed.as_ref().filter(|error| error.ends_session()) {
            return Err(error.clone());
        }
        match header.xid {
            xid::EVENT => {
                let mut reader = Reader::new(&frame[Header::LENGTH..]);
                let (event, _state, path) = (reader.int()?, reader.int()?, reader.text()?);
                self.watches.deliver(EventType::from_server(event)?, path);
                Ok(())
            }
            xid::PING => {
                link.is_pinging = false;
                Ok(())
            }
            xid::AUTH | xid::SET_WATCHES => failed.map_or(Ok(()), Err),
            _ => self.handle_reply(link, header, failed, frame),
        }
    }

    /// Handles a reply, which belongs to the oldest unanswered request.
    fn handle_reply(
        &mut self,
        link: &mut Connection<D::Stream>,
        header: Header,
        failed: Option<Error>,
        frame: Vec<u8>,
    ) -> Result<()> {
        if link.pending.front().is_none_or(|waiting| waiting.xid != header.xid) {
            return Err(Error::Malformed("a reply without a request"));
        }
        let Some(waiting) = link.pending.pop_front() else { return Ok(()) };
        if link.close_xid == Some(header.xid) {
            return Err(Error::ClientClosed);
        }
        self.last_zxid = self.last_zxid.max(header.zxid);
        let mut request = waiting.request;
        let watcher = match (request.watch.take(), &failed) {
            (Some((interest, path)), None) => Some(self.watches.add(interest, path, true)),
            (Some((WatchKind::Exists, path)), Some(Error::NoNode)) => {
                Some(self.watches.add(WatchKind::Exists, path, false))
            }
            _ => None,
        };
        let moved = failed == Some(Error::SessionMoved);
        request.answer(Answer { frame: failed.map_or(Ok(frame), Err), watcher });
        // The server would refuse the other requests as well: the session continues over another
        // connection.
        if moved { Err(Error::ConnectionLoss) } else { Ok(()) }
    }
}
