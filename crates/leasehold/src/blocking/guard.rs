//! The guards of the blocking API, and the handle that observes their loss.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select, select_all};

use super::background_thread::BackgroundThread;
use crate::api::election::Leader;
use crate::clock::Instant;
use crate::core::guard::ReleaseOutcome;
use crate::engine::LostReason;
use crate::types::{LockName, Result, Token};

/// Converts a result of the async API to its counterpart in the blocking API.
pub(super) trait IntoBlocking {
    /// The counterpart.
    type Blocking;
    /// The counterpart, whose calls run on `worker`.
    fn into_blocking(self, worker: &Arc<BackgroundThread>) -> Self::Blocking;
}

impl IntoBlocking for crate::Guard {
    type Blocking = Guard;
    fn into_blocking(self, worker: &Arc<BackgroundThread>) -> Guard {
        Guard { inner: self, worker: Arc::clone(worker) }
    }
}

impl IntoBlocking for crate::MultiLockGuard {
    type Blocking = MultiLockGuard;
    fn into_blocking(self, worker: &Arc<BackgroundThread>) -> MultiLockGuard {
        MultiLockGuard { inner: self, worker: Arc::clone(worker) }
    }
}

impl IntoBlocking for crate::Leadership {
    type Blocking = Leadership;
    fn into_blocking(self, worker: &Arc<BackgroundThread>) -> Leadership {
        Leadership { inner: self, worker: Arc::clone(worker) }
    }
}

impl IntoBlocking for Leader {
    type Blocking = Leader;
    fn into_blocking(self, _: &Arc<BackgroundThread>) -> Leader {
        self
    }
}

impl<T: IntoBlocking> IntoBlocking for Option<T> {
    type Blocking = Option<T::Blocking>;
    fn into_blocking(self, worker: &Arc<BackgroundThread>) -> Self::Blocking {
        self.map(|answer| answer.into_blocking(worker))
    }
}

/// Waits until the first of these leases is lost, and returns its index and the reason. `None`
/// after `timeout` (`None`: no limit), or if there are no leases.
fn first_lost(
    worker: &BackgroundThread,
    watchers: Vec<crate::LeaseWatcher>,
    timeout: Option<Duration>,
) -> Option<(usize, LostReason)> {
    let timer = worker.clock.now().saturating_add(timeout.unwrap_or(Duration::MAX));
    let timer = worker.clock.sleep_until(timer);
    if watchers.is_empty() {
        return None;
    }
    let answer = worker.call(async move {
        let lost = select_all(watchers.iter().map(|watcher| Box::pin(watcher.lost())));
        Ok(match select(lost, timer).await {
            Either::Left(((reason, index, _), _)) => Some((index, reason)),
            Either::Right(_) => None,
        })
    });
    // If the thread has ended, no keeper renews the lease.
    answer.unwrap_or(Some((0, LostReason::Expired)))
}

/// A held lock: [`crate::Guard`] without async. Dropping it releases the lock in the background.
///
/// ```
/// use leasehold::{ReleaseOutcome, blocking::Locks};
///
/// let locks = Locks::open("memory:")?;
/// let guard = locks.mutex("stock:42").lock()?;
/// let written = guard.protect(|| format!("with token {}", guard.token()))?;   // `Lost` if the lock was lost
/// assert_eq!(written, "with token 1");
/// assert_eq!(guard.release()?, ReleaseOutcome::Released);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct Guard {
    // Dropped before the worker, so that the thread still releases it.
    inner: crate::Guard,
    worker: Arc<BackgroundThread>,
}

impl Guard {
    /// The name of the lock.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }

    /// The fencing token. Send it with every write to the protected resource.
    pub fn token(&self) -> Token {
        self.inner.token()
    }

    /// The instant from which the holder must not rely on the lock. Every renewal moves it.
    pub fn deadline(&self) -> Instant {
        self.inner.deadline()
    }

    /// The time left until the deadline; zero once the lock is lost.
    pub fn remaining(&self) -> Duration {
        self.inner.remaining()
    }

    /// Whether the lock is held right now. Reads the clock on each call.
    pub fn is_held(&self) -> bool {
        self.inner.is_held()
    }

