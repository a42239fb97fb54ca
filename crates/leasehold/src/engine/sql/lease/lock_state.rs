//! One lock, as this client sees it. Requests run one batch at a time: a batch is one statement for
//! all pending requests.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::state::Content;
use super::step::{Op, OpOutcome};
use super::wakeup_locks::ClaimWakeups;
use crate::clock::Instant;
use crate::logic::local_hand_off::LocalHandOff;
use crate::types::{ClaimId, Error, LockName, Token};

/// The row as last read or written, unless another client is known to have written since.
#[derive(Clone, Debug)]
pub(super) struct CachedRow {
    pub(super) version: i64,
    pub(super) token: u64,
    pub(super) content: Content,
    /// Whether a stored lease begins in the future, so that the row must be rewritten.
    pub(super) needs_rewrite: bool,
    pub(super) reading: ClockReading,
}

/// The database's clock compared with this client's: it showed `server_time` at some moment between
/// `sent` and `received`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ClockReading {
    pub(super) sent: Instant,
    pub(super) received: Instant,
    pub(super) server_time: Instant,
}

impl ClockReading {
    /// The least that the database's clock shows at `local`: never later than it really is, so that
    /// no lease is judged expired too early.
    pub(super) fn min_server_time(&self, local: Instant) -> Instant {
        let since = local.duration_since(self.received);
        // Clocks run up to 1% apart.
        self.server_time.saturating_add(since - since / 100)
    }

    /// The local deadline of a lease that ends at `until` on the database's clock.
    pub(super) fn local_deadline(&self, until: Instant) -> Instant {
        self.sent.saturating_add(until.duration_since(self.server_time))
    }
}

/// An outcome, and the clock reading that its times refer to.
pub(super) type OpResult = Result<(OpOutcome, ClockReading), Error>;

/// A request, and where its answer goes.
#[derive(Debug)]
pub(super) struct PendingOp {
    pub(super) op: Op,
    /// Time limit of a statement for it.
    pub(super) timeout: Duration,
    pub(super) reply: oneshot::Sender<OpResult>,
}

/// One of this client's waiters.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) wakeup: Notify,
    /// When the statement that last found it waiting was sent: a grant is later than that.
    queued_at: Mutex<Instant>,
    granted: Mutex<Option<(Token, Instant)>>,
    /// The highest token when it was last found waiting. A later grant has a higher token; a
    /// notification with a lower one is out of date.
    seen_token: AtomicU64,
    /// When a caller last waited on it.
    last_polled: Mutex<Instant>,
    /// Whether its claim is being released: it gets no more local hand-offs.
    is_releasing: AtomicBool,
    /// Whether its caller got an error and retries after a pause.
    is_backing_off: AtomicBool,
    pub(super) ttl: Duration,
}

impl Waiter {
    fn new(ttl: Duration, queued: Instant, seen: u64) -> Self {
        Self {
            wakeup: Notify::new(),
            queued_at: Mutex::new(queued),
            granted: Mutex::default(),
            seen_token: AtomicU64::new(seen),
            last_polled: Mutex::new(queued),
            is_releasing: AtomicBool::new(false),
            is_backing_off: AtomicBool::new(false),
            ttl,
        }
    }

    /// Notes that a caller waits on it.
    pub(super) fn mark_polled(&self, now: Instant) {
        *lock(&self.last_polled) = now;
        self.is_backing_off.store(false, Ordering::SeqCst);
    }

    /// Notes that its caller retries after a pause.
    pub(super) fn mark_backing_off(&self) {
        self.is_backing_off.store(true, Ordering::SeqCst);
    }

    /// Withdraws its grant: it has lost the lock again.
    pub(super) fn revoke_grant(&self) {
        lock(&self.granted).take();
        self.wakeup.notify_one();
    }

    /// Whether a caller waits on it, or did lately. A waiter without a caller does not keep its
    /// position.
    pub(super) fn is_polled(&self, now: Instant) -> bool {
        now.duration_since(*lock(&self.last_polled)) < self.ttl / 2 && self.granted().is_none()
    }

    /// Notes that its claim is being released.
    pub(super) fn mark_releasing(&self) {
        self.is_releasing.store(true, Ordering::SeqCst);
    }

    /// Whether it can receive a local hand-off: its caller waits, and keeps waiting.
    fn can_take_hand_off(&self, now: Instant) -> bool {
        self.is_polled(now) && !self.is_releasing.load(Ordering::SeqCst) && !self.is_backing_off.load(Ordering::SeqCst)
    }

    /// Grants it the lock; the lease lasts until `end` on this client's clock.
    pub(super) fn grant(&self, token: Token, end: Instant) {
        *lock(&self.granted) = Some((token, end));
        self.wakeup.notify_one();
    }

    pub(super) fn granted(&self) -> Option<(Token, Instant)> {
        *lock(&self.granted)
    }

    /// Whether a grant with this token is later than the state last seen.
    pub(super) fn is_newer_grant(&self, token: Token) -> bool {
        token.0 > self.seen_token.load(Ordering::SeqCst)
    }

    pub(super) fn queued_at(&self) -> Instant {
        *lock(&self.queued_at)
    }
}

/// One lock.
#[derive(Debug)]
pub(super) struct LockState {
    pub(super) name: LockName,
    /// Notified when another row is known.
    pub(super) row_changed: Notify,
    inner: Mutex<LockStateInner>,
}

