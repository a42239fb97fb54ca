//! The keeper: the one task of a [`Locks`](crate::Locks) that renews its leases in batches, signals a loss at the deadline,
//! and gives back what was abandoned.

mod book;
mod chores;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, watch};

use self::book::Book;
use self::chores::Chore;
use crate::claim::{Claim, ClaimId};
use crate::clock::{Clock, Moment};
use crate::engine::{Answer, Capabilities, Engine, Loss, Losses, Step};
use crate::error::Error;
use crate::meter::Gauges;

pub(crate) use self::chores::{NO_ANSWER, call, listen, release};

/// How often the figures of all leases are taken together, at most.
const REPORT: Duration = Duration::from_secs(1);

/// How many losses of claims that are not in the book are remembered: of more, the older half is forgotten. Evictions are rare.
const REMEMBERED: usize = 4096;

/// How many leases go into one call to the engine.
const BATCH: usize = 128;

/// What the keeper and its clients share.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) clock: Clock,
    pub(crate) gauges: Gauges,
    /// What the engine can do, asked for once.
    pub(crate) can: Capabilities,
    book: Book,
    abandoned: std::sync::Mutex<Vec<Abandoned>>,
    wake: Notify,
    /// No further requests are taken.
    refusing: AtomicBool,
    /// Nobody is left to ask for anything.
    closing: AtomicBool,
    /// How many abandoned claims have not been given back yet.
    owed: AtomicUsize,
    idle: Notify,
    /// Losses of claims that are not in the book, and when each was told: another client's, or ours whose caller has not taken its grant yet. That may take
    /// as long as nobody polls it.
    lost_early: std::sync::Mutex<HashMap<ClaimId, Told>>,
    /// How many these are.
    early: AtomicUsize,
    /// Goes away with the desk: the keeper has ended.
    end: watch::Sender<()>,
}

/// What an engine tells of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// An operator asks for its release.
    ReleaseRequested,
    /// It may be lost: a renewal finds out.
    Doubtful,
    /// It is lost.
    Lost,
}

/// When each of these was told of a claim last.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    release_requested: Option<Moment>,
    doubtful: Option<Moment>,
    lost: Option<Moment>,
}

impl Told {
    fn note(&mut self, event: Event, at: Moment) {
        *match event {
            Event::ReleaseRequested => &mut self.release_requested,
            Event::Doubtful => &mut self.doubtful,
            Event::Lost => &mut self.lost,
        } = Some(at);
    }

    fn latest(self) -> Option<Moment> {
        self.release_requested.max(self.doubtful).max(self.lost)
    }
}

/// A claim that nobody wants any more, perhaps with a call that is still under way.
pub(crate) struct Abandoned {
    claim: Arc<Claim>,
    inflight: Option<Step<Answer>>,
}

impl std::fmt::Debug for Abandoned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Abandoned({:?})", self.claim.id)
    }
}

impl Desk {
    pub(crate) fn new(engine: Arc<dyn Engine>, clock: Clock, gauges: Gauges) -> Self {
        let can = engine.capabilities().clone();
        Self {
            engine,
            clock,
            gauges,
            can,
            book: Book::default(),
            abandoned: std::sync::Mutex::default(),
            wake: Notify::new(),
            refusing: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            owed: AtomicUsize::new(0),
            idle: Notify::new(),
            lost_early: std::sync::Mutex::default(),
            early: AtomicUsize::new(0),
            end: watch::Sender::new(()),
        }
    }

    /// An error, with the engine that it happened at and its URL. Every error that a caller sees comes through here, through
    /// [`engine::open`](crate::engine::open), or through [`listen`], which calls this.
    pub(crate) fn locate(&self, error: Error) -> Error {
        error.at_engine(self.can.engine).at_url(self.engine.url())
    }

    /// Takes a lease into care.
    pub(crate) fn keep(&self, claim: &Arc<Claim>, due: Moment) {
        if self.book.add(claim, due) {
            self.wake.notify_one();
        }
        // It is in the book before this is asked, and a loss is remembered before the book is: one of both finds it.
        if let Some(told) = self.take_loss(claim.id) {
            self.lose(claim, told);
        }
        self.count_held();
    }

    /// Remembers a loss until its claim is in the book.
    fn remember(&self, claim: ClaimId, event: Event, at: Moment) {
        let mut lost = self.lost_early();
        lost.entry(claim).or_default().note(event, at);
        if lost.len() > REMEMBERED {
            let mut oldest: Vec<_> = lost.iter().map(|(claim, told)| (told.latest(), *claim)).collect();
            oldest.sort_unstable_by_key(|(at, _)| *at);
            // Many may have been told at one moment: this one stays whatever goes.
            for (_, other) in oldest.iter().filter(|(_, other)| *other != claim).take(REMEMBERED / 2) {
                lost.remove(other);
            }
        }
        self.early.store(lost.len(), Ordering::SeqCst);
    }

    /// What was told of this claim, if anything was; it is forgotten with that.
    fn take_loss(&self, claim: ClaimId) -> Option<Told> {
        if self.early.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut lost = self.lost_early();
        let told = lost.remove(&claim);
        self.early.store(lost.len(), Ordering::SeqCst);
        told
    }

