//! The acquire loop: one claim, from the first attempt to a guard or a clean end. It handles
//! timeouts, retries, cancellation and clean-up, once for all engines.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use crate::clock::Instant;
use crate::core::guard::Guard;
use crate::core::keeper::{self, LeaseManager};
use crate::core::shared::Shared;
use crate::engine::{AcquireReply, Grant, Step};
use crate::engine::{Claim, LockOptions};
use crate::logic::table::Refusal;
use crate::logic::{backoff, lease as rules};
use crate::types::{Effect, Error, ErrorKind, Mode, Result, Token};

/// How long a request waits if the lock is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitLimit {
    /// It does not wait: one attempt decides.
    NoWait,
    /// It waits for this time, and then fails with `Timeout`.
    AtMost(Duration),
    /// It waits until the lock is granted.
    Unlimited,
}

/// How much longer than its timeout a request waits for an answer in flight.
const REPLY_GRACE: Duration = Duration::from_millis(250);

/// The timeout of one engine call: `timeout`, but at most until [`REPLY_GRACE`] after `give_up_at`.
fn cap_timeout(timeout: Duration, give_up_at: Instant, manager: &LeaseManager) -> Duration {
    timeout.min(give_up_at.duration_since(manager.clock.now()).saturating_add(REPLY_GRACE))
}

/// Acquires a lock. `None`: it is not free, and the request does not wait.
pub(crate) async fn acquire(
    shared: &Arc<Shared>,
    options: Arc<LockOptions>,
    wait_limit: WaitLimit,
    max_hold: Option<Duration>,
) -> Result<Option<Guard>> {
    let manager = &shared.manager;
    let accepted = if manager.rejects_requests() {
        Err(Error::new(ErrorKind::Closed, "this Locks was closed"))
    } else {
        manager.capabilities.check_options(&options)
    };
    accepted.map_err(|error| shared.locate(error.about_lock(&options.name)))?;
    let span =
        tracing::debug_span!("acquire", name = %options.name, mode = %options.mode, engine = shared.engine_name());
    let claim = Arc::new(Claim::with_clock(manager.clock.clone(), options));
    let mut first_step = None;
    if manager.capabilities.uses_local_clock && span.is_disabled() && !manager.metrics.is_enabled() {
        // The fast path: an engine in this process grants a free lock at once, without a span, a
        // timer or metrics.
        let mut step = Arc::clone(&manager.engine).attempt(Arc::clone(&claim), wait_limit != WaitLimit::NoWait);
        match step.take_ready() {
            Some(Ok(AcquireReply::Granted(grant))) => {
                let lease = GrantedLease::new(manager, &claim, grant, max_hold);
                return Ok(Some(lease.begin(shared, claim)));
            }
            Some(other) => first_step = Some(Step::ready(other)),
            None => first_step = Some(step),
        }
    }
    let mut acquisition = Acquisition::new(shared, claim, wait_limit, max_hold);
    acquisition.inflight = first_step;
    let result = if span.is_disabled() { acquisition.run().await } else { acquisition.run().instrument(span).await };
    acquisition.report_outcome(&result);
    result.map_err(|error| shared.locate(error.about_lock(acquisition.claim.name())))
}

/// Acquires several locks in one engine call, and returns a guard per lock, in order. `None`, with
/// nothing held: the engine cannot do that, or a lock is not free; the caller acquires them one by
/// one.
pub(crate) async fn acquire_all(
    shared: &Arc<Shared>,
    options: Vec<Arc<LockOptions>>,
    max_wait: Option<Duration>,
    max_hold: Option<Duration>,
) -> Result<Option<Vec<Guard>>> {
    let manager = &shared.manager;
    // The caller acquires the locks one by one instead, which reports invalid options.
    if options.len() < 2
        || manager.rejects_requests()
        || options.iter().any(|options| manager.capabilities.check_options(options).is_err())
    {
        return Ok(None);
    }
    let call_timeout = options.iter().map(|options| rules::call_timeout(options.ttl)).min().unwrap_or_default();
    let new_claim = |options| Arc::new(Claim::with_clock(manager.clock.clone(), options));
    let mut pending = AbandonOnDrop { shared, claims: options.into_iter().map(new_claim).collect() };
    let mut step = Arc::clone(&manager.engine).attempt_all(pending.claims.clone());
    let timeout = || max_wait.map_or(call_timeout, |max_wait| call_timeout.min(max_wait.saturating_add(REPLY_GRACE)));
    let result = keeper::call(manager, &mut step, timeout).await;
    // An error is about all locks and can name only one: it names the first.
    let Some(grants) = result.map_err(|error| error.about_lock(pending.claims[0].name()))? else {
        pending.claims.clear();
        return Ok(None);
    };
    let now = manager.clock.now();
    let live_lease = |(claim, grant): (&Arc<Claim>, Grant)| {
        let lease = GrantedLease::new(manager, claim, grant, max_hold);
        (now < lease.deadline).then_some((lease, Arc::clone(claim)))
    };
    let leases: Option<Vec<_>> = pending.claims.iter().zip(grants).map(live_lease).collect();
    // One of the leases has ended already: dropping `pending` releases all claims.
    let Some(leases) = leases else { return Ok(None) };
    pending.claims.clear();
    Ok(Some(leases.into_iter().map(|(lease, claim)| lease.begin(shared, claim)).collect()))
}

