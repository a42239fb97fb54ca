//! The entry point, without async.

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

/// As [`crate::Locks`], without async. Cheap to clone; all clones share one background thread.
#[derive(Clone)]
pub struct Locks {
    // Dropped before the worker, so that the thread can still shut it down.
    inner: crate::Locks,
    worker: Arc<BackgroundThread>,
}

/// As [`crate::Builder`], without async.
#[derive(Default)]
pub struct Builder(crate::Builder);

impl Builder {
    /// As [`crate::Builder::ttl`].
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// As [`crate::Builder::clock`].
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self(self.0.clock(clock))
    }

    /// As [`crate::Builder::metrics`]. The background thread calls the meter, which must not call
    /// these locks.
    #[must_use]
    pub fn metrics(self, metrics: Arc<dyn Metrics>) -> Self {
        Self(self.0.metrics(metrics))
    }

    /// As [`crate::Builder::holder`].
    #[must_use]
    pub fn holder(self, holder: Holder) -> Self {
        Self(self.0.holder(holder))
    }

    /// As [`crate::Builder::connect_timeout`].
    #[must_use]
    pub fn connect_timeout(self, timeout: Duration) -> Self {
        Self(self.0.connect_timeout(timeout))
    }

    /// As [`crate::Builder::on_unreachable`]. The background thread calls it, so it must not call
    /// these locks.
    #[must_use]
    pub fn on_unreachable(self, callback: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        Self(self.0.on_unreachable(callback))
    }

    /// As [`crate::Builder::register`]. The background thread polls the future.
    #[must_use]
    pub fn register<F>(self, scheme: &str, open: impl Fn(EngineUrl, Clock) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Arc<dyn Engine>>> + Send + 'static,
    {
        Self(self.0.register(scheme, open))
    }

    /// As [`crate::Builder::open`].
    ///
    /// # Errors
    /// As [`crate::Locks::open`]; `Unavailable` if the background thread cannot be started.
    pub fn open(self, url: &str) -> Result<Locks> {
        let url = url.to_owned();
        Locks::start_thread(move || async move { self.0.open(&url).await })
    }

    /// As [`crate::Builder::open_engine`].
    ///
    /// # Errors
    /// `Unavailable` if the background thread cannot be started.
    pub fn open_engine(self, engine: Arc<dyn Engine>) -> Result<Locks> {
        Locks::start_thread(move || async move { Ok(self.0.open_engine(engine)) })
    }
}

impl Locks {
    fn start_thread<F>(open: impl FnOnce() -> F + Send + 'static) -> Result<Self>
    where
        F: Future<Output = Result<crate::Locks>>,
    {
        let (inner, worker) = BackgroundThread::spawn(open)?;
        Ok(Self { inner, worker })
    }

    /// Opens the engine at `url`.
    ///
    /// # Errors
    /// As [`crate::Locks::open`]; `Unavailable` if the background thread cannot be started.
    pub fn open(url: &str) -> Result<Self> {
        Self::builder().open(url)
    }

    /// Opens with options.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A lock with one holder at a time.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(self.inner.mutex(name), &self.worker)
    }

    /// A lock with many readers or one writer at a time.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self.inner.rwlock(name), &self.worker)
    }

    /// A lock of `limit` permits.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Semaphore {
        Semaphore::new(self.inner.semaphore(name, limit), &self.worker)
    }

    /// Several locks at once, all or nothing.
    pub fn multi_lock<I>(&self, specs: I) -> MultiLock
    where
        I: IntoIterator,
        I::Item: Into<LockSpec>,
    {
        MultiLock::new(self.inner.multi_lock(specs), &self.worker)
    }

    /// An election: one leader at a time, visible to all clients.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(self.inner.election(name), &self.worker)
    }

    /// As [`crate::Locks::capabilities`].
    pub fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    /// As [`crate::Locks::url`].
    pub fn url(&self) -> String {
        self.inner.url()
    }

    /// As [`crate::Locks::clock`].
    pub fn clock(&self) -> &Clock {
        self.inner.clock()
    }

    /// As [`crate::Locks::held_count`].
    pub fn held_count(&self) -> usize {
        self.inner.held_count()
    }

    /// As [`crate::Locks::inspect`].
    ///
    /// # Errors
    /// As the async method.
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<LockView> {
        let (locks, name) = (self.inner.clone(), name.as_ref().to_owned());
        self.worker.call(async move { locks.inspect(name).await })
    }

    /// As [`crate::Locks::list`].
    ///
    /// # Errors
    /// As the async method.
    pub fn list(&self, prefix: &str) -> Result<Vec<LockView>> {
        let (locks, prefix) = (self.inner.clone(), prefix.to_owned());
        self.worker.call(async move { locks.list(&prefix).await })
    }

    /// As [`crate::Locks::force_release`].
    ///
    /// # Errors
    /// As the async method.
    pub fn force_release(&self, name: impl AsRef<str>, claim: ClaimId) -> Result<ForceReleaseOutcome> {
        let (locks, name) = (self.inner.clone(), name.as_ref().to_owned());
        self.worker.call(async move { locks.force_release(name, claim).await })
    }

    /// As [`crate::Locks::force_release_with_reason`].
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

    /// As [`crate::Locks::request_release`].
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

    /// As [`crate::Locks::was_released`].
    ///
    /// # Errors
    /// As the async method.
    pub fn was_released(&self, name: impl AsRef<str>, claim: ClaimId) -> Result<Option<bool>> {
        let (locks, name) = (self.inner.clone(), name.as_ref().to_owned());
        self.worker.call(async move { locks.was_released(name, claim).await })
    }

    /// As [`crate::Locks::last_token`].
    ///
    /// # Errors
    /// As the async method.
    pub fn last_token(&self, name: impl AsRef<str>) -> Result<Option<Token>> {
        Ok(self.inspect(name)?.last_token)
    }

    /// As [`crate::Locks::flush`]: call it before the process exits.
    ///
    /// # Errors
    /// As the async method.
    pub fn flush(&self) -> Result<()> {
        let locks = self.inner.clone();
        self.worker.call(async move { locks.flush().await })
    }

    /// As [`crate::Locks::close`].
    ///
    /// # Errors
    /// As the async method.
    pub fn close(self) -> Result<()> {
        let locks = self.inner;
        self.worker.call(async move { locks.close().await })
    }

    /// As [`crate::Locks::liveness_fd`].
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
