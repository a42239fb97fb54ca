//! The connection pool of one engine: a limited number of connections, opened when needed and
//! reused.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::config::Config;
use super::connection::{Connection, ROW_LOCK_TIMEOUT, Reply, Value};
use super::error::{ErrorClass, Failure};
use crate::clock::{Clock, Instant};
use crate::logic::backoff;
use crate::logic::connections::{self, ConnectionUsage};
use crate::types::{Error, Result};

/// If a caller drops a statement that has no answer for this long, the connection may be dead. If
/// it drops the statement sooner, it simply did not need the answer. Shorter than the shortest time
/// limit of a step.
const UNRESPONSIVE_AFTER: Duration = Duration::from_millis(200);

/// An idle connection that was not used for this long is closed, except the last one: after a burst
/// of statements, one connection does the work of a client.
const MAX_IDLE_TIME: Duration = Duration::from_secs(10);

/// How long the server counts as short of connections after it refused one for that reason.
const SHORTAGE_PERIOD: Duration = Duration::from_secs(10);

/// The connections of one engine.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) config: Arc<Config>,
    /// The servers as `host:port`, separated by commas, for errors.
    pub(super) server: String,
    idle: Mutex<IdleConnections>,
    /// One permit for each connection that the pool may have open and in use.
    permits: Arc<Semaphore>,
    /// Whether it is known that no pooler gives the sessions to other programs.
    has_own_sessions: AtomicBool,
    shortage: ConnectionShortage,
    read_only: Mutex<ReadOnlyBackoff>,
}

/// Delays new connections to a server that refuses writes. The pool closes a connection whose
/// statement was refused, so that without pauses every statement would open another one.
#[derive(Debug, Default)]
struct ReadOnlyBackoff {
    /// How many times in a row the server refused.
    refusals: u32,
    /// The last refusal and its time; `None` if there was none.
    last: Option<(Instant, Failure)>,
    /// No connection is opened before this time.
    until: Instant,
}

/// The first and the longest pause before the next connection to a server that refuses writes.
/// Several of the longest ones fit into the shortest TTL.
const READ_ONLY_BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));

/// After this time without a refusal, the next refusal causes the first pause again.
const BACKOFF_RESET: Duration = Duration::from_secs(1);

impl ReadOnlyBackoff {
    /// Notes a refusal, and sets the pause before the next connection.
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

/// What is known about a server that has too few connections for its clients.
#[derive(Debug, Default)]
struct ConnectionShortage {
    /// The server counts as short of connections before this time.
    until: Mutex<Instant>,
    /// How many times it refused a connection for that reason.
    refusals: AtomicU64,
    /// Whether more than half of its connections were in use, or it refused one, when that was last
    /// seen.
    is_scarce: AtomicBool,
    /// How many locks this client holds. A client that holds any keeps its connections.
    held_locks: AtomicUsize,
}

/// The idle connections.
#[derive(Debug, Default)]
struct IdleConnections {
    /// The one used last is at the end.
    connections: Vec<IdleConnection>,
    /// When any connection of the pool last answered; `None` if none has.
    last_reply: Option<Instant>,
    /// Idle connections that last answered before this time may be dead, and are not reused.
    suspect_before: Option<Instant>,
}

impl IdleConnections {
    /// Takes the connection that was used last, and whether it may be reused: `false` if it may be
    /// dead.
    fn pop(&mut self) -> Option<(IdleConnection, bool)> {
        self.connections.retain(|idle| !idle.connection.is_closed());
        let idle = self.connections.pop()?;
        let is_usable = self.suspect_before.is_none_or(|since| idle.last_reply >= since);
        Some((idle, is_usable))
    }
}

/// A connection that no caller uses.
#[derive(Debug)]
struct IdleConnection {
    connection: Connection,
    /// When it last answered.
    last_reply: Instant,
}

impl Pool {
    /// An empty pool, limited to the number of connections in the URL.
    pub(super) fn new(config: &Arc<Config>) -> Arc<Self> {
        Self::with_limit(config, config.connections)
    }