    /// The engine said that a claim in the book is lost, or may be, or is asked for. What was granted to a request that was sent after that is not meant: the claim
    /// has asked anew.
    fn lose(&self, claim: &Claim, told: Told) {
        let meant = |at: Option<Moment>| at.filter(|at| *at >= claim.lease.granted());
        if meant(told.lost).is_some() {
            claim.lease.take_away();
            chores::bury(self, claim);
            return;
        }
        if meant(told.release_requested).is_some() && claim.lease.request_release() {
            let token = claim.lease.token().0;
            tracing::warn!(name = %claim.name(), token, "an operator asks for the release of this lock");
            self.gauges.count("leasehold_release_requested_total", None);
        }
        if meant(told.doubtful).is_some_and(|at| self.book.check(claim, at)) {
            self.wake.notify_one();
        }
    }

    fn lost_early(&self) -> std::sync::MutexGuard<'_, HashMap<ClaimId, Told>> {
        self.lost_early.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// What the engine told without being asked.
    fn heed(&self, told: &[Loss]) {
        let now = self.clock.now();
        let mut meant = Vec::new();
        for loss in told {
            let (claim, event) = match loss {
                Loss::Of(claim) => (*claim, Event::Lost),
                Loss::Check(claim) => (*claim, Event::Doubtful),
                Loss::ReleaseRequested(claim) => (*claim, Event::ReleaseRequested),
                Loss::Doubt => {
                    self.book.all_due(now);
                    continue;
                }
            };
            self.remember(claim, event, now);
            meant.push(claim);
        }
        for claim in self.book.find(&meant) {
            if let Some(told) = self.take_loss(claim.id) {
                self.lose(&claim, told);
            }
        }
    }

    /// Stops caring for a lease.
    pub(crate) fn forget(&self, claim: &Claim) {
        self.book.remove(claim);
        self.count_held();
        if self.gauges.is_on() {
            self.gauges.observe("leasehold_hold_seconds", self.clock.now().since(claim.lease.granted()));
        }
    }

    /// Gives a claim back in the background, after the call that may still grant it.
    pub(crate) fn abandon(&self, claim: Arc<Claim>, inflight: Option<Step<Answer>>) {
        // Nobody will take its grant.
        self.take_loss(claim.id);
        self.owed.fetch_add(1, Ordering::AcqRel);
        self.abandoned().push(Abandoned { claim, inflight });
        self.wake.notify_one();
    }

