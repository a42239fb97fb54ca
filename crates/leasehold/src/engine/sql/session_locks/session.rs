//! A connection that holds one lock, or waits for it.

use std::time::Duration;

use super::super::connection::{Connection, Reply, Value};
use super::super::error::Failure;
use super::session_pool::SessionPool;
use super::wire::{SessionStatements, Statement};
use crate::clock::{Clock, Instant};
use crate::types::{ClaimId, LockName, Mode, Token};

/// A connection. Dropping it closes it, and the server releases its locks.
#[derive(Debug)]
pub(super) struct Session {
    connection: Option<Connection>,
    clock: Clock,
    /// Time limit for an answer.
    reply_timeout: Duration,
    /// How long the server keeps it while idle.
    idle_timeout: Option<Duration>,
    /// When the last answered statement was sent.
    pub(super) last_answered_sent: Instant,
}

impl Session {
    /// Connects.
    pub(super) async fn open(pool: &SessionPool) -> Result<Self, Failure> {
        let connection = Connection::open(&pool.config).await?;
        let (clock, bound) = (pool.clock.clone(), pool.config.connect_timeout);
        let mut session = Self {
            connection: Some(connection),
            last_answered_sent: clock.now(),
            clock,
            reply_timeout: bound,
            idle_timeout: None,
        };
        session.execute_batch(&pool.wire.setup()).await?;
        if let Some(statement) = pool.wire.client_check_setup()
            && let Err(failure) = session.execute_batch(statement).await
        {
            tracing::debug!(?failure, "the server does not check waiting clients");
        }
        Ok(session)
    }

    fn connection(&mut self) -> Result<&mut Connection, Failure> {
        self.connection.as_mut().ok_or_else(|| Failure::ConnectionLost("the connection is closed".into()))
    }

    /// Runs a statement that must be answered soon, or the connection counts as broken.
    async fn run(&mut self, statement: &Statement) -> Result<Reply, Failure> {
        self.run_within(self.reply_timeout, statement).await
    }

    async fn run_within(&mut self, bound: Duration, (sql, values): &Statement) -> Result<Reply, Failure> {
        let (sent, clock) = (self.clock.now(), self.clock.clone());
        let connection = self.connection()?;
        let reply = match clock.timeout(bound, connection.run(sql, values)).await {
            Ok(reply) => reply?,
            Err(_) => return Err(self.time_out(bound)),
        };
        self.last_answered_sent = sent;
        Ok(reply)
    }

    async fn execute_batch(&mut self, sql: &str) -> Result<(), Failure> {
        let (sent, bound, clock) = (self.clock.now(), self.reply_timeout, self.clock.clone());
        let connection = self.connection()?;
        match clock.timeout(bound, connection.execute_batch(sql)).await {
            Ok(done) => done?,
            Err(_) => return Err(self.time_out(bound)),
        }
        self.last_answered_sent = sent;
        Ok(())
    }

    fn time_out(&mut self, bound: Duration) -> Failure {
        self.abort();
        Failure::timed_out(bound)
    }

