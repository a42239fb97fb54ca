//! A limited number of connections, opened when needed and kept.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::config::Config;
use super::error::{Failure, Meaning};
use super::link::{LOCK_WAIT, Link, Reply, Value};
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};
use crate::logic::backoff;

/// A statement that is given up sooner had a caller that did not wait for the answer; later, the
/// connection may be dead. Shorter than the shortest time limit of a step.
const SILENT: Duration = Duration::from_millis(200);

/// How long a server that refused a connection counts as short of them.
const SHORT: Duration = Duration::from_secs(10);

/// The connections of one engine.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) config: Arc<Config>,
    /// The servers, for errors.
    pub(super) server: String,
    rest: Mutex<Rest>,
    room: Arc<Semaphore>,
    /// Whether each connection is known to have a session of its own.
    own_sessions: AtomicBool,
    shortage: Shortage,
    read_only: Mutex<ReadOnly>,
}

/// What is known of a server that takes no writes. Each refusal ends its connection, so that without
/// pauses every statement would open another one.
#[derive(Debug, Default)]
struct ReadOnly {
    /// How often it refused in a row, and the last refusal.
    refusals: u32,
    last: Option<(Moment, Failure)>,
    /// Until when no connection is opened.
    until: Moment,
}

/// The first and the longest pause before the next connection to a server that takes no writes. The
/// shortest TTL is longer than a few of them.
const READ_ONLY_PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));

/// After this time without a refusal the pauses begin small again.
const FORGIVEN: Duration = Duration::from_secs(1);

impl ReadOnly {
    fn refused(&mut self, failure: &Failure, now: Moment) {
        if self.last.as_ref().is_none_or(|(at, _)| now.since(*at) >= FORGIVEN) {
            self.refusals = 0;
        }
        let (first, most) = READ_ONLY_PAUSES;
        self.until = now.after(backoff::pause(self.refusals, first, most, 0));
        self.refusals += 1;
        self.last = Some((now, failure.clone()));
    }
}

/// What is known of a server that has too few connections.
#[derive(Debug, Default)]
struct Shortage {
    /// Until when it counts as short of them.
    until: Mutex<Moment>,
    /// How often it has refused one.
    refused: AtomicU64,
    /// How many locks this client holds: while it holds any, it keeps its connections.
    holds: AtomicUsize,
}

/// The idle connections.
#[derive(Debug, Default)]
struct Rest {
    idle: Vec<Idle>,
    /// When any of our connections last answered.
    heard: Option<Moment>,
    /// Connections that last answered before this moment may be dead.
    doubted: Option<Moment>,
}

impl Rest {
    /// The one used last, and whether it is reliable. The server may close the others as idle.
    fn next(&mut self) -> Option<(Idle, bool)> {
        self.idle.retain(|idle| !idle.link.is_closed());
        let idle = self.idle.pop()?;
        let good = self.doubted.is_none_or(|since| idle.heard >= since);
        Some((idle, good))
    }
}

/// An idle connection.
#[derive(Debug)]
struct Idle {
    link: Link,
    /// When it last answered.
    heard: Moment,
}

impl Pool {
    /// An empty pool, with the URL's limit.
    pub(super) fn new(config: &Arc<Config>) -> Arc<Self> {
        Self::of(config, config.connections)
    }

    /// An empty pool with this limit.
    pub(super) fn of(config: &Arc<Config>, connections: usize) -> Arc<Self> {
        let hosts: Vec<String> = config.servers.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        let room = Arc::new(Semaphore::new(connections));
        Arc::new(Self {
            config: Arc::clone(config),
            server: hosts.join(","),
            rest: Mutex::default(),
            room,
            own_sessions: AtomicBool::new(false),
            shortage: Shortage::default(),
            read_only: Mutex::default(),
        })
    }

    /// The same as [`borrow`](Self::borrow), with the library's error.
    pub(super) async fn take(self: &Arc<Self>) -> Result<Pooled> {
        self.borrow().await.map_err(|failure| self.tell(&failure))
    }

    /// A connection, as soon as one is free; requests are served in order.
    pub(super) async fn borrow(self: &Arc<Self>) -> Result<Pooled, Failure> {
        let permit = Arc::clone(&self.room).acquire_owned().await.map_err(|_| Failure::Closed)?;
        let next = self.rest().next();
        match next {
            Some((idle, true)) => Ok(Pooled::new(idle, self, permit)),
            Some((idle, false)) => {
                self.may_open()?;
                // Until it has ended it counts as ours, and takes the place of the next one.
                let _ = self.config.clock.timeout(LOCK_WAIT, idle.link.close()).await;
                self.open(permit).await
            }
            None => {
                self.may_open()?;
                self.open(permit).await
            }
        }
    }

