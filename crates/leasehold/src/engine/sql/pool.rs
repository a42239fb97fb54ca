//! A limited number of connections, opened when needed and kept.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::config::Config;
use super::connection::{Connection, ROW_LOCK_TIMEOUT, Reply, Value};
use super::error::{ErrorClass, Failure};
use crate::clock::{Clock, Instant};
use crate::logic::backoff;
use crate::types::{Error, Result};

/// A statement that is abandoned sooner had a caller that did not wait for the answer; later, the
/// connection may be dead. Shorter than the shortest time limit of a step.
const UNRESPONSIVE_AFTER: Duration = Duration::from_millis(200);

/// How long a server that refused a connection counts as short of them.
const SHORTAGE_PERIOD: Duration = Duration::from_secs(10);

/// The connections of one engine.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) config: Arc<Config>,
    /// The servers, for errors.
    pub(super) server: String,
    idle: Mutex<IdleConnections>,
    permits: Arc<Semaphore>,
    /// Whether each connection is known to have a session of its own.
    has_own_sessions: AtomicBool,
    shortage: Shortage,
    read_only: Mutex<ReadOnlyBackoff>,
}

/// The back-off for a server that refuses writes. Each refusal ends its connection, so that without
/// pauses every statement would open another one.
#[derive(Debug, Default)]
struct ReadOnlyBackoff {
    /// How often it refused in a row, and the last refusal.
    refusals: u32,
    last: Option<(Instant, Failure)>,
    /// Until when no connection is opened.
    until: Instant,
}

/// The first and the longest pause before the next connection to a server that refuses writes. The
/// shortest TTL is longer than a few of them.
const READ_ONLY_BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));

/// After this time without a refusal the pauses start small again.
const BACKOFF_RESET: Duration = Duration::from_secs(1);

impl ReadOnlyBackoff {
    fn record_refusal(&mut self, failure: &Failure, now: Instant) {
        if self.last.as_ref().is_none_or(|(at, _)| now.duration_since(*at) >= BACKOFF_RESET) {
            self.refusals = 0;
        }
        let (first, max_pause) = READ_ONLY_BACKOFF;
        self.until = now.saturating_add(backoff::pause(self.refusals, first, max_pause, 0));
        self.refusals += 1;
        self.last = Some((now, failure.clone()));
    }
}

/// The back-off for a server that has too few connections.
#[derive(Debug, Default)]
struct Shortage {
    /// Until when it counts as short of them.
    until: Mutex<Instant>,
    /// How often it has refused one.
    refusals: AtomicU64,
    /// How many locks this client holds: while it holds any, it keeps its connections.
    held_locks: AtomicUsize,
}

/// The idle connections.
#[derive(Debug, Default)]
struct IdleConnections {
    connections: Vec<IdleConnection>,
    /// When any of our connections last answered.
    last_reply: Option<Instant>,
    /// Connections that last answered before this moment may be dead.
    suspect_before: Option<Instant>,
}

impl IdleConnections {
    /// The one used last, and whether it is reliable. The server may close the others as idle.
    fn pop(&mut self) -> Option<(IdleConnection, bool)> {
        self.connections.retain(|idle| !idle.connection.is_closed());
        let idle = self.connections.pop()?;
        let is_usable = self.suspect_before.is_none_or(|since| idle.last_reply >= since);
        Some((idle, is_usable))
    }
}

/// An idle connection.
#[derive(Debug)]
struct IdleConnection {
    connection: Connection,
    /// When it last answered.
    last_reply: Instant,
}

impl Pool {
    /// An empty pool, with the URL's limit.
    pub(super) fn new(config: &Arc<Config>) -> Arc<Self> {
        Self::with_limit(config, config.connections)
    }

    /// An empty pool with this limit.
    pub(super) fn with_limit(config: &Arc<Config>, connections: usize) -> Arc<Self> {
        let hosts: Vec<String> = config.servers.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        let permits = Arc::new(Semaphore::new(connections));
        Arc::new(Self {
            config: Arc::clone(config),
            server: hosts.join(","),
            idle: Mutex::default(),
            permits,
            has_own_sessions: AtomicBool::new(false),
            shortage: Shortage::default(),
            read_only: Mutex::default(),
        })
    }

    /// The same as [`borrow`](Self::borrow), with the library's error.
    pub(super) async fn borrow_or_error(self: &Arc<Self>) -> Result<PooledConnection> {
        self.borrow().await.map_err(|failure| self.to_error(&failure))
    }

