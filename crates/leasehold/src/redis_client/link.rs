//! One connection to one server, for commands and messages alike, that is kept up.
//!
//! A background task connects, watches the connection and reconnects with growing pauses. A request
//! that starts while the connection is known to be down fails at once, with the reason. A request
//! that starts just after a break waits for the first attempt to reconnect.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind as Native, Pipeline, PushInfo, PushKind, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::config::{Address, Config};
use super::script::{CachedScript, RUN_DIGITS};
use super::sentinel::{self, ElectedMaster, Sentinels};
use super::{connect, error};
use crate::clock::Instant;
use crate::logic::backoff::{self, RenewalUrgency};
use crate::types::{Error, ErrorKind, Result};

/// A connection that lasted this long counts as a success, whatever ended it.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// The longest pause between two attempts to connect, if no lease waits for the next one.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long a connection may be idle before its liveness is checked.
const IDLE_BEFORE_PING: Duration = Duration::from_secs(5);

/// The server that a link connects to.
#[derive(Clone, Debug)]
pub enum Target {
    /// This server.
    Fixed(Address),
    /// The server that these Sentinels name as the master.
    Master(Arc<Sentinels>),
}

/// A connection that is up.
pub type LiveConnection = Arc<Connection>;

/// A connection, and its server.
pub struct Connection {
    connection: MultiplexedConnection,
    pub address: Address,
    /// The election that made its server the master, if there are elections.
    elected: Option<ElectedMaster>,
    /// The server's run, with the number of the election; empty if it is not needed.
    pub run_id: Arc<str>,
    /// Numbers the connections of this link.
    pub number: u64,
}

#[derive(Clone)]
enum LinkState {
    /// Not connected, and the first attempt is not over.
    Connecting,
    Up(LiveConnection),
    /// The last attempt failed.
    Down(ErrorKind, Arc<str>, bool),
}

impl LinkState {
    /// The connection, or why there is none; `None` if that is not known yet.
    fn outcome(&self) -> Option<Result<LiveConnection>> {
        match self {
            Self::Connecting => None,
            Self::Up(live) => Some(Ok(Arc::clone(live))),
            Self::Down(kind, reason, retryable) => {
                let error = Error::new(*kind, &**reason);
                Some(Err(if *retryable { error.retryable() } else { error }))
            }
        }
    }

    fn from_error(error: &Error) -> Self {
        Self::Down(error.kind(), error.message_without_location().into(), error.is_retryable())
    }
}

/// What a link reports to its owner.
pub trait LinkListener: Send + Sync + 'static {
    /// A message for this client arrived.
    fn on_message(&self, info: PushInfo);
    /// The connection is up; `is_reconnect`: it was up before, and messages in between are lost.
    fn on_connected(&self, live: &LiveConnection, is_reconnect: bool);
    /// The connection went down, or an attempt to reconnect failed.
    fn on_disconnected(&self);
    /// The cluster's slots have moved.
    fn on_slots_moved(&self);
    /// Whether the link is of no use without its inbox, which a server may refuse.
    fn needs_inbox(&self) -> bool {
        true
    }
}

/// The connection to one server.
pub struct Link {
    inner: Arc<Inner>,
    task: JoinHandle<()>,
}

struct Inner {
    config: Arc<Config>,
    target: Target,
    scripts: Vec<Arc<CachedScript>>,
    inbox: String,
    /// Whether the server's run must be known.
    needs_run_id: bool,
    listener: Arc<dyn LinkListener>,
    state: Mutex<LinkState>,
    /// Notified when the state changes. Waiting requests continue in the order of their arrival.
    state_changed: Notify,
    /// The number of the last connection on which a step succeeded.
    last_useful: AtomicU64,
    /// The number of the last connection whose server refused writes.
    last_read_only: AtomicU64,
    /// The number of the last connection that is known to be broken.
    last_broken: AtomicU64,
    broke: Notify,
    /// Which leases wait for a connection.
    urgency: Mutex<RenewalUrgency>,
    /// Notified when a request had no answer.
    ping_needed: Notify,
}

