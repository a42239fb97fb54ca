//! Opens a connection on which the session goes on.

use tokio::time::Instant;

use super::Session;
use super::link::{Link, Turn};
use crate::address::Server;
use crate::dial::Dial;
use crate::error::{Error, Result};
use crate::wire::{self, Connected};

impl<D: Dial> Session<D> {
    /// Tries one server after the other until one serves the session.
    ///
    /// # Errors
    /// The session is over, or could not be opened.
    pub(super) async fn connect(&mut self) -> Result<Link<D::Stream>> {
        self.rota.begin();
        loop {
            let over = if self.opened { Error::SessionExpired } else { Error::Timeout };
            if Instant::now() >= self.end() {
                return Err(over);
            }
            let Some(server) = self.rota.next() else {
                if self.settings.fail_eagerly && !self.opened {
                    return Err(Error::NoHosts);
                }
                let pause = self.rota.pause(self.timeout);
                tokio::time::sleep_until(self.end().min(Instant::now() + pause)).await;
                self.rota.begin();
                continue;
            };
            match self.enter(&server).await {
                Ok(link) => {
                    tracing::debug!(server = server.host, port = server.port, "connected");
                    return Ok(link);
                }
                Err(why) if why == Error::AuthFailed || (self.opened && why.ends_session()) => return Err(why),
                // It responds, but is not ZooKeeper: retrying does not help.
                Err(why @ Error::Malformed(_)) if self.settings.fail_eagerly && !self.opened => return Err(why),
                Err(why) => tracing::debug!(server = server.host, port = server.port, %why, "no connection"),
            }
        }
    }

    /// Tries one server.
    async fn enter(&mut self, server: &Server) -> Result<Link<D::Stream>> {
        let until = self.end().min(Instant::now() + self.silence());
        let dialed = tokio::time::timeout_at(until, self.dial.dial(server)).await;
        let stream = dialed.map_err(|_| Error::ConnectionLoss)?.map_err(|why| {
            tracing::debug!(server = server.host, port = server.port, %why, "cannot be reached");
            Error::ConnectionLoss
        })?;
        let mut link = Link::new(stream, until);
        self.greet(&mut link).await?;
        link.set_alarm(Instant::now() + self.silence());
        self.restore(&mut link).await?;
        Ok(link)
    }

    /// Resumes this session, or requests a new one.
    async fn greet(&mut self, link: &mut Link<D::Stream>) -> Result<()> {
        if !self.opened {
            // A session that an earlier attempt may have opened expires.
            (self.id, self.password) = (0, vec![0; 16]);
        }
        let timeout = i32::try_from(self.settings.session_timeout.as_millis()).unwrap_or(i32::MAX);
        link.send(&wire::connect(self.last_zxid, timeout, self.id, &self.password));
        let frame = loop {
            if let Some(frame) = link.inbox.next()? {
                break frame;
            }
            quiet(link).await?;
        };
        let connected = Connected::read(&frame)?;
        if self.opened && connected.id != self.id {
            return Err(Error::Malformed("another session than that which was asked for"));
        }
        self.last_heard = Instant::now();
        self.timeout = std::time::Duration::from_millis(u64::from(connected.timeout_ms));
        (self.id, self.password) = (connected.id, connected.password);
        Ok(())
    }

    /// Logs in, sets the watches again, and waits until the server has processed all of it.
    async fn restore(&mut self, link: &mut Link<D::Stream>) -> Result<()> {
        #[cfg(feature = "sasl")]
        self.log_in(link).await?;
        for (scheme, secret) in &self.settings.logins {
            link.send(&wire::auth(scheme, secret));
        }
        for packet in wire::set_watches(self.last_zxid, &self.watches.watched()) {
            link.send(&packet);
        }
        // The answer to this comes last. A server that demands a login refuses it.
        link.ping();
        while link.pinging {
            quiet(link).await?;
            self.hear(link)?;
        }
        Ok(())
    }

    /// The SASL exchange.
    #[cfg(feature = "sasl")]
    async fn log_in(&mut self, link: &mut Link<D::Stream>) -> Result<()> {
        let Some(options) = &self.settings.sasl else { return Ok(()) };
        let mut dialogue = crate::sasl::Dialogue::new(options.clone());
        let mut said = Some(Vec::new());
        while let Some(token) = said {
            let mut writer = wire::request(wire::op::SASL);
            writer.buffer(&token);
            let (reply, mut answer) = tokio::sync::oneshot::channel();
            link.ask(super::Request { frame: writer.finish(), watch: None, reply: Some(reply) });
            let answer = loop {
                if let Ok(answer) = answer.try_recv() {
                    break answer;
                }
                quiet(link).await?;
                self.hear(link)?;
            };
            let challenge = answer.read(|reader| reader.buffer().map(<[u8]>::to_vec))?;
            said = dialogue.step(&challenge)?;
        }
        Ok(())
    }
}

/// Waits for one event on a connection that takes no requests yet.
async fn quiet<S: crate::dial::Stream>(link: &mut Link<S>) -> Result<()> {
    match link.turn(None).await {
        Ok(Turn::Alarm) | Err(_) => Err(Error::ConnectionLoss),
        Ok(_) => Ok(()),
    }
}