    /// A connection, as soon as one is free; requests are served in order.
    pub(super) async fn borrow(self: &Arc<Self>) -> Result<PooledConnection, Failure> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| Failure::Closed)?;
        let next = self.lock_idle().pop();
        match next {
            Some((idle, true)) => Ok(PooledConnection::new(idle, self, permit)),
            Some((idle, false)) => {
                self.ensure_can_open()?;
                // Counts as ours until it has ended, and delays the next one.
                let _ = self.config.clock.timeout(ROW_LOCK_TIMEOUT, idle.connection.close()).await;
                self.open(permit).await
            }
            None => {
                self.ensure_can_open()?;
                self.open(permit).await
            }
        }
    }

    /// Refuses while the server was found to be read-only just before.
    pub(super) fn ensure_can_open(&self) -> Result<(), Failure> {
        let read_only = lock(&self.read_only);
        match &read_only.last {
            Some((_, failure)) if self.config.clock.now() < read_only.until => Err(failure.clone()),
            _ => Ok(()),
        }
    }

    /// Opens a connection in the background. If the caller stops waiting, the connection goes to
    /// the next caller instead of being left to the server. If it does not open soon after that,
    /// its permit is returned: the network may be down, and the next try may work.
    async fn open(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Result<PooledConnection, Failure> {
        let (pool, (wanted, unwanted)) = (Arc::clone(self), oneshot::channel::<()>());
        let opening = tokio::spawn(async move {
            let mut link = tokio::select! {
                link = Connection::open(&pool.config) => link.inspect_err(|failure| pool.note_refusal(failure))?,
                () = caller_gone(unwanted, &pool.config.clock) => return Err(Failure::Closed),
            };
            if pool.has_own_sessions.load(Ordering::SeqCst) {
                link.mark_own_session();
            }
            Ok(PooledConnection::new(
                IdleConnection { connection: link, last_reply: pool.config.clock.now() },
                &pool,
                permit,
            ))
        });
        let opened = opening.await.unwrap_or_else(|_| Err(Failure::Closed));
        drop(wanted);
        opened
    }

    /// Notes that each connection has a session of its own: sessions may keep state.
    pub(super) fn mark_own_sessions(&self) {
        self.has_own_sessions.store(true, Ordering::SeqCst);
    }

    /// Whether each connection is known to have a session of its own.
    pub(super) fn has_own_sessions(&self) -> bool {
        self.has_own_sessions.load(Ordering::SeqCst)
    }

    /// Notes a refused connection. If the server had none to spare, it counts as short of them for
    /// a while.
    pub(super) fn note_refusal(&self, failure: &Failure) {
        self.note_read_only(failure);
        if failure.class(self.config.dialect) == Some(ErrorClass::TooManyConnections) {
            self.shortage.refusals.fetch_add(1, Ordering::SeqCst);
            let mut until = lock(&self.shortage.until);
            *until = (*until).max(self.config.clock.now().saturating_add(SHORTAGE_PERIOD));
        }
    }

    /// Notes a refusal by a server that refuses writes: its next connection waits.
    fn note_read_only(&self, failure: &Failure) {
        if failure.class(self.config.dialect) == Some(ErrorClass::ReadOnly) {
            lock(&self.read_only).record_refusal(failure, self.config.clock.now());
        }
    }

    /// How often the server has refused a connection because it had none to spare.
    pub(super) fn refusals(&self) -> u64 {
        self.shortage.refusals.load(Ordering::SeqCst)
    }

    /// Whether the server counts as short of connections.
    pub(super) fn has_shortage(&self) -> bool {
        self.config.clock.now() < *lock(&self.shortage.until)
    }

    /// Notes that the server is short of connections for this long.
    pub(super) fn set_shortage_for(&self, time: Duration) {
        *lock(&self.shortage.until) = self.config.clock.now().saturating_add(time);
        self.close_idle();
    }

    /// Notes whether the server is short of connections until further notice. If so, idle ones are
    /// closed.
    pub(super) fn set_shortage(&self, short: bool) {
        *lock(&self.shortage.until) = if short { Instant::NEVER } else { Instant::default() };
        self.close_idle();
    }

    /// Sets how many locks this client holds.
    pub(super) fn set_held_locks(&self, holds: usize) {
        self.shortage.held_locks.store(holds, Ordering::SeqCst);
    }

    /// Whether idle connections are closed: the server is short of them, and this client holds no
    /// lock.
    pub(super) fn is_releasing_idle(&self) -> bool {
        self.shortage.held_locks.load(Ordering::SeqCst) == 0 && self.has_shortage()
    }

    /// Closes the idle connections, if the server needs them.
    fn close_idle(&self) {
        if !self.is_releasing_idle() {
            return;
        }
        for idle in std::mem::take(&mut self.lock_idle().connections) {
            close_in_background(idle.connection, None);
        }
    }

    /// Adds a connection that was opened elsewhere.
    pub(super) fn adopt(&self, mut link: Connection) {
        if self.has_own_sessions.load(Ordering::SeqCst) {
            link.mark_own_session();
        }
        let received_at = self.config.clock.now();
        self.lock_idle().connections.push(IdleConnection { connection: link, last_reply: received_at });
    }

    /// Runs one statement on any connection. Its time limit is that of connecting.
    pub(super) async fn run(self: &Arc<Self>, sql: &str, values: &[Value]) -> Result<Reply, Failure> {
        let within = self.config.connect_timeout;
        let mut link = self.borrow().await?;
        self.config
            .clock
            .timeout(within, link.run(sql, values))
            .await
            .unwrap_or_else(|_| Err(Failure::timed_out(within)))
    }

    /// Closes the idle connections instead of reusing them: one of them was dead.
    pub(super) fn discard_idle(&self) {
        self.lock_idle().suspect_before = Some(self.config.clock.now());
    }

    /// The same, if none has answered since that moment: one was unresponsive from then on, and the
    /// others may be, too. If one has answered, a locked row or a busy server may be the reason,
    /// and the connection used last is alive.
    fn discard_unresponsive(&self, since: Instant) {
        let mut idle = self.lock_idle();
        if idle.last_reply < Some(since) {
            idle.suspect_before = idle.suspect_before.max(Some(since));
        }
    }

    fn lock_idle(&self) -> MutexGuard<'_, IdleConnections> {
        lock(&self.idle)
    }

    pub(super) fn to_error(&self, failure: &Failure) -> Error {
        failure.to_error(self.config.dialect, &self.server)
    }

    /// Closes all connections, and those in use when they return.
    pub(super) async fn close(&self) {
        self.permits.close();
        let idle = std::mem::take(&mut self.lock_idle().connections);
        for idle in idle {
            idle.connection.close().await;
        }
    }
}

