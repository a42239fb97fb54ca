//! One connection to one server, for commands and messages alike, that is kept up.
//!
//! A task of its own connects, watches the connection and reconnects with growing pauses. A request
//! that comes while the connection is known to be down fails at once, with the reason. A request
//! that comes just after a break waits for the first attempt to reconnect.

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
use super::sentinel::{self, Elected, Sentinels};
use super::wire::{RUN, Stored};
use super::{connect, error};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::logic::backoff::{self, Urgency};

/// A connection that lasted this long counts as a success, however it ended.
const LASTING: Duration = Duration::from_secs(10);

/// The longest pause between two attempts to connect, if no lease waits for the next one.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long a connection may be idle before its liveness is checked.
const QUIET: Duration = Duration::from_secs(5);

/// The server that a link connects to.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// This server.
    Fixed(Address),
    /// The server that these Sentinels name as the master.
    Master(Arc<Sentinels>),
}

/// A connection that is up.
pub(crate) type Live = Arc<Connected>;

/// A connection, and its server.
pub(crate) struct Connected {
    connection: MultiplexedConnection,
    pub(crate) address: Address,
    /// The election that made its server the master, if there are elections.
    elected: Option<Elected>,
    /// The server's run, with the number of the election; empty if it is not needed.
    pub(crate) run: Arc<str>,
    /// Numbers the connections of this link.
    pub(crate) number: u64,
}

#[derive(Clone)]
enum State {
    /// Not connected, and the first attempt is not over.
    Connecting,
    Up(Live),
    /// The last attempt failed.
    Down(ErrorKind, Arc<str>, bool),
}

impl State {
    /// The connection, or why there is none; `None` if that is not known yet.
    fn known(&self) -> Option<Result<Live>> {
        match self {
            Self::Connecting => None,
            Self::Up(live) => Some(Ok(Arc::clone(live))),
            Self::Down(kind, why, retryable) => {
                let error = Error::new(*kind, &**why);
                Some(Err(if *retryable { error.retryable() } else { error }))
            }
        }
    }

    fn down(error: &Error) -> Self {
        Self::Down(error.kind(), error.said().into(), error.is_retryable())
    }
}

/// What a link reports to its owner.
pub(crate) trait Owner: Send + Sync + 'static {
    /// A message for us arrived.
    fn message(&self, info: PushInfo);
    /// The connection is up; `again`: it was up before, and messages in between are lost.
    fn up(&self, live: &Live, again: bool);
    /// The connection went down, or an attempt to reconnect failed.
    fn down(&self);
    /// The cluster's slots have moved.
    fn moved(&self);
    /// Whether the link is of no use without its inbox, which a server may refuse.
    fn needs_inbox(&self) -> bool {
        true
    }
}

/// The connection to one server.
pub(crate) struct Link {
    inner: Arc<Inner>,
    task: JoinHandle<()>,
}

struct Inner {
    config: Arc<Config>,
    target: Target,
    scripts: Vec<Arc<Stored>>,
    inbox: String,
    /// Whether the server's run must be known.
    wants_run: bool,
    owner: Arc<dyn Owner>,
    state: Mutex<State>,
    /// Notified when the state changes. Requests that wait go on in the order in which they came.
    changed: Notify,
    /// The number of the last connection on which a step succeeded.
    useful: AtomicU64,
    /// The number of the last connection whose server refused writes.
    read_only: AtomicU64,
    /// The number of the last connection that is known to be broken.
    broken: AtomicU64,
    breaks: Notify,
    /// Which leases wait for a connection.
    urgency: Mutex<Urgency>,
    /// Notified when a request had no answer.
    suspicion: Notify,
}

impl Link {
    /// Begins to connect. `wants_run`: the server's run must be known.
    pub(crate) fn new(
        config: &Arc<Config>,
        target: Target,
        scripts: &[Arc<Stored>],
        inbox: &str,
        wants_run: bool,
        owner: Arc<dyn Owner>,
    ) -> Self {
        let inner = Arc::new(Inner {
            config: Arc::clone(config),
            target,
            scripts: scripts.to_vec(),
            inbox: inbox.to_owned(),
            wants_run,
            owner,
            state: Mutex::new(State::Connecting),
            changed: Notify::new(),
            useful: AtomicU64::new(0),
            read_only: AtomicU64::new(0),
            broken: AtomicU64::new(0),
            breaks: Notify::new(),
            urgency: Mutex::default(),
            suspicion: Notify::new(),
        });
        let task = tokio::spawn(tend(Arc::clone(&inner)));
        Self { inner, task }
    }

    /// The connection, as soon as it is up.
    ///
    /// # Errors
    /// The reason, if it is down.
    pub(crate) async fn live(&self) -> Result<Live> {
        if let Some(known) = self.inner.state().known() {
            return known;
        }
        loop {
            let mut changed = pin!(self.inner.changed.notified());
            changed.as_mut().enable();
            if let Some(known) = self.inner.state().known() {
                return known;
            }
            changed.await;
        }
    }

