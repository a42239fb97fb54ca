//! Mutex, read/write lock and semaphore: one mechanism in three modes.

use crate::api::request::{Request, options};
use crate::core::guard::Guard;
use crate::types::{Mode, Result};

/// A lock with one holder at a time. Made by [`Locks::mutex`](crate::Locks::mutex).
#[derive(Clone)]
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
    /// May be dropped at any await point. The keeper then releases in the background whatever the
    /// engine has of the request; it expires after a TTL in any case.
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
#[derive(Clone)]
pub struct RwLock {
    pub(crate) request: Request,
}

impl RwLock {
    options!();

    pub(crate) fn new(request: Request) -> Self {
        Self { request }
    }

    /// Waits for a shared hold. Errors and cancellation as [`Mutex::lock`].
    ///
    /// # Errors
    /// As [`Mutex::lock`].
    pub async fn read(&self) -> Result<Guard> {
        self.request.acquire(Mode::Shared).await
    }

    /// Acquires a shared hold if it is available at once.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`].
    pub async fn try_read(&self) -> Result<Option<Guard>> {
        self.request.try_acquire(Mode::Shared).await
    }

    /// Waits for an exclusive hold. Errors and cancellation as [`Mutex::lock`].
    ///
    /// # Errors
    /// As [`Mutex::lock`].
    pub async fn write(&self) -> Result<Guard> {
        self.request.acquire(Mode::Exclusive).await
    }

    /// Acquires an exclusive hold if it is available at once.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`].
    pub async fn try_write(&self) -> Result<Option<Guard>> {
        self.request.try_acquire(Mode::Exclusive).await
    }
}

/// A lock of several permits. Made by [`Locks::semaphore`](crate::Locks::semaphore).
#[derive(Clone)]
pub struct Semaphore {
    pub(crate) request: Request,
    pub(crate) limit: u32,
}

impl Semaphore {
    options!();

    pub(crate) fn new(request: Request, limit: u32) -> Self {
        Self { request, limit }
    }

    pub(crate) fn mode(&self, permits: u32) -> Mode {
        Mode::Permits { n: permits, limit: self.limit }
    }

    /// Waits for `permits` at once. Requests are served in order: small ones do not overtake a
    /// large one.
    ///
    /// # Errors
    /// As [`Mutex::lock`]; `Conflict` if the name is in use with another limit.
    pub async fn acquire(&self, permits: u32) -> Result<Guard> {
        self.request.acquire(self.mode(permits)).await
    }

    /// Acquires `permits` if they are available at once.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), except `Timeout`.
    pub async fn try_acquire(&self, permits: u32) -> Result<Option<Guard>> {
        self.request.try_acquire(self.mode(permits)).await
    }
}