    /// Refuses while the server was found to be read-only just before.
    pub(super) fn may_open(&self) -> Result<(), Failure> {
        let read_only = lock(&self.read_only);
        match &read_only.last {
            Some((_, failure)) if self.config.clock.now() < read_only.until => Err(failure.clone()),
            _ => Ok(()),
        }
    }

    /// Opens a connection in a task of its own. If the caller gives up meanwhile, the connection
    /// goes to the next caller instead of being left to the server. If it does not open soon after
    /// that, its place becomes free: the network may be down, and the next try may work.
    async fn open(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Result<Pooled, Failure> {
        let (pool, (wanted, unwanted)) = (Arc::clone(self), oneshot::channel::<()>());
        let opening = tokio::spawn(async move {
            let mut link = tokio::select! {
                link = Link::open(&pool.config) => link.inspect_err(|failure| pool.note_refusal(failure))?,
                () = forgotten(unwanted, &pool.config.clock) => return Err(Failure::Closed),
            };
            if pool.own_sessions.load(Ordering::SeqCst) {
                link.own_session();
            }
            Ok(Pooled::new(Idle { link, heard: pool.config.clock.now() }, &pool, permit))
        });
        let opened = opening.await.unwrap_or_else(|_| Err(Failure::Closed));
        drop(wanted);
        opened
    }

    /// Notes that each connection has a session of its own: sessions may keep state.
    pub(super) fn own_sessions(&self) {
        self.own_sessions.store(true, Ordering::SeqCst);
    }

    /// Whether each connection is known to have a session of its own.
    pub(super) fn has_own_sessions(&self) -> bool {
        self.own_sessions.load(Ordering::SeqCst)
    }

    /// Notes a refused connection. If the server had none to spare, it counts as short of them for
    /// a while.
    pub(super) fn note_refusal(&self, failure: &Failure) {
        self.note_read_only(failure);
        if failure.meaning(self.config.dialect) == Some(Meaning::Crowded) {
            self.shortage.refused.fetch_add(1, Ordering::SeqCst);
            let mut until = lock(&self.shortage.until);
            *until = (*until).max(self.config.clock.now().after(SHORT));
        }
    }

    /// Notes a refusal by a server that takes no writes: its next connection waits.
    fn note_read_only(&self, failure: &Failure) {
        if failure.meaning(self.config.dialect) == Some(Meaning::ReadOnly) {
            lock(&self.read_only).refused(failure, self.config.clock.now());
        }
    }

    /// How often the server has refused a connection because it had none to spare.
    pub(super) fn refusals(&self) -> u64 {
        self.shortage.refused.load(Ordering::SeqCst)
    }

    /// Whether the server counts as short of connections.
    pub(super) fn is_short(&self) -> bool {
        self.config.clock.now() < *lock(&self.shortage.until)
    }

    /// Notes that the server is short of connections for this long.
    pub(super) fn short_for(&self, time: Duration) {
        *lock(&self.shortage.until) = self.config.clock.now().after(time);
        self.shrink();
    }

    /// Notes that the server is short of connections until further notice, or no longer is. If so,
    /// idle ones are closed.
    pub(super) fn set_short(&self, short: bool) {
        *lock(&self.shortage.until) = if short { Moment::NEVER } else { Moment::default() };
        self.shrink();
    }

    /// Sets how many locks this client holds.
    pub(super) fn set_holds(&self, holds: usize) {
        self.shortage.holds.store(holds, Ordering::SeqCst);
    }

    /// Whether idle connections are closed: the server is short of them, and this client holds no
    /// lock.
    pub(super) fn spares(&self) -> bool {
        self.shortage.holds.load(Ordering::SeqCst) == 0 && self.is_short()
    }

    /// Closes the idle connections, if the server needs them.
    fn shrink(&self) {
        if !self.spares() {
            return;
        }
        for idle in std::mem::take(&mut self.rest().idle) {
            close_behind(idle.link, None);
        }
    }

    /// Adds a connection that was opened elsewhere.
    pub(super) fn adopt(&self, mut link: Link) {
        if self.own_sessions.load(Ordering::SeqCst) {
            link.own_session();
        }
        let heard = self.config.clock.now();
        self.rest().idle.push(Idle { link, heard });
    }

    /// Runs one statement on any connection. Its time limit is that of connecting.
    pub(super) async fn run(self: &Arc<Self>, sql: &str, values: &[Value]) -> Result<Reply, Failure> {
        let within = self.config.connect_timeout;
        let mut link = self.borrow().await?;
        self.config.clock.timeout(within, link.run(sql, values)).await.unwrap_or_else(|_| Err(Failure::silent(within)))
    }

    /// Closes the idle connections instead of reusing them: one of them was dead.
    pub(super) fn forget_idle(&self) {
        self.rest().doubted = Some(self.config.clock.now());
    }

    /// The same, if none has answered since that moment: one was unresponsive from then on, and the
    /// others may be, too. If one has answered, a locked row or a busy server may be the reason,
    /// and the connection used last is alive.
    fn forget_silent(&self, since: Moment) {
        let mut rest = self.rest();
        if rest.heard < Some(since) {
            rest.doubted = rest.doubted.max(Some(since));
        }
    }

    fn rest(&self) -> MutexGuard<'_, Rest> {
        lock(&self.rest)
    }

