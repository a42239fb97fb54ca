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

/// How long the caller waits for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitLimit {
    /// Not at all.
    NoWait,
    /// This long.
    AtMost(Duration),
    /// Until it is granted.
    Unlimited,
}

/// How much longer than its wait a caller waits for an answer in flight.
const REPLY_GRACE: Duration = Duration::from_millis(250);

/// Caps a call's timeout `timeout` at the caller's remaining wait, plus [`REPLY_GRACE`].
fn cap_timeout(timeout: Duration, give_up_at: Instant, manager: &LeaseManager) -> Duration {
    timeout.min(give_up_at.duration_since(manager.clock.now()).saturating_add(REPLY_GRACE))
}

/// Acquires a lock. `None`: it is not free, and the caller does not wait.
pub(crate) async fn acquire(
    shared: &Arc<Shared>,
    options: Arc<LockOptions>,
    wait_limit: WaitLimit,
    max_hold: Option<Duration>,
) -> Result<Option<Guard>> {
    let manager = &shared.manager;
    let refusal = if manager.rejects_requests() {
        Err(Error::new(ErrorKind::Closed, "this Locks was closed"))
    } else {
        manager.capabilities.check_options(&options)
    };
    refusal.map_err(|error| shared.locate(error.about_lock(&options.name)))?;
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
    let mut attempt = Acquisition::new(shared, claim, wait_limit, max_hold);
    attempt.inflight = first_step;
    let result = if span.is_disabled() { attempt.run().await } else { attempt.run().instrument(span).await };
    attempt.report_outcome(&result);
    result.map_err(|error| shared.locate(error.about_lock(attempt.claim.name())))
}

/// Acquires several locks in one step, if the engine can and all are free. `None`: the caller
/// acquires them one by one.
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
    let max_timeout = options.iter().map(|options| rules::call_timeout(options.ttl)).min().unwrap_or_default();
    let new = |options| Arc::new(Claim::with_clock(manager.clock.clone(), options));
    let mut unclaimed = AbandonOnDrop { shared, claims: options.into_iter().map(new).collect() };
    let mut step = Arc::clone(&manager.engine).attempt_all(unclaimed.claims.clone());
    let bound = || max_wait.map_or(max_timeout, |max_wait| max_timeout.min(max_wait.saturating_add(REPLY_GRACE)));
    let called = keeper::call(manager, &mut step, bound).await;
    // An error names one lock: the one that would be acquired first, one by one.
    let Some(grants) = called.map_err(|error| error.about_lock(unclaimed.claims[0].name()))? else {
        unclaimed.claims.clear();
        return Ok(None);
    };
    let now = manager.clock.now();
    let begin = |(claim, grant): (&Arc<Claim>, Grant)| {
        let lease = GrantedLease::new(manager, claim, grant, max_hold);
        (now < lease.deadline).then_some((lease, Arc::clone(claim)))
    };
    let options: Option<Vec<_>> = unclaimed.claims.iter().zip(grants).map(begin).collect();
    // Too late for one of them: release all.
    let Some(options) = options else { return Ok(None) };
    unclaimed.claims.clear();
    Ok(Some(options.into_iter().map(|(lease, claim)| lease.begin(shared, claim)).collect()))
}

/// Claims that are released on drop unless they became guards.
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

/// The lease of a grant.
struct GrantedLease {
    token: Token,
    starts_at: Instant,
    deadline: Instant,
    max_deadline: Instant,
}

impl GrantedLease {
    fn new(manager: &LeaseManager, claim: &Claim, grant: Grant, max_hold: Option<Duration>) -> Self {
        // A hand-off's lease may have been running for a while; the hold begins now.
        let held_from = match max_hold {
            Some(_) if !manager.capabilities.uses_local_clock => manager.clock.now(),
            _ => grant.reserved_at,
        };
        let cap = max_hold.map_or(Instant::NEVER, |limit| held_from.saturating_add(limit));
        let deadline = rules::deadline(grant.expires_at, manager.capabilities.drift, claim.options.ttl, cap);
        Self { token: grant.token, starts_at: grant.reserved_at, deadline, max_deadline: cap }
    }

    /// Begins the lease.
    fn begin(self, shared: &Arc<Shared>, claim: Arc<Claim>) -> Guard {
        claim.lease.begin(self.token, self.starts_at, self.deadline, self.max_deadline);
        let due = rules::renew_at(self.starts_at, claim.options.ttl, claim.id.bits() as u32);
        let due = rules::limit_renew_at(due, self.starts_at, self.deadline);
        shared.manager.track(&claim, due);
        Guard::new(Arc::clone(shared), claim)
    }
}

