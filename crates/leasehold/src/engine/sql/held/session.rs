//! A connection that holds one lock, or waits for it.

use std::time::Duration;

use super::super::error::Failure;
use super::super::link::{Link, Reply, Value};
use super::room::Room;
use super::wire::{Statement, Wire};
use crate::claim::{ClaimId, Mode, Token};
use crate::clock::{Clock, Moment};
use crate::name::LockName;

/// A connection. Dropping it cuts it, and the server releases what it had.
#[derive(Debug)]
pub(super) struct Session {
    link: Option<Link>,
    clock: Clock,
    /// Time limit for an answer.
    bound: Duration,
    /// How long the server keeps it while idle.
    lasts: Option<Duration>,
    /// When the last answered statement was sent.
    pub(super) used: Moment,
}

impl Session {
    /// Connects.
    pub(super) async fn open(room: &Room) -> Result<Self, Failure> {
        let link = Link::open(&room.config).await?;
        let (clock, bound) = (room.clock.clone(), room.config.connect_timeout);
        let mut session = Self { link: Some(link), used: clock.now(), clock, bound, lasts: None };
        session.script(&room.wire.setup()).await?;
        if let Some(eyes) = room.wire.eyes()
            && let Err(failure) = session.script(eyes).await
        {
            tracing::debug!(?failure, "the server does not look after those who wait");
        }
        Ok(session)
    }

    fn link(&mut self) -> Result<&mut Link, Failure> {
        self.link.as_mut().ok_or_else(|| Failure::Broken("the connection is gone".into()))
    }

    /// Runs a statement that must be answered soon, or the connection counts as broken.
    async fn run(&mut self, statement: &Statement) -> Result<Reply, Failure> {
        self.run_within(self.bound, statement).await
    }

    async fn run_within(&mut self, bound: Duration, (sql, values): &Statement) -> Result<Reply, Failure> {
        let (sent, clock) = (self.clock.now(), self.clock.clone());
        let link = self.link()?;
        let reply = match clock.timeout(bound, link.run(sql, values)).await {
            Ok(reply) => reply?,
            Err(_) => return Err(self.silent(bound)),
        };
        self.used = sent;
        Ok(reply)
    }

    async fn script(&mut self, sql: &str) -> Result<(), Failure> {
        let (sent, bound, clock) = (self.clock.now(), self.bound, self.clock.clone());
        let link = self.link()?;
        match clock.timeout(bound, link.script(sql)).await {
            Ok(done) => done?,
            Err(_) => return Err(self.silent(bound)),
        }
        self.used = sent;
        Ok(())
    }

    fn silent(&mut self, bound: Duration) -> Failure {
        self.cut();
        Failure::silent(bound)
    }

    fn cut(&mut self) {
        if let Some(link) = self.link.take() {
            link.cut();
        }
    }

    /// The server's number of this connection.
    pub(super) fn id(&self) -> i64 {
        self.link.as_ref().map_or(0, Link::id)
    }

    /// Whether it may be reused: the server does not close it meanwhile.
    pub(super) fn is_fresh(&self, now: Moment) -> bool {
        let open = self.link.as_ref().is_some_and(|link| !link.is_closed());
        open && self.lasts.is_none_or(|lasts| now.since(self.used) < lasts / 2)
    }

    /// Prepares it to hold a lock for `ttl`, and acquires the lock if it is free.
    pub(super) async fn take(
        &mut self,
        room: &Room,
        name: &LockName,
        mode: Mode,
        ttl: Duration,
    ) -> Result<bool, Failure> {
        let wire = &room.wire;
        if wire.begins() && !room.knows_row(name) {
            self.make_row(wire, name).await?;
            room.note_row(name, true);
        }
        if wire.begins() || self.lasts != Some(ttl) {
            self.lasts = Some(ttl);
            self.script(&wire.begin(ttl)).await?;
        }
        let reply = self.run(&wire.take(name.as_str(), mode)).await?;
        Ok(wire.is_taken(&reply, name.as_str()))
    }

