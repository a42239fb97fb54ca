//! The guards, without async.

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

/// Converts an answer of the async API to its counterpart in this one.
pub(super) trait IntoBlocking {
    type Blocking;
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

/// Waits until the first of these is lost, and returns its index and the reason; `None` after
/// `timeout`, or if there are none.
fn first_lost(
    worker: &BackgroundThread,
    watches: Vec<crate::LeaseWatcher>,
    timeout: Option<Duration>,
) -> Option<(usize, LostReason)> {
    let timer = worker.clock.now().saturating_add(timeout.unwrap_or(Duration::MAX));
    let timer = worker.clock.sleep_until(timer);
    if watches.is_empty() {
        return None;
    }
    let answer = worker.call(async move {
        let lost = select_all(watches.iter().map(|watch| Box::pin(watch.lost())));
        Ok(match select(lost, timer).await {
            Either::Left(((reason, index, _), _)) => Some((index, reason)),
            Either::Right(_) => None,
        })
    });
    // If the thread has ended, no keeper renews the lease.
    answer.unwrap_or(Some((0, LostReason::Expired)))
}

/// As [`crate::Guard`], without async. Dropping it releases the lock in the background.
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

    /// The fencing token.
    pub fn token(&self) -> Token {
        self.inner.token()
    }

    /// The moment from which the holder must not rely on the lock. Every renewal moves it.
    pub fn deadline(&self) -> Instant {
        self.inner.deadline()
    }

    /// The time left until the deadline; zero once the lock is lost.
    pub fn remaining(&self) -> Duration {
        self.inner.remaining()
    }

    /// Whether the lock is held right now.
    pub fn is_held(&self) -> bool {
        self.inner.is_held()
    }

    /// Why the lock was lost, if it was.
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.inner.lost_reason()
    }

    /// Whether an operator asked for the release of the lock: as
    /// [`crate::Guard::is_release_requested`].
    pub fn is_release_requested(&self) -> bool {
        self.inner.is_release_requested()
    }

    /// Waits until an operator requests its release, but no longer than `timeout`. Returns whether
    /// one did.
    pub fn wait_for_release_request(&self, timeout: Duration) -> bool {
        let watch = self.inner.watcher();
        let timer = self.worker.clock.sleep_until(self.worker.clock.now().saturating_add(timeout));
        let was_requested = self.worker.call(async move {
            let was_requested = std::pin::pin!(watch.release_requested());
            Ok(matches!(select(was_requested, timer).await, Either::Left(_)))
        });
        was_requested.unwrap_or(false)
    }

    /// Waits until the lock is lost, and returns the reason. Does not return while the lock is
    /// held.
    pub fn lost(&self) -> LostReason {
        self.watcher().lost()
    }

    /// Waits for a loss, but no longer than `timeout`; `None` if the lock was still held then.
    pub fn wait_for_loss(&self, timeout: Duration) -> Option<LostReason> {
        self.watcher().wait_for_loss(timeout)
    }

    /// A handle that observes the loss of this lock elsewhere, without keeping it held.
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

/// Observes the loss of a guard's lock. Cheap to clone, and does not keep the lock held.
#[derive(Clone, Debug)]
pub struct LeaseWatcher {
    inner: crate::LeaseWatcher,
    worker: Arc<BackgroundThread>,
}

impl LeaseWatcher {
    /// As [`Guard::is_held`].
    pub fn is_held(&self) -> bool {
        self.inner.is_held()
    }

    /// As [`Guard::deadline`].
    pub fn deadline(&self) -> Instant {
        self.inner.deadline()
    }

    /// As [`Guard::is_release_requested`].
    pub fn is_release_requested(&self) -> bool {
        self.inner.is_release_requested()
    }

    /// As [`Guard::wait_for_loss`]. Also `None` if the lock was released.
    pub fn wait_for_loss(&self, timeout: Duration) -> Option<LostReason> {
        first_lost(&self.worker, vec![self.inner.clone()], Some(timeout)).map(|(_, reason)| reason)
    }

    /// Only for guards that cannot be released meanwhile; otherwise it would wait forever.
    fn lost(&self) -> LostReason {
        let lost = first_lost(&self.worker, vec![self.inner.clone()], None);
        lost.map_or(LostReason::Expired, |(_, reason)| reason)
    }
}

/// As [`crate::MultiLockGuard`], without async.
#[must_use = "the locks are released as soon as the guard is dropped"]
#[derive(Debug)]
pub struct MultiLockGuard {
    inner: crate::MultiLockGuard,
    worker: Arc<BackgroundThread>,
}

impl MultiLockGuard {
    /// The names of the locks, in order.
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.inner.guards().iter().map(crate::Guard::name)
    }

    /// The token of one of the locks.
    pub fn token(&self, name: &str) -> Option<Token> {
        self.inner.token(name)
    }

    /// Whether all of them are held right now.
    pub fn is_held(&self) -> bool {
        self.inner.is_held()
    }

    /// Waits until one of them is lost, and returns which and why. Does not return while all are
    /// held; `None` if there are none.
    pub fn lost(&self) -> Option<(&LockName, LostReason)> {
        self.first_lost(None)
    }

    /// Waits for the loss of one of them, but no longer than `timeout`; `None` if all were still held
    /// then.
    pub fn wait_for_loss(&self, timeout: Duration) -> Option<(&LockName, LostReason)> {
        self.first_lost(Some(timeout))
    }

    fn first_lost(&self, timeout: Option<Duration>) -> Option<(&LockName, LostReason)> {
        let guards = self.inner.guards();
        let watches = guards.iter().map(crate::Guard::watcher).collect();
        let (index, reason) = first_lost(&self.worker, watches, timeout)?;
        Some((guards.get(index)?.name(), reason))
    }

    /// Releases all of them and returns the outcome of each.
    ///
    /// # Errors
    /// As [`crate::MultiLockGuard::release`].
    pub fn release(self) -> Result<Vec<(LockName, ReleaseOutcome)>> {
        let guards = self.inner;
        self.worker.call(guards.release())
    }
}

/// As [`crate::Leadership`], without async. Dropping it resigns.
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

    /// Whether this process leads right now.
    pub fn is_leader(&self) -> bool {
        self.inner.is_leader()
    }

    /// Waits until the leadership is lost. Does not return while this process leads.
    pub fn lost(&self) -> LostReason {
        self.watcher().lost()
    }

    /// Waits for the loss, but no longer than `timeout`; `None` if this process still led then.
    pub fn wait_for_loss(&self, timeout: Duration) -> Option<LostReason> {
        self.watcher().wait_for_loss(timeout)
    }

    fn watcher(&self) -> LeaseWatcher {
        LeaseWatcher { inner: self.inner.guard().watcher(), worker: Arc::clone(&self.worker) }
    }

    /// Steps down.
    ///
    /// # Errors
    /// As [`crate::Guard::release`].
    pub fn resign(self) -> Result<ReleaseOutcome> {
        let leadership = self.inner;
        self.worker.call(leadership.resign())
    }
}