/// Claims that the keeper releases when this is dropped, unless they were taken out.
struct AbandonOnDrop<'a> {
    shared: &'a Arc<Shared>,
    claims: Vec<Arc<Claim>>,
}

impl Drop for AbandonOnDrop<'_> {
    fn drop(&mut self) {
        for claim in self.claims.drain(..) {
            self.shared.manager.abandon(claim, None);
        }
    }
}

/// The lease of a grant that the caller has not accepted yet.
struct GrantedLease {
    token: Token,
    /// When the engine reserved the lock for the claim.
    starts_at: Instant,
    deadline: Instant,
    /// When `max_hold` ends; [`Instant::NEVER`] without it.
    max_deadline: Instant,
}

impl GrantedLease {
    /// `max_hold` is `None` if the hold is not limited.
    fn new(manager: &LeaseManager, claim: &Claim, grant: Grant, max_hold: Option<Duration>) -> Self {
        // A lease that was handed off may have been running for a while, but the hold begins now.
        let held_from = match max_hold {
            Some(_) if !manager.capabilities.uses_local_clock => manager.clock.now(),
            _ => grant.reserved_at,
        };
        let max_deadline = max_hold.map_or(Instant::NEVER, |limit| held_from.saturating_add(limit));
        let deadline = rules::deadline(grant.expires_at, manager.capabilities.drift, claim.options.ttl, max_deadline);
        Self { token: grant.token, starts_at: grant.reserved_at, deadline, max_deadline }
    }

    /// Begins the lease: the keeper renews it from now on, and the caller gets its guard.
    fn begin(self, shared: &Arc<Shared>, claim: Arc<Claim>) -> Guard {
        claim.lease.begin(self.token, self.starts_at, self.deadline, self.max_deadline);
        let due = rules::renew_at(self.starts_at, claim.options.ttl, claim.id.bits() as u32);
        let due = rules::limit_renew_at(due, self.starts_at, self.deadline);
        shared.manager.track(&claim, due);
        Guard::new(Arc::clone(shared), claim)
    }
}

/// One request for a lock, from its first attempt to its guard or its error. Dropping it releases
/// the claim if the engine may know it.
struct Acquisition<'a> {
    shared: &'a Arc<Shared>,
    claim: Arc<Claim>,
    max_hold: Option<Duration>,
    wait_limit: WaitLimit,
    /// When the request began; zero if no timeout or metric needs it.
    started_at: Instant,
    /// When the wait ends: at once without a wait, never without a limit.
    give_up_at: Instant,
    /// The call in flight. If the caller drops the future, the keeper completes this call in the
    /// background before it releases the claim.
    inflight: Option<Step<AcquireReply>>,
    /// Whether the engine may know the claim.
    maybe_known_to_engine: bool,
    /// When the first call since the engine's last response failed; `None`: the last call
    /// succeeded.
    unresponsive_since: Option<Instant>,
    /// The error of the last failed call.
    last_error: Option<Error>,
    /// How many calls failed since the engine's last response.
    failures: u32,
    /// How many attempts since the last queue position found the lock busy.
    busy_count: u32,
    /// Whether an attempt found that the lock is not free.
    is_contended: bool,
    /// The end of the cool-down in the engine's last answer; `None`: it cools down no more.
    cool_down_until: Option<Instant>,
    /// Whether a call ended with an unknown effect.
    is_effect_unknown: bool,
    /// Whether nothing is left to release: the claim has its guard, or the engine does not know it.
    is_done: bool,
}