    /// An empty pool, limited to this number of connections.
    pub(super) fn with_limit(config: &Arc<Config>, connections: usize) -> Arc<Self> {
        let hosts: Vec<String> = config.servers.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        let permits = Arc::new(Semaphore::new(connections));
        Arc::new(Self {
            config: Arc::clone(config),
            server: hosts.join(","),
            idle: Mutex::default(),
            permits,
            has_own_sessions: AtomicBool::new(false),
            shortage: ConnectionShortage::default(),
            read_only: Mutex::default(),
        })
    }

    /// Does what [`borrow`](Self::borrow) does, and converts the failure to the library's error.
    pub(super) async fn borrow_or_error(self: &Arc<Self>) -> Result<PooledConnection> {
        self.borrow().await.map_err(|failure| self.to_error(&failure))
    }

    /// Waits for a free connection, in the order of the calls; opens one if none is idle and the
    /// limit allows.
    pub(super) async fn borrow(self: &Arc<Self>) -> Result<PooledConnection, Failure> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| Failure::Closed)?;
        let next = self.lock_idle().pop();
        match next {
            Some((idle, true)) => Ok(PooledConnection::new(idle, self, permit)),
            Some((idle, false)) => {
                self.ensure_can_open()?;
                // It counts towards the limit until it has ended, so the next one is opened after
                // that.
                let _ = self.config.clock.timeout(ROW_LOCK_TIMEOUT, idle.connection.close()).await;
                self.open(permit).await
            }
            None => {
                self.ensure_can_open()?;
                self.open(permit).await
            }
        }
    }

    /// Closes idle connections that were not used for long. Each counts towards the limit until it
    /// has ended.
    pub(super) fn close_unused(&self) {
        let now = self.config.clock.now();
        // Without a permit, all connections are in use.
        while let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            let mut idle = self.lock_idle();
            // The first was not used for longest.
            let is_unused = |first: &IdleConnection| now.duration_since(first.last_reply) >= MAX_IDLE_TIME;
            if idle.connections.len() < 2 || !idle.connections.first().is_some_and(is_unused) {
                return;
            }
            let unused = idle.connections.remove(0);
            drop(idle);
            close_in_background(unused.connection, Some(permit));
        }
    }

    /// Returns the last refusal if the server refused writes so recently that no connection may be
    /// opened yet.
    pub(super) fn ensure_can_open(&self) -> Result<(), Failure> {
        let read_only = lock(&self.read_only);
        match &read_only.last {
            Some((_, failure)) if self.config.clock.now() < read_only.until => Err(failure.clone()),
            _ => Ok(()),
        }
    }

    /// Opens a connection in the background. If the caller stops waiting, the connection becomes
    /// idle, for the next caller. If it is not open soon after that, it is given up and its permit
    /// is free again: the network may be down, and the next try may work.
    async fn open(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Result<PooledConnection, Failure> {
        let (pool, (caller, caller_dropped)) = (Arc::clone(self), oneshot::channel::<()>());
        let opening = tokio::spawn(async move {
            let mut connection = tokio::select! {
                connection = Connection::open(&pool.config) => connection.inspect_err(|failure| pool.note_refusal(failure))?,
                () = wait_caller_gone(caller_dropped, &pool.config.clock) => return Err(Failure::Closed),
            };
            if pool.has_own_sessions.load(Ordering::SeqCst) {
                connection.mark_own_session();
            }
            Ok(PooledConnection::new(IdleConnection { connection, last_reply: pool.config.clock.now() }, &pool, permit))
        });
        let opened = opening.await.unwrap_or_else(|_| Err(Failure::Closed));
        drop(caller);
        opened
    }

    /// Notes that no pooler gives the sessions to other programs, so that they may keep state.
    pub(super) fn mark_own_sessions(&self) {
        self.has_own_sessions.store(true, Ordering::SeqCst);
    }

    /// Whether it is known that no pooler gives the sessions to other programs.
    pub(super) fn has_own_sessions(&self) -> bool {
        self.has_own_sessions.load(Ordering::SeqCst)
    }

    /// Notes that a connection could not be opened. If the server had none left, it counts as short
    /// of connections for [`SHORTAGE_PERIOD`].
    pub(super) fn note_refusal(&self, failure: &Failure) {
        self.note_read_only(failure);
        if failure.class(self.config.dialect) == Some(ErrorClass::TooManyConnections) {
            self.shortage.refusals.fetch_add(1, Ordering::SeqCst);
            self.shortage.is_scarce.store(true, Ordering::SeqCst);
            let mut until = lock(&self.shortage.until);
            *until = (*until).max(self.config.clock.now().saturating_add(SHORTAGE_PERIOD));
        }
    }

    /// If the server refused writes, notes that, so that the next connection waits.
    fn note_read_only(&self, failure: &Failure) {
        if failure.class(self.config.dialect) == Some(ErrorClass::ReadOnly) {
            lock(&self.read_only).record_refusal(failure, self.config.clock.now());
        }
    }

    /// How many times the server has refused a connection because it had none left.
    pub(super) fn refusals(&self) -> u64 {
        self.shortage.refusals.load(Ordering::SeqCst)
    }

    /// Notes how many of the server's connections are in use.
    pub(super) fn note_usage(&self, usage: ConnectionUsage) {
        self.shortage.is_scarce.store(usage.is_scarce(), Ordering::SeqCst);
    }

    /// How long a client without a connection waits before it reads a row again. Random.
    pub(super) fn poll_pause(&self) -> Duration {
        let random = (crate::random::random_bits() & u128::from(u32::MAX)) as u32;
        connections::poll_pause(self.shortage.is_scarce.load(Ordering::SeqCst), random)
    }

    /// Whether the server counts as short of connections.
    pub(super) fn has_shortage(&self) -> bool {
        self.config.clock.now() < *lock(&self.shortage.until)
    }

    /// Notes that the server counts as short of connections for `period`. Closes idle ones, unless
    /// this client holds a lock.
    pub(super) fn set_shortage_for(&self, period: Duration) {
        *lock(&self.shortage.until) = self.config.clock.now().saturating_add(period);
        self.close_idle();
    }

    /// Sets whether the server counts as short of connections, until the next call. If so, closes
    /// idle ones, unless this client holds a lock.
    pub(super) fn set_shortage(&self, has_shortage: bool) {
        *lock(&self.shortage.until) = if has_shortage { Instant::NEVER } else { Instant::default() };
        self.close_idle();
    }

    /// Sets how many locks this client holds.
    pub(super) fn set_held_locks(&self, count: usize) {
        self.shortage.held_locks.store(count, Ordering::SeqCst);
    }

    /// Whether this client closes its idle connections instead of keeping them: the server is short
    /// of connections, and this client holds no lock.
    pub(super) fn is_releasing_idle(&self) -> bool {
        self.shortage.held_locks.load(Ordering::SeqCst) == 0 && self.has_shortage()
    }

    /// Closes the idle connections if the server is short of them and this client holds no lock.
    fn close_idle(&self) {
        if !self.is_releasing_idle() {
            return;
        }
        for idle in std::mem::take(&mut self.lock_idle().connections) {
            close_in_background(idle.connection, None);
        }
    }

    /// Adds a connection that was opened outside the pool to the idle ones.
    pub(super) fn adopt(&self, mut connection: Connection) {
        if self.has_own_sessions.load(Ordering::SeqCst) {
            connection.mark_own_session();
        }
        let last_reply = self.config.clock.now();
        self.lock_idle().connections.push(IdleConnection { connection, last_reply });
    }

    /// Runs one statement on any connection. Its time limit is that of the URL for connecting.
    pub(super) async fn run(self: &Arc<Self>, sql: &str, values: &[Value]) -> Result<Reply, Failure> {
        let within = self.config.connect_timeout;
        let mut connection = self.borrow().await?;
        self.config
            .clock
            .timeout(within, connection.run(sql, values))
            .await
            .unwrap_or_else(|_| Err(Failure::timed_out(within)))
    }

    /// Notes that a connection was dead: the others that are idle now may be dead, too, and are
    /// closed instead of reused.
    pub(super) fn discard_idle(&self) {
        self.lock_idle().suspect_before = Some(self.config.clock.now());
    }

    /// Notes that a connection has given no answer since `since`. If no other one has answered
    /// since, all of them may be dead, and idle ones are closed instead of reused. If one has
    /// answered, the reason may be a locked row or a busy server.
    fn discard_unresponsive(&self, since: Instant) {
        let mut idle = self.lock_idle();
        if idle.last_reply < Some(since) {
            idle.suspect_before = idle.suspect_before.max(Some(since));
        }
    }

    fn lock_idle(&self) -> MutexGuard<'_, IdleConnections> {
        lock(&self.idle)
    }

    /// Converts a failure to the library's error, which names the servers.
    pub(super) fn to_error(&self, failure: &Failure) -> Error {
        failure.to_error(self.config.dialect, &self.server)
    }

    /// Closes the idle connections now, and each of the others when its caller drops it. No
    /// connection is opened any more.
    pub(super) async fn close(&self) {
        self.permits.close();
        let idle = std::mem::take(&mut self.lock_idle().connections);
        for idle in idle {
            idle.connection.close().await;
        }
    }
}

