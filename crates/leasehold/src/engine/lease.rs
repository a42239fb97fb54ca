//! What this process knows of a claim's lease: its token, its deadline, and how it ended.

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
    /// The engine reports that the claim does not hold the lock any more: an operator force
    /// released it, or its stored data was removed.
    Revoked,
    /// The guard was held for as long as its `max_hold` option allows.
    MaxHold,
    /// An operator requested the release, and the holder did not release the lock by its deadline.
    ReleaseRequested,
}

impl LostReason {
    /// The word for this reason in metrics and in `--json` output. It never changes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Revoked => "revoked",
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
                "the engine reports that it is not held any more: an operator force released it, or its data was removed"
            }
            Self::MaxHold => "it was held for as long as max_hold allows",
            Self::ReleaseRequested => "an operator requested its release, and its lease was not renewed",
        })
    }
}

// The values of `Lease::state`: not granted yet, held, released, or one of the `LostReason`s.
const PENDING: u8 = 0;
const HELD: u8 = 1;
const RELEASED: u8 = 2;
const EXPIRED: u8 = 3;
const REVOKED: u8 = 4;
const MAX_HOLD: u8 = 5;
const RELEASE_REQUESTED: u8 = 6;

/// The lease of a claim: pending until the grant, then held until it is released or lost. The
/// deadline only rises, and only while the lease is held. Once a reader has seen the deadline pass,
/// the lease is lost, and no later renewal restores it.
#[derive(Debug)]
pub(crate) struct Lease {
    clock: Clock,
    /// The token of the last grant; 0 before the first.
    token: AtomicU64,
    /// When the granted request was sent, in nanoseconds of `clock`.
    granted_at: AtomicU64,
    /// Renewals extend the deadline no further than this, in nanoseconds of `clock`.
    max_deadline: AtomicU64,
    /// When the lease is lost unless renewed, in nanoseconds of `clock`.
    deadline: AtomicU64,
    /// One of the constants from `PENDING` to `RELEASE_REQUESTED`.
    state: AtomicU8,
    /// Whether an operator requested the release: the keeper then stops renewing the lease.
    release_requested: AtomicBool,
    /// The lease's index in the keeper's renewal queue; `u32::MAX` while it is in none.
    pub(crate) slot: AtomicU32,
    /// Notified when the lease is lost, and when an operator requests its release.
    ended_or_requested: Notify,
}

impl Lease {
    /// A lease that is not granted yet.
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

    /// Marks the lease as held, after a grant to a request that was sent at `granted_at`. Renewals
    /// extend it up to `max_deadline`.
    pub(crate) fn begin(&self, token: Token, granted_at: Instant, deadline: Instant, max_deadline: Instant) {
        self.token.store(token.0, Ordering::Relaxed);
        self.granted_at.store(granted_at.as_nanos(), Ordering::Relaxed);
        self.max_deadline.store(max_deadline.as_nanos(), Ordering::Relaxed);
        self.deadline.store(deadline.as_nanos(), Ordering::Relaxed);
        self.release_requested.store(false, Ordering::Relaxed);
        self.state.store(HELD, Ordering::Release);
    }

    /// The token of the last grant; 0 before the first.
    pub(crate) fn token(&self) -> Token {
        Token(self.token.load(Ordering::Relaxed))
    }

    /// When the granted request was sent.
    pub(crate) fn granted_at(&self) -> Instant {
        Instant::from_nanos(self.granted_at.load(Ordering::Relaxed))
    }

    /// The latest deadline that renewals may set.
    pub(crate) fn max_deadline(&self) -> Instant {
        Instant::from_nanos(self.max_deadline.load(Ordering::Relaxed))
    }

    /// When the lease is lost unless it is renewed before.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    /// Whether the lease is held now. This compares the deadline with the clock, so the answer is
    /// right even if the task that renews leases did not run for a while.
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

    /// Whether an operator requested the release, and the holder released before the lease ended.
    pub(crate) fn is_released_on_request(&self) -> bool {
        self.is_release_requested() && self.state.load(Ordering::Acquire) == RELEASED
    }

    /// Extends the lease to `deadline` after a renewal. `false`: the lease was lost before.
    pub(crate) fn extend(&self, deadline: Instant) -> bool {
        if !self.is_held() {
            return false;
        }
        self.deadline.fetch_max(deadline.as_nanos(), Ordering::AcqRel);
        // If another task has marked the lease as expired, it stays lost.
        self.state.load(Ordering::Acquire) == HELD
    }

    /// Notes that an operator requests the release, and wakes the holder. The lease then lasts
    /// until its present deadline and no longer. `false` if it is not held, or the request was
    /// noted before.
    pub(crate) fn request_release(&self) -> bool {
        if !self.is_held() || self.release_requested.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.max_deadline.fetch_min(self.deadline().as_nanos(), Ordering::AcqRel);
        self.ended_or_requested.notify_waiters();
        true
    }

    /// Whether an operator requested the release while the lease was held.
    pub(crate) fn is_release_requested(&self) -> bool {
        self.release_requested.load(Ordering::Acquire)
    }

    /// Completes when an operator requests the release, and never if none does.
    pub(crate) async fn wait_for_release_request(&self) {
        loop {
            let mut changed = std::pin::pin!(self.ended_or_requested.notified());
            changed.as_mut().enable();
            if self.is_release_requested() {
                return;
            }
            changed.await;
        }
    }

    /// Ends the lease because its deadline has passed. `true` if this call ended it.
    pub(crate) fn expire(&self) -> bool {
        self.end(match self.deadline() >= self.max_deadline() {
            true if self.is_release_requested() => RELEASE_REQUESTED,
            true => MAX_HOLD,
            false => EXPIRED,
        })
    }

    /// Ends the lease because the engine reports that the claim does not hold the lock. `true` if
    /// this call ended it.
    pub(crate) fn revoke(&self) -> bool {
        self.end(REVOKED)
    }

    /// Ends the lease because the holder releases it. `false` if it was not held any more.
    pub(crate) fn mark_released(&self) -> bool {
        self.is_held() && self.end(RELEASED)
    }

    /// Ends the lease because the holder releases it, without looking at the deadline: the engine
    /// reads this process's clock, and its answer to the release shows whether that was in time.
    pub(crate) fn mark_released_unchecked(&self) -> bool {
        self.end(RELEASED)
    }

    /// Moves a held lease to a final state; `false` if it was not held any more.
    fn end(&self, state: u8) -> bool {
        let first = self.state.compare_exchange(HELD, state, Ordering::AcqRel, Ordering::Acquire).is_ok();
        // No task waits for a release.
        if first && state != RELEASED {
            self.ended_or_requested.notify_waiters();
        }
        first
    }

    /// Why the lease was lost; `None` while it is pending or held, and after a release.
    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        match self.state.load(Ordering::Acquire) {
            EXPIRED => Some(LostReason::Expired),
            REVOKED => Some(LostReason::Revoked),
            MAX_HOLD => Some(LostReason::MaxHold),
            RELEASE_REQUESTED => Some(LostReason::ReleaseRequested),
            _ => None,
        }
    }

    /// Completes when the lease is lost, and never if it is released.
    pub(crate) async fn wait_until_lost(&self) -> LostReason {
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
