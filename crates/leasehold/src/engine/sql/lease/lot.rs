//! One lock, as this client sees it. Requests run one round at a time: a round is one statement,
//! however many requests it serves.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::bells::Hung;
use super::state::Content;
use super::step::{Op, Out};
use crate::claim::{ClaimId, Token};
use crate::clock::Moment;
use crate::error::Error;
use crate::logic::cohort::Cohort;
use crate::name::LockName;

/// The row as last read or written, while no other client has written since, as far as we know.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) version: i64,
    pub(super) token: u64,
    pub(super) content: Content,
    /// Whether a stored lease begins in the future, so that the row must be rewritten.
    pub(super) healed: bool,
    pub(super) reading: Reading,
}

/// The database's clock compared with ours: it showed `shown` at some moment between `sent` and
/// `heard`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) sent: Moment,
    pub(super) heard: Moment,
    pub(super) shown: Moment,
}

impl Reading {
    /// The least that the database's clock shows at `local`: never later than it really is, so that
    /// no lease is judged expired too early.
    pub(super) fn at_least(&self, local: Moment) -> Moment {
        let since = local.since(self.heard);
        // Clocks run up to 1% apart.
        self.shown.after(since - since / 100)
    }

    /// The local deadline of a lease that ends at `until` on the database's clock.
    pub(super) fn until(&self, until: Moment) -> Moment {
        self.sent.after(until.since(self.shown))
    }
}

/// An outcome, and the clock reading that its times refer to.
pub(super) type Answered = Result<(Out, Reading), Error>;

/// A request, and where its answer goes.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) op: Op,
    /// Time limit of a statement for it.
    pub(super) within: Duration,
    pub(super) tell: oneshot::Sender<Answered>,
}

/// One of our waiters.
#[derive(Debug)]
pub(super) struct Ear {
    pub(super) rung: Notify,
    /// When the statement that last found it waiting was sent: a grant is later than that.
    queued: Mutex<Moment>,
    granted: Mutex<Option<(Token, Moment)>>,
    /// The highest token when it was last found waiting. A later grant has a higher token; a
    /// notification with a lower one is out of date.
    seen: AtomicU64,
    /// When a caller last waited on it.
    used: Mutex<Moment>,
    /// Whether its claim is being released: it gets no more local hand-offs.
    leaves: AtomicBool,
    /// Whether its caller got an error and retries after a pause.
    pauses: AtomicBool,
    pub(super) ttl: Duration,
}

impl Ear {
    fn new(ttl: Duration, queued: Moment, seen: u64) -> Self {
        Self {
            rung: Notify::new(),
            queued: Mutex::new(queued),
            granted: Mutex::default(),
            seen: AtomicU64::new(seen),
            used: Mutex::new(queued),
            leaves: AtomicBool::new(false),
            pauses: AtomicBool::new(false),
            ttl,
        }
    }

    /// Notes that a caller waits on it.
    pub(super) fn use_it(&self, now: Moment) {
        *lock(&self.used) = now;
        self.pauses.store(false, Ordering::SeqCst);
    }

    /// Notes that its caller retries after a pause.
    pub(super) fn pause(&self) {
        self.pauses.store(true, Ordering::SeqCst);
    }

    /// Withdraws its grant: it has lost the lock again.
    pub(super) fn take_back(&self) {
        lock(&self.granted).take();
        self.rung.notify_one();
    }

    /// Whether a caller waits on it, or did lately. A waiter without a caller does not keep its
    /// position.
    pub(super) fn is_used(&self, now: Moment) -> bool {
        now.since(*lock(&self.used)) < self.ttl / 2 && self.granted().is_none()
    }

    /// Notes that its claim is being released.
    pub(super) fn leave(&self) {
        self.leaves.store(true, Ordering::SeqCst);
    }

    /// Whether it can take a local hand-off: its caller waits, and keeps waiting.
    fn is_ready(&self, now: Moment) -> bool {
        self.is_used(now) && !self.leaves.load(Ordering::SeqCst) && !self.pauses.load(Ordering::SeqCst)
    }

    /// Grants it the lock; the lease lasts until `end` on our clock.
    pub(super) fn grant(&self, token: Token, end: Moment) {
        *lock(&self.granted) = Some((token, end));
        self.rung.notify_one();
    }

    pub(super) fn granted(&self) -> Option<(Token, Moment)> {
        *lock(&self.granted)
    }

    /// Whether a grant with this token is later than the state last seen.
    pub(super) fn is_news(&self, token: Token) -> bool {
        token.0 > self.seen.load(Ordering::SeqCst)
    }

    pub(super) fn queued_at(&self) -> Moment {
        *lock(&self.queued)
    }
}

