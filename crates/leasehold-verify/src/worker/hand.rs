//! Acquires locks, with leasehold or without.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{ClaimId, Effect, Error, ErrorKind, Guard, Leadership, Locks, Owner, Token};

use super::naive;
use super::record::Recorder;
use crate::history::{Mode, Nanos, OpId, Outcome};

/// How locks are acquired.
#[derive(Clone)]
pub(super) enum Taker {
    Leasehold(Locks),
    Naive(Arc<naive::Plain>),
}

/// A request for a lock.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) lock: String,
    pub(super) mode: Mode,
    pub(super) owner: Option<String>,
    /// Its timeout; `None`: it does not wait.
    pub(super) wait: Option<Duration>,
    pub(super) election: bool,
    /// The description for other clients, by which the worker finds itself in the queue.
    pub(super) text: String,
}

/// A held lock.
pub(super) enum Hand {
    Guard(Guard),
    Leader(Leadership),
    Naive(naive::Hold),
}

impl Taker {
    /// Requests the lock. `Err` is the outcome if it is not granted.
    pub(super) async fn take(&self, ask: &Ask) -> Result<Hand, Outcome> {
        match self {
            Self::Leasehold(locks) => match hand(locks, ask).await {
                Ok(Some(hand)) => Ok(hand),
                Ok(None) => Err(Outcome::Busy),
                Err(error) => Err(came_of(&error)),
            },
            Self::Naive(plain) => plain.take(&ask.lock, ask.wait).await.map(Hand::Naive),
        }
    }

    /// Whether a client with this description is listed as a waiter or holder.
    pub(super) async fn sees(&self, lock: &str, text: &str) -> bool {
        let Self::Leasehold(locks) = self else { return false };
        let Ok(view) = locks.inspect(lock).await else { return false };
        view.waiters.iter().any(|party| &*party.holder.text == text)
    }
}

/// A holder, as others see it.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    claim: ClaimId,
    pub(super) token: u64,
    /// The call by which it holds, if its description contains it.
    pub(super) hold: Option<OpId>,
    /// How long it has held the lock.
    pub(super) age: Duration,
}

/// The description of a request, from which others learn its call.
pub(super) fn text(op: OpId) -> String {
    format!("{TEXT}{op:x}")
}

const TEXT: &str = "verify ";

impl Taker {
    /// The current holders of a lock; none where holders cannot be evicted.
    pub(super) async fn holders(&self, lock: &str) -> Vec<Seen> {
        let Self::Leasehold(locks) = self else { return Vec::new() };
        let can = locks.capabilities();
        if !can.eviction || !can.inspection {
            return Vec::new();
        }
        let Ok(view) = locks.inspect(lock).await else { return Vec::new() };
        let seen = |party: &leasehold::engine::PartyView| {
            let hold = party.holder.text.strip_prefix(TEXT).and_then(|op| OpId::from_str_radix(op, 16).ok());
            Some(Seen { claim: party.claim, token: party.token?.0, hold, age: party.age })
        };
        view.holders.iter().filter_map(seen).collect()
    }

    /// Force-releases a holder, or requests its release.
    pub(super) async fn evict(&self, lock: &str, seen: &Seen, graceful: bool) -> Outcome {
        let Self::Leasehold(locks) = self else {
            return Outcome::Failed { error: "only leasehold evicts".to_owned() };
        };
        if graceful {
            return match locks.request_release(lock, seen.claim, "verify").await {
                Ok(holder) => Outcome::Evicted { token: None, gone: holder.is_none() },
                Err(error) => came_of(&error),
            };
        }
        match locks.evict(lock, seen.claim).await {
            Ok(evicted) => {
                let token: Option<Token> = evicted.token;
                Outcome::Evicted { token: token.map(|token| token.0), gone: evicted.party.is_none() }
            }
            Err(error) => came_of(&error),
        }
    }
}