/// What the acquire loop does next.
enum NextAction {
    /// Request the lock.
    Attempt,
    /// Wait in the queue for a change, and check again after this time; `None`: no need to check.
    Wait(Option<Duration>),
    /// Sleep for this time, and then request the lock.
    Pause(Duration),
}

impl<'a> Acquisition<'a> {
    fn new(shared: &'a Arc<Shared>, claim: Arc<Claim>, wait_limit: WaitLimit, max_hold: Option<Duration>) -> Self {
        let needs_time = !shared.manager.capabilities.uses_local_clock || shared.manager.metrics.is_enabled();
        let bounded = matches!(wait_limit, WaitLimit::AtMost(_));
        let started = if needs_time || bounded { shared.manager.clock.now() } else { Instant::default() };
        let give_up_at = match wait_limit {
            WaitLimit::NoWait => started,
            WaitLimit::AtMost(wait) => started.saturating_add(wait),
            WaitLimit::Unlimited => Instant::NEVER,
        };
        shared.manager.metrics.add_waiters(1);
        Self {
            shared,
            claim,
            max_hold,
            wait_limit,
            started_at: started,
            give_up_at,
            inflight: None,
            maybe_known_to_engine: false,
            unresponsive_since: None,
            last_error: None,
            failures: 0,
            busy_count: 0,
            is_contended: false,
            cool_down_until: None,
            is_effect_unknown: false,
            is_done: false,
        }
    }

