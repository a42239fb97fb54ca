//! The guard of a held lock.

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
/// Dropping it releases the lock in the background, on a best-effort basis.
/// [`release`](Self::release) waits for the engine and returns the outcome.
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

    /// The claim that holds the lock, as [`inspect`](crate::Locks::inspect) lists it among the
    /// holders. Keep it secret: a client that knows the whole id can release the lock.
    pub fn claim_id(&self) -> ClaimId {
        self.claim.id
    }

    /// The moment from which the holder must not rely on the lock. Every renewal moves it.
    pub fn deadline(&self) -> Instant {
        self.claim.lease.deadline()
    }

    /// The moment from which the keeper does not renew the lock: `max_hold` after the grant.
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

    /// Why the lock was lost, if it was.
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

    /// Whether an operator asked for the release of the lock.
    pub fn is_release_requested(&self) -> bool {
        self.claim.lease.is_release_requested()
    }

    /// A handle that observes the loss of this lock elsewhere, without keeping it held.
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

    /// The error for the loss of this lock, with the reason.
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
        let same_clock = manager.capabilities.uses_local_clock;
        let lease = &self.claim.lease;
        // The engine does not know `max_hold`: with a cap, only the lease shows whether it was
        // reached.
        let was_held = if same_clock && lease.max_deadline() == Instant::NEVER {
            lease.mark_released_unchecked()
        } else {
            lease.mark_released()
        };
        let (label, outcome) = if was_held {
            manager.untrack(&self.claim);
            let ending = PendingRelease { guard: &self, is_done: false };
            let result = keeper::release(manager, &self.claim, || self.deadline()).await;
            ending.finish(result.is_ok());
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
            // The holder has stopped using the lock: release what the engine still has of it, so
            // that no waiter waits for its TTL.
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

/// Observes the loss of a guard's lock. Cheap to clone, and does not keep the lock held.
#[derive(Clone, Debug)]
pub struct LeaseWatcher(Arc<Claim>);

impl LeaseWatcher {
    /// See [`Guard::is_held`].
    pub fn is_held(&self) -> bool {
        self.0.lease.is_held()
    }

    /// See [`Guard::deadline`].
    pub fn deadline(&self) -> Instant {
        self.0.lease.deadline()
    }

    /// See [`Guard::lost`].
    pub async fn lost(&self) -> LostReason {
        self.0.lease.wait_until_lost().await
    }

    /// See [`Guard::release_requested`].
    pub async fn release_requested(&self) {
        self.0.lease.wait_for_release_request().await;
    }

    /// See [`Guard::is_release_requested`].
    pub fn is_release_requested(&self) -> bool {
        self.0.lease.is_release_requested()
    }
}

/// A release in progress. If it is dropped or fails, the keeper continues it.
struct PendingRelease<'a> {
    guard: &'a Guard,
    is_done: bool,
}

impl PendingRelease<'_> {
    fn finish(mut self, done: bool) {
        self.is_done = done;
    }
}

impl Drop for PendingRelease<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.guard.shared.manager.abandon(Arc::clone(&self.guard.claim), None);
        }
    }
}
