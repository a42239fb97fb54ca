//! Mutex, read/write lock and semaphore: one mechanism in three modes.

use crate::api::request::{Request, options};
use crate::core::guard::Guard;
use crate::types::{Mode, Result};

/// A lock with one holder at a time. Made by [`Locks::mutex`](crate::Locks::mutex).
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = leasehold::Locks::open("memory:").await?;
/// use std::time::Duration;
///
/// let mutex = locks.mutex("stock:42").timeout(Duration::from_secs(5)).describe("order 7");
/// let guard = mutex.lock().await?;
/// assert!(mutex.try_lock().await?.is_none(), "held");
/// guard.release().await?;
/// assert!(mutex.try_lock().await?.is_some(), "free");
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Mutex {
    pub(crate) request: Request,
}

impl Mutex {
    options!();

    pub(crate) fn new(request: Request) -> Self {
        Self { request }
    }

    /// Waits until the lock is granted: without limit, or for as long as [`timeout`](Self::timeout)
    /// allows.
    ///
    /// # Errors
    /// - `InvalidName`, `InvalidOption`, `Unsupported` and `Closed` before any I/O.
    /// - `Timeout` if the wait ends first.
    /// - `Conflict` if the request can never be granted beside the present holders.
    /// - `ForceReleased` if an operator force releases the request.
    /// - `Lost` if `max_hold` ends before the caller has the guard.
    /// - `Unavailable` if the engine does not respond for a whole TTL, or until the end of the wait
    ///   if there is one.
    /// - Other errors from the engine.
    ///
    /// # Cancellation safety
    /// May be dropped at any await point. The keeper then releases the claim in the background; if
    /// that fails, the claim expires after a TTL.
    ///
    /// # Ambiguity
    /// If a reply is lost, the request is sent again with the same claim, so it is never granted
    /// twice.
    pub async fn lock(&self) -> Result<Guard> {
        self.request.acquire(Mode::Exclusive).await
    }

    /// Acquires the lock if it is free; returns `None` if not.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), except `Timeout`.
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        self.request.try_acquire(Mode::Exclusive).await
    }
}

/// A lock with many readers or one writer at a time. Made by
/// [`Locks::rwlock`](crate::Locks::rwlock).
///
/// Requests are served in the order of arrival. Consecutive readers acquire the lock together, and
/// readers that arrive after a waiting writer queue behind it, so neither side starves.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = leasehold::Locks::open("memory:").await?;
/// let catalog = locks.rwlock("catalog");
/// let readers = [catalog.read().await?, catalog.read().await?];
/// assert!(catalog.try_write().await?.is_none(), "readers hold it");
/// drop(readers);
/// let writer = catalog.write().await?;
/// assert!(catalog.try_read().await?.is_none(), "a writer holds it");
/// # drop(writer);
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    pub(crate) request: Request,
}

impl RwLock {
    options!();

    pub(crate) fn new(request: Request) -> Self {
        Self { request }
    }

    /// Waits until the lock is granted for reading, together with other readers. May be dropped at
    /// any await point, as [`Mutex::lock`].
    ///
    /// # Errors
    /// As [`Mutex::lock`].
    pub async fn read(&self) -> Result<Guard> {
        self.request.acquire(Mode::Shared).await
    }

    /// Acquires the lock for reading if no writer holds it or waits; returns `None` if one does.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`].
    pub async fn try_read(&self) -> Result<Option<Guard>> {
        self.request.try_acquire(Mode::Shared).await
    }

    /// Waits until the lock is granted for writing, without any other holder. May be dropped at any
    /// await point, as [`Mutex::lock`].
    ///
    /// # Errors
    /// As [`Mutex::lock`].
    pub async fn write(&self) -> Result<Guard> {
        self.request.acquire(Mode::Exclusive).await
    }

    /// Acquires the lock for writing if it is free; returns `None` if not.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`].
    pub async fn try_write(&self) -> Result<Option<Guard>> {
        self.request.try_acquire(Mode::Exclusive).await
    }
}

/// A lock of several permits. Made by [`Locks::semaphore`](crate::Locks::semaphore).
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = leasehold::Locks::open("memory:").await?;
/// let downloads = locks.semaphore("downloads", 3);
/// let two = downloads.acquire(2).await?;
/// assert!(downloads.try_acquire(2).await?.is_none(), "only one is left");
/// let one = downloads.try_acquire(1).await?;
/// assert!(one.is_some());
/// two.release().await?;
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    pub(crate) request: Request,
    /// The number of permits that can be held at the same time.
    pub(crate) limit: u32,
}

impl Semaphore {
    options!();

    pub(crate) fn new(request: Request, limit: u32) -> Self {
        Self { request, limit }
    }

    /// The mode of a request for this many permits.
    pub(crate) fn mode(&self, permits: u32) -> Mode {
        Mode::Permits { n: permits, limit: self.limit }
    }

    /// Waits until this many permits are granted, all of them to one guard. Requests are served in
    /// the order of arrival: a small one does not overtake a large one.
    ///
    /// # Errors
    /// As [`Mutex::lock`]; `Conflict` if the name is in use with another limit.
    pub async fn acquire(&self, permits: u32) -> Result<Guard> {
        self.request.acquire(self.mode(permits)).await
    }

    /// Acquires this many permits if they are free and no request waits; returns `None` if not.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), except `Timeout`.
    pub async fn try_acquire(&self, permits: u32) -> Result<Option<Guard>> {
        self.request.try_acquire(self.mode(permits)).await
    }
}
