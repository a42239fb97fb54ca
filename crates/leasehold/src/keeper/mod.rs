//! The keeper: the one task of a [`Locks`](crate::Locks) that renews its leases in batches, signals
//! a loss at the deadline, and releases abandoned claims.

mod book;
mod chores;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
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

/// The shortest time between two reports of the metrics of all leases.
const REPORT: Duration = Duration::from_secs(1);

/// How many losses of claims outside the book are kept. Above that the older half is dropped;
/// evictions are rare.
const REMEMBERED: usize = 4096;

/// The engine has not reported so far that any claim may be lost.
const NEVER_DOUBTED: u64 = u64::MAX;

/// How many leases one call to the engine renews.
const BATCH: usize = 128;

/// The state that the keeper shares with guards and requests.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) clock: Clock,
    pub(crate) gauges: Gauges,
    /// The engine's capabilities, read once.
    pub(crate) can: Capabilities,
    book: Book,
    abandoned: std::sync::Mutex<Vec<Abandoned>>,
    wake: Notify,
    /// Set once no further requests are accepted.
    refusing: AtomicBool,
    /// Set once no `Locks`, guard or request is left.
    closing: AtomicBool,
    /// The number of abandoned claims that are not released yet.
    owed: AtomicUsize,
    idle: Notify,
    /// Losses of claims that are not in the book, and when the engine reported each. They are
    /// claims of other clients, or ours whose caller has not taken its grant yet. A caller that is
    /// not polled may take any time for that.
    lost_early: std::sync::Mutex<HashMap<ClaimId, Told>>,
    /// The number of entries in `lost_early`.
    early: AtomicUsize,
    /// When the engine last reported that any claim may be lost. A claim that was requested before
    /// and granted after it was not in the book then. In nanoseconds.
    doubted: AtomicU64,
    /// Dropped with the desk, which shows that the keeper has ended.
    end: watch::Sender<()>,
}

/// What an engine reports about a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// An operator asks for its release.
    ReleaseRequested,
    /// It may be lost: a renewal finds out.
    Doubtful,
    /// It is lost.
    Lost,
}

/// When the engine last reported each event of a claim.
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