    /// An abandoned claim was given back, or its time is over.
    fn paid(&self) {
        if self.owed.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.idle.notify_waiters();
        }
    }

    fn count_held(&self) {
        if self.gauges.is_on() {
            self.gauges.gauge("leasehold_held", self.held() as f64);
        }
    }

    pub(crate) fn held(&self) -> usize {
        self.book.len()
    }

    /// Takes no further requests.
    pub(crate) fn refuse(&self) {
        self.refusing.store(true, Ordering::Release);
    }

    pub(crate) fn is_refusing(&self) -> bool {
        self.refusing.load(Ordering::Acquire)
    }

    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// What ends when the keeper has, and nobody else is left at the desk.
    pub(crate) fn end(&self) -> watch::Receiver<()> {
        self.end.subscribe()
    }

    fn is_closed(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Waits until everything abandoned has been given back.
    pub(crate) async fn settled(&self) {
        loop {
            let mut idle = std::pin::pin!(self.idle.notified());
            idle.as_mut().enable();
            if self.owed.load(Ordering::Acquire) == 0 {
                return;
            }
            idle.await;
        }
    }

    fn abandoned(&self) -> std::sync::MutexGuard<'_, Vec<Abandoned>> {
        self.abandoned.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Runs until the desk is closed and nothing is left to give back.
pub(crate) async fn run(desk: Arc<Desk>, mut losses: Losses) {
    let mut chores: FuturesUnordered<Chore> = FuturesUnordered::new();
    let mut reported = Moment::default();
    loop {
        // Asked before looking: whatever was abandoned before the end is then found below.
        let closed = desk.is_closed();
        for abandoned in std::mem::take(&mut *desk.abandoned()) {
            chores.push(chores::pay_back(Arc::clone(&desk), abandoned.claim, abandoned.inflight).boxed());
        }
        let now = desk.clock.now();
        let round = desk.book.due(now);
        for claim in round.expired {
            chores.extend(expired(&desk, &claim));
        }
        for batch in batches(&*desk.engine, round.renew) {
            chores.push(chores::renew(Arc::clone(&desk), batch).boxed());
        }
        if desk.gauges.is_on() && now.since(reported) >= REPORT {
            desk.report(now);
            reported = now;
        }
        if chores.is_empty() && closed {
            return;
        }
        tokio::select! {
            biased;
            Some(()) = chores.next(), if !chores.is_empty() => {}
            told = losses.next() => desk.heed(&told),
            () = desk.wake.notified() => {}
            () = desk.clock.alarm(round.next), if round.next != Moment::NEVER => {}
        }
    }
}

/// What is renewed by one call each: leases of one place. A call that waits for a server that hangs has nothing else with it.
fn batches(engine: &dyn Engine, due: Vec<Arc<Claim>>) -> Vec<Vec<Arc<Claim>>> {
    let mut placed: Vec<_> = due.into_iter().map(|claim| (engine.place(claim.name()), claim)).collect();
    placed.sort_by_key(|(place, _)| *place);
    let mut batches = Vec::new();
    for there in placed.chunk_by(|(one, _), (other, _)| one == other) {
        // Of one size: a small rest would be renewed by itself each time.
        let size = there.len().div_ceil(there.len().div_ceil(BATCH));
        batches.extend(there.chunks(size).map(|batch| batch.iter().map(|(_, claim)| Arc::clone(claim)).collect()));
    }
    batches
}

/// At a lease's end: tell, and give the claim back.
fn expired(desk: &Arc<Desk>, claim: &Arc<Claim>) -> Option<Chore> {
    claim.lease.expire();
    chores::bury(desk, claim).then(|| chores::give_back_lost(Arc::clone(desk), Arc::clone(claim)).boxed())
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    use super::*;
    use crate::claim::{Holder, Mode, Terms, Token};
    use crate::name::LockName;

    /// A claim lost what it held, asked anew, and was granted: what was told of the first hold does not end the second.
    #[tokio::test]
    async fn a_loss_that_was_told_before_the_claim_asked_again_is_not_meant() {
        let clock = Clock::system();
        let engine = crate::engine::open("memory:", &clock).await.expect("an engine");
        let desk = Desk::new(engine, clock.clone(), Gauges::default());
        let name = LockName::new("a").expect("a name");
        let ttl = Duration::from_secs(10);
        let terms = Arc::new(Terms::new(name, Mode::Exclusive, None, ttl, Arc::new(Holder::this_process())));
        for (again, lost) in [(true, false), (false, true)] {
            let claim = Arc::new(Claim::on(clock.clone(), Arc::clone(&terms)));
            let told = clock.now();
            desk.remember(claim.id, Event::Lost, told);
            let granted = if again { told.after(Duration::from_millis(1)) } else { told };
            claim.lease.begin(Token(1), granted, granted.after(ttl), Moment::NEVER);
            desk.keep(&claim, granted.after(ttl));
            assert_eq!(claim.lease.lost_reason().is_some(), lost);
        }
        assert_eq!(desk.early.load(Ordering::SeqCst), 0);
    }

    /// A loss of an earlier hold does not count for the present one because a request to release came later.
    #[tokio::test]
    async fn what_is_told_of_a_claim_counts_from_when_each_of_it_was_told() {
        let clock = Clock::system();
        let engine = crate::engine::open("memory:", &clock).await.expect("an engine");
        let desk = Desk::new(engine, clock.clone(), Gauges::default());
        let name = LockName::new("a").expect("a name");
        let ttl = Duration::from_secs(10);
        let terms = Arc::new(Terms::new(name, Mode::Exclusive, None, ttl, Arc::new(Holder::this_process())));
        let claim = Arc::new(Claim::on(clock.clone(), terms));
        let told = clock.now();
        let granted = told.after(Duration::from_millis(1));
        desk.remember(claim.id, Event::Lost, told);
        desk.remember(claim.id, Event::ReleaseRequested, granted.after(Duration::from_millis(1)));
        claim.lease.begin(Token(1), granted, granted.after(ttl), Moment::NEVER);
        desk.keep(&claim, granted.after(ttl));
        assert_eq!((claim.lease.lost_reason(), claim.lease.is_release_requested()), (None, true));
    }

    /// A claim whose grant nobody takes for a long time, and whose eviction was told meanwhile, is lost when it is taken: however many others were told.
    #[tokio::test]
    async fn a_loss_is_remembered_until_its_grant_is_taken_and_the_memory_is_bounded() {
        let hand = crate::clock::ManualClock::new();
        let clock = hand.clock();
        let engine = crate::engine::open("memory:", &clock).await.expect("an engine");
        let desk = Desk::new(engine, clock.clone(), Gauges::default());
        let ttl = Duration::from_secs(600);
        let name = LockName::new("a").expect("a name");
        let terms = Arc::new(Terms::new(name, Mode::Exclusive, None, ttl, Arc::new(Holder::this_process())));
        let claim = Arc::new(Claim::on(clock.clone(), terms));
        let granted = clock.now();
        for _ in 0..3 * REMEMBERED {
            hand.advance(Duration::from_millis(1));
            desk.heed(&[Loss::Of(ClaimId::random())]);
            assert!(desk.early.load(Ordering::SeqCst) <= REMEMBERED);
        }
        desk.heed(&[Loss::Of(claim.id)]);
        hand.advance(Duration::from_secs(60));
        claim.lease.begin(Token(1), granted, granted.after(ttl), Moment::NEVER);
        desk.keep(&claim, granted.after(ttl));
        assert!(claim.lease.lost_reason().is_some());
        assert_eq!(desk.held(), 0);
    }
}
