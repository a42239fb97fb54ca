//! One lock, as this client sees it: what is asked of it goes through one door, a round at a time, so that a round is one
//! statement however many ask.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::bells::Hung;
use super::state::Parties;
use super::step::{Op, Out};
use crate::claim::{ClaimId, Token};
use crate::clock::Moment;
use crate::error::Error;
use crate::logic::cohort::Cohort;
use crate::name::LockName;

/// What was read or written last, while nobody else has written since, as far as we know.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) version: i64,
    pub(super) token: u64,
    pub(super) table: Parties,
    /// Whether what is stored begins in the future, and must be written anew.
    pub(super) healed: bool,
    pub(super) reading: Reading,
}

/// The database's clock beside ours: it showed `shown` at some moment between `sent` and `heard`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) sent: Moment,
    pub(super) heard: Moment,
    pub(super) shown: Moment,
}

impl Reading {
    /// What it shows at least, at `local`: never later than it really is, so that nobody is taken for gone too early.
    pub(super) fn at_least(&self, local: Moment) -> Moment {
        let since = local.since(self.heard);
        // Clocks run up to a hundredth apart.
        self.shown.after(since - since / 100)
    }

    /// Until when a lease may be relied on here that ends at `until` there.
    pub(super) fn until(&self, until: Moment) -> Moment {
        self.sent.after(until.since(self.shown))
    }
}

/// An answer: what came of it, and the clock that its times are on.
pub(super) type Answered = Result<(Out, Reading), Error>;

/// Something asked, and who wants to know.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) op: Op,
    /// How long a statement for it may take.
    pub(super) within: Duration,
    pub(super) tell: oneshot::Sender<Answered>,
}

/// One of our claims in the queue.
#[derive(Debug)]
pub(super) struct Ear {
    pub(super) rung: Notify,
    /// When the statement was sent that found it waiting last: a grant is later than that.
    queued: Mutex<Moment>,
    granted: Mutex<Option<(Token, Moment)>>,
    /// The highest token when it was last found waiting: a grant since then is above it, and a message of an earlier one is not it.
    seen: AtomicU64,
    /// When somebody last waited by it.
    used: Mutex<Moment>,
    /// Whether its claim leaves: it is not let in any more.
    leaves: AtomicBool,
    /// Whether whoever waited by it has had an error, and comes back after a pause.
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

    /// Somebody waits by it.
    pub(super) fn use_it(&self, now: Moment) {
        *lock(&self.used) = now;
        self.pauses.store(false, Ordering::SeqCst);
    }

    /// Whoever waits by it comes back after a pause.
    pub(super) fn pause(&self) {
        self.pauses.store(true, Ordering::SeqCst);
    }

    /// What it was given is not its own any more.
    pub(super) fn take_back(&self) {
        lock(&self.granted).take();
        self.rung.notify_one();
    }

    /// Whether somebody waits by it, or did lately: one that nobody asks after is not kept in the queue.
    pub(super) fn is_used(&self, now: Moment) -> bool {
        now.since(*lock(&self.used)) < self.ttl / 2 && self.granted().is_none()
    }

    /// Its claim has been asked to leave.
    pub(super) fn leave(&self) {
        self.leaves.store(true, Ordering::SeqCst);
    }

    /// Whether it may be let in: somebody waits by it, and goes on.
    fn is_ready(&self, now: Moment) -> bool {
        self.is_used(now) && !self.leaves.load(Ordering::SeqCst) && !self.pauses.load(Ordering::SeqCst)
    }

    /// It was let in; the lease lasts until `end` on our clock.
    pub(super) fn grant(&self, token: Token, end: Moment) {
        *lock(&self.granted) = Some((token, end));
        self.rung.notify_one();
    }

    pub(super) fn granted(&self) -> Option<(Token, Moment)> {
        *lock(&self.granted)
    }

    /// Whether a grant with this token is later than what is known of it.
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
    /// Rung when another row is known.
    pub(super) news: Notify,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
pub(super) struct Inside {
    pub(super) row: Option<Row>,
    /// Who of ours has the lock and may have it next, without a statement in between.
    pub(super) cohort: Option<Cohort>,
    /// The highest token that we ever asked to be written while it was there.
    pub(super) sent: u64,
    /// Whether something that we sent may still be written: until a later write is made, nothing is passed on.
    pub(super) uncertain: bool,
    /// How often others told us of a change: what was sent before one is not the latest.
    pub(super) heard: u64,
    pub(super) asked: Vec<Asked>,
    /// Whether somebody takes rounds.
    pub(super) at_work: bool,
    pub(super) ears: HashMap<ClaimId, Arc<Ear>>,
    /// Whether somebody watches for those who wait.
    pub(super) watched: bool,
    /// Which of ours have a bell.
    pub(super) hung: Hung,
    /// Whether a message came for somebody whose ear was not there yet.
    pub(super) missed: bool,
    /// Whether it was forgotten: whoever still has it asks for the new one.
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
    /// Keeps an ear for a claim that waits.
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

    /// A claim of ours gives the lock back: who is next in line has it at once, if it is ours, and it is written down later.
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

    /// Whether another of ours has the lock than who stands in the row.
    pub(super) fn is_behind(&self) -> bool {
        self.cohort.as_ref().is_some_and(Cohort::is_behind)
    }

    /// How long it may take to write down who has the lock.
    pub(super) fn cohort_timeout(&self) -> Duration {
        crate::logic::lease::call_timeout(self.cohort.as_ref().map(Cohort::ttl).unwrap_or_default())
    }

    /// Others say that they have written: what we know is old.
    pub(super) fn hear(&mut self) {
        self.row = None;
        self.heard += 1;
        self.freeze();
    }

    /// Somebody else has written, or something is on its way that changes who holds: nothing is passed on until the row is known again.
    pub(super) fn freeze(&mut self) {
        if let Some(cohort) = &mut self.cohort {
            cohort.freeze();
        }
    }

    /// Whether nothing is known or wanted here.
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
            // A lease that ends `ttl` after it was shown, on a clock that is not fast, ends no earlier there than here.
            let end = reading.until(Moment::from_nanos(clock(sent + there) + ttl));
            prop_assert!(clock(end.as_nanos()) <= clock(sent + there) + ttl);
        }
    }
}