/// A claim that no caller wants any more, and the call that may still be in flight for it.
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
            doubted: AtomicU64::new(NEVER_DOUBTED),
            end: watch::Sender::new(()),
        }
    }

    /// Adds the engine's name and URL to an error. Every error that a caller sees comes through
    /// here, through [`engine::open`](crate::engine::open), or through [`listen`], which calls
    /// this.
    pub(crate) fn locate(&self, error: Error) -> Error {
        error.at_engine(self.can.engine).at_url(self.engine.url())
    }

    /// Starts to keep a lease: adds it to the book.
    pub(crate) fn keep(&self, claim: &Arc<Claim>, due: Moment) {
        if self.book.add(claim, due) {
            self.wake.notify_one();
        }
        // The claim enters the book before these checks, and a loss is remembered before the book is
        // searched: one of the two finds it.
        let doubted = self.doubted.load(Ordering::SeqCst);
        let under_way = doubted != NEVER_DOUBTED && doubted >= claim.lease.granted().as_nanos();
        if under_way && self.book.check(claim, Moment::from_nanos(doubted)) {
            self.wake.notify_one();
        }
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
            // Many losses may have the same time; the newest one stays in any case.
            for (_, other) in oldest.iter().filter(|(_, other)| *other != claim).take(REMEMBERED / 2) {
                lost.remove(other);
            }
        }
        self.early.store(lost.len(), Ordering::SeqCst);
    }

    /// Takes out what was reported about this claim, if anything was.
    fn take_loss(&self, claim: ClaimId) -> Option<Told> {
        if self.early.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut lost = self.lost_early();
        let told = lost.remove(&claim);
        self.early.store(lost.len(), Ordering::SeqCst);
        told
    }

    /// Applies an event to a claim in the book. It does not apply if the present grant was
    /// requested after the event: the claim has asked again since.
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

    /// Handles what the engine reports on its own.
    fn heed(&self, told: &[Loss]) {
        let now = self.clock.now();
        let mut meant = Vec::new();
        for loss in told {
            let (claim, event) = match loss {
                Loss::Of(claim) => (*claim, Event::Lost),
                Loss::Check(claim) => (*claim, Event::Doubtful),
                Loss::ReleaseRequested(claim) => (*claim, Event::ReleaseRequested),
                Loss::Doubt => {
                    self.doubted.store(now.as_nanos(), Ordering::SeqCst);
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

    /// Stops keeping a lease.
    pub(crate) fn forget(&self, claim: &Claim) {
        self.book.remove(claim);
        self.count_held();
        if self.gauges.is_on() {
            self.gauges.observe("leasehold_hold_seconds", self.clock.now().since(claim.lease.granted()));
        }
    }

    /// Releases a claim in the background, after the call that may still grant it.
    pub(crate) fn abandon(&self, claim: Arc<Claim>, inflight: Option<Step<Answer>>) {
        // No caller takes its grant any more.
        self.take_loss(claim.id);
        self.owed.fetch_add(1, Ordering::AcqRel);
        self.abandoned().push(Abandoned { claim, inflight });
        self.wake.notify_one();
    }

    /// Counts an abandoned claim that was released, or whose time is over.
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

    /// Accepts no further requests.
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

    /// A channel that closes when the keeper has ended and the desk is dropped.
    pub(crate) fn end(&self) -> watch::Receiver<()> {
        self.end.subscribe()
    }

    fn is_closed(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Waits until all abandoned claims are released.
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

/// Runs until the desk is closed and nothing is left to release.
pub(crate) async fn run(desk: Arc<Desk>, mut losses: Losses) {
    let mut chores: FuturesUnordered<Chore> = FuturesUnordered::new();
    let mut reported = Moment::default();
    loop {
        // Read before the list: everything abandoned before the close is then found below.
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

/// Groups leases into batches, one engine call each. A batch has leases of one place only, so that
/// a call to a hanging server delays no others.
fn batches(engine: &dyn Engine, due: Vec<Arc<Claim>>) -> Vec<Vec<Arc<Claim>>> {
    let mut placed: Vec<_> = due.into_iter().map(|claim| (engine.place(claim.name()), claim)).collect();
    placed.sort_by_key(|(place, _)| *place);
    let mut batches = Vec::new();
    for there in placed.chunk_by(|(one, _), (other, _)| one == other) {
        // Batches of equal size: a small remainder would cost a call of its own each time.
        let size = there.len().div_ceil(there.len().div_ceil(BATCH));
        batches.extend(there.chunks(size).map(|batch| batch.iter().map(|(_, claim)| Arc::clone(claim)).collect()));
    }
    batches
}

/// Ends an expired lease: signals the loss and releases the claim.
fn expired(desk: &Arc<Desk>, claim: &Arc<Claim>) -> Option<Chore> {
    claim.lease.expire();
    chores::bury(desk, claim).then(|| chores::give_back_lost(Arc::clone(desk), Arc::clone(claim)).boxed())
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    use super::*;
    use crate::claim::{Holder, Mode, Terms, Token};
    use crate::name::LockName;

    /// A claim lost its hold, asked again, and was granted: what was reported about the first hold
    /// does not end the second.
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

    /// A loss of an earlier hold does not end the present one, though a request to release came later.
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

    /// A server was reached again while a claim was under way: the claim is renewed as soon as it is
    /// granted. A claim that was requested after that is not.
    #[tokio::test]
    async fn a_doubt_while_a_claim_is_under_way_renews_it_at_its_grant() {
        let hand = crate::clock::ManualClock::new();
        let clock = hand.clock();
        let engine = crate::engine::open("memory:", &clock).await.expect("an engine");
        let desk = Desk::new(engine, clock.clone(), Gauges::default());
        let name = LockName::new("a").expect("a name");
        let ttl = Duration::from_secs(600);
        let terms = Arc::new(Terms::new(name, Mode::Exclusive, None, ttl, Arc::new(Holder::this_process())));
        let [before, after] = [(); 2].map(|()| Arc::new(Claim::on(clock.clone(), Arc::clone(&terms))));
        let requested = clock.now();
        hand.advance(Duration::from_millis(1));
        desk.heed(&[Loss::Doubt]);
        hand.advance(Duration::from_millis(1));
        for (claim, granted) in [(&before, requested), (&after, clock.now())] {
            claim.lease.begin(Token(1), granted, granted.after(ttl), Moment::NEVER);
            desk.keep(claim, granted.after(ttl / 3));
        }
        let due: Vec<_> = desk.book.due(clock.now()).renew.iter().map(|claim| claim.id).collect();
        assert_eq!(due, [before.id]);
    }

    /// A caller takes its grant late, after the claim's eviction was reported: its lease is lost
    /// then, however many other losses were reported.
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