    /// Makes sure that there is a row to lock.
    async fn make_row(&mut self, wire: &Wire, name: &LockName) -> Result<(), Failure> {
        use super::super::error::Meaning;
        if self.run(&wire.find_row(name.as_str())).await?.row().is_some() {
            return Ok(());
        }
        let (first, insert) = wire.make_row(name.as_str());
        if let Some(first) = first {
            self.script(first).await?;
        }
        match self.run(&insert).await {
            Ok(_) => Ok(()),
            // Another client has created the row, and locked it.
            Err(failure) if failure.meaning(wire.dialect) == Some(Meaning::Occupied) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Waits for the lock without a time limit. A caller that drops this future must end the
    /// statement with the [`Stopper`], or drop the session.
    pub(super) async fn wait(&mut self, wire: &Wire, name: &LockName, mode: Mode, mark: &str) -> Result<bool, Failure> {
        let (sql, values) = wire.wait(name.as_str(), mode, mark);
        let reply = self.link()?.run(&sql, &values).await?;
        Ok(wire.is_taken(&reply, name.as_str()))
    }

    /// The handle that ends the wait.
    pub(super) fn stopper(&self, claim: ClaimId) -> Stopper {
        Stopper {
            id: self.id(),
            mark: format!("lh-{:016x}", (claim.bits() >> 64) as u64),
            #[cfg(feature = "postgres")]
            token: self.link.as_ref().and_then(Link::stopper),
        }
    }

    /// Increments the counter on this connection: while the answer is awaited, the lock is held.
    pub(super) async fn token(&mut self, wire: &Wire, name: &LockName) -> Result<Token, Failure> {
        let reply = self.run(&wire.token(name.as_str())).await?;
        wire.token_of(&reply)
    }

    /// Whether the lock was held after this was sent. An answer later than a TTL is worthless.
    pub(super) async fn prove(&mut self, wire: &Wire, name: &LockName, within: Duration) -> Result<bool, Failure> {
        let reply = self.run_within(within, &wire.prove(name.as_str())).await?;
        Ok(reply.value().and_then(Value::int) == Some(1))
    }

    /// Releases the lock. Returns whether it was held.
    pub(super) async fn give_back(&mut self, wire: &Wire, name: &LockName, mode: Mode) -> Result<bool, Failure> {
        match wire.give_back(name.as_str(), mode) {
            Some(statement) => Ok(self.run(&statement).await?.value().and_then(Value::int) == Some(1)),
            None => self.script(wire.clear()).await.map(|()| true),
        }
    }

    /// Releases everything that it may have.
    pub(super) async fn clear(&mut self, wire: &Wire) -> Result<(), Failure> {
        self.script(wire.clear()).await
    }

    /// Returns when the connection has ended, if the driver notices that.
    pub(super) async fn ended(&mut self) {
        if let Some(link) = &mut self.link {
            link.ended().await;
        }
    }

    /// Closes the connection in order.
    pub(super) async fn close(mut self) {
        if let Some(link) = self.link.take() {
            link.close().await;
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.cut();
    }
}

/// Ends a waiting statement from another connection.
pub(super) struct Stopper {
    id: i64,
    /// Identifies the statement: connection numbers restart with the server.
    pub(super) mark: String,
    #[cfg(feature = "postgres")]
    token: Option<tokio_postgres::CancelToken>,
}

impl Stopper {
    /// Requests the end; the statement's own answer shows the outcome.
    pub(super) async fn stop(&self, room: &Room) -> Result<(), String> {
        #[cfg(feature = "postgres")]
        if let Some(token) = &self.token {
            let tls = super::super::tls::Tls::new(room.config.tls.as_ref())?;
            return token.cancel_query(tls).await.map_err(|error| error.to_string());
        }
        let mut side = room.side.take().await.map_err(|error| error.to_string())?;
        let find = "SELECT COUNT(*) FROM information_schema.processlist WHERE id = ? AND info LIKE ?";
        let values = [self.id.into(), format!("%{}%", self.mark).into()];
        let found = side.run(find, &values).await.map_err(|failure| format!("{failure:?}"))?;
        if found.value().and_then(Value::int) != Some(1) {
            return Err("the statement is not there".to_owned());
        }
        // The same connection has just seen the statement: the server is the same, and uses no
        // number twice.
        side.script(&format!("KILL QUERY {}", self.id)).await.map_err(|failure| format!("{failure:?}"))
    }
}
