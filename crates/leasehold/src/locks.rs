//! The entry point: an engine, its keeper, and the primitives on top of them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::all::{All, Wanted};
use crate::claim::{ClaimId, Holder, Token};
use crate::clock::Clock;
use crate::connect::{Connect, Opener};
use crate::election::Election;
use crate::engine::{self, Capabilities, Engine, EngineUrl, Evicted, LockView, PartyView};
use crate::error::{Error, ErrorKind, Result};
use crate::keeper::{self, Desk};
use crate::logic::lease as rules;
use crate::meter::{Gauges, Meter};
use crate::name::LockName;
use crate::primitives::{Mutex, RwLock, Semaphore};
use crate::request::Request;

/// The TTL of a grant, unless the builder or the request sets another one.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// The locks of one engine. Cheap to clone; all clones share one connection and one keeper.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::Locks;
///
/// let locks = Locks::open("memory:").await?;
/// let guard = locks.mutex("stock:42").lock().await?;   // queues until granted; then renewed
/// assert!(guard.is_held());
/// println!("write with token {}", guard.token());      // the resource refuses older ones
/// guard.release().await?;
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Locks {
    pub(crate) shared: Arc<Shared>,
}

/// What guards and requests share.
pub(crate) struct Shared {
    pub(crate) desk: Arc<Desk>,
    pub(crate) holder: Arc<Holder>,
    pub(crate) ttl: Duration,
}

impl Shared {
    pub(crate) fn engine_name(&self) -> &'static str {
        self.desk.can.engine
    }

    /// See [`Desk::locate`].
    pub(crate) fn locate(&self, error: Error) -> Error {
        self.desk.locate(error)
    }

    /// Returns `Unsupported` if the engine cannot do this.
    pub(crate) fn need(&self, can: bool, what: &str) -> Result<()> {
        self.desk.can.need(can, what).map_err(|error| self.locate(error))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.desk.close();
    }
}

/// Options for opening [`Locks`].
#[derive(Default)]
pub struct Builder {
    clock: Clock,
    ttl: Option<Duration>,
    meter: Option<Arc<dyn Meter>>,
    holder: Option<Holder>,
    connect: Connect,
}

impl Builder {
    /// Sets the TTL: how long a grant lasts unless it is renewed. The default is 30 seconds.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Replaces the clock, for tests. Engines that keep time in this process use it, too.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the receiver of the metrics listed in [`meter`](crate::meter).
    #[must_use]
    pub fn meter(mut self, meter: Arc<dyn Meter>) -> Self {
        self.meter = Some(meter);
        self
    }

    /// Sets the holder that inspection shows for every claim. The default is this process.
    #[must_use]
    pub fn holder(mut self, holder: Holder) -> Self {
        self.holder = Some(holder);
        self
    }

    /// How long opening retries while the engine is unreachable: it restarts, fails over, or elects
    /// a leader. Zero, the default, means a single attempt. A bad URL, a wrong password or a server
    /// of another kind fails at once.
    ///
    /// ```no_run
    /// # async fn example() -> leasehold::Result<()> {
    /// # use std::time::Duration;
    /// let locks = leasehold::Locks::builder().connect_timeout(Duration::from_secs(10)).open("redis://db1").await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect.timeout = timeout;
        self
    }

    /// Sets a callback that is called once, with the first error, before opening retries.
    #[must_use]
    pub fn on_unreachable(mut self, tell: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.connect.on_unreachable = Some(Box::new(tell));
        self
    }

    /// Adds an engine that is not part of this crate: URLs with `scheme` are opened by `open`.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use leasehold::{Locks, clock::Clock, engine::{Engine, EngineUrl}};
    /// # async fn open_mine(url: EngineUrl, clock: Clock) -> leasehold::Result<Arc<dyn Engine>> { leasehold::engine::open(&url.to_string(), &clock).await }
    /// # async fn example() -> leasehold::Result<()> {
    /// let locks = Locks::builder().register("mine", open_mine).open("mine://host").await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn register<F>(mut self, scheme: &str, open: impl Fn(EngineUrl, Clock) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Arc<dyn Engine>>> + Send + 'static,
    {
        let open: Opener = Box::new(move |url, clock| Box::pin(open(url, clock)));
        self.connect.registered.push((scheme.to_ascii_lowercase(), open));
        self
    }

    /// Opens the engine at `url`.
    ///
    /// # Errors
    /// As [`Locks::open`].
    pub async fn open(self, url: &str) -> Result<Locks> {
        let engine = self.connect.open(url, &self.clock).await?;
        Ok(self.open_engine(engine))
    }

    /// Uses an existing engine: your own implementation, or one wrapped for a test.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn open_engine(self, engine: Arc<dyn Engine>) -> Locks {
        crate::random::new_era();
        let gauges = self.meter.map_or_else(Gauges::default, Gauges::new);
        let desk = Arc::new(Desk::new(engine, self.clock, gauges));
        let losses = desk.engine.losses();
        tokio::spawn(keeper::run(Arc::clone(&desk), losses));
        let holder = Arc::new(self.holder.unwrap_or_else(Holder::this_process));
        Locks { shared: Arc::new(Shared { desk, holder, ttl: self.ttl.unwrap_or(DEFAULT_TTL) }) }
    }
}

