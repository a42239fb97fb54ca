//! The entry point of the blocking API.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::background_thread::BackgroundThread;
use super::primitives::{Election, MultiLock, Mutex, RwLock, Semaphore};
use crate::api::multi_lock::LockSpec;
use crate::clock::Clock;
use crate::engine::{Capabilities, ContenderView, Engine, EngineUrl, ForceReleaseOutcome, LockView};
use crate::metrics::Metrics;
use crate::types::{ClaimId, Error, Holder, Result, Token};

/// The locks of one engine: [`crate::Locks`] without async. Cheap to clone; all clones share one
/// background thread.
///
/// ```
/// use leasehold::blocking::Locks;
///
/// let locks = Locks::open("memory:")?;
/// let guard = locks.mutex("stock:42").lock()?;
/// assert_eq!(locks.inspect("stock:42")?.holders.len(), 1);
/// drop(guard);
/// locks.close()?;   // before the process exits
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct Locks {
    // Dropped before the worker: the thread releases what is pending before it ends.
    inner: crate::Locks,
    worker: Arc<BackgroundThread>,
}

/// Options for opening [`Locks`]: [`crate::Builder`] without async.
///
/// ```
/// use std::time::Duration;
/// use leasehold::blocking::Locks;
///
/// let locks = Locks::builder().ttl(Duration::from_secs(10)).open("memory:")?;
/// assert_eq!(locks.url(), "memory:");
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Builder(crate::Builder);

impl Builder {
    /// Sets the TTL: how long a grant lasts unless it is renewed. The default is 30 seconds.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// Replaces the system's clock, for tests.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self(self.0.clock(clock))
    }

    /// Sets the receiver of the metrics. The background thread calls it, so it must not call these
    /// locks: the call would wait for itself.
    #[must_use]
    pub fn metrics(self, metrics: Arc<dyn Metrics>) -> Self {
        Self(self.0.metrics(metrics))
    }

    /// Sets the holder that inspection shows for every claim. The default is this process.
    #[must_use]
    pub fn holder(self, holder: Holder) -> Self {
        Self(self.0.holder(holder))
    }

    /// Sets how long opening retries while the engine is unreachable, as
    /// [`crate::Builder::connect_timeout`]. Zero, the default, means a single attempt.
    #[must_use]
    pub fn connect_timeout(self, timeout: Duration) -> Self {
        Self(self.0.connect_timeout(timeout))
    }

    /// Sets a callback that the background thread calls once, with the first error, before opening
    /// retries.
    #[must_use]
    pub fn on_unreachable(self, callback: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        Self(self.0.on_unreachable(callback))
    }

    /// Adds an engine that is not part of this crate, as [`crate::Builder::register`]. The
    /// background thread runs the future of `open`.
    #[must_use]
    pub fn register<F>(self, scheme: &str, open: impl Fn(EngineUrl, Clock) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Arc<dyn Engine>>> + Send + 'static,
    {
        Self(self.0.register(scheme, open))
    }

    /// Opens the engine at `url`.
    ///
    /// # Errors
    /// As [`crate::Locks::open`]; `Unavailable` if the background thread cannot be started.
    pub fn open(self, url: &str) -> Result<Locks> {
        let url = url.to_owned();
        Locks::start_thread(move || async move { self.0.open(&url).await })
    }

    /// Makes [`Locks`] of an engine that is open already.
    ///
    /// # Errors
    /// `Unavailable` if the background thread cannot be started.
    pub fn open_engine(self, engine: Arc<dyn Engine>) -> Result<Locks> {
        Locks::start_thread(move || async move { Ok(self.0.open_engine(engine)) })
    }
}

impl Locks {
    /// Opens the locks on a new background thread.
    fn start_thread<F>(open: impl FnOnce() -> F + Send + 'static) -> Result<Self>
    where
        F: Future<Output = Result<crate::Locks>>,
    {
        let (inner, worker) = BackgroundThread::spawn(open)?;
        Ok(Self { inner, worker })
    }

    /// Opens the engine at `url`: `memory:`, `file:///folder` or `redis://host`, for example.
    ///
    /// # Errors
    /// As [`crate::Locks::open`]; `Unavailable` if the background thread cannot be started.
    pub fn open(url: &str) -> Result<Self> {
        Self::builder().open(url)
    }

    /// Options for opening an engine; end with [`Builder::open`].
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The lock `name`, with one holder at a time.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(self.inner.mutex(name), &self.worker)
    }

