//! The lease of a granted claim in this process: its deadline, and whether it is lost.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::clock::{Clock, Instant};
use crate::types::Token;

/// Why a guard ended without a release.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = leasehold::Locks::open("memory:").await?;
/// use leasehold::{LostReason, ReleaseOutcome};
///
/// let guard = locks.mutex("stock:42").lock().await?;
/// locks.force_release("stock:42", guard.claim_id()).await?;
/// assert_eq!(guard.release().await?, ReleaseOutcome::AlreadyLost(LostReason::Revoked));
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The deadline passed without a renewal: the engine was unreachable, or this process was
    /// stopped.
    Expired,
    /// The engine reports that the claim does not hold the lock any more: it was evicted, or its
    /// data was removed.
    Revoked,
    /// `max_hold` was reached.
    MaxHold,
    /// An operator asked for a release, and the holder did not release the lock by its deadline.
    ReleaseRequested,
}

impl LostReason {
    /// A short stable word, as metrics and `--json` use it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Revoked => "taken",
            Self::MaxHold => "max-hold",
            Self::ReleaseRequested => "release-requested",
        }
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease ended without a renewal",
            Self::Revoked => {
                "the engine says that it is not ours any more: somebody evicted us, or removed what it keeps"
            }
            Self::MaxHold => "it was held for as long as max_hold allows",
            Self::ReleaseRequested => "an operator asked for its release, and its lease was not renewed",
        })
    }
}

const PENDING: u8 = 0;
const HELD: u8 = 1;
const RELEASED: u8 = 2;
const EXPIRED: u8 = 3;
const REVOKED: u8 = 4;
const MAX_HOLD: u8 = 5;
const RELEASE_REQUESTED: u8 = 6;

/// The lease of a claim: empty until it is granted, then held until it ends in one of five ways.
/// The deadline only rises, and only while the lease is held. Once a reader has seen it pass, the
/// lease is lost for good.
#[derive(Debug)]
pub(crate) struct Lease {
    clock: Clock,
    token: AtomicU64,
    granted_at: AtomicU64,
    max_deadline: AtomicU64,
    deadline: AtomicU64,
    state: AtomicU8,
    /// An operator asked for a release: the keeper does not renew the lease any more.
    release_requested: AtomicBool,
    /// The lease's slot in the keeper's renewal queue.
    pub(crate) slot: AtomicU32,
    /// Notified when the lease is lost, and when an operator requests its release.
    ended_or_requested: Notify,
}

