//! What the user has in hand.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::claim::{Claim, ClaimId, Token};
use crate::clock::Moment;
use crate::engine::Released;
use crate::error::{Error, ErrorKind, Result};
use crate::keeper;
use crate::lease::LostReason;
use crate::locks::Shared;
use crate::name::LockName;

/// What a release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a lock that was lost before its release may have been another's meanwhile"]
pub enum Outcome {
    /// The lock was ours to the end, and is given back.
    Released,
    /// It had been lost before: somebody else may have held it meanwhile.
    WasLost(LostReason),
}

/// A held lock. It renews itself until it is released, dropped or lost.
///
/// Dropping it gives the lock back in the background, as well as that can be done; [`release`](Self::release) waits and says
/// what happened.
#[must_use = "the lock is given back as soon as the guard is dropped"]
pub struct Guard {
    shared: Arc<Shared>,
    claim: Arc<Claim>,
}

impl Guard {
    pub(crate) fn new(shared: Arc<Shared>, claim: Arc<Claim>) -> Self {
        Self { shared, claim }
    }

    /// Which lock.
    pub fn name(&self) -> &LockName {
        self.claim.name()
    }

    /// The fencing token: hand it to whatever the lock protects, and have it refuse older ones.
    pub fn token(&self) -> Token {
        self.claim.lease.token()
    }

    /// The claim that holds it, as [`inspect`](crate::Locks::inspect) shows it among the holders. Whoever knows all of it could release the lock.
    pub fn claim_id(&self) -> ClaimId {
        self.claim.id
    }

    /// From when on the lock must not be relied on, as things stand; it moves with every renewal.
    pub fn deadline(&self) -> Moment {
        self.claim.lease.deadline()
    }

    /// From then on it is not renewed.
    #[cfg(feature = "schedule")]
    pub(crate) fn cap(&self) -> Moment {
        self.claim.lease.cap()
    }

    /// What is left until the deadline; zero once the lock is lost.
    pub fn remaining(&self) -> Duration {
        if self.is_held() { self.deadline().since(self.shared.desk.clock.now()) } else { Duration::ZERO }
    }

    /// Whether the lock may be relied on at this very moment. Reads the clock itself, so it is right also just after the
    /// process was stopped, the machine slept, or the runtime was busy elsewhere. Once `false`, it stays `false`.
    pub fn is_held(&self) -> bool {
        self.claim.lease.is_held()
    }

    /// Waits until the lock is lost, and says why. Does not end while the lock is held.
    ///
    /// # Cancellation safety
    /// May be dropped and called again; nothing is missed.
    pub async fn lost(&self) -> LostReason {
        self.claim.lease.lost().await
    }

    /// Why the lock was lost, if it was.
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.is_held();
        self.claim.lease.lost_reason()
    }

    /// Waits until an operator asks for the release of the lock ([`Locks::request_release`](crate::Locks::request_release)). It is still held then,
    /// until [`deadline`](Self::deadline), but not renewed any more: finish, and release it. Does not end while nobody asks.
    ///
    /// # Cancellation safety
    /// May be dropped and called again; nothing is missed.
    pub async fn release_requested(&self) {
        self.claim.lease.release_requested().await;
    }

    /// Whether an operator asked for its release.
    pub fn is_release_requested(&self) -> bool {
        self.claim.lease.is_release_requested()
    }

    /// A handle that tells of the loss wherever it is needed, without keeping the lock.
    pub fn watch(&self) -> Watch {
        Watch(Arc::clone(&self.claim))
    }

    /// Runs `work` while the lock is held, and drops it at its next await point when the lock is lost.
    ///
    /// # Errors
    /// `Lost` if the lock was lost before `work` was done.
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

    pub(crate) fn lost_error(&self, reason: LostReason) -> Error {
        let error = Error::new(ErrorKind::Lost, format!("lost: {reason}"));
        self.shared.locate(error).about(self.name())
    }

    /// Gives the lock back and says what happened.
    ///
    /// # Errors
    /// If the engine did not confirm it before the lease ended. The lock is free then, or will be when its TTL is over.
    ///
    /// # Cancellation safety
    /// If dropped, the release goes on in the background.
    ///
    /// # Ambiguity
    /// A lost reply is asked for again with the same claim; the answer then says `Released`, since it was ours until we
    /// asked.
    pub async fn release(self) -> Result<Outcome> {
        let desk = &self.shared.desk;
        let same_clock = desk.can.same_clock;
        let lease = &self.claim.lease;
        // A cap is ours alone: the engine does not know whether it was reached.
        let ours =
            if same_clock && lease.cap() == Moment::NEVER { lease.give_back_unread() } else { lease.give_back() };
        let (label, outcome) = if ours {
            desk.forget(&self.claim);
            let ending = Ending { guard: &self, done: false };
            let result = keeper::release(desk, &self.claim, || self.deadline()).await;
            ending.finish(result.is_ok());
            match result {
                Ok(Released::Released) => ("released", Ok(Outcome::Released)),
                Ok(_) if desk.clock.now() >= self.deadline() => ("lost", Ok(Outcome::WasLost(LostReason::Expired))),
                Ok(_) => ("lost", Ok(Outcome::WasLost(LostReason::Taken))),
                Err(error) => ("error", Err(error)),
            }
        } else {
            let reason = self.claim.lease.lost_reason().unwrap_or(LostReason::Expired);
            ("lost", Ok(Outcome::WasLost(reason)))
        };
        desk.gauges.count("leasehold_release_total", Some(("result", label)));
        outcome
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.claim.lease.give_back() {
            self.shared.desk.forget(&self.claim);
            self.shared.desk.abandon(Arc::clone(&self.claim), None);
        } else if self.claim.lease.lost_reason().is_some() {
            // Its holder is done with it, so nobody need wait for what is left of it at the engine.
            self.shared.desk.abandon(Arc::clone(&self.claim), None);
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

/// Tells of a guard's loss. Cheap to clone, and does not keep the lock.
#[derive(Clone, Debug)]
pub struct Watch(Arc<Claim>);

impl Watch {
    /// As [`Guard::is_held`].
    pub fn is_held(&self) -> bool {
        self.0.lease.is_held()
    }

    /// As [`Guard::deadline`].
    pub fn deadline(&self) -> Moment {
        self.0.lease.deadline()
    }

    /// As [`Guard::lost`].
    pub async fn lost(&self) -> LostReason {
        self.0.lease.lost().await
    }

    /// As [`Guard::release_requested`].
    pub async fn release_requested(&self) {
        self.0.lease.release_requested().await;
    }

    /// As [`Guard::is_release_requested`].
    pub fn is_release_requested(&self) -> bool {
        self.0.lease.is_release_requested()
    }
}

/// A release under way: if it is dropped, or fails, the keeper goes on with it.
struct Ending<'a> {
    guard: &'a Guard,
    done: bool,
}

impl Ending<'_> {
    fn finish(mut self, done: bool) {
        self.done = done;
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.guard.shared.desk.abandon(Arc::clone(&self.guard.claim), None);
        }
    }
}
