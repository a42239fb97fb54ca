//! Mutex, read/write lock and semaphore: one mechanism in three modes.

use crate::claim::Mode;
use crate::error::Result;
use crate::guard::Guard;
use crate::request::{Request, options};

/// A lock that one may hold at a time. Made by [`Locks::mutex`](crate::Locks::mutex).
#[derive(Clone)]
pub struct Mutex {
    pub(crate) request: Request,
}

impl Mutex {
    options!();

    pub(crate) fn new(request: Request) -> Self {
        Self { request }
    }

    /// Waits for the lock: for ever, or as long as [`wait`](Self::wait) says.
    ///
    /// # Errors
    /// `Timeout` if the wait is over; `InvalidName`, `InvalidOption`, `Unsupported` before any I/O; `Conflict`; `Unavailable`
    /// if the engine does not answer for a whole TTL; or the engine's own.
    ///
    /// # Cancellation safety
    /// May be dropped at any await point: whatever the engine then has of the request is given back in the background,
    /// and lapses after a TTL in any case.
    ///
    /// # Ambiguity
    /// A lost reply is asked for again with the same claim, so it is never granted twice.
    pub async fn lock(&self) -> Result<Guard> {
        self.request.acquire(Mode::Exclusive).await
    }

    /// Takes the lock if it is free; `None` if not.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), but for `Timeout`.
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        self.request.try_acquire(Mode::Exclusive).await
    }
}

/// A lock that many may read or one may write. Made by [`Locks::rwlock`](crate::Locks::rwlock).
///
/// Requests are served in the order of their arrival: readers that follow each other enter together, and those that come
/// after a waiting writer wait behind it, so neither side starves.
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

    /// Takes a shared hold if it can be had at once.
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

    /// Takes an exclusive hold if it can be had at once.
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

    /// Waits for `permits` at once. Served in order: a large request is not overtaken by small ones.
    ///
    /// # Errors
    /// As [`Mutex::lock`]; `Conflict` if the name is in use with another limit.
    pub async fn acquire(&self, permits: u32) -> Result<Guard> {
        self.request.acquire(self.mode(permits)).await
    }

    /// Takes `permits` if they can be had at once.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), but for `Timeout`.
    pub async fn try_acquire(&self, permits: u32) -> Result<Option<Guard>> {
        self.request.try_acquire(self.mode(permits)).await
    }
}