struct Acquisition<'a> {
    shared: &'a Arc<Shared>,
    claim: Arc<Claim>,
    max_hold: Option<Duration>,
    wait_limit: WaitLimit,
    /// When the attempt began; not set if no timeout or metric needs it.
    started_at: Instant,
    give_up_at: Instant,
    /// The call in flight. If the caller drops the future, the keeper completes this call in the
    /// background before it releases the claim.
    inflight: Option<Step<AcquireReply>>,
    /// Whether the engine may know the claim.
    maybe_known_to_engine: bool,
    /// When the engine first failed to respond, since its last response.
    unresponsive_since: Option<Instant>,
    last_error: Option<Error>,
    failures: u32,
    /// How often the lock was not free while the claim had no position in a queue.
    busy_count: u32,
    is_contended: bool,
    /// The end of the cool-down in the engine's last answer.
    cool_down_until: Option<Instant>,
    /// Whether a call ended with an unknown effect.
    is_effect_unknown: bool,
    is_done: bool,
}

/// What the loop does next.
enum NextAction {
    Attempt,
    Wait(Option<Duration>),
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

    fn manager(&self) -> &'a LeaseManager {
        &self.shared.manager
    }

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
                Ok(AcquireReply::Queued { recheck_after: recheck, cool_down: cooling, .. }) => {
                    self.is_contended = true;
                    cooling.into_iter().for_each(|left| self.note_cool_down(left));
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

    async fn attempt(&mut self) -> Result<AcquireReply> {
        self.maybe_known_to_engine = true;
        let queue = self.wait_limit != WaitLimit::NoWait;
        let (manager, ttl, give_up_at) = (self.manager(), self.claim.options.ttl, self.bounded_give_up_at());
        let new = || Arc::clone(&manager.engine).attempt(Arc::clone(&self.claim), queue);
        let step = self.inflight.get_or_insert_with(new);
        let result = keeper::call(manager, step, || cap_timeout(rules::call_timeout(ttl), give_up_at, manager)).await;
        self.inflight = None;
        self.note_response(result)
    }

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

    /// When a caller with a bounded wait gives up.
    fn bounded_give_up_at(&self) -> Instant {
        if matches!(self.wait_limit, WaitLimit::AtMost(_)) { self.give_up_at } else { Instant::NEVER }
    }

    fn note_response(&mut self, result: Result<AcquireReply>) -> Result<AcquireReply> {
        if result.is_ok() {
            self.unresponsive_since = None;
            self.failures = 0;
            self.cool_down_until = None;
        }
        result
    }

    fn note_cool_down(&mut self, left: Duration) {
        self.cool_down_until = Some(self.manager().clock.now().saturating_add(left));
    }

    /// Begins the lease of a grant. `None`: the grant arrived after its lease had ended, and the
    /// claim retries.
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
        let silent_since = *self.unresponsive_since.get_or_insert(now);
        self.is_effect_unknown |= error.effect() == Effect::Unknown;
        if !self.is_effect_unknown && !retry && !self.is_contended {
            self.maybe_known_to_engine = false;
        }
        // A bounded wait includes the time in which the engine is unreachable.
        let bounded = matches!(self.wait_limit, WaitLimit::AtMost(_));
        let silent_too_long = !bounded && now.duration_since(silent_since) >= self.claim.options.ttl;
        if !retry || now >= self.give_up_at || silent_too_long {
            // If the last try was cut short, the error before it is more specific.
            let cut_short = error.message_without_location().ends_with(keeper::NO_RESPONSE);
            return Err(self.last_error.take().filter(|_| cut_short).unwrap_or(error));
        }
        tracing::debug!(%error, "trying again");
        self.last_error = Some(error);
        let random_bits = (crate::random::random_bits() & u128::from(u32::MAX)) as u32;
        let max_pause = rules::call_timeout(self.claim.options.ttl);
        let pause = backoff::pause(self.failures, Duration::from_millis(10), max_pause, random_bits);
        self.failures += 1;
        Ok(NextAction::Pause(pause))
    }

    /// The error at the end of the wait. If the engine has not responded lately, that is the
    /// reason.
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
        // The outcome is known: dropping the attempt from here on is no cancellation.
        if !self.is_done && !self.maybe_known_to_engine {
            self.is_done = true;
        }
        self.wait_limit = WaitLimit::NoWait;
    }
}

impl Drop for Acquisition<'_> {
    /// Releases what the engine may still store of the claim, also when the caller dropped the
    /// future.
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
    let message = "the request was force released (evicted) while it waited; it does not queue again by itself";
    Error::new(ErrorKind::ForceReleased, message)
}

fn refusal_error(refusal: Refusal, wanted: Mode) -> Error {
    let message = match (refusal, wanted) {
        (Refusal::LimitMismatch(limit), Mode::Permits { limit: asked, .. }) => {
            format!("is a semaphore of {limit} at present, and {asked} was asked for; all must name the same limit")
        }
        (Refusal::LimitMismatch(limit), _) => format!("is a semaphore of {limit} at present"),
        (Refusal::Upgrade(held), wanted) => format!(
            "this owner holds it ({held}) and asks for more ({wanted}); it would wait for itself: release it first"
        ),
    };
    Error::new(ErrorKind::Conflict, message)
}
