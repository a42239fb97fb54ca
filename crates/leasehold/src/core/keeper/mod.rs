//! The keeper: a task of each [`Locks`](crate::Locks) that renews its leases in batches, signals a
//! loss at the deadline, and releases abandoned claims.

mod renewal_queue;
mod tasks;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, watch};

use self::renewal_queue::RenewalQueue;
use self::tasks::Task;
use crate::clock::{Clock, Instant};
use crate::engine::Claim;
use crate::engine::{AcquireReply, Capabilities, Engine, LossEvent, LossEvents, Step};
use crate::metrics::OptionalMetrics;
use crate::types::{ClaimId, Error};

pub(crate) use self::tasks::{NO_RESPONSE, call, call_unmetered, release};

/// The shortest time between two reports of the gauges that depend on all leases.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// The most claims whose early events are stored. Above that the older half is dropped.
const MAX_EARLY_EVENTS: usize = 4096;

/// The value of `last_resync` before the engine first reports that any claim may be lost.
const NO_RESYNC: u64 = u64::MAX;

/// The most leases that one call to the engine renews.
const MAX_BATCH: usize = 128;

/// The state that the keeper shares with guards and requests.
#[derive(Debug)]
pub(crate) struct LeaseManager {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) clock: Clock,
    pub(crate) metrics: OptionalMetrics,
    /// The engine's capabilities, read once.
    pub(crate) capabilities: Capabilities,
    renewals: RenewalQueue,
    /// The claims that the keeper releases at its next turn.
    abandoned: std::sync::Mutex<Vec<AbandonedClaim>>,
    /// Wakes the keeper.
    wakeup: Notify,
    /// Set once no further requests are accepted.
    rejects_requests: AtomicBool,
    /// Set once no `Locks`, guard or request is left.
    is_closing: AtomicBool,
    /// The number of abandoned claims that are not released yet.
    pending_releases: AtomicUsize,
    /// Notified when the last abandoned claim is released.
    all_released: Notify,
    /// Events of claims that the keeper does not track. Such a claim belongs to another client, or
    /// its caller has not accepted its grant yet: a caller that is not polled may take any time.
    early_events: std::sync::Mutex<HashMap<ClaimId, ReportedEvents>>,
    /// The number of entries in `early_events`.
    early_event_count: AtomicUsize,
    /// When the engine last reported that any claim may be lost, in nanoseconds. A claim that was
    /// requested before that and is tracked after it must be renewed at once.
    last_resync: AtomicU64,
    /// Dropped with the manager, which shows that the keeper has ended.
    ended: watch::Sender<()>,
}

/// An event that an engine reports about one claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClaimEvent {
    /// An operator requests the claim's release.
    ReleaseRequested,
    /// The claim may be lost: a renewal finds out.
    MaybeLost,
    /// The claim is lost.
    Lost,
}

/// When the engine last reported each event of one claim; `None`: never.
#[derive(Clone, Copy, Debug, Default)]
struct ReportedEvents {
    release_requested: Option<Instant>,
    maybe_lost: Option<Instant>,
    lost: Option<Instant>,
}

impl ReportedEvents {
    /// Stores that the engine reported this event at this time.
    fn note(&mut self, event: ClaimEvent, at: Instant) {
        *match event {
            ClaimEvent::ReleaseRequested => &mut self.release_requested,
            ClaimEvent::MaybeLost => &mut self.maybe_lost,
            ClaimEvent::Lost => &mut self.lost,
        } = Some(at);
    }

    /// When the engine reported the latest of the events.
    fn latest(self) -> Option<Instant> {
        self.release_requested.max(self.maybe_lost).max(self.lost)
    }
}

/// A claim that no caller wants any more, and the call that may still be in flight for it.
pub(crate) struct AbandonedClaim {
    claim: Arc<Claim>,
    inflight: Option<Step<AcquireReply>>,
}

impl std::fmt::Debug for AbandonedClaim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AbandonedClaim({:?})", self.claim.id)
    }
}