/// Closes a connection in the background. It keeps its permit until it has ended, if it has one.
fn close_in_background(connection: Connection, permit: Option<OwnedSemaphorePermit>) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move {
            connection.close().await;
            drop(permit);
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Completes [`ROW_LOCK_TIMEOUT`] after the other end of `caller_dropped` was dropped.
async fn wait_caller_gone(caller_dropped: oneshot::Receiver<()>, clock: &Clock) {
    // The channel only closes; no value is sent.
    let _ = caller_dropped.await;
    clock.sleep(ROW_LOCK_TIMEOUT).await;
}

/// A connection that a caller has borrowed from the pool. When dropped, it becomes idle again; it
/// is closed instead if it broke, or if a statement on it has no answer yet.
#[derive(Debug)]
pub(super) struct PooledConnection {
    /// `None` only while it is dropped.
    connection: Option<Connection>,
    pool: Arc<Pool>,
    permit: Option<OwnedSemaphorePermit>,
    /// When the statement was sent that has no answer yet; `None` if there is none.
    statement_sent: Option<Instant>,
    /// When it last answered.
    last_reply: Instant,
    /// Whether the connection may be used for further statements after the last answer.
    is_reusable: bool,
}

impl PooledConnection {
    fn new(idle: IdleConnection, pool: &Arc<Pool>, permit: OwnedSemaphorePermit) -> Self {
        let IdleConnection { connection, last_reply } = idle;
        Self {
            connection: Some(connection),
            pool: Arc::clone(pool),
            permit: Some(permit),
            statement_sent: None,
            last_reply,
            is_reusable: true,
        }
    }

    /// Runs one statement, and returns its rows.
    pub(super) async fn run(&mut self, sql: &str, values: &[Value]) -> Result<Reply, Failure> {
        let result = self.begin_statement()?.run(sql, values).await;
        self.end_statement(result)
    }

    /// Sends statements, separated by `;`, in one message. They have no parameters and return no
    /// rows.
    pub(super) async fn execute_batch(&mut self, sql: &str) -> Result<(), Failure> {
        let result = self.begin_statement()?.execute_batch(sql).await;
        self.end_statement(result)
    }

    /// Notes when a statement is sent.
    fn begin_statement(&mut self) -> Result<&mut Connection, Failure> {
        self.statement_sent = Some(self.pool.config.clock.now());
        self.connection.as_mut().ok_or_else(|| Failure::ConnectionLost("the connection is closed".into()))
    }

    /// Notes the answer to the statement, and whether the connection may be used for others.
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
        let Some(connection) = self.connection.take() else { return };
        if connection.is_closed() || self.pool.permits.is_closed() {
            return;
        }
        if self.statement_sent.is_none() && self.is_reusable && self.pool.is_releasing_idle() {
            close_in_background(connection, self.permit.take());
            return;
        }
        if let Some(sent) = self.statement_sent {
            let clock = self.pool.config.clock.clone();
            if clock.now().duration_since(sent) >= UNRESPONSIVE_AFTER {
                self.pool.discard_unresponsive(sent);
            }
            // The server may still execute the statement: until that ends, this connection counts
            // towards the limit.
            if let (Ok(runtime), Some(permit)) = (tokio::runtime::Handle::try_current(), self.permit.take()) {
                runtime.spawn(async move {
                    connection.abandon(&clock).await;
                    drop(permit);
                });
            }
        } else if self.is_reusable {
            self.pool.lock_idle().connections.push(IdleConnection { connection, last_reply: self.last_reply });
        }
    }
}
