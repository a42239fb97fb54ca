//! The entry point of the library: opens an engine, starts its keeper, and makes the primitives.

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

/// Options for opening [`Locks`]. Made by [`Locks::builder`].
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use std::time::Duration;
/// use leasehold::Locks;
///
/// let locks = Locks::builder().ttl(Duration::from_secs(10)).open("memory:").await?;
/// assert_eq!(locks.ttl(), Duration::from_secs(10));
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Default)]
pub struct Builder {
    clock: Clock,
    /// `None`: [`DEFAULT_TTL`].
    ttl: Option<Duration>,
    metrics: Option<Arc<dyn Metrics>>,
    /// `None`: this process.
    holder: Option<Holder>,
    connect_options: ConnectOptions,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("clock", &self.clock)
            .field("ttl", &self.ttl)
            .field("holder", &self.holder)
            .field("connect_options", &self.connect_options)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Sets the TTL: how long a grant lasts unless it is renewed. The default is 30 seconds.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Replaces the system's clock, for tests. `memory:` and `file:` measure leases on it, too.
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

    /// Sets how long opening retries while the engine is unreachable: it restarts, fails over, or
    /// elects a leader. Zero, the default, means a single attempt. A bad URL, a wrong password or a
    /// server of another product fails at once.
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

    /// Makes [`Locks`] of an engine that is open already: your own implementation, or one wrapped
    /// for a test.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn open_engine(self, engine: Arc<dyn Engine>) -> Locks {
        crate::random::reseed_all_threads();
        let metrics = self.metrics.map_or_else(OptionalMetrics::default, OptionalMetrics::new);
        let manager = Arc::new(LeaseManager::new(engine, self.clock, metrics));
        let losses = manager.engine.loss_events();
        tokio::spawn(keeper::run(Arc::clone(&manager), losses));
        let holder = Arc::new(self.holder.unwrap_or_else(Holder::this_process));
        Locks { shared: Arc::new(Shared { manager, holder, ttl: self.ttl.unwrap_or(DEFAULT_TTL) }) }
    }
}

impl Locks {
    /// Opens the engine at `url`: `memory:`, `file:///folder` or `redis://host`, for example.
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

    /// Options for opening an engine; end with [`Builder::open`].
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The lock `name`, with one holder at a time. Sends nothing until the lock is acquired.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(self.request(name))
    }

    /// The lock `name`, with many readers or one writer at a time. Sends nothing until the lock is
    /// acquired.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self.request(name))
    }

    /// The lock `name`, with `limit` permits. Clients that use the name at the same time must pass
    /// the same limit. Sends nothing until permits are acquired.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Semaphore {
        Semaphore::new(self.request(name), limit)
    }

    /// Several locks that are acquired together, all or none. `specs` are names (locked
    /// exclusively), mutexes, the reading or writing side of read/write locks, or permits.
    pub fn multi_lock<I>(&self, specs: I) -> MultiLock
    where
        I: IntoIterator,
        I::Item: Into<LockSpec>,
    {
        MultiLock::new(self, specs.into_iter().map(Into::into).collect())
    }

    /// The election `name`, with one leader at a time, whom all clients can see.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(self.clone(), self.request(name))
    }

    /// A request for the lock `name`, with the options of these locks.
    fn request(&self, name: impl AsRef<str>) -> Request {
        Request::new(Arc::clone(&self.shared), name.as_ref())
    }

    /// What the engine can do, and its limits.
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

    /// The clock on which all deadlines of these locks are measured.
    pub fn clock(&self) -> &Clock {
        &self.shared.manager.clock
    }

    /// The number of leases that this `Locks` and its clones hold.
    pub fn held_count(&self) -> usize {
        self.shared.manager.held_count()
    }

    /// The holders and the waiters of the lock `name`.
    ///
    /// # Errors
    /// `InvalidName`, `Unsupported`, or an error from the engine.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<LockView> {
        let name = LockName::new(name)?;
        let supported = self.shared.require(self.capabilities().inspection, "inspection");
        supported.map_err(|error| error.about_lock(&name))?;
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

    /// Force releases a claim, whether it holds or waits: it ends without its client's consent. A
    /// holder's guard is lost, and a waiter's request fails with [`ErrorKind::ForceReleased`].
    ///
    /// The client learns of it within a round trip if the engine pushes notifications, and within
    /// 500 ms if it polls. The next waiter acquires the lock within the same time. Until the holder
    /// learns of it, it may still write; only a resource that checks tokens refuses such a write.
    /// If there is a [`ForceReleaseOutcome::fence_token`], write it to the resource.
    ///
    /// # Errors
    /// `InvalidName`, `Unsupported`, or an error from the engine.
    pub async fn force_release(&self, name: impl AsRef<str>, claim: ClaimId) -> Result<ForceReleaseOutcome> {
        self.force_release_with_reason(name, claim, "").await
    }

    /// As [`force_release`](Self::force_release), with a reason: free text for the engine's log,
    /// which few engines have (`file:` has one).
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
        let supported = self.shared.require(self.capabilities().force_release, "force release");
        supported.map_err(|error| error.about_lock(&name))?;
        let outcome = self
            .call_bounded(Arc::clone(&self.shared.manager.engine).force_release(name.clone(), claim, reason.to_owned()))
            .await;
        let outcome = outcome.map_err(|error| error.about_lock(&name))?;
        tracing::warn!(%name, ?claim, fence = outcome.fence_token.map(|token| token.0), by = ?self.shared.holder, "force released");
        Ok(outcome)
    }

    /// Requests that a holder releases its claim, the cooperative form of
    /// [`force_release`](Self::force_release). The holder's
    /// [`release_requested`](crate::Guard::release_requested) completes, and its lease is not
    /// renewed any more. The lock becomes free when the holder releases it, or at its deadline; two
    /// clients never hold it at once. `reason` is free text for the engine's log, which few engines
    /// have.
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
        let supported = self.shared.require(self.capabilities().force_release, "force release");
        supported.map_err(|error| error.about_lock(&name))?;
        let engine = Arc::clone(&self.shared.manager.engine);
        let outcome = self.call_bounded(engine.request_release(name.clone(), claim, reason.to_owned())).await;
        outcome.map_err(|error| error.about_lock(&name))
    }

    /// Whether a claim released the lock after a release request
    /// ([`request_release`](Self::request_release)). Call it once the claim does not hold the lock
    /// any more.
    ///
    /// - `Some(true)`: it released the lock. Reported once.
    /// - `Some(false)`: the engine has no note of a release.
    /// - `None`: the engine stores no such notes, but inspection shows when leases end. A claim
    ///   that disappeared before the end of its lease has released.
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
                let message = "timed out while releasing locks; those that are not released expire at their TTL";
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

    /// A file descriptor that keeps the locks held while a process has it open; `None` if the
    /// engine has none. Only `file:` has one: the kernel releases the locks when the last copy is
    /// closed. Pass it to a child process that must exit before the locks are free.
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

    /// Awaits one step of the engine, no longer than the timeout of a call.
    pub(crate) async fn call_bounded<T>(&self, mut step: engine::Step<T>) -> Result<T> {
        keeper::call(&self.shared.manager, &mut step, || rules::call_timeout(self.shared.ttl)).await
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("engine", &self.url()).field("held", &self.held_count()).finish_non_exhaustive()
    }
}