    pub(super) fn tell(&self, failure: &Failure) -> Error {
        failure.tell(self.config.dialect, &self.server)
    }

    /// Closes all connections, and those in use when they return.
    pub(super) async fn close(&self) {
        self.room.close();
        let idle = std::mem::take(&mut self.rest().idle);
        for idle in idle {
            idle.link.close().await;
        }
    }
}

/// Closes a connection in the background; until then it counts as ours.
fn close_behind(link: Link, permit: Option<OwnedSemaphorePermit>) {
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

/// Returns some time after the caller gave up.
async fn forgotten(unwanted: oneshot::Receiver<()>, clock: &Clock) {
    // The channel only ever closes: nothing is sent.
    let _ = unwanted.await;
    clock.sleep(LOCK_WAIT).await;
}

/// A connection from the pool. It returns when dropped, unless it broke or a statement is
/// unfinished.
#[derive(Debug)]
pub(super) struct Pooled {
    link: Option<Link>,
    pool: Arc<Pool>,
    permit: Option<OwnedSemaphorePermit>,
    /// When the statement under way was sent.
    asked: Option<Moment>,
    /// When it last answered.
    heard: Moment,
    /// Whether it can be reused.
    good: bool,
}

impl Pooled {
    fn new(idle: Idle, pool: &Arc<Pool>, permit: OwnedSemaphorePermit) -> Self {
        let Idle { link, heard } = idle;
        Self { link: Some(link), pool: Arc::clone(pool), permit: Some(permit), asked: None, heard, good: true }
    }

    /// Runs one statement.
    pub(super) async fn run(&mut self, sql: &str, values: &[Value]) -> Result<Reply, Failure> {
        let result = self.ask()?.run(sql, values).await;
        self.answered(result)
    }

    /// Runs statements without values or rows.
    pub(super) async fn script(&mut self, sql: &str) -> Result<(), Failure> {
        let result = self.ask()?.script(sql).await;
        self.answered(result)
    }

    fn ask(&mut self) -> Result<&mut Link, Failure> {
        self.asked = Some(self.pool.config.clock.now());
        self.link.as_mut().ok_or_else(|| Failure::Broken("the connection is gone".into()))
    }

    fn answered<T>(&mut self, result: Result<T, Failure>) -> Result<T, Failure> {
        self.asked = None;
        if let Err(failure) = &result {
            self.pool.note_read_only(failure);
        }
        self.good = !result.as_ref().is_err_and(|failure| failure.is_end(self.pool.config.dialect));
        if self.good {
            self.heard = self.pool.config.clock.now();
            self.pool.rest().heard = Some(self.heard);
        }
        result
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let Some(link) = self.link.take() else { return };
        if link.is_closed() || self.pool.room.is_closed() {
            return;
        }
        if self.asked.is_none() && self.good && self.pool.spares() {
            close_behind(link, self.permit.take());
            return;
        }
        if let Some(asked) = self.asked {
            let clock = self.pool.config.clock.clone();
            if clock.now().since(asked) >= SILENT {
                self.pool.forget_silent(asked);
            }
            // The server may still work on the statement for a while: until then, this connection
            // counts as ours.
            if let (Ok(runtime), Some(permit)) = (tokio::runtime::Handle::try_current(), self.permit.take()) {
                runtime.spawn(async move {
                    link.abandon(&clock).await;
                    drop(permit);
                });
            }
        } else if self.good {
            self.pool.rest().idle.push(Idle { link, heard: self.heard });
        }
    }
}