async fn hand(locks: &Locks, ask: &Ask) -> leasehold::Result<Option<Hand>> {
    macro_rules! asked {
        ($what:expr) => {{
            let mut what = $what.describe(&ask.text);
            if let Some(owner) = &ask.owner {
                what = what.owner(&Owner::named(owner));
            }
            if let Some(wait) = ask.wait {
                what = what.wait(wait);
            }
            what
        }};
    }
    let waits = ask.wait.is_some();
    let guard = match ask.mode {
        Mode::Exclusive if ask.election => {
            let election = asked!(locks.election(&ask.lock));
            let led = if waits { election.campaign().await.map(Some) } else { election.try_campaign().await };
            return Ok(led?.map(Hand::Leader));
        }
        Mode::Exclusive => {
            let mutex = asked!(locks.mutex(&ask.lock));
            if waits { mutex.lock().await.map(Some) } else { mutex.try_lock().await }
        }
        Mode::Shared => {
            let lock = asked!(locks.rwlock(&ask.lock));
            if waits { lock.read().await.map(Some) } else { lock.try_read().await }
        }
        Mode::Permits { n, limit } => {
            let semaphore = asked!(locks.semaphore(&ask.lock, limit));
            if waits { semaphore.acquire(n).await.map(Some) } else { semaphore.try_acquire(n).await }
        }
    };
    Ok(guard?.map(Hand::Guard))
}

/// The outcome that an error implies.
pub(super) fn came_of(error: &Error) -> Outcome {
    match (error.kind(), error.effect()) {
        (ErrorKind::Timeout, _) => Outcome::TimedOut,
        (_, Effect::Unknown) => Outcome::Unknown { error: error.to_string() },
        _ => Outcome::Failed { error: error.to_string() },
    }
}

impl Hand {
    pub(super) fn token(&self) -> u64 {
        match self {
            Self::Guard(guard) => guard.token().0,
            Self::Leader(led) => led.token().0,
            Self::Naive(hold) => hold.token,
        }
    }

    /// Whether the lock may be relied on now.
    pub(super) fn is_held(&self) -> bool {
        match self {
            Self::Guard(guard) => guard.is_held(),
            Self::Leader(led) => led.is_leader(),
            Self::Naive(hold) => hold.is_held(),
        }
    }

    /// The deadline, unless the lease is renewed.
    pub(super) fn deadline(&self, recorder: &Recorder) -> Nanos {
        match self {
            Self::Guard(guard) => recorder.at(guard.deadline()),
            Self::Leader(led) => recorder.at(led.guard().deadline()),
            Self::Naive(hold) => hold.deadline(recorder),
        }
    }

    /// Waits for the loss; returns the reason.
    pub(super) async fn lost(&self) -> String {
        match self {
            Self::Guard(guard) => guard.lost().await.to_string(),
            Self::Leader(led) => led.lost().await.to_string(),
            Self::Naive(hold) => hold.lost().await,
        }
    }

    /// Waits for a release request.
    pub(super) async fn release_requested(&self) {
        match self {
            Self::Guard(guard) => guard.release_requested().await,
            Self::Leader(led) => led.release_requested().await,
            Self::Naive(_) => std::future::pending().await,
        }
    }

    /// Whether there is a release request.
    pub(super) fn is_release_requested(&self) -> bool {
        match self {
            Self::Guard(guard) => guard.is_release_requested(),
            Self::Leader(led) => led.guard().is_release_requested(),
            Self::Naive(_) => false,
        }
    }

    pub(super) async fn release(self) -> Outcome {
        match self {
            Self::Guard(guard) => given_back(guard.release().await),
            Self::Leader(led) => given_back(led.resign().await),
            Self::Naive(hold) => hold.release().await,
        }
    }
}

fn given_back(result: leasehold::Result<leasehold::Outcome>) -> Outcome {
    match result {
        Ok(leasehold::Outcome::Released) => Outcome::Released,
        Ok(leasehold::Outcome::WasLost(reason)) => Outcome::WasLost { reason: reason.to_string() },
        Err(error) => came_of(&error),
    }
}
