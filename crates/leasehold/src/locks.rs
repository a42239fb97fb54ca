//! The entrance: an engine, its keeper, and the primitives on them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::all::{All, Wanted};
use crate::claim::{ClaimId, Holder, Token};
use crate::clock::Clock;
use crate::connect::Connect;
use crate::election::Election;
use crate::engine::{self, Capabilities, Engine, Evicted, LockView, PartyView};
use crate::error::{Error, ErrorKind, Result};
use crate::keeper::{self, Desk};
use crate::logic::lease as rules;
use crate::meter::{Gauges, Meter};
use crate::name::LockName;
use crate::primitives::{Mutex, RwLock, Semaphore};
use crate::request::Request;

/// How long a grant lasts unless renewed, if nothing else is said.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// Locks of one engine. Cheap to clone; all clones share one connection and one keeper.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::Locks;
///
/// let locks = Locks::open("memory:").await?;
/// let guard = locks.mutex("stock:42").lock().await?;   // waits its turn, renews itself
/// assert!(guard.is_held());
/// println!("write with token {}", guard.token());      // the resource refuses older ones
/// guard.release().await?;
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Locks {
    pub(crate) shared: Arc<Shared>,
}

/// What guards and requests hold on to.
pub(crate) struct Shared {
    pub(crate) desk: Arc<Desk>,
    pub(crate) holder: Arc<Holder>,
    pub(crate) ttl: Duration,
}

impl Shared {
    pub(crate) fn engine_name(&self) -> &'static str {
        self.desk.can.engine
    }

    /// As [`Desk::locate`].
    pub(crate) fn locate(&self, error: Error) -> Error {
        self.desk.locate(error)
    }

    /// Refuses with `Unsupported` what this engine cannot do.
    pub(crate) fn need(&self, can: bool, what: &str) -> Result<()> {
        self.desk.can.need(can, what).map_err(|error| self.locate(error))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.desk.close();
    }
}

/// How to open [`Locks`].
#[derive(Default)]
pub struct Builder {
    clock: Clock,
    ttl: Option<Duration>,
    meter: Option<Arc<dyn Meter>>,
    holder: Option<Holder>,
    connect: Connect,
}

impl Builder {
    /// How long a grant lasts unless renewed: 30 seconds if not set.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Another clock, in tests. Engines that keep the time themselves take it, too.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Who collects the figures listed in [`meter`](crate::meter).
    #[must_use]
    pub fn meter(mut self, meter: Arc<dyn Meter>) -> Self {
        self.meter = Some(meter);
        self
    }

    /// Who claims, for others to see; this process if not set.
    #[must_use]
    pub fn holder(mut self, holder: Holder) -> Self {
        self.holder = Some(holder);
        self
    }

    /// For how long opening tries again while the engine is unreachable: it restarts, fails over, or elects a leader. Zero, the default, means one attempt. A
    /// bad URL, a wrong password or a server of another kind fails at once.
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

    /// Called once with the first error if opening tries again.
    #[must_use]
    pub fn on_unreachable(mut self, tell: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.connect.on_unreachable = Some(Box::new(tell));
        self
    }

    /// Opens the engine that `url` names.
    ///
    /// # Errors
    /// As [`Locks::open`].
    pub async fn open(self, url: &str) -> Result<Locks> {
        let engine = self.connect.open(url, &self.clock).await?;
        Ok(self.open_engine(engine))
    }

    /// Uses an engine that was made by other means: one of your own, or one wrapped for a test.
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
    /// Opens the engine that `url` names: `memory:`, `file:`, `file:///folder`.
    ///
    /// Must be called inside a tokio runtime, which must live as long as the locks are used: it runs the keeper. A process that
    /// forks opens its locks after that, in each child. Outside
    /// one, use [`blocking::Locks`](crate::blocking::Locks).
    ///
    /// # Errors
    /// `InvalidUrl`; `UnknownScheme`, listing those that exist; `FeatureDisabled`, naming the feature; or the engine's own.
    pub async fn open(url: &str) -> Result<Self> {
        Self::builder().open(url).await
    }