    /// The manager, borrowed for as long as the request lasts.
    fn manager(&self) -> &'a LeaseManager {
        &self.shared.manager
    }

    /// The acquire loop. `None`: the lock is not free, and the request does not wait.
    async fn run(&mut self) -> Result<Option<Guard>> {
        let mut next = NextAction::Attempt;
        loop {
            let now = if self.maybe_known_to_engine { self.manager().clock.now() } else { self.started_at };
            if self.maybe_known_to_engine && self.wait_limit != WaitLimit::NoWait && now >= self.give_up_at {
                return Err(self.timeout_error());
            }
            let reply = match next {
                NextAction::Attempt => self.attempt().await,
                NextAction::Wait(recheck) => self.wait(now, recheck).await,
                NextAction::Pause(pause) => {
                    self.manager().clock.sleep_until(now.saturating_add(pause).min(self.give_up_at)).await;
                    next = NextAction::Attempt;
                    continue;
                }
            };
            next = match reply {
                Ok(AcquireReply::Granted(grant)) => match self.accept(grant)? {
                    Some(guard) => return Ok(Some(guard)),
                    None => NextAction::Attempt,
                },
                Ok(AcquireReply::Busy { .. }) if self.wait_limit == WaitLimit::NoWait => {
                    self.maybe_known_to_engine = false;
                    return Ok(None);
                }
                Ok(AcquireReply::CoolingDown { left }) if self.wait_limit == WaitLimit::NoWait => {
                    self.maybe_known_to_engine = false;
                    return Err(cooling_down_error(left));
                }
                Ok(AcquireReply::CoolingDown { left }) => {
                    self.note_cool_down(left);
                    self.retry_later(Some(left), now)
                }
                Ok(AcquireReply::Busy { recheck_after: recheck }) => self.retry_later(recheck, now),
                Ok(AcquireReply::Queued { recheck_after: recheck, cool_down, .. }) => {
                    self.is_contended = true;
                    cool_down.into_iter().for_each(|left| self.note_cool_down(left));
                    self.busy_count = 0;
                    NextAction::Wait(recheck)
                }
                // Dropping the attempt releases what the engine still has of the claim.
                Ok(AcquireReply::ForceReleased) => return Err(force_released_error()),
                Ok(AcquireReply::Refused(refusal)) => {
                    self.maybe_known_to_engine = false;
                    return Err(refusal_error(refusal, self.claim.options.mode));
                }
                Err(error) => self.handle_failure(error)?,
            };
        }
    }

    /// Requests the lock, or continues the request in flight.
    async fn attempt(&mut self) -> Result<AcquireReply> {
        self.maybe_known_to_engine = true;
        let queue = self.wait_limit != WaitLimit::NoWait;
        let (manager, ttl, give_up_at) = (self.manager(), self.claim.options.ttl, self.bounded_give_up_at());
        let new_step = || Arc::clone(&manager.engine).attempt(Arc::clone(&self.claim), queue);
        let step = self.inflight.get_or_insert_with(new_step);
        let result = keeper::call(manager, step, || cap_timeout(rules::call_timeout(ttl), give_up_at, manager)).await;
        self.inflight = None;
        self.note_response(result)
    }

    /// Waits in the queue until the claim's state changes, the next heartbeat is due, the time
    /// `recheck` has passed, or the wait ends.
    async fn wait(&mut self, now: Instant, recheck: Option<Duration>) -> Result<AcquireReply> {
        let mut timeout = rules::heartbeat_interval(self.claim.options.ttl).min(self.give_up_at.duration_since(now));
        if let Some(recheck) = recheck {
            timeout = timeout.min(recheck);
        }
        // Not kept in flight: if the caller drops the future, the wait ends and the claim leaves
        // the queue at once.
        let mut step = Arc::clone(&self.manager().engine).wait(Arc::clone(&self.claim), timeout);
        let (manager, ttl, give_up_at) = (self.manager(), self.claim.options.ttl, self.bounded_give_up_at());
        let max_duration = || cap_timeout(timeout + rules::call_timeout(ttl), give_up_at, manager);
        let result = keeper::call_unmetered(manager, &mut step, max_duration).await;
        self.note_response(result)
    }

    /// When a request with a limited wait gives up; never for any other request.
    fn bounded_give_up_at(&self) -> Instant {
        if matches!(self.wait_limit, WaitLimit::AtMost(_)) { self.give_up_at } else { Instant::NEVER }
    }

    /// Forgets earlier failures if the engine responded.
    fn note_response(&mut self, result: Result<AcquireReply>) -> Result<AcquireReply> {
        if result.is_ok() {
            self.unresponsive_since = None;
            self.failures = 0;
            self.cool_down_until = None;
        }
        result
    }

    /// Stores that the engine cools down for another `left`.
    fn note_cool_down(&mut self, left: Duration) {
        self.cool_down_until = Some(self.manager().clock.now().saturating_add(left));
    }

    /// Begins the lease of a grant. `None`: the grant arrived after its lease had ended, so the
    /// request tries again. An error if `max_hold` has passed already.
    fn accept(&mut self, grant: Grant) -> Result<Option<Guard>> {
        let lease = GrantedLease::new(self.manager(), &self.claim, grant, self.max_hold);
        let waited = self.is_contended || !self.manager().capabilities.uses_local_clock;
        if waited && self.manager().clock.now() >= lease.deadline {
            if lease.deadline >= lease.max_deadline {
                return Err(Error::new(ErrorKind::Lost, "max_hold passed before the engine answered"));
            }
            return Ok(None);
        }
        self.is_done = true;
        Ok(Some(lease.begin(self.shared, Arc::clone(&self.claim))))
    }

    /// Retries after a pause that spreads the contenders, because there is no queue or the claim
    /// lost its position. Contenders with slow attempts need longer pauses to avoid each other.
    fn retry_later(&mut self, recheck: Option<Duration>, sent: Instant) -> NextAction {
        self.is_contended = true;
        // An engine in this process answers at once, and the first attempt has no send time.
        let attempt_duration = if self.manager().capabilities.uses_local_clock {
            Duration::ZERO
        } else {
            self.manager().clock.now().duration_since(sent)
        };
        let longest = self.claim.options.ttl / 3;
        let first = Duration::from_millis(5).max(attempt_duration).min(longest);
        let max_pause = Duration::from_millis(250).max(attempt_duration * 2).min(longest);
        let random_bits = (crate::random::random_bits() & u128::from(u32::MAX)) as u32;
        let pause = backoff::pause(self.busy_count, first, max_pause, random_bits);
        self.busy_count += 1;
        NextAction::Pause(recheck.map_or(pause, |recheck| pause.min(recheck.max(Duration::from_millis(1)))))
    }

    /// Handles a failed call: retries with the same claim if a retry may help and the caller still
    /// waits. Without a bounded wait, it stops once the engine has not responded for a whole TTL.
    fn handle_failure(&mut self, error: Error) -> Result<NextAction> {
        let retry = error.is_retryable() && self.wait_limit != WaitLimit::NoWait;
        let now = self.manager().clock.now();
        let unresponsive_since = *self.unresponsive_since.get_or_insert(now);
        self.is_effect_unknown |= error.effect() == Effect::Unknown;
        if !self.is_effect_unknown && !retry && !self.is_contended {
            self.maybe_known_to_engine = false;
        }
        // A bounded wait includes the time in which the engine is unreachable.
        let bounded = matches!(self.wait_limit, WaitLimit::AtMost(_));
        let unresponsive_too_long = !bounded && now.duration_since(unresponsive_since) >= self.claim.options.ttl;
        if !retry || now >= self.give_up_at || unresponsive_too_long {
            // If the last call timed out, the error before it is more specific.
            let timed_out = error.message_without_location().ends_with(keeper::NO_RESPONSE);
            return Err(self.last_error.take().filter(|_| timed_out).unwrap_or(error));
        }
        tracing::debug!(%error, "trying again");
        self.last_error = Some(error);
        let random_bits = (crate::random::random_bits() & u128::from(u32::MAX)) as u32;
        let max_pause = rules::call_timeout(self.claim.options.ttl);
        let pause = backoff::pause(self.failures, Duration::from_millis(10), max_pause, random_bits);
        self.failures += 1;
        Ok(NextAction::Pause(pause))
    }

    /// The error at the end of the wait: that of the last call if it failed, the cool-down if there
    /// is one, and otherwise `Timeout`.
    fn timeout_error(&mut self) -> Error {
        let now = self.manager().clock.now();
        let waited = now.duration_since(self.started_at);
        if let Some(error) = self.last_error.take().filter(|_| self.unresponsive_since.is_some()) {
            return error;
        }
        if let Some(until) = self.cool_down_until.filter(|until| *until > now) {
            return cooling_down_error(until.duration_since(now));
        }
        Error::new(ErrorKind::Timeout, format!("not granted within {waited:.1?}; another claim holds it")).retryable()
    }

    /// Counts the outcome in the metrics. Dropping the acquisition after this is no cancellation.
    fn report_outcome(&mut self, result: &Result<Option<Guard>>) {
        let metrics = &self.manager().metrics;
        if metrics.is_enabled() {
            let label = match result {
                Ok(Some(_)) => "granted",
                Ok(None) => "busy",
                Err(error) => error.kind().as_str(),
            };
            metrics.increment("leasehold_acquire_total", Some(("result", label)));
            self.is_contended |= matches!(result, Ok(None));
            if matches!(result, Ok(Some(_))) {
                metrics.record_duration(
                    "leasehold_acquire_wait_seconds",
                    self.manager().clock.now().duration_since(self.started_at),
                );
            }
        }
        if !self.is_done && !self.maybe_known_to_engine {
            self.is_done = true;
        }
        self.wait_limit = WaitLimit::NoWait;
    }
}