impl Locks {
    /// Opens the engine at `url`: `memory:`, `file:`, `file:///folder`.
    ///
    /// Call it inside a tokio runtime that lives as long as the locks are used, because the keeper
    /// runs there. Without a runtime, use [`blocking::Locks`](crate::blocking::Locks). A process
    /// that forks opens its locks after the fork, in each child.
    ///
    /// # Errors
    /// `InvalidUrl`; `UnknownScheme`, with a list of the known schemes; `FeatureDisabled`, with the
    /// name of the feature; or an error from the engine.
    pub async fn open(url: &str) -> Result<Self> {
        Self::builder().open(url).await
    }

    /// Opens with options.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A lock with one holder at a time.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(self.request(name))
    }

    /// A lock with many readers or one writer at a time.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self.request(name))
    }

    /// A lock of `limit` permits. All clients that use the name at the same time must pass the same
    /// limit.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Semaphore {
        Semaphore::new(self.request(name), limit)
    }

    /// Several locks at once, all or nothing. Takes names (locked exclusively), mutexes, the
    /// reading or writing side of read/write locks, and permits.
    pub fn all<I>(&self, wanted: I) -> All
    where
        I: IntoIterator,
        I::Item: Into<Wanted>,
    {
        All::new(self, wanted.into_iter().map(Into::into).collect())
    }

    /// An election: one leader at a time, visible to all clients.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(self.clone(), self.request(name))
    }

    fn request(&self, name: impl AsRef<str>) -> Request {
        Request::new(Arc::clone(&self.shared), name.as_ref())
    }

    /// What the engine can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.shared.desk.can
    }

    /// The engine's URL, without secrets.
    pub fn url(&self) -> String {
        self.shared.desk.engine.url()
    }

    /// The clock of all deadlines.
    pub fn clock(&self) -> &Clock {
        &self.shared.desk.clock
    }

    /// The number of leases that this `Locks` holds.
    pub fn held(&self) -> usize {
        self.shared.desk.held()
    }

    /// The holders and the waiters of `name`.
    ///
    /// # Errors
    /// `InvalidName`, `Unsupported`, or an error from the engine.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<LockView> {
        let name = LockName::new(name)?;
        let need = self.shared.need(self.capabilities().inspection, "inspection");
        need.map_err(|error| error.about(&name))?;
        let view = self.bounded(Arc::clone(&self.shared.desk.engine).inspect(name.clone())).await;
        view.map_err(|error| error.about(&name))
    }

    /// All locks that have a holder or a waiter and whose name starts with `prefix`, sorted by
    /// name.
    ///
    /// # Errors
    /// `Unsupported`, or an error from the engine.
    pub async fn list(&self, prefix: &str) -> Result<Vec<LockView>> {
        self.shared.need(self.capabilities().inspection, "inspection")?;
        self.bounded(Arc::clone(&self.shared.desk.engine).list(prefix.to_owned())).await
    }

    /// Force releases (evicts) a claim, whether it holds or waits. A waiter's request ends with
    /// [`ErrorKind::Evicted`].
    ///
    /// The holder learns of it within a round trip if the engine pushes notifications, and within
    /// 500 ms if it polls. The next waiter acquires the lock within the same time. Until the holder
    /// learns of it, it may still write; only a resource that checks tokens refuses such a write.
    /// If there is an [`Evicted::token`], write it to the resource.
    ///
    /// # Errors
    /// `InvalidName`, `Unsupported`, or an error from the engine.
    pub async fn evict(&self, name: impl AsRef<str>, claim: ClaimId) -> Result<Evicted> {
        self.evict_because(name, claim, "").await
    }

    /// As [`evict`](Self::evict), with a reason for the record.
    ///
    /// # Errors
    /// As [`evict`](Self::evict).
    pub async fn evict_because(&self, name: impl AsRef<str>, claim: ClaimId, reason: &str) -> Result<Evicted> {
        let name = LockName::new(name)?;
        let need = self.shared.need(self.capabilities().eviction, "eviction");
        need.map_err(|error| error.about(&name))?;
        let evicted =
            self.bounded(Arc::clone(&self.shared.desk.engine).evict(name.clone(), claim, reason.to_owned())).await;
        let evicted = evicted.map_err(|error| error.about(&name))?;
        tracing::warn!(%name, ?claim, fence = evicted.token.map(|token| token.0), by = ?self.shared.holder, "claim evicted");
        Ok(evicted)
    }

    /// Asks a holder to release its claim, the cooperative form of [`evict`](Self::evict). The
    /// holder's [`release_requested`](crate::Guard::release_requested) completes, and its lease is
    /// not renewed any more. The lock is free once the holder releases it, or at its deadline; two
    /// clients never hold it at once.
    ///
    /// Returns the holder as it was, or `None` if the claim does not hold the lock. A request can
    /// be lost if a connection is down; repeating it is harmless.
    ///
    /// # Errors
    /// `InvalidName`, `Unsupported`, or an error from the engine.
    pub async fn request_release(
        &self,
        name: impl AsRef<str>,
        claim: ClaimId,
        reason: &str,
    ) -> Result<Option<PartyView>> {
        let name = LockName::new(name)?;
        self.capabilities().need(self.capabilities().eviction, "eviction")?;
        let engine = Arc::clone(&self.shared.desk.engine);
        let asked = self.bounded(engine.request_release(name.clone(), claim, reason.to_owned())).await;
        asked.map_err(|error| error.about(&name))
    }

    /// Whether a claim that was asked to release ([`request_release`](Self::request_release)), and
    /// does not hold the lock any more, has released it. `Some(false)`: no release is known.
    /// `None`: the engine keeps no note of that. It shows when leases end, so a claim that is gone
    /// before the end of its lease has released.
    ///
    /// `Some(true)` is reported once.
    ///
    /// # Errors
    /// `InvalidName`, or an error from the engine.
    pub async fn was_released(&self, name: impl AsRef<str>, claim: ClaimId) -> Result<Option<bool>> {
        let name = LockName::new(name)?;
        let known = self.bounded(Arc::clone(&self.shared.desk.engine).was_released(claim)).await;
        known.map_err(|error| error.about(&name))
    }

    /// Waits until every dropped guard and every cancelled request is released. Call it before the
    /// process exits.
    ///
    /// # Errors
    /// `Unavailable` if that takes longer than the timeout of one engine call.
    pub async fn settle(&self) -> Result<()> {
        let bound = self.clock().now().after(rules::call_timeout(self.shared.ttl));
        tokio::select! {
            () = self.shared.desk.settled() => Ok(()),
            () = self.clock().sleep_until(bound) => {
                let message = "timed out releasing pending locks; they expire at their TTL";
                Err(self.shared.locate(Error::new(ErrorKind::Unavailable, message)))
            }
        }
    }

    /// Refuses further requests, waits as [`settle`](Self::settle) does, and shuts the engine down
    /// if no lease is held. The keeper renews the guards that are still held until they are
    /// dropped.
    ///
    /// # Errors
    /// As [`settle`](Self::settle), or an error from the engine.
    pub async fn close(self) -> Result<()> {
        self.shared.desk.refuse();
        self.settle().await?;
        if self.held() > 0 {
            return Ok(());
        }
        self.bounded(Arc::clone(&self.shared.desk.engine).farewell()).await
    }

    /// A file descriptor that keeps the locks held, where the kernel tracks them (`file:`). The
    /// kernel releases the locks when its last copy is closed. Pass it to a child process that must
    /// exit before the locks are free.
    #[cfg(unix)]
    pub fn lifeline(&self) -> Option<std::os::fd::OwnedFd> {
        self.shared.desk.engine.lifeline()
    }

    /// The highest token known for `name`, if the engine stores it.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect).
    pub async fn last_token(&self, name: impl AsRef<str>) -> Result<Option<Token>> {
        Ok(self.inspect(name).await?.last_token)
    }

    pub(crate) async fn bounded<T>(&self, mut step: engine::Step<T>) -> Result<T> {
        keeper::call(&self.shared.desk, &mut step, || rules::call_timeout(self.shared.ttl)).await
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("engine", &self.url()).field("held", &self.held()).finish_non_exhaustive()
    }
}