/// One lock.
#[derive(Debug)]
pub(super) struct Lot {
    pub(super) name: LockName,
    /// Notified when another row is known.
    pub(super) news: Notify,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
pub(super) struct Inside {
    pub(super) row: Option<Row>,
    /// Which of our claims has the lock, and which may get it next without a statement in between.
    pub(super) cohort: Option<Cohort>,
    /// The highest token in any write that we sent since this entry was created.
    pub(super) sent: u64,
    /// How many writes were begun: one whose reply is lost may have been done.
    pub(super) writes: u64,
    /// Whether a write that we sent may still take effect. No local hand-offs until a later write
    /// succeeds.
    pub(super) uncertain: bool,
    /// How many changes by others were reported. A statement sent before the last one does not show
    /// the latest state.
    pub(super) heard: u64,
    pub(super) asked: Vec<Asked>,
    /// Whether a task runs rounds.
    pub(super) at_work: bool,
    pub(super) ears: HashMap<ClaimId, Arc<Ear>>,
    /// Whether a task watches on behalf of our waiters.
    pub(super) watched: bool,
    /// Which of our claims have a wake-up lock.
    pub(super) hung: Hung,
    /// Whether a notification came for a claim that had no waiter entry yet.
    pub(super) missed: bool,
    /// Whether this entry was dropped: a task that still has it fetches the new one.
    pub(super) gone: bool,
}

impl Lot {
    pub(super) fn new(name: LockName) -> Self {
        Self { name, news: Notify::new(), inside: Mutex::default() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inside> {
        lock(&self.inside)
    }
}

impl Inside {
    /// Adds a waiter, or updates what is known of it.
    pub(super) fn listen(&mut self, claim: ClaimId, ttl: Duration, queued: Moment, seen: u64) {
        match self.ears.get(&claim) {
            Some(ear) => {
                *lock(&ear.queued) = queued;
                ear.seen.store(seen, Ordering::SeqCst);
                lock(&ear.granted).take_if(|(token, _)| token.0 <= seen);
            }
            None => {
                self.ears.insert(claim, Arc::new(Ear::new(ttl, queued, seen)));
            }
        }
    }

    /// Hands the lock off when one of our claims releases it: if the next waiter is ours, it has
    /// the lock at once. The row is written later.
    pub(super) fn pass_on(&mut self, claim: ClaimId, now: Moment) -> bool {
        let ears = &self.ears;
        let ready = |next: ClaimId| ears.get(&next).is_some_and(|ear| ear.is_ready(now));
        let Some((next, token, until)) = self.cohort.as_mut().and_then(|cohort| cohort.pass(claim, now, ready)) else {
            return false;
        };
        if let Some(ear) = self.ears.get(&next) {
            ear.grant(token, until);
        }
        true
    }

    /// Whether the row names another holder than the one of ours that has the lock.
    pub(super) fn is_behind(&self) -> bool {
        self.cohort.as_ref().is_some_and(Cohort::is_behind)
    }

    /// Time limit for writing the current holder to the row.
    pub(super) fn cohort_timeout(&self) -> Duration {
        crate::logic::lease::call_timeout(self.cohort.as_ref().map(Cohort::ttl).unwrap_or_default())
    }

    /// Notes that another client reports a write: the row that we know is out of date.
    pub(super) fn hear(&mut self) {
        self.row = None;
        self.heard += 1;
        self.freeze();
    }

    /// Stops local hand-offs until the row is known again: another client wrote, or a statement
    /// under way changes the holder.
    pub(super) fn freeze(&mut self) {
        if let Some(cohort) = &mut self.cohort {
            cohort.freeze();
        }
    }

    /// Whether nothing is known of this lock or requested of it.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_behind()
            && !self.at_work
            && !self.watched
            && self.asked.is_empty()
            && self.ears.is_empty()
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
        fn a_reading_never_makes_time_run_ahead_nor_a_lease_last_longer(
            sent in 0u64..1 << 40, there in 0u64..1 << 30, back in 0u64..1 << 30, later in 0u64..1 << 50, ttl in 0u64..1 << 50,
            offset in 0u64..1 << 60, slow_ppm in 0u64..10_000,
        ) {
            let clock = |local: u64| offset + (u128::from(local) * u128::from(1_000_000 - slow_ppm) / 1_000_000) as u64;
            let reading = Reading {
                sent: Moment::from_nanos(sent),
                heard: Moment::from_nanos(sent + there + back),
                shown: Moment::from_nanos(clock(sent + there)),
            };
            let local = sent + there + back + later;
            prop_assert!(reading.at_least(Moment::from_nanos(local)).as_nanos() <= clock(local) + 2);
            // A lease that ends `ttl` after it was shown ends no earlier there than here, if that
            // clock is not fast.
            let end = reading.until(Moment::from_nanos(clock(sent + there) + ttl));
            prop_assert!(clock(end.as_nanos()) <= clock(sent + there) + ttl);
        }
    }
}