impl Link {
    /// Begins to connect. `needs_run_id`: the server's run must be known.
    pub fn new(
        config: &Arc<Config>,
        target: Target,
        scripts: &[Arc<CachedScript>],
        inbox: &str,
        needs_run_id: bool,
        listener: Arc<dyn LinkListener>,
    ) -> Self {
        let inner = Arc::new(Inner {
            config: Arc::clone(config),
            target,
            scripts: scripts.to_vec(),
            inbox: inbox.to_owned(),
            needs_run_id,
            listener,
            state: Mutex::new(LinkState::Connecting),
            state_changed: Notify::new(),
            last_useful: AtomicU64::new(0),
            last_read_only: AtomicU64::new(0),
            last_broken: AtomicU64::new(0),
            broke: Notify::new(),
            urgency: Mutex::default(),
            ping_needed: Notify::new(),
        });
        let task = tokio::spawn(keep_connected(Arc::clone(&inner)));
        Self { inner, task }
    }

    /// The connection, as soon as it is up.
    ///
    /// # Errors
    /// The reason, if it is down.
    pub async fn connection(&self) -> Result<LiveConnection> {
        if let Some(known) = self.inner.state().outcome() {
            return known;
        }
        loop {
            let mut changed = pin!(self.inner.state_changed.notified());
            changed.as_mut().enable();
            if let Some(known) = self.inner.state().outcome() {
                return known;
            }
            changed.await;
        }
    }

    /// Records that a lease with this TTL, which ends at `deadline`, is due for renewal over this
    /// connection. Until then the pauses between attempts to connect stay short beside the TTL.
    pub fn note_renewal_due(&self, ttl: Duration, deadline: Instant) {
        self.inner.urgency().note_renewal(self.inner.config.clock.now(), ttl, deadline);
    }

    /// Whether the connection is up.
    pub fn is_up(&self) -> bool {
        matches!(*self.inner.state(), LinkState::Up(_))
    }

    /// Runs a script; sends its text if the server has dropped it. `fill_command` adds the keys and
    /// the arguments.
    pub async fn run_script(
        &self,
        live: &LiveConnection,
        script: &CachedScript,
        keys: usize,
        fill_command: &(dyn Fn(&mut Cmd) + Send + Sync),
    ) -> RedisResult<Value> {
        let mut command = script.evalsha(keys);
        fill_command(&mut command);
        let result = match self.send_command(live, &command).await {
            Err(cause) if cause.kind() == Native::Server(ServerErrorKind::NoScript) => {
                let mut command = script.eval(keys);
                fill_command(&mut command);
                self.send_command(live, &command).await
            }
            other => other,
        };
        result.map_err(|cause| error::name_forbidden_command(cause, &script.script_load()))
    }

    /// Sends one command.
    pub async fn send_command(&self, live: &LiveConnection, command: &Cmd) -> RedisResult<Value> {
        let mut connection = live.connection.clone();
        let waiting = UnansweredRequest(self);
        let result = connection.send_packed_command(command).await.and_then(Value::extract_error);
        self.record_answer(live, waiting, result)
    }

    /// Sends several commands in one message, without others between them.
    pub async fn send_commands(&self, live: &LiveConnection, pipeline: &Pipeline) -> RedisResult<Vec<Value>> {
        let mut connection = live.connection.clone();
        let waiting = UnansweredRequest(self);
        let result = connection.send_packed_commands(pipeline, 0, pipeline.len()).await;
        self.record_answer(live, waiting, result)
    }

    fn record_answer<T>(
        &self,
        live: &LiveConnection,
        waiting: UnansweredRequest<'_>,
        result: RedisResult<T>,
    ) -> RedisResult<T> {
        std::mem::forget(waiting);
        match &result {
            // Reconnects: the address may lead to a master next time.
            Err(cause) if cause.kind() == Native::Server(ServerErrorKind::ReadOnly) => {
                self.inner.last_read_only.fetch_max(live.number, Ordering::SeqCst);
                self.inner.mark_broken(live.number);
            }
            Err(cause) if is_broken(cause) => self.inner.mark_broken(live.number),
            // A refusal does not prove that the server is of use.
            Err(_) => {}
            // A server that hung and continues would answer requests that no caller waits for.
            Ok(_) if self.inner.is_broken(live.number) => return Err(abandoned_error()),
            Ok(_) => self.inner.mark_useful(live.number),
        }
        result
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("target", &self.inner.target).field("up", &self.is_up()).finish_non_exhaustive()
    }
}

