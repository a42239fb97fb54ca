//! Acquires, checks and releases locks, with leasehold or with plain Redis commands.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{ClaimId, Effect, Error, ErrorKind, Guard, Leadership, Locks, Owner, Token};

use super::naive;
use super::recorder::Recorder;
use crate::history::{Mode, OpId, Outcome, RunNanos};

/// Where a worker acquires its locks.
#[derive(Clone)]
pub(super) enum LockBackend {
    /// An engine of leasehold.
    Leasehold(Locks),
    /// Plain Redis commands, in a negative control.
    Naive(Arc<naive::PlainLocks>),
}

/// A request for a lock.
#[derive(Clone, Debug)]
pub(super) struct LockRequest {
    pub(super) lock: String,
    pub(super) mode: Mode,
    /// The re-entrant owner; `None`: a new one for this request.
    pub(super) owner: Option<String>,
    /// How long it waits for the lock; `None`: it does not wait.
    pub(super) timeout: Option<Duration>,
    /// Whether it campaigns in an election instead of acquiring a lock.
    pub(super) is_election: bool,
    /// The description that other clients see, by which the worker finds its request in the queue.
    pub(super) description: String,
}

/// A held lock.
pub(super) enum AcquiredLock {
    Guard(Guard),
    Leader(Leadership),
    Naive(naive::PlainHold),
}

impl LockBackend {
    /// Requests the lock. `Err` is the outcome to record if it is not granted.
    pub(super) async fn acquire(&self, request: &LockRequest) -> Result<AcquiredLock, Outcome> {
        match self {
            Self::Leasehold(locks) => match acquire(locks, request).await {
                Ok(Some(acquired)) => Ok(acquired),
                Ok(None) => Err(Outcome::Busy),
                Err(error) => Err(outcome_of_error(&error)),
            },
            Self::Naive(plain) => plain.acquire(&request.lock, request.timeout).await.map(AcquiredLock::Naive),
        }
    }

    /// Whether the engine lists a waiter with this description.
    pub(super) async fn lists_waiter(&self, lock: &str, description: &str) -> bool {
        let Self::Leasehold(locks) = self else { return false };
        let Ok(view) = locks.inspect(lock).await else { return false };
        view.waiters.iter().any(|contender| &*contender.holder.description == description)
    }
}

/// A holder or waiter, as other clients see it.
#[derive(Clone, Debug)]
pub(super) struct ObservedContender {
    claim: ClaimId,
    /// The holder's token; 0: it is a waiter.
    pub(super) token: u64,
    /// The number of the call by which it holds or waits; `None`: its description contains none.
    pub(super) hold: Option<OpId>,
    /// How long it has held the lock, or waited for it.
    pub(super) age: Duration,
}

/// The description of a request, from which other workers learn the number of its call.
pub(super) fn description_of(op: OpId) -> String {
    format!("{DESCRIPTION_PREFIX}{op:x}")
}

/// What a request's description has before the number of its call.
const DESCRIPTION_PREFIX: &str = "verify ";

impl LockBackend {
    /// The current holders and waiters of a lock, in this order; empty if the engine supports no
    /// force release or no inspection.
    pub(super) async fn list_contenders(&self, lock: &str) -> (Vec<ObservedContender>, Vec<ObservedContender>) {
        let Self::Leasehold(locks) = self else { return (Vec::new(), Vec::new()) };
        let can = locks.capabilities();
        if !can.force_release || !can.inspection {
            return (Vec::new(), Vec::new());
        }
        let Ok(view) = locks.inspect(lock).await else { return (Vec::new(), Vec::new()) };
        let observe = |contender: &leasehold::engine::ContenderView| {
            let hold = contender
                .holder
                .description
                .strip_prefix(DESCRIPTION_PREFIX)
                .and_then(|op| OpId::from_str_radix(op, 16).ok());
            ObservedContender {
                claim: contender.claim,
                token: contender.token.map_or(0, |token| token.0),
                hold,
                age: contender.age,
            }
        };
        let holders = view.holders.iter().filter(|contender| contender.token.is_some()).map(observe).collect();
        let waiters =
            view.waiters.iter().map(|contender| ObservedContender { token: 0, ..observe(contender) }).collect();
        (holders, waiters)
    }

    /// Force-releases a holder or waiter or, with `is_graceful`, only asks a holder to release.
    pub(super) async fn force_release(&self, lock: &str, target: &ObservedContender, is_graceful: bool) -> Outcome {
        let Self::Leasehold(locks) = self else {
            return Outcome::Failed { error: "plain Redis locks cannot be force-released".to_owned() };
        };
        if is_graceful {
            return match locks.request_release(lock, target.claim, "verify").await {
                Ok(holder) => Outcome::Evicted { token: None, gone: holder.is_none() },
                Err(error) => outcome_of_error(&error),
            };
        }
        match locks.force_release(lock, target.claim).await {
            Ok(released) => {
                let token: Option<Token> = released.fence_token;
                Outcome::Evicted { token: token.map(|token| token.0), gone: released.contender.is_none() }
            }
            Err(error) => outcome_of_error(&error),
        }
    }
}