    /// The lock `name`, with many readers or one writer at a time.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self.inner.rwlock(name), &self.worker)
    }

    /// The lock `name`, with `limit` permits.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Semaphore {
        Semaphore::new(self.inner.semaphore(name, limit), &self.worker)
    }

    /// Several locks that are acquired together, all or none.
    pub fn multi_lock<I>(&self, specs: I) -> MultiLock
    where
        I: IntoIterator,
        I::Item: Into<LockSpec>,
    {
        MultiLock::new(self.inner.multi_lock(specs), &self.worker)
    }

    /// The election `name`, with one leader at a time, whom all clients can see.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(self.inner.election(name), &self.worker)
    }

    /// What the engine can do, and its limits.
    pub fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    /// The engine's URL, without secrets.
    pub fn url(&self) -> String {
        self.inner.url()
    }

    /// The clock on which all deadlines of these locks are measured.
    pub fn clock(&self) -> &Clock {
        self.inner.clock()
    }

    /// The number of leases that this `Locks` and its clones hold.
    pub fn held_count(&self) -> usize {
        self.inner.held_count()
    }

    /// The holders and the waiters of the lock `name`.
    ///
    /// # Errors
    /// As the async method.
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<LockView> {
        let (locks, name) = (self.inner.clone(), name.as_ref().to_owned());
        self.worker.call(async move { locks.inspect(name).await })
    }

    /// All locks that have a holder or a waiter and whose name starts with `prefix`, sorted by
    /// name.
    ///
    /// # Errors
    /// As the async method.
    pub fn list(&self, prefix: &str) -> Result<Vec<LockView>> {
        let (locks, prefix) = (self.inner.clone(), prefix.to_owned());
        self.worker.call(async move { locks.list(&prefix).await })
    }

    /// Force releases a claim, whether it holds or waits, as [`crate::Locks::force_release`].
    ///
    /// # Errors
    /// As the async method.
    pub fn force_release(&self, name: impl AsRef<str>, claim: ClaimId) -> Result<ForceReleaseOutcome> {
        let (locks, name) = (self.inner.clone(), name.as_ref().to_owned());
        self.worker.call(async move { locks.force_release(name, claim).await })
    }

    /// Force releases a claim, as [`crate::Locks::force_release_with_reason`]. `reason` is free
    /// text for the engine's log.
    ///
    /// # Errors
    /// As the async method.
    pub fn force_release_with_reason(
        &self,
        name: impl AsRef<str>,
        claim: ClaimId,
        reason: &str,
    ) -> Result<ForceReleaseOutcome> {
        let (locks, name, reason) = (self.inner.clone(), name.as_ref().to_owned(), reason.to_owned());
        self.worker.call(async move { locks.force_release_with_reason(name, claim, &reason).await })
    }

    /// Requests that a holder releases its claim, as [`crate::Locks::request_release`].
    ///
    /// # Errors
    /// As the async method.
    pub fn request_release(
        &self,
        name: impl AsRef<str>,
        claim: ClaimId,
        reason: &str,
    ) -> Result<Option<ContenderView>> {
        let (locks, name, reason) = (self.inner.clone(), name.as_ref().to_owned(), reason.to_owned());
        self.worker.call(async move { locks.request_release(name, claim, &reason).await })
    }

    /// Whether a claim released the lock after a release request, as
    /// [`crate::Locks::was_released`].
    ///
    /// # Errors
    /// As the async method.
    pub fn was_released(&self, name: impl AsRef<str>, claim: ClaimId) -> Result<Option<bool>> {
        let (locks, name) = (self.inner.clone(), name.as_ref().to_owned());
        self.worker.call(async move { locks.was_released(name, claim).await })
    }

    /// The highest token known for `name`, if the engine stores it.
    ///
    /// # Errors
    /// As the async method.
    pub fn last_token(&self, name: impl AsRef<str>) -> Result<Option<Token>> {
        Ok(self.inspect(name)?.last_token)
    }

    /// Waits until every dropped guard is released, as [`crate::Locks::flush`]. Call it before the
    /// process exits.
    ///
    /// # Errors
    /// As the async method.
    pub fn flush(&self) -> Result<()> {
        let locks = self.inner.clone();
        self.worker.call(async move { locks.flush().await })
    }

    /// Refuses further requests, flushes, and shuts the engine down if no lease is held, as
    /// [`crate::Locks::close`].
    ///
    /// # Errors
    /// As the async method.
    pub fn close(self) -> Result<()> {
        let locks = self.inner;
        self.worker.call(async move { locks.close().await })
    }

    /// A file descriptor that keeps the locks held while a process has it open, as
    /// [`crate::Locks::liveness_fd`].
    #[cfg(unix)]
    pub fn liveness_fd(&self) -> Option<std::os::fd::OwnedFd> {
        self.inner.liveness_fd()
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
