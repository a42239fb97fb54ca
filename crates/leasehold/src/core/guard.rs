//! The guard of a held lock, and the handle that observes its loss.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::core::keeper;
use crate::core::shared::Shared;
use crate::engine::Claim;
use crate::engine::LostReason;
use crate::engine::ReleaseReply;
use crate::types::{ClaimId, Error, ErrorKind, LockName, Result, Token};

/// The result of a release.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = leasehold::Locks::open("memory:").await?;
/// use leasehold::ReleaseOutcome;
///
/// let guard = locks.mutex("stock:42").lock().await?;
/// match guard.release().await? {
///     ReleaseOutcome::Released => {}
///     ReleaseOutcome::AlreadyLost(reason) => eprintln!("check what was written, the lock was lost: {reason}"),
/// }
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a lock that was lost before its release may have been another's meanwhile"]
pub enum ReleaseOutcome {
    /// The holder held the lock until this release.
    Released,
    /// The holder had lost the lock before; another client may have held it since.
    AlreadyLost(LostReason),
}

/// A held lock. The keeper renews it until it is released, dropped or lost.
///
/// Dropping it releases the lock in the background; if that fails, the lock is free at the end of
/// its TTL. [`release`](Self::release) waits for the engine and returns the outcome.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = leasehold::Locks::open("memory:").await?;
/// use leasehold::ReleaseOutcome;
///
/// let guard = locks.mutex("stock:42").lock().await?;
/// let write = async { format!("with token {}", guard.token()) };
/// assert_eq!(guard.protect(write).await?, "with token 1");   // `Lost` if the lock is lost meanwhile
/// assert_eq!(guard.release().await?, ReleaseOutcome::Released);
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct Guard {
    shared: Arc<Shared>,
    claim: Arc<Claim>,
}

impl Guard {
    pub(crate) fn new(shared: Arc<Shared>, claim: Arc<Claim>) -> Self {
        Self { shared, claim }
    }

    /// The name of the lock.
    pub fn name(&self) -> &LockName {
        self.claim.name()
    }

    /// The fencing token. Send it with every write to the protected resource, which refuses older
    /// tokens.
    pub fn token(&self) -> Token {
        self.claim.lease.token()
    }

    /// The id of the claim that holds the lock, as [`inspect`](crate::Locks::inspect) lists it
    /// among the holders. Keep it secret: a client that knows the whole id can release the lock.
    pub fn claim_id(&self) -> ClaimId {
        self.claim.id
    }

    /// The instant from which the holder must not rely on the lock. Every renewal moves it.
    pub fn deadline(&self) -> Instant {
        self.claim.lease.deadline()
    }

    /// The latest possible [`deadline`](Self::deadline): `max_hold` after the grant, or
    /// [`Instant::NEVER`] without `max_hold`. A release request moves it to the present deadline.
    pub fn max_deadline(&self) -> Instant {
        self.claim.lease.max_deadline()
    }

    /// The time left until the deadline; zero once the lock is lost.
    pub fn remaining(&self) -> Duration {
        if self.is_held() { self.deadline().duration_since(self.shared.manager.clock.now()) } else { Duration::ZERO }
    }

    /// Whether the lock is held right now. It reads the clock on each call, so the answer is right
    /// even after the process was stopped, the machine slept, or the runtime was busy. Once
    /// `false`, it stays `false`.
    pub fn is_held(&self) -> bool {
        self.claim.lease.is_held()
    }

    /// Waits until the lock is lost, and returns the reason. Does not complete while the lock is
    /// held.
    ///
    /// # Cancellation safety
    /// May be dropped and called again; no loss is missed.
    pub async fn lost(&self) -> LostReason {
        self.claim.lease.wait_until_lost().await
    }

