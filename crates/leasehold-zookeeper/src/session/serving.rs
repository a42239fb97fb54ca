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
    pub(super) async fn serve(&mut self, connection: &mut Connection<D::Stream>, commands: &mut CommandQueue) -> Error {
        commands.is_open = true;
        connection.set_alarm(Instant::now());
        loop {
            let done = match connection.next_event(Some(commands)).await {
                Err(why) => {
                    tracing::debug!(%why, "the connection broke");
                    Err(Error::ConnectionLoss)
                }
                Ok(ConnectionEvent::Received) => self.read_frames(connection),
                Ok(ConnectionEvent::Written) => Ok(()),
                Ok(ConnectionEvent::Alarm) => self.check_timers(connection),
                Ok(ConnectionEvent::Commands) => {
                    self.send_commands(connection, commands);
                    Ok(())
                }
            };
            if let Err(why) = done {
                return why;
            }
        }
    }

    /// Sends a ping when it is due, and closes the connection to an unresponsive server.
    fn check_timers(&self, connection: &mut Connection<D::Stream>) -> Result<()> {
        let (now, silence) = (Instant::now(), self.max_silence());
        let given_up = self.last_heard + silence;
        if now >= given_up {
            return Err(Error::ConnectionLoss);
        }
        if !connection.is_pinging && now >= connection.last_sent + silence / 2 {
            connection.ping();
        }
        connection.set_alarm(if connection.is_pinging {
            given_up
        } else {
            given_up.min(connection.last_sent + silence / 2)
        });
        Ok(())
    }

    /// Sends the requests that clients have made; closes the session if the last client was
    /// dropped.
    fn send_commands(&mut self, connection: &mut Connection<D::Stream>, commands: &mut CommandQueue) {
        if commands.batch.is_empty() {
            // The last client was dropped.
            commands.is_open = false;
            connection.close();
        }
        for command in commands.batch.drain(..) {
            match command {
                SessionCommand::Request(request) => drop(connection.send_request(request)),
                SessionCommand::Unwatch { interest, path } => self.unwatch(connection, interest, &path),
            }
        }
    }

    /// A watcher was dropped: removes the server's watch, unless another watcher needs it.
    fn unwatch(&mut self, connection: &mut Connection<D::Stream>, interest: WatchKind, path: &str) {
        let is_same = |watch: &Option<(WatchKind, String)>| {
            watch.as_ref().is_some_and(|(other, at)| other.watcher_type() == interest.watcher_type() && at == path)
        };
        // The removal would also remove a watch that was requested before it, and is not confirmed
        // yet.
        let pending = connection.pending.iter().any(|waiting| is_same(&waiting.request.watch));
        if self.watches.remove_dropped(interest, path) && !pending {
            let mut writer = wire::request(op::REMOVE_WATCHES);
            writer.text(path);
            writer.int(interest.watcher_type());
            connection.send_request(Request { frame: writer.finish(), watch: None, reply: None });
        }
    }

    /// Reads the frames that have arrived.
    pub(super) fn read_frames(&mut self, connection: &mut Connection<D::Stream>) -> Result<()> {
        self.last_heard = Instant::now();
        while let Some(frame) = connection.received.next()? {
            self.handle_frame(connection, frame)?;
        }
        Ok(())
    }

    fn handle_frame(&mut self, connection: &mut Connection<D::Stream>, frame: Vec<u8>) -> Result<()> {
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
                connection.is_pinging = false;
                Ok(())
            }
            xid::AUTH | xid::SET_WATCHES => failed.map_or(Ok(()), Err),
            _ => self.handle_reply(connection, header, failed, frame),
        }
    }

    /// Handles a reply, which belongs to the oldest unanswered request.
    fn handle_reply(
        &mut self,
        connection: &mut Connection<D::Stream>,
        header: Header,
        failed: Option<Error>,
        frame: Vec<u8>,
    ) -> Result<()> {
        if connection.pending.front().is_none_or(|waiting| waiting.xid != header.xid) {
            return Err(Error::Malformed("a reply without a request"));
        }
        let Some(waiting) = connection.pending.pop_front() else { return Ok(()) };
        if connection.close_xid == Some(header.xid) {
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
