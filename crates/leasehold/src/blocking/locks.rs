//! The entry point, without async.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::primitives::{All, Election, Mutex, RwLock, Semaphore};
use super::worker::Worker;
use crate::all::Wanted;
use crate::claim::{ClaimId, Holder, Token};
use crate::clock::Clock;
use crate::engine::{Capabilities, Engine, EngineUrl, Evicted, LockView, PartyView};
use crate::error::{Error, Result};
use crate::meter::Meter;

/// As [`crate::Locks`], without async. Cheap to clone; all clones share one background thread.
#[derive(Clone)]
pub struct Locks {
    // Dropped before the worker, so that the thread can still shut it down.
    inner: crate::Locks,
    worker: Arc<Worker>,
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

    /// As [`crate::Builder::meter`]. The background thread calls the meter, which must not call
    /// these locks.
    #[must_use]
    pub fn meter(self, meter: Arc<dyn Meter>) -> Self {
        Self(self.0.meter(meter))
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
    pub fn on_unreachable(self, tell: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        Self(self.0.on_unreachable(tell))
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
        Locks::start(move || async move { self.0.open(&url).await })
    }

    /// As [`crate::Builder::open_engine`].
    ///
    /// # Errors
    /// `Unavailable` if the background thread cannot be started.
    pub fn open_engine(self, engine: Arc<dyn Engine>) -> Result<Locks> {
        Locks::start(move || async move { Ok(self.0.open_engine(engine)) })
    }
}

impl Locks {
    fn start<F>(open: impl FnOnce() -> F + Send + 'static) -> Result<Self>
    where
        F: Future<Output = Result<crate::Locks>>,
    {
        let (inner, worker) = Worker::start(open)?;
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
    pub fn all<I>(&self, wanted: I) -> All
    where
        I: IntoIterator,
        I::Item: Into<Wanted>,
    {
        All::new(self.inner.all(wanted), &self.worker)
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

    /// As [`crate::Locks::held`].
    pub fn held(&self) -> usize {
        self.inner.held()
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

    /// As [`crate::Locks::evict`].
    ///
    /// # Errors
    /// As the async method.
    pub fn evict(&self, name: impl AsRef<str>, claim: ClaimId) -> Result<Evicted> {
        let (locks, name) = (self.inner.clone(), name.as_ref().to_owned());
        self.worker.call(async move { locks.evict(name, claim).await })
    }

    /// As [`crate::Locks::evict_because`].
    ///
    /// # Errors
    /// As the async method.
    pub fn evict_because(&self, name: impl AsRef<str>, claim: ClaimId, reason: &str) -> Result<Evicted> {
        let (locks, name, reason) = (self.inner.clone(), name.as_ref().to_owned(), reason.to_owned());
        self.worker.call(async move { locks.evict_because(name, claim, &reason).await })
    }

    /// As [`crate::Locks::request_release`].
    ///
    /// # Errors
    /// As the async method.
    pub fn request_release(&self, name: impl AsRef<str>, claim: ClaimId, reason: &str) -> Result<Option<PartyView>> {
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

    /// As [`crate::Locks::settle`]: call it before the process exits.
    ///
    /// # Errors
    /// As the async method.
    pub fn settle(&self) -> Result<()> {
        let locks = self.inner.clone();
        self.worker.call(async move { locks.settle().await })
    }

    /// As [`crate::Locks::close`].
    ///
    /// # Errors
    /// As the async method.
    pub fn close(self) -> Result<()> {
        let locks = self.inner;
        self.worker.call(async move { locks.close().await })
    }

    /// As [`crate::Locks::lifeline`].
    #[cfg(unix)]
    pub fn lifeline(&self) -> Option<std::os::fd::OwnedFd> {
        self.inner.lifeline()
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
