//! The entry point: an engine, its keeper, and the primitives on top of them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::connect::{ConnectOptions, Opener};
use crate::api::election::Election;
use crate::api::multi_lock::{LockSpec, MultiLock};
use crate::api::primitives::{Mutex, RwLock, Semaphore};
use crate::api::request::Request;
use crate::clock::Clock;
use crate::core::keeper::{self, LeaseManager};
use crate::core::shared::Shared;
use crate::engine::{self, Capabilities, ContenderView, Engine, EngineUrl, ForceReleaseOutcome, LockView};
use crate::logic::lease as rules;
use crate::metrics::{Metrics, OptionalMetrics};
use crate::types::DEFAULT_TTL;
use crate::types::{ClaimId, Error, ErrorKind, Holder, LockName, Result, Token};

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

/// Options for opening [`Locks`].
#[derive(Default)]
pub struct Builder {
    clock: Clock,
    ttl: Option<Duration>,
    metrics: Option<Arc<dyn Metrics>>,
    holder: Option<Holder>,
    connect_options: ConnectOptions,
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

    /// Sets the receiver of the metrics listed in [`metrics`](crate::metrics).
    #[must_use]
    pub fn metrics(mut self, metrics: Arc<dyn Metrics>) -> Self {
        self.metrics = Some(metrics);
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
        self.connect_options.timeout = timeout;
        self
    }

    /// Sets a callback that is called once, with the first error, before opening retries.
    #[must_use]
    pub fn on_unreachable(mut self, callback: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.connect_options.on_unreachable = Some(Box::new(callback));
        self
    }