    /// Why the lock was lost; `None` while it is held.
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.inner.lost_reason()
    }

    /// Whether an operator requested the release of the lock, as
    /// [`crate::Guard::is_release_requested`].
    pub fn is_release_requested(&self) -> bool {
        self.inner.is_release_requested()
    }

    /// Waits until an operator requests the release of the lock, but no longer than `timeout`.
    /// Returns whether an operator did.
    pub fn wait_for_release_request(&self, timeout: Duration) -> bool {
        let watcher = self.inner.watcher();
        let timer = self.worker.clock.sleep_until(self.worker.clock.now().saturating_add(timeout));
        let was_requested = self.worker.call(async move {
            let was_requested = std::pin::pin!(watcher.release_requested());
            Ok(matches!(select(was_requested, timer).await, Either::Left(_)))
        });
        was_requested.unwrap_or(false)
    }

    /// Waits until the lock is lost, and returns the reason. Does not return while the lock is
    /// held.
    pub fn lost(&self) -> LostReason {
        self.watcher().lost()
    }

    /// Waits until the lock is lost, but no longer than `timeout`; `None` if it was still held
    /// then.
    pub fn wait_for_loss(&self, timeout: Duration) -> Option<LostReason> {
        self.watcher().wait_for_loss(timeout)
    }

    /// A handle with which another thread can observe the loss of this lock, without keeping it
    /// held.
    pub fn watcher(&self) -> LeaseWatcher {
        LeaseWatcher { inner: self.inner.watcher(), worker: Arc::clone(&self.worker) }
    }

    /// Runs `work` if the lock is held, and checks that it was held to the end. `work` cannot be
    /// stopped half-way: for long work, check [`is_held`](Self::is_held) between its steps.
    ///
    /// # Errors
    /// `Lost` if the lock was lost before `work` was done; the output of `work` is dropped then.
    pub fn protect<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        self.check_held()?;
        let output = work();
        self.check_held()?;
        Ok(output)
    }

    /// Returns an error if the lock was lost.
    fn check_held(&self) -> Result<()> {
        let Some(reason) = self.lost_reason() else { return Ok(()) };
        Err(self.inner.lost_error(reason))
    }

    /// Releases the lock and returns the outcome.
    ///
    /// # Errors
    /// As [`crate::Guard::release`].
    pub fn release(self) -> Result<ReleaseOutcome> {
        let guard = self.inner;
        self.worker.call(guard.release())
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Observes the loss of a guard's lock. Made by [`Guard::watcher`]. Cheap to clone, and does not
/// keep the lock held.
///
/// ```
/// use leasehold::blocking::Locks;
///
/// let guard = Locks::open("memory:")?.mutex("stock:42").lock()?;
/// let watcher = guard.watcher();
/// assert!(watcher.is_held());
/// guard.release()?;
/// assert!(!watcher.is_held());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LeaseWatcher {
    inner: crate::LeaseWatcher,
    worker: Arc<BackgroundThread>,
}

impl LeaseWatcher {
    /// Whether the lock is held right now, as [`Guard::is_held`].
    pub fn is_held(&self) -> bool {
        self.inner.is_held()
    }

    /// The instant from which the holder must not rely on the lock, as [`Guard::deadline`].
    pub fn deadline(&self) -> Instant {
        self.inner.deadline()
    }

    /// Whether an operator requested the release of the lock, as [`Guard::is_release_requested`].
    pub fn is_release_requested(&self) -> bool {
        self.inner.is_release_requested()
    }

    /// Waits until the lock is lost, but no longer than `timeout`. `None` if it was still held
    /// then, or was released by its guard.
    pub fn wait_for_loss(&self, timeout: Duration) -> Option<LostReason> {
        first_lost(&self.worker, vec![self.inner.clone()], Some(timeout)).map(|(_, reason)| reason)
    }

    /// Waits without limit until the lock is lost. The caller must keep the guard unreleased
    /// meanwhile: after a release this would wait forever.
    fn lost(&self) -> LostReason {
        let lost = first_lost(&self.worker, vec![self.inner.clone()], None);
        lost.map_or(LostReason::Expired, |(_, reason)| reason)
    }
}