    /// Records that a lease with this TTL, which ends at `deadline`, is due for renewal over this
    /// connection. Until then the pauses between attempts to connect stay short beside the TTL.
    pub(crate) fn renews(&self, ttl: Duration, deadline: Moment) {
        self.inner.urgency().renews(self.inner.config.clock.now(), ttl, deadline);
    }

    /// Whether the connection is up.
    pub(crate) fn is_up(&self) -> bool {
        matches!(*self.inner.state(), State::Up(_))
    }

    /// Runs a script; sends its text if the server has dropped it. `fill` adds the keys and the
    /// arguments.
    pub(crate) async fn script(
        &self,
        live: &Live,
        script: &Stored,
        keys: usize,
        fill: &(dyn Fn(&mut Cmd) + Send + Sync),
    ) -> RedisResult<Value> {
        let mut command = script.by_digest(keys);
        fill(&mut command);
        let result = match self.command(live, &command).await {
            Err(cause) if cause.kind() == Native::Server(ServerErrorKind::NoScript) => {
                let mut command = script.by_text(keys);
                fill(&mut command);
                self.command(live, &command).await
            }
            other => other,
        };
        result.map_err(|cause| error::inside(cause, &script.load()))
    }

    /// Sends one command.
    pub(crate) async fn command(&self, live: &Live, command: &Cmd) -> RedisResult<Value> {
        let mut connection = live.connection.clone();
        let waiting = Waiting(self);
        let result = connection.send_packed_command(command).await.and_then(Value::extract_error);
        self.answered(live, waiting, result)
    }

    /// Sends several commands in a row, with nothing between them.
    pub(crate) async fn commands(&self, live: &Live, pipeline: &Pipeline) -> RedisResult<Vec<Value>> {
        let mut connection = live.connection.clone();
        let waiting = Waiting(self);
        let result = connection.send_packed_commands(pipeline, 0, pipeline.len()).await;
        self.answered(live, waiting, result)
    }

    fn answered<T>(&self, live: &Live, waiting: Waiting<'_>, result: RedisResult<T>) -> RedisResult<T> {
        std::mem::forget(waiting);
        match &result {
            // Reconnects: the address may lead to a master next time.
            Err(cause) if cause.kind() == Native::Server(ServerErrorKind::ReadOnly) => {
                self.inner.read_only.fetch_max(live.number, Ordering::SeqCst);
                self.inner.broke(live.number);
            }
            Err(cause) if is_broken(cause) => self.inner.broke(live.number),
            // A refusal does not prove that the server is of use.
            Err(_) => {}
            // A server that hung and continues answers requests that are no longer wanted.
            Ok(_) if self.inner.is_broken(live.number) => return Err(given_up()),
            Ok(_) => self.inner.answers(live.number),
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
struct Waiting<'a>(&'a Link);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.inner.suspicion.notify_one();
    }
}

fn given_up() -> RedisError {
    std::io::Error::new(std::io::ErrorKind::ConnectionAborted, "it was given up before the answer came").into()
}

fn is_broken(cause: &RedisError) -> bool {
    !matches!(cause.kind(), Native::Server(_)) && (cause.is_io_error() || cause.is_unrecoverable_error())
}