    /// Opens with options.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A lock that one may hold at a time.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(self.request(name))
    }

    /// A lock that many may read or one may write.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self.request(name))
    }

    /// A lock of `limit` permits. All who use the name at the same time must name the same limit.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Semaphore {
        Semaphore::new(self.request(name), limit)
    }

    /// Several locks at once, all or nothing: names (held exclusively) or mutexes, read or write sides, permits.
    pub fn all<I>(&self, wanted: I) -> All
    where
        I: IntoIterator,
        I::Item: Into<Wanted>,
    {
        All::new(self, wanted.into_iter().map(Into::into).collect())
    }

    /// An election: one leader at a time, whom all can see.
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

    /// The clock that deadlines are read on.
    pub fn clock(&self) -> &Clock {
        &self.shared.desk.clock
    }

    /// How many leases this `Locks` keeps at present.
    pub fn held(&self) -> usize {
        self.shared.desk.held()
    }

    /// Who holds `name` and who waits.
    ///
    /// # Errors
    /// `InvalidName`, `Unsupported`, or the engine's own.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<LockView> {
        let name = LockName::new(name)?;
        let need = self.shared.need(self.capabilities().inspection, "inspection");
        need.map_err(|error| error.about(&name))?;
        let view = self.bounded(Arc::clone(&self.shared.desk.engine).inspect(name.clone())).await;
        view.map_err(|error| error.about(&name))
    }

    /// All locks whose name starts with `prefix` that somebody holds or waits for, by name.
    ///
    /// # Errors
    /// `Unsupported`, or the engine's own.
    pub async fn list(&self, prefix: &str) -> Result<Vec<LockView>> {
        self.shared.need(self.capabilities().inspection, "inspection")?;
        self.bounded(Arc::clone(&self.shared.desk.engine).list(prefix.to_owned())).await
    }

    /// Evicts a claim (force release), whether it holds or waits. The holder is told within a round trip where the engine can push, and within
    /// 500 ms where it polls; the next waiter is served in the same time. Until the holder knows, it may still write: only a resource that checks
    /// tokens refuses that. Write [`Evicted::token`] there, if there is one. A waiter's request ends with [`ErrorKind::Evicted`].
    ///
    /// # Errors
    /// `InvalidName`, `Unsupported`, or the engine's own.
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

    /// Asks a holder to release a claim, and changes nothing else: the polite form of [`evict`](Self::evict). Its guard's
    /// [`release_requested`](crate::Guard::release_requested) ends, and its lease is not renewed any more. So the lock is free when the holder has released it,
    /// or at its deadline, and two never hold it at once. The holder as it was, or `None` if the claim does not hold the lock.
    ///
    /// The request may be lost on its way, where a connection is down. Asking again is harmless.
    ///
    /// # Errors
    /// `InvalidName`, `Unsupported`, or the engine's own.
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

    /// Waits until whatever was dropped has been given back: call it before the process ends.
    ///
    /// # Errors
    /// `Unavailable` if that takes longer than an engine's call may.
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

    /// Gives back what was dropped and refuses further requests. Guards that are still held are kept until they are dropped.
    ///
    /// # Errors
    /// As [`settle`](Self::settle).
    pub async fn close(self) -> Result<()> {
        self.shared.desk.refuse();
        self.settle().await?;
        if self.held() > 0 {
            return Ok(());
        }
        self.bounded(Arc::clone(&self.shared.desk.engine).farewell()).await
    }

    /// A descriptor whose last close ends our holds, where the kernel watches over them (`file:`). Hand it to a process
    /// that must be gone before the locks are free.
    #[cfg(unix)]
    pub fn lifeline(&self) -> Option<std::os::fd::OwnedFd> {
        self.shared.desk.engine.lifeline()
    }

    /// The highest token known for `name`, where the engine keeps it.
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