    /// Why the lock was lost; `None` while it is held.
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.is_held();
        self.claim.lease.lost_reason()
    }

    /// Waits until an operator requests the release of the lock
    /// ([`Locks::request_release`](crate::Locks::request_release)). The holder keeps the lock until
    /// its [`deadline`](Self::deadline), but the keeper stops renewing it: finish the work and
    /// release it. Does not complete without such a request.
    ///
    /// # Cancellation safety
    /// May be dropped and called again; no request is missed.
    pub async fn release_requested(&self) {
        self.claim.lease.wait_for_release_request().await;
    }

    /// Whether an operator requested the release of the lock
    /// ([`Locks::request_release`](crate::Locks::request_release)).
    pub fn is_release_requested(&self) -> bool {
        self.claim.lease.is_release_requested()
    }

    /// A handle with which another task can observe the loss of this lock, without keeping it held.
    pub fn watcher(&self) -> LeaseWatcher {
        LeaseWatcher(Arc::clone(&self.claim))
    }

    /// Runs `work` while the lock is held, and drops it at its next await point when the lock is
    /// lost.
    ///
    /// # Errors
    /// `Lost` if the lock is lost before `work` completes.
    pub async fn protect<F: Future>(&self, work: F) -> Result<F::Output> {
        tokio::select! {
            biased;
            reason = self.lost() => Err(self.lost_error(reason)),
            output = work => match self.lost_reason() {
                None => Ok(output),
                Some(reason) => Err(self.lost_error(reason)),
            },
        }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// An error of the kind `Lost` about this lock, with the reason.
    pub fn lost_error(&self, reason: LostReason) -> Error {
        let error = Error::new(ErrorKind::Lost, format!("lost: {reason}"));
        self.shared.locate(error).about_lock(self.name())
    }

    /// Releases the lock and returns the outcome.
    ///
    /// # Errors
    /// If the engine did not confirm the release before the lease ended. The lock is then free, or
    /// becomes free when its TTL ends.
    ///
    /// # Cancellation safety
    /// If dropped, the release continues in the background.
    ///
    /// # Ambiguity
    /// If a reply is lost, the release is sent again with the same claim. The outcome is then
    /// `Released`, because the lock was held until the first request.
    pub async fn release(self) -> Result<ReleaseOutcome> {
        let manager = &self.shared.manager;
        let lease = &self.claim.lease;
        // An engine that reads this process's clock answers whether the release was in time. But it
        // does not know `max_hold`, so then the lease must decide.
        let was_held = if manager.capabilities.uses_local_clock && lease.max_deadline() == Instant::NEVER {
            lease.mark_released_unchecked()
        } else {
            lease.mark_released()
        };
        let (label, outcome) = if was_held {
            manager.untrack(&self.claim);
            let pending = PendingRelease { guard: &self, is_done: false };
            let result = keeper::release(manager, &self.claim, || self.deadline()).await;
            pending.finish(result.is_ok());
            match result {
                Ok(ReleaseReply::Released) => ("released", Ok(ReleaseOutcome::Released)),
                Ok(_) if manager.clock.now() >= self.deadline() => {
                    ("lost", Ok(ReleaseOutcome::AlreadyLost(LostReason::Expired)))
                }
                Ok(_) => ("lost", Ok(ReleaseOutcome::AlreadyLost(LostReason::Revoked))),
                Err(error) => ("error", Err(error)),
            }
        } else {
            let reason = self.claim.lease.lost_reason().unwrap_or(LostReason::Expired);
            ("lost", Ok(ReleaseOutcome::AlreadyLost(reason)))
        };
        manager.metrics.increment("leasehold_release_total", Some(("result", label)));
        outcome
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.claim.lease.mark_released() {
            self.shared.manager.untrack(&self.claim);
            self.shared.manager.abandon(Arc::clone(&self.claim), None);
        } else if self.claim.lease.lost_reason().is_some() {
            // The engine may still store the lost claim: release it, so that no waiter waits for
            // its TTL.
            self.shared.manager.abandon(Arc::clone(&self.claim), None);
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", self.name())
            .field("token", &self.token())
            .field("held", &self.is_held())
            .finish_non_exhaustive()
    }
}

/// Observes the loss of a guard's lock. Made by [`Guard::watcher`]. Cheap to clone, and does not
/// keep the lock held.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = leasehold::Locks::open("memory:").await?;
/// let guard = locks.mutex("stock:42").lock().await?;
/// let watcher = guard.watcher();
/// assert!(watcher.is_held());
/// guard.release().await?;
/// assert!(!watcher.is_held());
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct LeaseWatcher(Arc<Claim>);

impl LeaseWatcher {
    /// Whether the lock is held right now, as [`Guard::is_held`].
    pub fn is_held(&self) -> bool {
        self.0.lease.is_held()
    }

    /// The instant from which the holder must not rely on the lock, as [`Guard::deadline`].
    pub fn deadline(&self) -> Instant {
        self.0.lease.deadline()
    }

    /// Waits until the lock is lost, and returns the reason. Does not complete while the lock is
    /// held, or after its guard released it.
    pub async fn lost(&self) -> LostReason {
        self.0.lease.wait_until_lost().await
    }

    /// Waits until an operator requests the release of the lock, as [`Guard::release_requested`].
    pub async fn release_requested(&self) {
        self.0.lease.wait_for_release_request().await;
    }

    /// Whether an operator requested the release of the lock, as [`Guard::is_release_requested`].
    pub fn is_release_requested(&self) -> bool {
        self.0.lease.is_release_requested()
    }
}

/// A release in progress. If its future is dropped, or if it fails, the keeper continues it.
struct PendingRelease<'a> {
    guard: &'a Guard,
    is_done: bool,
}

impl PendingRelease<'_> {
    /// Ends the release; if it is not done, the keeper continues it.
    fn finish(mut self, is_done: bool) {
        self.is_done = is_done;
    }
}

impl Drop for PendingRelease<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.guard.shared.manager.abandon(Arc::clone(&self.guard.claim), None);
        }
    }
}