/// A request without an answer so far: if its caller drops it, the connection's liveness is
/// checked.
struct UnansweredRequest<'a>(&'a Link);

impl Drop for UnansweredRequest<'_> {
    fn drop(&mut self) {
        self.0.inner.ping_needed.notify_one();
    }
}

fn abandoned_error() -> RedisError {
    std::io::Error::new(std::io::ErrorKind::ConnectionAborted, "it was given up before the answer came").into()
}

fn is_broken(cause: &RedisError) -> bool {
    !matches!(cause.kind(), Native::Server(_)) && (cause.is_io_error() || cause.is_unrecoverable_error())
}

/// Keeps the connection up until the link is dropped.
async fn keep_connected(inner: Arc<Inner>) {
    let (mut number, mut failures, mut again) = (0, 0_u32, false);
    loop {
        number += 1;
        match inner.connect(number).await {
            Ok(live) => {
                let created_at = inner.config.clock.now();
                inner.set_state(LinkState::Up(Arc::clone(&live)));
                inner.listener.on_connected(&live, again);
                again = true;
                tokio::select! {
                    biased;
                    () = inner.until_broken(&live) => {}
                    () = inner.until_replaced(&live) => {}
                }
                // Later answers do not count: the server may no longer be the master.
                inner.last_broken.fetch_max(number, Ordering::SeqCst);
                tracing::debug!(target = ?inner.target, "connection lost");
                // Two kinds of server must not be reconnected to without a pause: one that accepts
                // a connection and closes it before a step succeeds, and one that answers but
                // refuses writes.
                failures = if inner.is_useful(number, created_at) { 0 } else { failures.saturating_add(1) };
                inner.set_state(match failures {
                    0..=1 => LinkState::Connecting,
                    _ => LinkState::from_error(&inner.useless_error(&live)),
                });
                inner.listener.on_disconnected();
                drop(live);
                inner.config.clock.sleep_until(created_at.saturating_add(inner.pause(failures))).await;
            }
            Err(error) => {
                tracing::debug!(%error, failures, "no connection");
                inner.set_state(LinkState::from_error(&error));
                inner.listener.on_disconnected();
                inner.config.clock.sleep(inner.pause(failures)).await;
                failures = failures.saturating_add(1);
            }
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn urgency(&self) -> MutexGuard<'_, RenewalUrgency> {
        self.urgency.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shortest time between two attempts to connect.
    fn pause(&self, failures: u32) -> Duration {
        let rng = (crate::random::random_bits() & u128::from(u32::MAX)) as u32;
        let longest = self.urgency().max_pause(self.config.clock.now(), LONGEST_PAUSE);
        backoff::pause(failures, Duration::from_millis(20), longest, rng)
    }

    fn set_state(&self, state: LinkState) {
        *self.state() = state;
        self.state_changed.notify_waiters();
    }

    /// A step succeeded on this connection.
    fn mark_useful(&self, number: u64) {
        self.last_useful.store(number, Ordering::Relaxed);
    }

    fn is_read_only(&self, number: u64) -> bool {
        self.last_read_only.load(Ordering::SeqCst) >= number
    }

    /// Whether the connection was of use: it lasted, or a step succeeded. A read does not count on
    /// a server that refuses writes.
    fn is_useful(&self, number: u64, created_at: Instant) -> bool {
        let lasted = self.config.clock.now().duration_since(created_at) >= STABLE_AFTER;
        lasted || self.last_useful.load(Ordering::Relaxed) >= number && !self.is_read_only(number)
    }

    /// Why the link does not reconnect at once.
    fn useless_error(&self, live: &LiveConnection) -> Error {
        match self.is_read_only(live.number) {
            true => error::read_only(&live.address),
            false => error::unreachable(&live.address, "it ends each connection before it answers"),
        }
    }

    fn mark_broken(&self, number: u64) {
        self.last_broken.fetch_max(number, Ordering::SeqCst);
        self.broke.notify_one();
    }

    fn is_broken(&self, number: u64) -> bool {
        self.last_broken.load(Ordering::SeqCst) >= number
    }

    async fn connect(self: &Arc<Self>, number: u64) -> Result<LiveConnection> {
        let (address, elected) = match &self.target {
            Target::Fixed(address) => (address.clone(), None),
            Target::Master(sentinels) => {
                let elected = sentinels.find_master(&self.config).await?;
                (elected.master.clone(), Some(elected))
            }
        };
        let link = Arc::downgrade(self);
        let on_push: connect::PushHandler = Arc::new(move |info: PushInfo| {
            let Some(inner) = link.upgrade() else { return };
            if info.kind == PushKind::Disconnection {
                inner.mark_broken(number);
            } else if !inner.is_broken(number) {
                inner.listener.on_message(info);
            }
        });
        let mut connection = connect::to_node(&self.config, &address, Some(on_push)).await?;
        let timeout = self.config.connect_timeout;
        let set_up = self.config.clock.timeout(timeout, self.set_up(&mut connection, &address)).await;
        let run = set_up.map_err(|_| error::unreachable(&address, &format!("no answer within {timeout:?}")))??;
        // A master that was replaced and is then restored is in the same run, but has missed the
        // writes in between.
        let run = match &elected {
            Some(elected) if !run.is_empty() => format!("{run}:{}", elected.number).into(),
            _ => run,
        };
        Ok(Arc::new(Connection { connection, address, elected, run_id: run, number }))
    }

    /// Subscribes to this client's inbox, stores the scripts, and checks that this is the right
    /// server.
    async fn set_up(&self, connection: &mut MultiplexedConnection, address: &Address) -> Result<Arc<str>> {
        let failed = |cause| error::step_error(address, cause);
        if matches!(self.target, Target::Master(..)) {
            sentinel::ensure_master(connection, address).await?;
        }
        if !self.inbox.is_empty() {
            match connection.subscribe(&self.inbox).await {
                Err(cause) if self.listener.needs_inbox() || cause.code() != Some("NOPERM") => {
                    return Err(failed(cause));
                }
                Err(cause) => tracing::debug!(%cause, "cannot subscribe to messages from this server"),
                Ok(()) => {}
            }
        }
        let mut load = Pipeline::new();
        for script in &self.scripts {
            load.add_command(script.script_load());
        }
        // A client that may not store scripts may still run them from their text.
        if let Err(cause) = connection.send_packed_commands(&load, 0, load.len()).await {
            tracing::debug!(%cause, "the scripts could not be stored");
        }
        if !self.needs_run_id {
            return Ok("".into());
        }
        let info: String = redis::cmd("INFO").arg("server").query_async(connection).await.map_err(failed)?;
        let run = info.lines().find_map(|line| line.strip_prefix("run_id:")).map(str::trim);
        run.filter(|run| run.len() >= RUN_DIGITS).map(Into::into).ok_or_else(|| {
            let message = format!("{address}: leases need the server's run_id, and INFO does not report it");
            Error::new(ErrorKind::Unsupported, message).at_engine(error::NAME)
        })
    }

    /// Returns when the Sentinels have held a new election.
    async fn until_replaced(&self, live: &LiveConnection) {
        match (&self.target, &live.elected) {
            (Target::Master(sentinels), Some(current)) => sentinels.until_replaced(&self.config, current).await,
            _ => std::future::pending().await,
        }
    }

    /// Returns when the connection ends. Checks its liveness when it is idle, or when a request had
    /// no answer.
    async fn until_broken(&self, live: &LiveConnection) {
        let timeout = self.config.connect_timeout;
        loop {
            let quiet = tokio::select! {
                biased;
                () = self.broke.notified() => false,
                () = self.ping_needed.notified() => true,
                () = self.config.clock.sleep(IDLE_BEFORE_PING) => true,
            };
            if self.is_broken(live.number) {
                return;
            }
            if !quiet {
                continue;
            }
            let mut connection = live.connection.clone();
            let ping = redis::cmd("PING");
            let alive = connection.send_packed_command(&ping);
            tokio::select! {
                biased;
                answer = self.config.clock.timeout(timeout, alive) => {
                    if !matches!(answer, Ok(Ok(_))) {
                        return;
                    }
                }
                () = self.broke.notified() => self.broke.notify_one(),
            }
        }
    }
}