    /// Adds an engine that is not part of this crate: URLs with `scheme` are opened by `open`.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use leasehold::{Locks, clock::Clock, engine::{Engine, EngineUrl}};
    /// # async fn open_mine(url: EngineUrl, clock: Clock) -> leasehold::Result<Arc<dyn Engine>> { leasehold::registry::open(&url.to_string(), &clock).await }
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
        self.connect_options.registered.push((scheme.to_ascii_lowercase(), open));
        self
    }

    /// Opens the engine at `url`.
    ///
    /// # Errors
    /// As [`Locks::open`].
    pub async fn open(self, url: &str) -> Result<Locks> {
        let engine = self.connect_options.open(url, &self.clock).await?;
        Ok(self.open_engine(engine))
    }

    /// Uses an existing engine: your own implementation, or one wrapped for a test.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn open_engine(self, engine: Arc<dyn Engine>) -> Locks {
        crate::random::reseed_all_threads();
        let gauges = self.metrics.map_or_else(OptionalMetrics::default, OptionalMetrics::new);
        let manager = Arc::new(LeaseManager::new(engine, self.clock, gauges));
        let losses = manager.engine.loss_events();
        tokio::spawn(keeper::run(Arc::clone(&manager), losses));
        let holder = Arc::new(self.holder.unwrap_or_else(Holder::this_process));
        Locks { shared: Arc::new(Shared { manager, holder, ttl: self.ttl.unwrap_or(DEFAULT_TTL) }) }
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
    pub fn multi_lock<I>(&self, wanted: I) -> MultiLock
    where
        I: IntoIterator,
        I::Item: Into<LockSpec>,
    {
        MultiLock::new(self, wanted.into_iter().map(Into::into).collect())
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
        &self.shared.manager.capabilities
    }

    /// The engine's URL, without secrets.
    pub fn url(&self) -> String {
        self.shared.manager.engine.url()
    }

    /// The TTL of grants, unless the request sets another one.
    pub fn ttl(&self) -> Duration {
        self.shared.ttl
    }

    /// The holder that inspection shows for every claim.
    pub fn holder(&self) -> &Holder {
        &self.shared.holder
    }

    /// Adds the engine's URL to an error that has none.
    #[must_use]
    pub fn add_location(&self, error: Error) -> Error {
        self.shared.locate(error)
    }

    /// The clock of all deadlines.
    pub fn clock(&self) -> &Clock {
        &self.shared.manager.clock
    }

    /// The number of leases that this `Locks` holds.
    pub fn held_count(&self) -> usize {
        self.shared.manager.held_count()
    }

    /// The holders and the waiters of `name`.
    ///
    /// # Errors
    /// `InvalidName`, `Unsupported`, or an error from the engine.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<LockView> {
        let name = LockName::new(name)?;
        let need = self.shared.require(self.capabilities().inspection, "inspection");
        need.map_err(|error| error.about_lock(&name))?;
        let view = self.call_bounded(Arc::clone(&self.shared.manager.engine).inspect(name.clone())).await;
        view.map_err(|error| error.about_lock(&name))
    }

    /// All locks that have a holder or a waiter and whose name starts with `prefix`, sorted by
    /// name.
    ///
    /// # Errors
    /// `Unsupported`, or an error from the engine.
    pub async fn list(&self, prefix: &str) -> Result<Vec<LockView>> {
        self.shared.require(self.capabilities().inspection, "inspection")?;
        self.call_bounded(Arc::clone(&self.shared.manager.engine).list(prefix.to_owned())).await
    }

    /// Force releases (evicts) a claim, whether it holds or waits. A waiter's request ends with
    /// [`ErrorKind::ForceReleased`].
    ///
    /// The holder learns of it within a round trip if the engine pushes notifications, and within
    /// 500 ms if it polls. The next waiter acquires the lock within the same time. Until the holder
    /// learns of it, it may still write; only a resource that checks tokens refuses such a write.
    /// If there is an [`ForceReleaseOutcome::fence_token`], write it to the resource.
    ///
    /// # Errors
    /// `InvalidName`, `Unsupported`, or an error from the engine.
    pub async fn force_release(&self, name: impl AsRef<str>, claim: ClaimId) -> Result<ForceReleaseOutcome> {
        self.force_release_with_reason(name, claim, "").await
    }

    /// As [`force_release`](Self::force_release), with a reason for the record.
    ///
    /// # Errors
    /// As [`force_release`](Self::force_release).
    pub async fn force_release_with_reason(
        &self,
        name: impl AsRef<str>,
        claim: ClaimId,
        reason: &str,
    ) -> Result<ForceReleaseOutcome> {
        let name = LockName::new(name)?;
        let need = self.shared.require(self.capabilities().force_release, "force release");
        need.map_err(|error| error.about_lock(&name))?;
        let outcome = self
            .call_bounded(Arc::clone(&self.shared.manager.engine).force_release(name.clone(), claim, reason.to_owned()))
            .await;
        let outcome = outcome.map_err(|error| error.about_lock(&name))?;
        tracing::warn!(%name, ?claim, fence = outcome.fence_token.map(|token| token.0), by = ?self.shared.holder, "claim evicted");
        Ok(outcome)
    }

    /// Requests that a holder releases its claim, the cooperative form of
    /// [`force_release`](Self::force_release). The holder's
    /// [`release_requested`](crate::Guard::release_requested) completes, and its lease is not
    /// renewed any more. The lock becomes free when the holder releases it, or at its deadline; two
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
    ) -> Result<Option<ContenderView>> {
        let name = LockName::new(name)?;
        self.capabilities().require(self.capabilities().force_release, "force release")?;
        let engine = Arc::clone(&self.shared.manager.engine);
        let outcome = self.call_bounded(engine.request_release(name.clone(), claim, reason.to_owned())).await;
        outcome.map_err(|error| error.about_lock(&name))
    }

    /// Whether a claim released the lock after a release request
    /// ([`request_release`](Self::request_release)). Ask once the claim does not hold the lock any
    /// more. `Some(false)`: no release is known. `None`: the engine stores no note of that, but
    /// shows when leases end. A claim that disappears before the end of its lease has released.
    ///
    /// `Some(true)` is reported once.
    ///
    /// # Errors
    /// `InvalidName`, or an error from the engine.
    pub async fn was_released(&self, name: impl AsRef<str>, claim: ClaimId) -> Result<Option<bool>> {
        let name = LockName::new(name)?;
        let known = self.call_bounded(Arc::clone(&self.shared.manager.engine).was_released(claim)).await;
        known.map_err(|error| error.about_lock(&name))
    }

    /// Waits until every dropped guard and every cancelled request is released. Call it before the
    /// process exits.
    ///
    /// # Errors
    /// `Unavailable` if that takes longer than the timeout of one engine call.
    pub async fn flush(&self) -> Result<()> {
        let bound = self.clock().now().saturating_add(rules::call_timeout(self.shared.ttl));
        tokio::select! {
            () = self.shared.manager.wait_all_released() => Ok(()),
            () = self.clock().sleep_until(bound) => {
                let message = "timed out releasing pending locks; they expire at their TTL";
                Err(self.shared.locate(Error::new(ErrorKind::Unavailable, message)))
            }
        }
    }

    /// Refuses further requests, waits as [`flush`](Self::flush) does, and shuts the engine down
    /// if no lease is held. The keeper renews the guards that are still held until they are
    /// dropped.
    ///
    /// # Errors
    /// As [`flush`](Self::flush), or an error from the engine.
    pub async fn close(self) -> Result<()> {
        self.shared.manager.reject_requests();
        self.flush().await?;
        if self.held_count() > 0 {
            return Ok(());
        }
        self.call_bounded(Arc::clone(&self.shared.manager.engine).shutdown()).await
    }

    /// A file descriptor that keeps the locks held, where the kernel tracks them (`file:`). The
    /// kernel releases the locks when its last copy is closed. Pass it to a child process that must
    /// exit before the locks are free.
    #[cfg(unix)]
    pub fn liveness_fd(&self) -> Option<std::os::fd::OwnedFd> {
        self.shared.manager.engine.liveness_fd()
    }

    /// The highest token known for `name`, if the engine stores it.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect).
    pub async fn last_token(&self, name: impl AsRef<str>) -> Result<Option<Token>> {
        Ok(self.inspect(name).await?.last_token)
    }

    pub(crate) async fn call_bounded<T>(&self, mut step: engine::Step<T>) -> Result<T> {
        keeper::call(&self.shared.manager, &mut step, || rules::call_timeout(self.shared.ttl)).await
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("engine", &self.url()).field("held", &self.held_count()).finish_non_exhaustive()
    }
}