impl LeaseManager {
    pub(crate) fn new(engine: Arc<dyn Engine>, clock: Clock, metrics: OptionalMetrics) -> Self {
        let capabilities = engine.capabilities().clone();
        Self {
            engine,
            clock,
            metrics,
            capabilities,
            renewals: RenewalQueue::default(),
            abandoned: std::sync::Mutex::default(),
            wakeup: Notify::new(),
            rejects_requests: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            pending_releases: AtomicUsize::new(0),
            all_released: Notify::new(),
            early_events: std::sync::Mutex::default(),
            early_event_count: AtomicUsize::new(0),
            last_resync: AtomicU64::new(NO_RESYNC),
            ended: watch::Sender::new(()),
        }
    }

    /// Adds the engine's name and URL to an error. Every error that a caller sees comes through
    /// here, through [`registry::open`](crate::registry::open), or through [`run`], which calls
    /// this.
    pub(crate) fn add_location(&self, error: Error) -> Error {
        error.at_engine(self.capabilities.engine).at_url(self.engine.url())
    }

    /// Starts to renew the lease of a granted claim, first at `due`. Applies the events that the
    /// engine reported about the claim before.
    pub(crate) fn track(&self, claim: &Arc<Claim>, due: Instant) {
        if self.renewals.add(claim, due) {
            self.wakeup.notify_one();
        }
        // The claim is tracked before these checks, and an event is stored before the search for
        // its claim. So one of the two finds it.
        let resync_at = self.last_resync.load(Ordering::SeqCst);
        let was_requested_before = resync_at != NO_RESYNC && resync_at >= claim.lease.granted_at().as_nanos();
        if was_requested_before && self.renewals.mark_maybe_lost(claim, Instant::from_nanos(resync_at)) {
            self.wakeup.notify_one();
        }
        if let Some(events) = self.take_early_events(claim.id) {
            self.apply_events(claim, events);
        }
        self.report_held();
    }

    /// Stores an event until its claim is tracked.
    fn store_early_event(&self, claim: ClaimId, event: ClaimEvent, at: Instant) {
        let mut early_events = self.early_events();
        early_events.entry(claim).or_default().note(event, at);
        if early_events.len() > MAX_EARLY_EVENTS {
            let mut oldest: Vec<_> = early_events.iter().map(|(claim, events)| (events.latest(), *claim)).collect();
            oldest.sort_unstable_by_key(|(at, _)| *at);
            // Many events may have the same time; the new one stays in any case.
            for (_, other) in oldest.iter().filter(|(_, other)| *other != claim).take(MAX_EARLY_EVENTS / 2) {
                early_events.remove(other);
            }
        }
        self.early_event_count.store(early_events.len(), Ordering::SeqCst);
    }

    /// Removes and returns the stored events of this claim; `None` if there are none.
    fn take_early_events(&self, claim: ClaimId) -> Option<ReportedEvents> {
        if self.early_event_count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut early_events = self.early_events();
        let events = early_events.remove(&claim);
        self.early_event_count.store(early_events.len(), Ordering::SeqCst);
        events
    }

    /// Applies events to a tracked claim. An event older than the present grant's request does not
    /// apply: the claim was requested again since.
    fn apply_events(&self, claim: &Claim, events: ReportedEvents) {
        let applicable = |at: Option<Instant>| at.filter(|at| *at >= claim.lease.granted_at());
        if applicable(events.lost).is_some() {
            claim.lease.revoke();
            tasks::remove_lost(self, claim);
            return;
        }
        if applicable(events.release_requested).is_some() && claim.lease.request_release() {
            let token = claim.lease.token().0;
            tracing::warn!(name = %claim.name(), token, "release requested");
            self.metrics.increment("leasehold_release_requested_total", None);
        }
        if applicable(events.maybe_lost).is_some_and(|at| self.renewals.mark_maybe_lost(claim, at)) {
            self.wakeup.notify_one();
        }
    }