/// Requests the lock from leasehold; `None`: another holder has it, and the request does not wait.
async fn acquire(locks: &Locks, request: &LockRequest) -> leasehold::Result<Option<AcquiredLock>> {
    macro_rules! request {
        ($what:expr) => {{
            let mut what = $what.describe(&request.description);
            if let Some(owner) = &request.owner {
                what = what.owner(&Owner::named(owner));
            }
            if let Some(timeout) = request.timeout {
                what = what.timeout(timeout);
            }
            what
        }};
    }
    let waits = request.timeout.is_some();
    let guard = match request.mode {
        Mode::Exclusive if request.is_election => {
            let election = request!(locks.election(&request.lock));
            let led = if waits { election.campaign().await.map(Some) } else { election.try_campaign().await };
            return Ok(led?.map(AcquiredLock::Leader));
        }
        Mode::Exclusive => {
            let mutex = request!(locks.mutex(&request.lock));
            if waits { mutex.lock().await.map(Some) } else { mutex.try_lock().await }
        }
        Mode::Shared => {
            let lock = request!(locks.rwlock(&request.lock));
            if waits { lock.read().await.map(Some) } else { lock.try_read().await }
        }
        Mode::Permits { n, limit } => {
            let semaphore = request!(locks.semaphore(&request.lock, limit));
            if waits { semaphore.acquire(n).await.map(Some) } else { semaphore.try_acquire(n).await }
        }
    };
    Ok(guard?.map(AcquiredLock::Guard))
}

/// The outcome to record for an error.
pub(super) fn outcome_of_error(error: &Error) -> Outcome {
    match (error.kind(), error.effect()) {
        (ErrorKind::Timeout, _) => Outcome::TimedOut,
        (_, Effect::Unknown) => Outcome::Unknown { error: error.to_string() },
        _ => Outcome::Failed { error: error.to_string() },
    }
}

impl AcquiredLock {
    pub(super) fn token(&self) -> u64 {
        match self {
            Self::Guard(guard) => guard.token().0,
            Self::Leader(led) => led.token().0,
            Self::Naive(hold) => hold.token,
        }
    }

    /// Whether the holder may rely on the lock now.
    pub(super) fn is_held(&self) -> bool {
        match self {
            Self::Guard(guard) => guard.is_held(),
            Self::Leader(led) => led.is_leader(),
            Self::Naive(hold) => hold.is_held(),
        }
    }

    /// When the lease ends unless it is renewed.
    pub(super) fn deadline(&self, recorder: &Recorder) -> RunNanos {
        match self {
            Self::Guard(guard) => recorder.to_run_time(guard.deadline()),
            Self::Leader(led) => recorder.to_run_time(led.guard().deadline()),
            Self::Naive(hold) => hold.deadline(recorder),
        }
    }

    /// Waits until the holder is notified that the lock is lost; returns the reason.
    pub(super) async fn lost(&self) -> String {
        match self {
            Self::Guard(guard) => guard.lost().await.to_string(),
            Self::Leader(led) => led.lost().await.to_string(),
            Self::Naive(hold) => hold.lost().await,
        }
    }

    /// Waits until the holder is asked to release.
    pub(super) async fn release_requested(&self) {
        match self {
            Self::Guard(guard) => guard.release_requested().await,
            Self::Leader(led) => led.release_requested().await,
            Self::Naive(_) => std::future::pending().await,
        }
    }

    /// Whether the holder was asked to release.
    pub(super) fn is_release_requested(&self) -> bool {
        match self {
            Self::Guard(guard) => guard.is_release_requested(),
            Self::Leader(led) => led.guard().is_release_requested(),
            Self::Naive(_) => false,
        }
    }

    /// Releases the lock; returns the outcome to record.
    pub(super) async fn release(self) -> Outcome {
        match self {
            Self::Guard(guard) => outcome_of_release(guard.release().await),
            Self::Leader(led) => outcome_of_release(led.resign().await),
            Self::Naive(hold) => hold.release().await,
        }
    }
}

/// The outcome to record for a release.
fn outcome_of_release(result: leasehold::Result<leasehold::ReleaseOutcome>) -> Outcome {
    match result {
        Ok(leasehold::ReleaseOutcome::Released) => Outcome::Released,
        Ok(leasehold::ReleaseOutcome::AlreadyLost(reason)) => Outcome::WasLost { reason: reason.to_string() },
        Err(error) => outcome_of_error(&error),
    }
}
