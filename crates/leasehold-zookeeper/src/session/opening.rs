//! Opens a connection that continues the session.

use tokio::time::Instant;

use super::Session;
use super::connection::{Connection, ConnectionEvent};
use crate::address::Server;
use crate::error::{Error, Result};
use crate::transport::Transport;
use crate::wire::{self, ConnectResponse};

impl<D: Transport> Session<D> {
    /// Tries one server after the other until one serves the session.
    ///
    /// # Errors
    /// The session is over, or could not be opened.
    pub(super) async fn connect(&mut self) -> Result<Connection<D::Stream>> {
        self.servers.start_round();
        loop {
            let over = if self.is_opened { Error::SessionExpired } else { Error::Timeout };
            if Instant::now() >= self.deadline() {
                return Err(over);
            }
            let Some(server) = self.servers.next() else {
                if self.settings.fail_eagerly && !self.is_opened {
                    return Err(Error::NoHosts);
                }
                let pause = self.servers.pause(self.timeout);
                tokio::time::sleep_until(self.deadline().min(Instant::now() + pause)).await;
                self.servers.start_round();
                continue;
            };
            match self.try_server(&server).await {
                Ok(connection) => {
                    tracing::debug!(server = server.host, port = server.port, "connected");
                    return Ok(connection);
                }
                Err(why) if why == Error::AuthFailed || (self.is_opened && why.ends_session()) => return Err(why),
                // It responds, but is not ZooKeeper: retrying does not help.
                Err(why @ Error::Malformed(_)) if self.settings.fail_eagerly && !self.is_opened => return Err(why),
                Err(why) => tracing::debug!(server = server.host, port = server.port, %why, "no connection"),
            }
        }
    }

    /// Connects to one server, and opens or resumes the session there.
    async fn try_server(&mut self, server: &Server) -> Result<Connection<D::Stream>> {
        let until = self.deadline().min(Instant::now() + self.max_silence());
        let dialed = tokio::time::timeout_at(until, self.transport.connect(server)).await;
        let stream = dialed.map_err(|_| Error::ConnectionLoss)?.map_err(|why| {
            tracing::debug!(server = server.host, port = server.port, %why, "cannot be reached");
            Error::ConnectionLoss
        })?;
        let mut connection = Connection::new(stream, until);
        self.open_session(&mut connection).await?;
        connection.set_alarm(Instant::now() + self.max_silence());
        self.restore(&mut connection).await?;
        Ok(connection)
    }

    /// Resumes this session, or requests a new one.
    async fn open_session(&mut self, connection: &mut Connection<D::Stream>) -> Result<()> {
        if !self.is_opened {
            // An earlier attempt may have opened a session whose reply was lost: that one expires.
            (self.id, self.password) = (0, vec![0; 16]);
        }
        let timeout = i32::try_from(self.settings.session_timeout.as_millis()).unwrap_or(i32::MAX);
        connection.send(&wire::connect_request(self.last_zxid, timeout, self.id, &self.password));
        let frame = loop {
            if let Some(frame) = connection.received.next()? {
                break frame;
            }
            wait_for_event(connection).await?;
        };
        let connected = ConnectResponse::read(&frame)?;
        if self.is_opened && connected.id != self.id {
            return Err(Error::Malformed("a session other than the requested one"));
        }
        self.last_heard = Instant::now();
        self.timeout = std::time::Duration::from_millis(u64::from(connected.timeout_ms));
        (self.id, self.password) = (connected.id, connected.password);
        Ok(())
    }

    /// Logs in, sets the watches again, and waits until the server has processed all of it.
    async fn restore(&mut self, connection: &mut Connection<D::Stream>) -> Result<()> {
        #[cfg(feature = "sasl")]
        self.log_in(connection).await?;
        for (scheme, secret) in &self.settings.logins {
            connection.send(&wire::auth(scheme, secret));
        }
        for packet in wire::set_watches_packets(self.last_zxid, &self.watches.watched_paths()) {
            connection.send(&packet);
        }
        // The reply to this comes last. A server that requires a login refuses it.
        connection.ping();
        while connection.is_pinging {
            wait_for_event(connection).await?;
            self.read_frames(connection)?;
        }
        Ok(())
    }

    /// Logs in by SASL, if that is configured.
    #[cfg(feature = "sasl")]
    async fn log_in(&mut self, connection: &mut Connection<D::Stream>) -> Result<()> {
        let Some(options) = &self.settings.sasl else { return Ok(()) };
        let mut exchange = crate::sasl::SaslExchange::new(options.clone());
        let mut message = Some(Vec::new());
        while let Some(token) = message {
            let mut writer = wire::request(wire::op::SASL);
            writer.buffer(&token);
            let (reply, mut answer) = tokio::sync::oneshot::channel();
            connection.send_request(super::Request { frame: writer.finish(), watch: None, reply: Some(reply) });
            let answer = loop {
                if let Ok(answer) = answer.try_recv() {
                    break answer;
                }
                wait_for_event(connection).await?;
                self.read_frames(connection)?;
            };
            let challenge = answer.read(|reader| reader.buffer().map(<[u8]>::to_vec))?;
            message = exchange.respond(&challenge)?;
        }
        Ok(())
    }
}

/// Waits for one event on a connection that accepts no requests yet.
async fn wait_for_event<S: crate::transport::ByteStream>(connection: &mut Connection<S>) -> Result<()> {
    match connection.next_event(None).await {
        Ok(ConnectionEvent::Alarm) | Err(_) => Err(Error::ConnectionLoss),
        Ok(_) => Ok(()),
    }
}