    fn early_events(&self) -> std::sync::MutexGuard<'_, HashMap<ClaimId, ReportedEvents>> {
        self.early_events.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Handles the events that the engine reports without a call.
    fn handle_events(&self, reported: &[LossEvent]) {
        let now = self.clock.now();
        let mut claims = Vec::new();
        for event in reported {
            let (claim, event) = match event {
                LossEvent::Lost(claim) => (*claim, ClaimEvent::Lost),
                LossEvent::MaybeLost(claim) => (*claim, ClaimEvent::MaybeLost),
                LossEvent::ReleaseRequested(claim) => (*claim, ClaimEvent::ReleaseRequested),
                LossEvent::Resync => {
                    self.last_resync.store(now.as_nanos(), Ordering::SeqCst);
                    self.renewals.mark_all_due(now);
                    continue;
                }
            };
            self.store_early_event(claim, event, now);
            claims.push(claim);
        }
        for claim in self.renewals.find(&claims) {
            if let Some(events) = self.take_early_events(claim.id) {
                self.apply_events(&claim, events);
            }
        }
    }

    /// Stops renewing a lease, because its guard releases it.
    pub(crate) fn untrack(&self, claim: &Claim) {
        self.renewals.remove(claim);
        self.report_held();
        if self.metrics.is_enabled() {
            self.metrics
                .record_duration("leasehold_hold_seconds", self.clock.now().duration_since(claim.lease.granted_at()));
        }
    }

    /// Makes the keeper release a claim that no caller wants any more. It first awaits `inflight`,
    /// the call that may still grant the claim.
    pub(crate) fn abandon(&self, claim: Arc<Claim>, inflight: Option<Step<AcquireReply>>) {
        self.take_early_events(claim.id);
        self.pending_releases.fetch_add(1, Ordering::AcqRel);
        self.abandoned().push(AbandonedClaim { claim, inflight });
        self.wakeup.notify_one();
    }