/// Closes a connection in the background; until then it counts as ours.
fn close_in_background(link: Connection, permit: Option<OwnedSemaphorePermit>) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move {
            link.close().await;
            drop(permit);
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns some time after the caller has stopped waiting.
async fn caller_gone(unwanted: oneshot::Receiver<()>, clock: &Clock) {
    // The channel only closes; no value is sent.
    let _ = unwanted.await;
    clock.sleep(ROW_LOCK_TIMEOUT).await;
}

/// A connection from the pool. It returns when dropped, unless it broke or a statement is
/// unfinished.
#[derive(Debug)]
pub(super) struct PooledConnection {
    connection: Option<Connection>,
    pool: Arc<Pool>,
    permit: Option<OwnedSemaphorePermit>,
    /// When the statement under way was sent.
    statement_sent: Option<Instant>,
    /// When it last answered.
    last_reply: Instant,
    /// Whether it can be reused.
    is_reusable: bool,
}

impl PooledConnection {
    fn new(idle: IdleConnection, pool: &Arc<Pool>, permit: OwnedSemaphorePermit) -> Self {
        let IdleConnection { connection: link, last_reply } = idle;
        Self {
            connection: Some(link),
            pool: Arc::clone(pool),
            permit: Some(permit),
            statement_sent: None,
            last_reply,
            is_reusable: true,
        }
    }

    /// Runs one statement.
    pub(super) async fn run(&mut self, sql: &str, values: &[Value]) -> Result<Reply, Failure> {
        let result = self.begin_statement()?.run(sql, values).await;
        self.end_statement(result)
    }

    /// Runs statements without values or rows.
    pub(super) async fn script(&mut self, sql: &str) -> Result<(), Failure> {
        let result = self.begin_statement()?.execute_batch(sql).await;
        self.end_statement(result)
    }

    fn begin_statement(&mut self) -> Result<&mut Connection, Failure> {
        self.statement_sent = Some(self.pool.config.clock.now());
        self.connection.as_mut().ok_or_else(|| Failure::ConnectionLost("the connection is closed".into()))
    }

    fn end_statement<T>(&mut self, result: Result<T, Failure>) -> Result<T, Failure> {
        self.statement_sent = None;
        if let Err(failure) = &result {
            self.pool.note_read_only(failure);
        }
        self.is_reusable = !result.as_ref().is_err_and(|failure| failure.ends_connection(self.pool.config.dialect));
        if self.is_reusable {
            self.last_reply = self.pool.config.clock.now();
            self.pool.lock_idle().last_reply = Some(self.last_reply);
        }
        result
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        let Some(link) = self.connection.take() else { return };
        if link.is_closed() || self.pool.permits.is_closed() {
            return;
        }
        if self.statement_sent.is_none() && self.is_reusable && self.pool.is_releasing_idle() {
            close_in_background(link, self.permit.take());
            return;
        }
        if let Some(asked) = self.statement_sent {
            let clock = self.pool.config.clock.clone();
            if clock.now().duration_since(asked) >= UNRESPONSIVE_AFTER {
                self.pool.discard_unresponsive(asked);
            }
            // The server may still work on the statement for a while: until then, this connection
            // counts as ours.
            if let (Ok(runtime), Some(permit)) = (tokio::runtime::Handle::try_current(), self.permit.take()) {
                runtime.spawn(async move {
                    link.abandon(&clock).await;
                    drop(permit);
                });
            }
        } else if self.is_reusable {
            self.pool.lock_idle().connections.push(IdleConnection { connection: link, last_reply: self.last_reply });
        }
    }
}