impl Drop for Acquisition<'_> {
    /// Releases the claim if the engine may know it and it has no guard: after an error, and when
    /// the caller dropped the future.
    fn drop(&mut self) {
        let manager = self.manager();
        manager.metrics.add_waiters(-1);
        if self.is_contended {
            manager.metrics.increment("leasehold_contended_total", None);
        }
        if self.is_done {
            return;
        }
        if self.wait_limit != WaitLimit::NoWait {
            manager.metrics.increment("leasehold_acquire_total", Some(("result", "cancelled")));
        }
        if self.maybe_known_to_engine {
            manager.abandon(Arc::clone(&self.claim), self.inflight.take());
        }
    }
}

/// The error during a cool-down: the lock may be free, but the engine makes no grants.
fn cooling_down_error(left: Duration) -> Error {
    let message = format!(
        "cools down for another {left:.1?} (strict): servers restarted or were replaced, and may have lost the lease of a holder"
    );
    Error::new(ErrorKind::Unavailable, message).retryable()
}

/// The error of a request that an operator force released.
fn force_released_error() -> Error {
    let message =
        "an operator force released the request while it waited; request the lock again if it is still needed";
    Error::new(ErrorKind::ForceReleased, message)
}

/// The error of a request in the mode `wanted` that can never be granted beside the present
/// holders.
fn refusal_error(refusal: Refusal, wanted: Mode) -> Error {
    let message = match (refusal, wanted) {
        (Refusal::LimitMismatch(limit), Mode::Permits { limit: requested, .. }) => format!(
            "is a semaphore with a limit of {limit} at present, and {requested} was requested; all clients must pass the same limit"
        ),
        (Refusal::LimitMismatch(limit), _) => format!("is a semaphore with a limit of {limit} at present"),
        (Refusal::Upgrade(held), wanted) => format!(
            "this owner holds it ({held}) and requests more ({wanted}); it would wait for itself: release it first"
        ),
    };
    Error::new(ErrorKind::Conflict, message)
}