/// Keeps the connection up, for ever.
async fn tend(inner: Arc<Inner>) {
    let (mut number, mut failures, mut again) = (0, 0_u32, false);
    loop {
        number += 1;
        match inner.connect(number).await {
            Ok(live) => {
                let made = inner.config.clock.now();
                inner.enter(State::Up(Arc::clone(&live)));
                inner.owner.up(&live, again);
                again = true;
                tokio::select! {
                    biased;
                    () = inner.until_broken(&live) => {}
                    () = inner.until_replaced(&live) => {}
                }
                // Later answers do not count: the server may no longer be the master.
                inner.broken.fetch_max(number, Ordering::SeqCst);
                tracing::debug!(target = ?inner.target, "connection lost");
                // Two kinds of server must not be reconnected to without a pause: one that accepts
                // a connection and closes it before a step succeeds, and one that answers but
                // refuses writes.
                failures = if inner.is_useful(number, made) { 0 } else { failures.saturating_add(1) };
                inner.enter(match failures {
                    0..=1 => State::Connecting,
                    _ => State::down(&inner.useless(&live)),
                });
                inner.owner.down();
                drop(live);
                inner.config.clock.sleep_until(made.after(inner.pause(failures))).await;
            }
            Err(error) => {
                tracing::debug!(%error, failures, "no connection");
                inner.enter(State::down(&error));
                inner.owner.down();
                inner.config.clock.sleep(inner.pause(failures)).await;
                failures = failures.saturating_add(1);
            }
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn urgency(&self) -> MutexGuard<'_, Urgency> {
        self.urgency.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shortest time between two attempts to connect.
    fn pause(&self, failures: u32) -> Duration {
        let dice = (crate::random::bits() & u128::from(u32::MAX)) as u32;
        let longest = self.urgency().longest(self.config.clock.now(), LONGEST_PAUSE);
        backoff::pause(failures, Duration::from_millis(20), longest, dice)
    }

    fn enter(&self, state: State) {
        *self.state() = state;
        self.changed.notify_waiters();
    }

    /// A step succeeded on this connection.
    fn answers(&self, number: u64) {
        self.useful.store(number, Ordering::Relaxed);
    }

    fn is_read_only(&self, number: u64) -> bool {
        self.read_only.load(Ordering::SeqCst) >= number
    }

    /// Whether the connection was of use: it lasted, or a step succeeded. A read does not count on
    /// a server that refuses writes.
    fn is_useful(&self, number: u64, made: Moment) -> bool {
        let lasted = self.config.clock.now().since(made) >= LASTING;
        lasted || self.useful.load(Ordering::Relaxed) >= number && !self.is_read_only(number)
    }

    /// Why the link does not reconnect at once.
    fn useless(&self, live: &Live) -> Error {
        match self.is_read_only(live.number) {
            true => error::read_only(&live.address),
            false => error::unreachable(&live.address, "it ends each connection before it answers"),
        }
    }

    fn broke(&self, number: u64) {
        self.broken.fetch_max(number, Ordering::SeqCst);
        self.breaks.notify_one();
    }

    fn is_broken(&self, number: u64) -> bool {
        self.broken.load(Ordering::SeqCst) >= number
    }

    async fn connect(self: &Arc<Self>, number: u64) -> Result<Live> {
        let (address, elected) = match &self.target {
            Target::Fixed(address) => (address.clone(), None),
            Target::Master(sentinels) => {
                let elected = sentinels.elected(&self.config).await?;
                (elected.master.clone(), Some(elected))
            }
        };
        let weak = Arc::downgrade(self);
        let hear: connect::Hear = Arc::new(move |info: PushInfo| {
            let Some(inner) = weak.upgrade() else { return };
            if info.kind == PushKind::Disconnection {
                inner.broke(number);
            } else if !inner.is_broken(number) {
                inner.owner.message(info);
            }
        });
        let mut connection = connect::node(&self.config, &address, Some(hear)).await?;
        let most = self.config.connect_timeout;
        let set_up = self.config.clock.timeout(most, self.set_up(&mut connection, &address)).await;
        let run = set_up.map_err(|_| error::unreachable(&address, &format!("no answer within {most:?}")))??;
        // A master that was replaced and is then restored is in the same run, but has missed the
        // writes in between.
        let run = match &elected {
            Some(elected) if !run.is_empty() => format!("{run}:{}", elected.number).into(),
            _ => run,
        };
        Ok(Arc::new(Connected { connection, address, elected, run, number }))
    }

    /// Subscribes to our inbox, stores the scripts, and checks that this is the server we want.
    async fn set_up(&self, connection: &mut MultiplexedConnection, address: &Address) -> Result<Arc<str>> {
        let failed = |cause| error::step(address, cause);
        if matches!(self.target, Target::Master(..)) {
            sentinel::is_master(connection, address).await?;
        }
        if !self.inbox.is_empty() {
            match connection.subscribe(&self.inbox).await {
                Err(cause) if self.owner.needs_inbox() || cause.code() != Some("NOPERM") => return Err(failed(cause)),
                Err(cause) => tracing::debug!(%cause, "no messages reach us from this server"),
                Ok(()) => {}
            }
        }
        let mut load = Pipeline::new();
        for script in &self.scripts {
            load.add_command(script.load());
        }
        // A client that may not store scripts may still run them from their text.
        if let Err(cause) = connection.send_packed_commands(&load, 0, load.len()).await {
            tracing::debug!(%cause, "the scripts could not be stored");
        }
        if !self.wants_run {
            return Ok("".into());
        }
        let info: String = redis::cmd("INFO").arg("server").query_async(connection).await.map_err(failed)?;
        let run = info.lines().find_map(|line| line.strip_prefix("run_id:")).map(str::trim);
        run.filter(|run| run.len() >= RUN).map(Into::into).ok_or_else(|| {
            let message = format!("{address}: leases need the server's run_id, and INFO does not tell it");
            Error::new(ErrorKind::Unsupported, message).at_engine(error::NAME)
        })
    }

    /// Returns when the Sentinels have held a new election.
    async fn until_replaced(&self, live: &Live) {
        match (&self.target, &live.elected) {
            (Target::Master(sentinels), Some(current)) => sentinels.until_replaced(&self.config, current).await,
            _ => std::future::pending().await,
        }
    }

    /// Returns when the connection ends. Checks its liveness when it is idle, or when a request had
    /// no answer.
    async fn until_broken(&self, live: &Live) {
        let patience = self.config.connect_timeout;
        loop {
            let quiet = tokio::select! {
                biased;
                () = self.breaks.notified() => false,
                () = self.suspicion.notified() => true,
                () = self.config.clock.sleep(QUIET) => true,
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
                answer = self.config.clock.timeout(patience, alive) => {
                    if !matches!(answer, Ok(Ok(_))) {
                        return;
                    }
                }
                () = self.breaks.notified() => self.breaks.notify_one(),
            }
        }
    }
}