    fn abort(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.abort();
        }
    }

    /// The server's number of this connection.
    pub(super) fn id(&self) -> i64 {
        self.connection.as_ref().map_or(0, Connection::id)
    }

    /// Whether it may be reused: the server has not closed it since.
    pub(super) fn is_reusable(&self, now: Instant) -> bool {
        let open = self.connection.as_ref().is_some_and(|connection| !connection.is_closed());
        open && self.idle_timeout.is_none_or(|lasts| now.duration_since(self.last_answered_sent) < lasts / 2)
    }

    /// Prepares it to hold a lock for `ttl`, and acquires the lock if it is free.
    pub(super) async fn try_acquire(
        &mut self,
        pool: &SessionPool,
        name: &LockName,
        mode: Mode,
        ttl: Duration,
    ) -> Result<bool, Failure> {
        let wire = &pool.wire;
        if wire.opens_transaction() && !pool.is_row_known(name) {
            self.create_row(wire, name).await?;
            pool.set_row_known(name, true);
        }
        if wire.opens_transaction() || self.idle_timeout != Some(ttl) {
            self.idle_timeout = Some(ttl);
            self.execute_batch(&wire.begin_hold(ttl)).await?;
        }
        let reply = self.run(&wire.try_acquire(name.as_str(), mode)).await?;
        Ok(wire.is_granted(&reply, name.as_str()))
    }

    /// Makes sure that there is a row to lock.
    async fn create_row(&mut self, wire: &SessionStatements, name: &LockName) -> Result<(), Failure> {
        use super::super::error::ErrorClass;
        if self.run(&wire.find_row(name.as_str())).await?.row().is_some() {
            return Ok(());
        }
        let (first, insert) = wire.insert_row(name.as_str());
        if let Some(first) = first {
            self.execute_batch(first).await?;
        }
        match self.run(&insert).await {
            Ok(_) => Ok(()),
            // Another client has created the row, and locked it.
            Err(failure) if failure.class(wire.dialect) == Some(ErrorClass::RowLocked) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Waits for the lock without a time limit. A caller that drops this future must end the
    /// statement with the [`StopHandle`], or drop the session.
    pub(super) async fn wait(
        &mut self,
        wire: &SessionStatements,
        name: &LockName,
        mode: Mode,
        mark: &str,
    ) -> Result<bool, Failure> {
        let (sql, values) = wire.wait(name.as_str(), mode, mark);
        let reply = self.connection()?.run(&sql, &values).await?;
        Ok(wire.is_granted(&reply, name.as_str()))
    }

    /// The handle that ends the wait.
    pub(super) fn stop_handle(&self, claim: ClaimId) -> StopHandle {
        StopHandle {
            id: self.id(),
            statement_mark: format!("lh-{:016x}", (claim.bits() >> 64) as u64),
            #[cfg(feature = "postgres")]
            cancel_token: self.connection.as_ref().and_then(Connection::cancel_token),
        }
    }

    /// Increments the counter on this connection: while the answer is awaited, the lock is held.
    pub(super) async fn token(&mut self, wire: &SessionStatements, name: &LockName) -> Result<Token, Failure> {
        let reply = self.run(&wire.token(name.as_str())).await?;
        wire.parse_token(&reply)
    }

    /// Whether the lock was held after this was sent. An answer later than a TTL is worthless.
    pub(super) async fn confirm_held(
        &mut self,
        wire: &SessionStatements,
        name: &LockName,
        within: Duration,
    ) -> Result<bool, Failure> {
        let reply = self.run_within(within, &wire.confirm_held(name.as_str())).await?;
        Ok(reply.value().and_then(Value::int) == Some(1))
    }

    /// Releases the lock. Returns whether it was held.
    pub(super) async fn release(
        &mut self,
        wire: &SessionStatements,
        name: &LockName,
        mode: Mode,
    ) -> Result<bool, Failure> {
        match wire.release(name.as_str(), mode) {
            Some(statement) => Ok(self.run(&statement).await?.value().and_then(Value::int) == Some(1)),
            None => self.execute_batch(wire.release_all()).await.map(|()| true),
        }
    }

    /// Releases everything that it may have.
    pub(super) async fn release_all(&mut self, wire: &SessionStatements) -> Result<(), Failure> {
        self.execute_batch(wire.release_all()).await
    }

    /// Returns when the connection has ended, if the driver notices that.
    pub(super) async fn wait_closed(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.wait_closed().await;
        }
    }

    /// Closes the connection in order.
    pub(super) async fn close(mut self) {
        if let Some(connection) = self.connection.take() {
            connection.close().await;
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.abort();
    }
}

/// Ends a waiting statement from another connection.
pub(super) struct StopHandle {
    id: i64,
    /// Identifies the statement: connection numbers restart with the server.
    pub(super) statement_mark: String,
    #[cfg(feature = "postgres")]
    cancel_token: Option<tokio_postgres::CancelToken>,
}

impl StopHandle {
    /// Requests the end; the statement's own answer shows the outcome.
    pub(super) async fn stop(&self, pool: &SessionPool) -> Result<(), String> {
        #[cfg(feature = "postgres")]
        if let Some(token) = &self.cancel_token {
            let tls = super::super::tls::Tls::new(pool.config.tls.as_ref())?;
            return token.cancel_query(tls).await.map_err(|error| error.to_string());
        }
        let mut side_pool = pool.side_pool.borrow_or_error().await.map_err(|error| error.to_string())?;
        let find = "SELECT COUNT(*) FROM information_schema.processlist WHERE id = ? AND info LIKE ?";
        let values = [self.id.into(), format!("%{}%", self.statement_mark).into()];
        let found = side_pool.run(find, &values).await.map_err(|failure| format!("{failure:?}"))?;
        if found.value().and_then(Value::int) != Some(1) {
            return Err("the statement is not there".to_owned());
        }
        // The same connection has just seen the statement: the server is the same, and uses no
        // number twice.
        side_pool.execute_batch(&format!("KILL QUERY {}", self.id)).await.map_err(|failure| format!("{failure:?}"))
    }
}
