//! A grant in the hand of this process: until when it holds, and whether it is lost.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::claim::Token;
use crate::clock::{Clock, Moment};

/// Why a guard ended without a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The deadline passed without a renewal: the engine was away, or this process stood still.
    Expired,
    /// The engine says that the lock is another's, or was taken away by somebody.
    Taken,
    /// `max_hold` was reached.
    MaxHold,
    /// An operator asked for a release, and the holder did not release it by its deadline.
    ReleaseRequested,
}

impl LostReason {
    /// A short stable word, as metrics and `--json` use it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Taken => "taken",
            Self::MaxHold => "max-hold",
            Self::ReleaseRequested => "release-requested",
        }
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease ended without a renewal",
            Self::Taken => {
                "the engine says that it is not ours any more: somebody evicted us, or removed what it keeps"
            }
            Self::MaxHold => "it was held for as long as max_hold allows",
            Self::ReleaseRequested => "an operator asked for its release, and its lease was not renewed",
        })
    }
}

const ASKED: u8 = 0;
const HELD: u8 = 1;
const RELEASED: u8 = 2;
const EXPIRED: u8 = 3;
const TAKEN: u8 = 4;
const MAX_HOLD: u8 = 5;
const REQUESTED: u8 = 6;

/// The lease of a claim: nothing until it is granted, then held until it ends in one of four ways. `deadline` only ever
/// rises, and only while the lease is held: once it was seen to have passed, the lease is lost for good.
#[derive(Debug)]
pub(crate) struct Lease {
    clock: Clock,
    token: AtomicU64,
    granted: AtomicU64,
    cap: AtomicU64,
    deadline: AtomicU64,
    state: AtomicU8,
    /// An operator asked for its release: it is not renewed any more.
    release_requested: AtomicBool,
    /// Where the keeper has it.
    pub(crate) slot: AtomicU32,
    /// Rung when it is lost, and when its release is asked for.
    changed: Notify,
}

impl Lease {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            token: AtomicU64::new(0),
            granted: AtomicU64::new(0),
            cap: AtomicU64::new(0),
            deadline: AtomicU64::new(0),
            state: AtomicU8::new(ASKED),
            release_requested: AtomicBool::new(false),
            slot: AtomicU32::new(u32::MAX),
            changed: Notify::new(),
        }
    }

    /// The engine said yes, to a request sent at `granted`. From `cap` on it is not renewed.
    pub(crate) fn begin(&self, token: Token, granted: Moment, deadline: Moment, cap: Moment) {
        self.token.store(token.0, Ordering::Relaxed);
        self.granted.store(granted.as_nanos(), Ordering::Relaxed);
        self.cap.store(cap.as_nanos(), Ordering::Relaxed);
        self.deadline.store(deadline.as_nanos(), Ordering::Relaxed);
        self.release_requested.store(false, Ordering::Relaxed);
        self.state.store(HELD, Ordering::Release);
    }

    pub(crate) fn token(&self) -> Token {
        Token(self.token.load(Ordering::Relaxed))
    }

    pub(crate) fn granted(&self) -> Moment {
        Moment::from_nanos(self.granted.load(Ordering::Relaxed))
    }

    pub(crate) fn cap(&self) -> Moment {
        Moment::from_nanos(self.cap.load(Ordering::Relaxed))
    }

    pub(crate) fn deadline(&self) -> Moment {
        Moment::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    /// Whether the lease may be relied on now. Reads the clock itself: it is right also when nobody ran for a while.
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

    /// Whether it was granted, and is not held any more, however it ended.
    #[cfg(feature = "zookeeper")]
    pub(crate) fn is_over(&self) -> bool {
        self.state.load(Ordering::Acquire) != ASKED && !self.is_held()
    }

    /// A renewal arrived. `false`: too late, the lease is lost.
    pub(crate) fn extend(&self, deadline: Moment) -> bool {
        if !self.is_held() {
            return false;
        }
        self.deadline.fetch_max(deadline.as_nanos(), Ordering::AcqRel);
        // Somebody may have found it ended meanwhile: then it stays so.
        self.state.load(Ordering::Acquire) == HELD
    }

    /// An operator asks the holder to release it: it lasts until its present deadline, and no longer. `false` if it is not held, or was asked for before.
    pub(crate) fn request_release(&self) -> bool {
        if !self.is_held() || self.release_requested.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.cap.fetch_min(self.deadline().as_nanos(), Ordering::AcqRel);
        self.changed.notify_waiters();
        true
    }

    /// Whether an operator asked for its release while it was held.
    pub(crate) fn is_release_requested(&self) -> bool {
        self.release_requested.load(Ordering::Acquire)
    }

    /// Waits until an operator asks for its release; for ever if none does.
    pub(crate) async fn release_requested(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.is_release_requested() {
                return;
            }
            changed.await;
        }
    }

    /// The deadline has passed.
    pub(crate) fn expire(&self) -> bool {
        self.end(match self.deadline() >= self.cap() {
            true if self.is_release_requested() => REQUESTED,
            true => MAX_HOLD,
            false => EXPIRED,
        })
    }

    /// The engine says that it is another's.
    pub(crate) fn take_away(&self) -> bool {
        self.end(TAKEN)
    }

    /// The holder gives it back. `false` if it was lost before.
    pub(crate) fn give_back(&self) -> bool {
        self.is_held() && self.end(RELEASED)
    }

    /// As [`give_back`](Self::give_back), where the engine reads our own clock and will say whether it was in time.
    pub(crate) fn give_back_unread(&self) -> bool {
        self.end(RELEASED)
    }

    fn end(&self, state: u8) -> bool {
        let first = self.state.compare_exchange(HELD, state, Ordering::AcqRel, Ordering::Acquire).is_ok();
        // Nobody waits for a release.
        if first && state != RELEASED {
            self.changed.notify_waiters();
        }
        first
    }

    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        match self.state.load(Ordering::Acquire) {
            EXPIRED => Some(LostReason::Expired),
            TAKEN => Some(LostReason::Taken),
            MAX_HOLD => Some(LostReason::MaxHold),
            REQUESTED => Some(LostReason::ReleaseRequested),
            _ => None,
        }
    }

    /// Waits until the lease is lost; for ever if it is given back.
    pub(crate) async fn lost(&self) -> LostReason {
        loop {
            let mut ended = std::pin::pin!(self.changed.notified());
            ended.as_mut().enable();
            self.is_held();
            if let Some(reason) = self.lost_reason() {
                return reason;
            }
            ended.await;
        }
    }
}
