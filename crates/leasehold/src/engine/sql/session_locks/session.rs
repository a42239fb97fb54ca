//! A database session that holds one lock, or waits for it.

use std::time::Duration;

use super::super::connection::{Connection, Reply, Value};
use super::super::error::Failure;
use super::session_pool::SessionPool;
use super::wire::{self, SessionStatements, Statement};
use crate::clock::{Clock, Instant};
use crate::types::{ClaimId, LockName, Mode, Token};

/// A connection with its session. Dropping it closes the connection, and the server releases the
/// session's locks.
#[derive(Debug)]
pub(super) struct Session {
    /// `None` after a statement had no answer in time.
    connection: Option<Connection>,
    clock: Clock,
    /// The time limit for answers.
    reply_timeout: Duration,
    /// How long the server keeps the session while it receives no statement; `None`: the server's
    /// default.
    idle_timeout: Option<Duration>,
    /// When the last statement was sent that was answered. The session existed after that moment.
    pub(super) last_answered_sent: Instant,
}

impl Session {
    /// Connects and sets up a session.
    pub(super) async fn open(pool: &SessionPool) -> Result<Self, Failure> {
        let connection = Connection::open(&pool.config).await?;
        let (clock, time_limit) = (pool.clock.clone(), pool.config.connect_timeout);
        let mut session = Self {
            connection: Some(connection),
            last_answered_sent: clock.now(),
            clock,
            reply_timeout: time_limit,
            idle_timeout: None,
        };
        session.execute_batch(&pool.wire.setup()).await?;
        if let Some(statement) = pool.wire.client_check_setup()
            && let Err(failure) = session.execute_batch(statement).await
        {
            tracing::debug!(
                ?failure,
                "the server does not support checks of waiting clients; a dead waiter is found later"
            );
        }
        Ok(session)
    }

    /// The connection; an error if it was closed.
    fn connection(&mut self) -> Result<&mut Connection, Failure> {
        self.connection.as_mut().ok_or_else(|| Failure::ConnectionLost("the connection is closed".into()))
    }

    /// Runs a statement. If there is no answer within the session's time limit, closes the
    /// connection.
    async fn run(&mut self, statement: &Statement) -> Result<Reply, Failure> {
        self.run_within(self.reply_timeout, statement).await
    }

    /// Runs a statement. If there is no answer within `time_limit`, closes the connection.
    async fn run_within(&mut self, time_limit: Duration, (sql, values): &Statement) -> Result<Reply, Failure> {
        let (sent, clock) = (self.clock.now(), self.clock.clone());
        let connection = self.connection()?;
        let reply = match clock.timeout(time_limit, connection.run(sql, values)).await {
            Ok(reply) => reply?,
            Err(_) => return Err(self.time_out(time_limit)),
        };
        self.last_answered_sent = sent;
        Ok(reply)
    }

    /// Sends statements without parameters and rows. If there is no answer within the session's
    /// time limit, closes the connection.
    async fn execute_batch(&mut self, sql: &str) -> Result<(), Failure> {
        let (sent, time_limit, clock) = (self.clock.now(), self.reply_timeout, self.clock.clone());
        let connection = self.connection()?;
        match clock.timeout(time_limit, connection.execute_batch(sql)).await {
            Ok(done) => done?,
            Err(_) => return Err(self.time_out(time_limit)),
        }
        self.last_answered_sent = sent;
        Ok(())
    }

    /// Closes the connection after a statement had no answer in time, and returns the failure.
    fn time_out(&mut self, time_limit: Duration) -> Failure {
        self.abort();
        Failure::timed_out(time_limit)
    }