    /// Counts an abandoned claim that was released, or whose TTL has passed.
    fn count_abandoned_released(&self) {
        if self.pending_releases.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.all_released.notify_waiters();
        }
    }

    /// Sets the gauge of the number of held leases.
    fn report_held(&self) {
        if self.metrics.is_enabled() {
            self.metrics.set_gauge("leasehold_held", self.held_count() as f64);
        }
    }

    /// The number of leases that the keeper renews.
    pub(crate) fn held_count(&self) -> usize {
        self.renewals.len()
    }

    /// Makes every later request fail with `Closed`.
    pub(crate) fn reject_requests(&self) {
        self.rejects_requests.store(true, Ordering::Release);
    }

    /// Whether requests fail with `Closed`.
    pub(crate) fn rejects_requests(&self) -> bool {
        self.rejects_requests.load(Ordering::Acquire)
    }

    /// Lets the keeper end once no release is pending.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
        self.wakeup.notify_one();
    }

    /// A channel that closes when the keeper has ended and the manager is dropped.
    pub(crate) fn subscribe_end(&self) -> watch::Receiver<()> {
        self.ended.subscribe()
    }

    /// Whether no `Locks`, guard or request is left.
    fn is_closed(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Waits until all abandoned claims are released.
    pub(crate) async fn wait_all_released(&self) {
        loop {
            let mut idle = std::pin::pin!(self.all_released.notified());
            idle.as_mut().enable();
            if self.pending_releases.load(Ordering::Acquire) == 0 {
                return;
            }
            idle.await;
        }
    }

    fn abandoned(&self) -> std::sync::MutexGuard<'_, Vec<AbandonedClaim>> {
        self.abandoned.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The keeper's loop. Ends when the manager is closed and no release is pending.
pub(crate) async fn run(manager: Arc<LeaseManager>, mut losses: LossEvents) {
    let mut running: FuturesUnordered<Task> = FuturesUnordered::new();
    let mut last_report = Instant::default();
    loop {
        // Read before the list of abandoned claims, which then has all from before the close.
        let is_closed = manager.is_closed();
        for abandoned in std::mem::take(&mut *manager.abandoned()) {
            running.push(tasks::release_abandoned(Arc::clone(&manager), abandoned.claim, abandoned.inflight).boxed());
        }
        let now = manager.clock.now();
        let due = manager.renewals.take_due(now);
        for claim in due.expired {
            running.extend(expire_lease(&manager, &claim));
        }
        for batch in group_into_batches(&*manager.engine, due.renew) {
            running.push(tasks::renew(Arc::clone(&manager), batch).boxed());
        }
        if manager.metrics.is_enabled() && now.duration_since(last_report) >= REPORT_INTERVAL {
            manager.report_metrics(now);
            last_report = now;
        }
        if running.is_empty() && is_closed {
            return;
        }
        tokio::select! {
            biased;
            Some(()) = running.next(), if !running.is_empty() => {}
            events = losses.next() => manager.handle_events(&events),
            () = manager.wakeup.notified() => {}
            () = manager.clock.sleep_until_despite_suspend(due.next_check), if due.next_check != Instant::NEVER => {}
        }
    }
}

/// Groups leases into batches, one engine call each. A batch has leases of one server only, so that
/// a call to a hanging server delays no others.
fn group_into_batches(engine: &dyn Engine, due: Vec<Arc<Claim>>) -> Vec<Vec<Arc<Claim>>> {
    let mut by_server: Vec<_> = due.into_iter().map(|claim| (engine.server_id(claim.name()), claim)).collect();
    by_server.sort_by_key(|(server, _)| *server);
    let mut batches = Vec::new();
    for same_server in by_server.chunk_by(|(first, _), (second, _)| first == second) {
        // As few batches as possible, of about equal size: no call renews many more than another.
        let size = same_server.len().div_ceil(same_server.len().div_ceil(MAX_BATCH));
        batches
            .extend(same_server.chunks(size).map(|batch| batch.iter().map(|(_, claim)| Arc::clone(claim)).collect()));
    }
    batches
}

/// Ends an expired lease and signals its loss. Returns the task that releases the claim; `None` if
/// its guard has released it.
fn expire_lease(manager: &Arc<LeaseManager>, claim: &Arc<Claim>) -> Option<Task> {
    claim.lease.expire();
    tasks::remove_lost(manager, claim).then(|| tasks::release_lost(Arc::clone(manager), Arc::clone(claim)).boxed())
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    use super::*;
    use crate::engine::LockOptions;
    use crate::types::{Holder, LockName, Mode, Token};

    /// A claim lost the lock, requested it again and was granted: an event of the first lease does
    /// not end the second.
    #[tokio::test]
    async fn a_loss_reported_before_the_claim_was_requested_again_is_ignored() {
        let clock = Clock::system();
        let engine = crate::registry::open("memory:", &clock).await.expect("an engine");
        let manager = LeaseManager::new(engine, clock.clone(), OptionalMetrics::default());
        let name = LockName::new("a").expect("a name");
        let ttl = Duration::from_secs(10);
        let options = Arc::new(LockOptions::new(name, Mode::Exclusive, None, ttl, Arc::new(Holder::this_process())));
        for (requested_again, lost) in [(true, false), (false, true)] {
            let claim = Arc::new(Claim::with_clock(clock.clone(), Arc::clone(&options)));
            let reported_at = clock.now();
            manager.store_early_event(claim.id, ClaimEvent::Lost, reported_at);
            let granted =
                if requested_again { reported_at.saturating_add(Duration::from_millis(1)) } else { reported_at };
            claim.lease.begin(Token(1), granted, granted.saturating_add(ttl), Instant::NEVER);
            manager.track(&claim, granted.saturating_add(ttl));
            assert_eq!(claim.lease.lost_reason().is_some(), lost);
        }
        assert_eq!(manager.early_event_count.load(Ordering::SeqCst), 0);
    }

    /// A loss of an earlier lease does not end the present one, even if a release request is
    /// reported later.
    #[tokio::test]
    async fn each_event_of_a_claim_counts_from_the_time_it_was_reported() {
        let clock = Clock::system();
        let engine = crate::registry::open("memory:", &clock).await.expect("an engine");
        let manager = LeaseManager::new(engine, clock.clone(), OptionalMetrics::default());
        let name = LockName::new("a").expect("a name");
        let ttl = Duration::from_secs(10);
        let options = Arc::new(LockOptions::new(name, Mode::Exclusive, None, ttl, Arc::new(Holder::this_process())));
        let claim = Arc::new(Claim::with_clock(clock.clone(), options));
        let reported_at = clock.now();
        let granted = reported_at.saturating_add(Duration::from_millis(1));
        manager.store_early_event(claim.id, ClaimEvent::Lost, reported_at);
        manager.store_early_event(
            claim.id,
            ClaimEvent::ReleaseRequested,
            granted.saturating_add(Duration::from_millis(1)),
        );
        claim.lease.begin(Token(1), granted, granted.saturating_add(ttl), Instant::NEVER);
        manager.track(&claim, granted.saturating_add(ttl));
        assert_eq!((claim.lease.lost_reason(), claim.lease.is_release_requested()), (None, true));
    }

    /// A server was reached again while a request was in flight: the claim is renewed as soon as it
    /// is granted. A claim that was requested after that is not.
    #[tokio::test]
    async fn a_resync_while_a_claim_is_in_flight_renews_it_at_its_grant() {
        let manual_clock = crate::clock::ManualClock::new();
        let clock = manual_clock.clock();
        let engine = crate::registry::open("memory:", &clock).await.expect("an engine");
        let manager = LeaseManager::new(engine, clock.clone(), OptionalMetrics::default());
        let name = LockName::new("a").expect("a name");
        let ttl = Duration::from_secs(600);
        let options = Arc::new(LockOptions::new(name, Mode::Exclusive, None, ttl, Arc::new(Holder::this_process())));
        let [before, after] = [(); 2].map(|()| Arc::new(Claim::with_clock(clock.clone(), Arc::clone(&options))));
        let requested = clock.now();
        manual_clock.advance(Duration::from_millis(1));
        manager.handle_events(&[LossEvent::Resync]);
        manual_clock.advance(Duration::from_millis(1));
        for (claim, granted) in [(&before, requested), (&after, clock.now())] {
            claim.lease.begin(Token(1), granted, granted.saturating_add(ttl), Instant::NEVER);
            manager.track(claim, granted.saturating_add(ttl / 3));
        }
        let due: Vec<_> = manager.renewals.take_due(clock.now()).renew.iter().map(|claim| claim.id).collect();
        assert_eq!(due, [before.id]);
    }

    /// A caller accepts its grant after the force release of its claim was reported: the lease is
    /// lost, no matter how many other losses were reported.
    #[tokio::test]
    async fn an_early_loss_is_stored_until_its_grant_is_accepted_within_a_bound() {
        let manual_clock = crate::clock::ManualClock::new();
        let clock = manual_clock.clock();
        let engine = crate::registry::open("memory:", &clock).await.expect("an engine");
        let manager = LeaseManager::new(engine, clock.clone(), OptionalMetrics::default());
        let ttl = Duration::from_secs(600);
        let name = LockName::new("a").expect("a name");
        let options = Arc::new(LockOptions::new(name, Mode::Exclusive, None, ttl, Arc::new(Holder::this_process())));
        let claim = Arc::new(Claim::with_clock(clock.clone(), options));
        let granted = clock.now();
        for _ in 0..3 * MAX_EARLY_EVENTS {
            manual_clock.advance(Duration::from_millis(1));
            manager.handle_events(&[LossEvent::Lost(ClaimId::random())]);
            assert!(manager.early_event_count.load(Ordering::SeqCst) <= MAX_EARLY_EVENTS);
        }
        manager.handle_events(&[LossEvent::Lost(claim.id)]);
        manual_clock.advance(Duration::from_secs(60));
        claim.lease.begin(Token(1), granted, granted.saturating_add(ttl), Instant::NEVER);
        manager.track(&claim, granted.saturating_add(ttl));
        assert!(claim.lease.lost_reason().is_some());
        assert_eq!(manager.held_count(), 0);
    }
}