#[derive(Debug, Default)]
pub(super) struct LockStateInner {
    pub(super) row: Option<CachedRow>,
    /// Which of this client's claims has the lock, and which may get it next without a statement in
    /// between.
    pub(super) local_hand_offs: Option<LocalHandOff>,
    /// The highest token in any write that this client sent since this entry was created.
    pub(super) max_token_sent: u64,
    /// How many writes were started: one whose reply is lost may have taken effect.
    pub(super) writes_begun: u64,
    /// Whether a write that this client sent may still take effect. No local hand-offs until a
    /// later write succeeds.
    pub(super) has_uncertain_write: bool,
    /// How many changes by others were reported. A statement sent before the last one does not show
    /// the latest state.
    pub(super) foreign_changes: u64,
    pub(super) pending: Vec<PendingOp>,
    /// Whether a task runs batches.
    pub(super) is_running_batches: bool,
    pub(super) waiters: HashMap<ClaimId, Arc<Waiter>>,
    /// Whether a task watches on behalf of this client's waiters.
    pub(super) has_wait_task: bool,
    /// Which of this client's claims have a wake-up lock.
    pub(super) wakeups: ClaimWakeups,
    /// Whether a notification arrived for a claim that had no waiter entry yet.
    pub(super) has_missed_notification: bool,
    /// Whether this entry was dropped: a task that still has it fetches the new one.
    pub(super) is_removed: bool,
}

impl LockState {
    pub(super) fn new(name: LockName) -> Self {
        Self { name, row_changed: Notify::new(), inner: Mutex::default() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LockStateInner> {
        lock(&self.inner)
    }
}

impl LockStateInner {
    /// Whether the claim got the lock by a local hand-off, which the row does not show yet.
    pub(super) fn has_handed_to(&self, claim: ClaimId) -> bool {
        self.local_hand_offs.as_ref().is_some_and(|local| local.was_handed_to(claim))
    }

    pub(super) fn record_write(&mut self, token: u64) {
        self.max_token_sent = self.max_token_sent.max(token);
        self.writes_begun += 1;
    }

    /// Adds a waiter, or updates its entry.
    pub(super) fn upsert_waiter(&mut self, claim: ClaimId, ttl: Duration, queued: Instant, seen: u64) {
        match self.waiters.get(&claim) {
            Some(waiter) => {
                *lock(&waiter.queued_at) = queued;
                waiter.seen_token.store(seen, Ordering::SeqCst);
                lock(&waiter.granted).take_if(|(token, _)| token.0 <= seen);
            }
            None => {
                self.waiters.insert(claim, Arc::new(Waiter::new(ttl, queued, seen)));
            }
        }
    }

    /// Hands the lock off locally when one of this client's claims releases it: if the next
    /// waiter is this client's, too, it gets the lock at once. The row is written later.
    pub(super) fn hand_off_locally(&mut self, claim: ClaimId, now: Instant) -> bool {
        let waiters = &self.waiters;
        let ready = |next: ClaimId| waiters.get(&next).is_some_and(|waiter| waiter.can_take_hand_off(now));
        let Some((next, token, until)) =
            self.local_hand_offs.as_mut().and_then(|hand_offs| hand_offs.hand_off(claim, now, ready))
        else {
            return false;
        };
        if let Some(waiter) = self.waiters.get(&next) {
            waiter.grant(token, until);
        }
        true
    }

    /// Whether the row names another holder than this client's claim that has the lock.
    pub(super) fn has_unwritten_holder(&self) -> bool {
        self.local_hand_offs.as_ref().is_some_and(LocalHandOff::has_unwritten_hand_off)
    }

    /// Time limit for writing the current holder to the row.
    pub(super) fn write_timeout(&self) -> Duration {
        crate::logic::lease::call_timeout(self.local_hand_offs.as_ref().map(LocalHandOff::ttl).unwrap_or_default())
    }

    /// Notes that another client reports a write: the known row is out of date.
    pub(super) fn invalidate_row(&mut self) {
        self.row = None;
        self.foreign_changes += 1;
        self.stop_local_hand_offs();
    }

    /// Stops local hand-offs until the row is known again: another client wrote, or a statement
    /// under way changes the holder.
    pub(super) fn stop_local_hand_offs(&mut self) {
        if let Some(hand_offs) = &mut self.local_hand_offs {
            hand_offs.freeze();
        }
    }

    /// Whether there is no row, request or waiter for this lock.
    pub(super) fn is_idle(&self) -> bool {
        !self.has_unwritten_holder()
            && !self.is_running_batches
            && !self.has_wait_task
            && self.pending.is_empty()
            && self.waiters.is_empty()
            && self.row.is_none()
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_clock_reading_never_runs_ahead_or_prolongs_a_lease(
            sent in 0u64..1 << 40, there in 0u64..1 << 30, back in 0u64..1 << 30, later in 0u64..1 << 50, ttl in 0u64..1 << 50,
            offset in 0u64..1 << 60, slow_ppm in 0u64..10_000,
        ) {
            let clock = |local: u64| offset + (u128::from(local) * u128::from(1_000_000 - slow_ppm) / 1_000_000) as u64;
            let reading = ClockReading {
                sent: Instant::from_nanos(sent),
                received: Instant::from_nanos(sent + there + back),
                server_time: Instant::from_nanos(clock(sent + there)),
            };
            let local = sent + there + back + later;
            prop_assert!(reading.min_server_time(Instant::from_nanos(local)).as_nanos() <= clock(local) + 2);
            // A lease that ends `ttl` after it was shown ends no earlier there than here, if that
            // clock is not fast.
            let end = reading.local_deadline(Instant::from_nanos(clock(sent + there) + ttl));
            prop_assert!(clock(end.as_nanos()) <= clock(sent + there) + ttl);
        }
    }
}