impl Lease {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            token: AtomicU64::new(0),
            granted_at: AtomicU64::new(0),
            max_deadline: AtomicU64::new(0),
            deadline: AtomicU64::new(0),
            state: AtomicU8::new(PENDING),
            release_requested: AtomicBool::new(false),
            slot: AtomicU32::new(u32::MAX),
            ended_or_requested: Notify::new(),
        }
    }

    /// Begins the lease of a grant to a request sent at `granted_at`. From `max_deadline` on it is
    /// not renewed.
    pub(crate) fn begin(&self, token: Token, granted_at: Instant, deadline: Instant, max_deadline: Instant) {
        self.token.store(token.0, Ordering::Relaxed);
        self.granted_at.store(granted_at.as_nanos(), Ordering::Relaxed);
        self.max_deadline.store(max_deadline.as_nanos(), Ordering::Relaxed);
        self.deadline.store(deadline.as_nanos(), Ordering::Relaxed);
        self.release_requested.store(false, Ordering::Relaxed);
        self.state.store(HELD, Ordering::Release);
    }

    pub(crate) fn token(&self) -> Token {
        Token(self.token.load(Ordering::Relaxed))
    }

    pub(crate) fn granted_at(&self) -> Instant {
        Instant::from_nanos(self.granted_at.load(Ordering::Relaxed))
    }

    pub(crate) fn max_deadline(&self) -> Instant {
        Instant::from_nanos(self.max_deadline.load(Ordering::Relaxed))
    }

    pub(crate) fn deadline(&self) -> Instant {
        Instant::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    /// Whether the lease is held now. It reads the clock, so the answer is right even if no task
    /// ran for a while.
    pub(crate) fn is_held(&self) -> bool {
        if self.state.load(Ordering::Acquire) != HELD {
            return false;
        }
        if self.clock.now() < self.deadline() {
            return true;
        }
        self.expire();
        false
    }

    /// Whether the lease was granted and has ended, for any reason.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.load(Ordering::Acquire) != PENDING && !self.is_held()
    }

    /// Whether an operator asked for the release, and the holder released before the lease ended.
    pub(crate) fn is_released_on_request(&self) -> bool {
        self.is_release_requested() && self.state.load(Ordering::Acquire) == RELEASED
    }

    /// Extends the lease after a renewal. `false`: too late, the lease is lost.
    pub(crate) fn extend(&self, deadline: Instant) -> bool {
        if !self.is_held() {
            return false;
        }
        self.deadline.fetch_max(deadline.as_nanos(), Ordering::AcqRel);
        // If another task has marked the lease as expired, it stays lost.
        self.state.load(Ordering::Acquire) == HELD
    }

    /// Marks that an operator requests the release: the lease lasts until its present deadline and
    /// no longer. `false` if it is not held, or was marked before.
    pub(crate) fn request_release(&self) -> bool {
        if !self.is_held() || self.release_requested.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.max_deadline.fetch_min(self.deadline().as_nanos(), Ordering::AcqRel);
        self.ended_or_requested.notify_waiters();
        true
    }

    /// Whether an operator asked for the release while the lease was held.
    pub(crate) fn is_release_requested(&self) -> bool {
        self.release_requested.load(Ordering::Acquire)
    }

    /// Waits until an operator requests the release; forever if none does.
    pub(crate) async fn release_requested(&self) {
        loop {
            let mut changed = std::pin::pin!(self.ended_or_requested.notified());
            changed.as_mut().enable();
            if self.is_release_requested() {
                return;
            }
            changed.await;
        }
    }

    /// Ends the lease because its deadline has passed.
    pub(crate) fn expire(&self) -> bool {
        self.end(match self.deadline() >= self.max_deadline() {
            true if self.is_release_requested() => RELEASE_REQUESTED,
            true => MAX_HOLD,
            false => EXPIRED,
        })
    }

    /// Ends the lease because the engine reports that the claim does not hold the lock.
    pub(crate) fn revoke(&self) -> bool {
        self.end(REVOKED)
    }

    /// Ends the lease because the holder releases it. `false` if it was lost before.
    pub(crate) fn mark_released(&self) -> bool {
        self.is_held() && self.end(RELEASED)
    }

    /// As [`mark_released`](Self::mark_released), for an engine that reads this process's clock:
    /// its answer states whether the release was in time.
    pub(crate) fn mark_released_unchecked(&self) -> bool {
        self.end(RELEASED)
    }

    fn end(&self, state: u8) -> bool {
        let first = self.state.compare_exchange(HELD, state, Ordering::AcqRel, Ordering::Acquire).is_ok();
        // No task waits for a release.
        if first && state != RELEASED {
            self.ended_or_requested.notify_waiters();
        }
        first
    }

    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        match self.state.load(Ordering::Acquire) {
            EXPIRED => Some(LostReason::Expired),
            REVOKED => Some(LostReason::Revoked),
            MAX_HOLD => Some(LostReason::MaxHold),
            RELEASE_REQUESTED => Some(LostReason::ReleaseRequested),
            _ => None,
        }
    }

    /// Waits until the lease is lost; forever if it is released.
    pub(crate) async fn lost(&self) -> LostReason {
        loop {
            let mut ended = std::pin::pin!(self.ended_or_requested.notified());
            ended.as_mut().enable();
            self.is_held();
            if let Some(reason) = self.lost_reason() {
                return reason;
            }
            ended.await;
        }
    }
}