    /// Closes the connection at once.
    fn abort(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.abort();
        }
    }

    /// The server's number of this session; 0 if the connection is closed.
    pub(super) fn id(&self) -> i64 {
        self.connection.as_ref().map_or(0, Connection::id)
    }

    /// Whether the session may be reused for another lock: it was used so recently that the server
    /// has not ended it.
    pub(super) fn is_reusable(&self, now: Instant) -> bool {
        let open = self.connection.as_ref().is_some_and(|connection| !connection.is_closed());
        open && self.idle_timeout.is_none_or(|lasts| now.duration_since(self.last_answered_sent) < lasts / 2)
    }

    /// Makes the server end the session after `ttl` without a statement, and acquires the lock if
    /// it is free. Returns whether it was acquired.
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

    /// Creates the row to lock, if it does not exist.
    async fn create_row(&mut self, wire: &SessionStatements, name: &LockName) -> Result<(), Failure> {
        use super::super::error::ErrorClass;
        if self.run(&wire.find_row(name.as_str())).await?.row().is_some() {
            return Ok(());
        }
        let (setup, insert) = wire.insert_row(name.as_str());
        if let Some(setup) = setup {
            self.execute_batch(setup).await?;
        }
        match self.run(&insert).await {
            Ok(_) => Ok(()),
            // Another client has created the row, and locked it.
            Err(failure) if failure.class(wire.dialect) == Some(ErrorClass::RowLocked) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Waits for the lock without a time limit; returns whether it was granted. `mark` identifies
    /// the statement in the server's process list. A caller that drops this future must cancel the
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

    /// A handle that can cancel this session's waiting statement.
    pub(super) fn stop_handle(&self, claim: ClaimId) -> StopHandle {
        StopHandle {
            id: self.id(),
            statement_mark: format!("lh-{:016x}", (claim.bits() >> 64) as u64),
            #[cfg(feature = "postgres")]
            cancel_token: self.connection.as_ref().and_then(Connection::cancel_token),
        }
    }

    /// Increments the lock's token counter on this session, so that the answer shows that the lock
    /// was held meanwhile. Returns the new token.
    pub(super) async fn next_token(&mut self, wire: &SessionStatements, name: &LockName) -> Result<Token, Failure> {
        let reply = self.run(&wire.next_token(name.as_str())).await?;
        if let Some(token) = wire.parse_token(&reply) {
            return Ok(token);
        }
        Err(wire::no_token(&self.run(&wire.token_format(name.as_str())).await?))
    }

    /// Asks the server whether the session still holds the lock. `within` is the time limit, at
    /// most the TTL, because a later answer shows nothing.
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

    /// Releases all locks that the session may have, and ends its transaction.
    pub(super) async fn release_all(&mut self, wire: &SessionStatements) -> Result<(), Failure> {
        self.execute_batch(wire.release_all()).await
    }

    /// Completes when the connection has ended. Never completes for MySQL, whose client library
    /// does not notice that.
    pub(super) async fn wait_closed(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.wait_closed().await;
        }
    }

    /// Ends the session and closes the connection.
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

/// Cancels a session's waiting statement, by way of another connection.
pub(super) struct StopHandle {
    /// The server's number of the session.
    id: i64,
    /// A text in the statement, by which it is found. The session's number alone is not enough,
    /// because numbers start again when the server restarts.
    pub(super) statement_mark: String,
    #[cfg(feature = "postgres")]
    cancel_token: Option<tokio_postgres::CancelToken>,
}

impl StopHandle {
    /// Asks the server to cancel the statement. Whether it was cancelled shows in the statement's
    /// own answer.
    pub(super) async fn stop(&self, pool: &SessionPool) -> Result<(), String> {
        #[cfg(feature = "postgres")]
        if let Some(token) = &self.cancel_token {
            let tls = super::super::tls::Tls::new(pool.config.tls.as_ref())?;
            return token.cancel_query(tls).await.map_err(|error| error.to_string());
        }
        let mut connection = pool.side_pool.borrow_or_error().await.map_err(|error| error.to_string())?;
        let find = "SELECT COUNT(*) FROM information_schema.processlist WHERE id = ? AND info LIKE ?";
        let values = [self.id.into(), format!("%{}%", self.statement_mark).into()];
        let found = connection.run(find, &values).await.map_err(|failure| format!("{failure:?}"))?;
        if found.value().and_then(Value::int) != Some(1) {
            return Err("the server does not list the statement".to_owned());
        }
        // The same connection has just seen the statement, so the number is still that session's.
        connection.execute_batch(&format!("KILL QUERY {}", self.id)).await.map_err(|failure| format!("{failure:?}"))
    }
}