/// Several held locks: [`crate::MultiLockGuard`] without async. Dropping it releases all of them in
/// the background.
///
/// ```
/// use leasehold::blocking::Locks;
///
/// let guard = Locks::open("memory:")?.multi_lock(["account:9", "account:7"]).lock()?;
/// assert_eq!(guard.names().map(|name| name.as_str()).collect::<Vec<_>>(), ["account:7", "account:9"]);
/// guard.release()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "the locks are released as soon as the guard is dropped"]
#[derive(Debug)]
pub struct MultiLockGuard {
    inner: crate::MultiLockGuard,
    worker: Arc<BackgroundThread>,
}

impl MultiLockGuard {
    /// The names of the locks, sorted.
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.inner.guards().iter().map(crate::Guard::name)
    }

    /// The fencing token of the lock `name`; `None` if it is not one of the locks.
    pub fn token(&self, name: &str) -> Option<Token> {
        self.inner.token(name)
    }

    /// Whether all locks are held right now.
    pub fn is_held(&self) -> bool {
        self.inner.is_held()
    }

    /// Waits until one of the locks is lost, and returns its name and the reason. Does not return
    /// while all are held; returns `None` if there are no locks.
    pub fn lost(&self) -> Option<(&LockName, LostReason)> {
        self.first_lost(None)
    }

    /// Waits until one of the locks is lost, but no longer than `timeout`, and returns its name and
    /// the reason; `None` if all were still held then.
    pub fn wait_for_loss(&self, timeout: Duration) -> Option<(&LockName, LostReason)> {
        self.first_lost(Some(timeout))
    }

    /// The name of the first lock that is lost, and the reason; `None` after `timeout` (`None`: no
    /// limit), or if there are no locks.
    fn first_lost(&self, timeout: Option<Duration>) -> Option<(&LockName, LostReason)> {
        let guards = self.inner.guards();
        let watchers = guards.iter().map(crate::Guard::watcher).collect();
        let (index, reason) = first_lost(&self.worker, watchers, timeout)?;
        Some((guards.get(index)?.name(), reason))
    }

    /// Releases all locks and returns the outcome of each, in the order of their names.
    ///
    /// # Errors
    /// As [`crate::MultiLockGuard::release`].
    pub fn release(self) -> Result<Vec<(LockName, ReleaseOutcome)>> {
        let guards = self.inner;
        self.worker.call(guards.release())
    }
}

/// A won election: [`crate::Leadership`] without async. Dropping it resigns.
///
/// ```
/// use leasehold::blocking::Locks;
///
/// let leadership = Locks::open("memory:")?.election("scheduler").campaign()?;
/// assert!(leadership.is_leader());
/// leadership.resign()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "dropping it resigns"]
#[derive(Debug)]
pub struct Leadership {
    inner: crate::Leadership,
    worker: Arc<BackgroundThread>,
}

impl Leadership {
    /// The term: it rises with every leader, and fences what the leader writes.
    pub fn token(&self) -> Token {
        self.inner.token()
    }

    /// Whether this process leads right now. Reads the clock on each call.
    pub fn is_leader(&self) -> bool {
        self.inner.is_leader()
    }

    /// Waits until the leadership is lost, and returns the reason. Does not return while this
    /// process leads.
    pub fn lost(&self) -> LostReason {
        self.watcher().lost()
    }

    /// Waits until the leadership is lost, but no longer than `timeout`; `None` if this process
    /// still led then.
    pub fn wait_for_loss(&self, timeout: Duration) -> Option<LostReason> {
        self.watcher().wait_for_loss(timeout)
    }

    /// A handle that observes the loss of the leadership.
    fn watcher(&self) -> LeaseWatcher {
        LeaseWatcher { inner: self.inner.guard().watcher(), worker: Arc::clone(&self.worker) }
    }

    /// Gives up the leadership, and returns whether this process led until now.
    ///
    /// # Errors
    /// As [`crate::Guard::release`].
    pub fn resign(self) -> Result<ReleaseOutcome> {
        let leadership = self.inner;
        self.worker.call(leadership.resign())
    }
}
