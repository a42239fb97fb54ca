//! The acquire loop: one claim, from the first attempt to a guard or a clean end. It handles
//! timeouts, retries, cancellation and clean-up, once for all engines.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use crate::claim::{Claim, Mode, Terms, Token};
use crate::clock::Moment;
use crate::engine::{Answer, Grant, Step};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::keeper::{self, Desk};
use crate::locks::Shared;
use crate::logic::lease::Validity;
use crate::logic::table::Refusal;
use crate::logic::{backoff, lease as rules};

/// How long the caller waits for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Not at all.
    Try,
    /// This long.
    For(Duration),
    /// Until it is granted.
    Forever,
}

/// How much longer than its wait a caller waits for an answer in flight.
const GRACE: Duration = Duration::from_millis(250);

/// Caps a call's timeout `most` at the caller's remaining wait, plus [`GRACE`].
fn bounded(most: Duration, give_up: Moment, desk: &Desk) -> Duration {
    most.min(give_up.since(desk.clock.now()).saturating_add(GRACE))
}

/// Acquires a lock. `None`: it is not free, and the caller does not wait.
pub(crate) async fn acquire(
    shared: &Arc<Shared>,
    terms: Arc<Terms>,
    patience: Patience,
    max_hold: Option<Duration>,
) -> Result<Option<Guard>> {
    let desk = &shared.desk;
    let refusal = if desk.is_refusing() {
        Err(Error::new(ErrorKind::Closed, "this Locks was closed"))
    } else {
        desk.can.check(&terms)
    };
    refusal.map_err(|error| shared.locate(error.about(&terms.name)))?;
    let span = tracing::debug_span!("acquire", name = %terms.name, mode = %terms.mode, engine = shared.engine_name());
    let claim = Arc::new(Claim::on(desk.clock.clone(), terms));
    let mut asked = None;
    if desk.can.same_clock && span.is_disabled() && !desk.gauges.is_on() {
        // The fast path: an engine in this process grants a free lock at once, without a span, a
        // timer or metrics.
        let mut step = Arc::clone(&desk.engine).attempt(Arc::clone(&claim), patience != Patience::Try);
        match step.take_ready() {
            Some(Ok(Answer::Granted(grant))) => {
                let term = Term::new(desk, &claim, grant, Moment::default(), max_hold);
                return Ok(Some(term.begin(shared, claim)));
            }
            Some(other) => asked = Some(Step::ready(other)),
            None => asked = Some(step),
        }
    }
    let mut attempt = Attempt::new(shared, claim, patience, max_hold);
    attempt.inflight = asked;
    let result = if span.is_disabled() { attempt.run().await } else { attempt.run().instrument(span).await };
    attempt.report(&result);
    result.map_err(|error| shared.locate(error.about(attempt.claim.name())))
}

/// Acquires several locks in one step, if the engine can and all are free. `None`: the caller
/// acquires them one by one.
pub(crate) async fn acquire_all(
    shared: &Arc<Shared>,
    terms: Vec<Arc<Terms>>,
    patience: Option<Duration>,
    max_hold: Option<Duration>,
) -> Result<Option<Vec<Guard>>> {
    let desk = &shared.desk;
    // Invalid terms are reported when the caller acquires the locks one by one.
    if terms.len() < 2 || desk.is_refusing() || terms.iter().any(|terms| desk.can.check(terms).is_err()) {
        return Ok(None);
    }
    let most = terms.iter().map(|terms| rules::call_timeout(terms.ttl)).min().unwrap_or_default();
    let new = |terms| Arc::new(Claim::on(desk.clock.clone(), terms));
    let mut several = Several { shared, claims: terms.into_iter().map(new).collect() };
    let sent = desk.clock.now();
    let mut step = Arc::clone(&desk.engine).attempt_all(several.claims.clone());
    let bound = || patience.map_or(most, |patience| most.min(patience.saturating_add(GRACE)));
    let called = keeper::call(desk, &mut step, bound).await;
    // An error names one lock: the one that would be acquired first, one by one.
    let Some(grants) = called.map_err(|error| error.about(several.claims[0].name()))? else {
        several.claims.clear();
        return Ok(None);
    };
    let late = desk.clock.now();
    let begin = |(claim, grant): (&Arc<Claim>, Grant)| {
        let term = Term::new(desk, claim, grant, sent, max_hold);
        (late < term.deadline).then_some((term, Arc::clone(claim)))
    };
    let terms: Option<Vec<_>> = several.claims.iter().zip(grants).map(begin).collect();
    // Too late for one of them: release all.
    let Some(terms) = terms else { return Ok(None) };
    several.claims.clear();
    Ok(Some(terms.into_iter().map(|(term, claim)| term.begin(shared, claim)).collect()))
}

/// Claims that are released on drop unless they became guards.
struct Several<'a> {
    shared: &'a Arc<Shared>,
    claims: Vec<Arc<Claim>>,
}

impl Drop for Several<'_> {
    fn drop(&mut self) {
        for claim in self.claims.drain(..) {
            self.shared.desk.abandon(claim, None);
        }
    }
}

/// The lease that follows from a grant to a request sent at `sent`.
struct Term {
    token: Token,
    from: Moment,
    deadline: Moment,
    cap: Moment,
}

impl Term {
    fn new(desk: &Desk, claim: &Claim, grant: Grant, sent: Moment, max_hold: Option<Duration>) -> Self {
        let ttl = claim.terms.ttl;
        let from = match grant.validity {
            Validity::FromSend(_) => sent,
            // The engine reads this process's clock: its lease began with the grant itself.
            Validity::Until(end) => end.before(ttl),
        };
        // A hand-off gives this claim a lease that may have been running already.
        let held_from = match grant.validity {
            Validity::Until(_) if !desk.can.same_clock && max_hold.is_some() => desk.clock.now(),
            _ => from,
        };
        let cap = max_hold.map_or(Moment::NEVER, |most| held_from.after(most));
        let deadline = rules::deadline(from, grant.validity, desk.can.drift, ttl, cap);
        Self { token: grant.token, from, deadline, cap }
    }

    /// Begins the lease.
    fn begin(self, shared: &Arc<Shared>, claim: Arc<Claim>) -> Guard {
        claim.lease.begin(self.token, self.from, self.deadline, self.cap);
        let due = rules::renew_at(self.from, claim.terms.ttl, claim.id.bits() as u32);
        let due = rules::renew_in_time(due, self.from, self.deadline);
        shared.desk.keep(&claim, due);
        Guard::new(Arc::clone(shared), claim)
    }
}

struct Attempt<'a> {
    shared: &'a Arc<Shared>,
    claim: Arc<Claim>,
    max_hold: Option<Duration>,
    patience: Patience,
    /// When the attempt began; unset if nothing needs it.
    started: Moment,
    give_up: Moment,
    /// The call in flight. If the caller drops the future, the keeper completes this call in the
    /// background before it releases the claim.
    inflight: Option<Step<Answer>>,
    /// Whether the engine may know the claim.
    sent: bool,
    /// When the engine first failed to respond, since its last response.
    silent_since: Option<Moment>,
    last_error: Option<Error>,
    failures: u32,
    /// How often the lock was not free while the claim had no position in a queue.
    busy: u32,
    contended: bool,
    /// The cool-down that the engine last reported.
    abstains: Option<Duration>,
    /// The cool-down in the last answer of a queue without a known holder.
    cooling: Option<Duration>,
    /// Whether a call ended with an unknown effect.
    uncertain: bool,
    done: bool,
}

/// What the loop does next.
enum Next {
    Ask,
    Listen(Option<Duration>),
    Pause(Duration),
}

impl<'a> Attempt<'a> {
    fn new(shared: &'a Arc<Shared>, claim: Arc<Claim>, patience: Patience, max_hold: Option<Duration>) -> Self {
        let needs_time = !shared.desk.can.same_clock || shared.desk.gauges.is_on();
        let bounded = matches!(patience, Patience::For(_));
        let started = if needs_time || bounded { shared.desk.clock.now() } else { Moment::default() };
        let give_up = match patience {
            Patience::Try => started,
            Patience::For(wait) => started.after(wait),
            Patience::Forever => Moment::NEVER,
        };
        shared.desk.gauges.waiters(1);
        Self {
            shared,
            claim,
            max_hold,
            patience,
            started,
            give_up,
            inflight: None,
            sent: false,
            silent_since: None,
            last_error: None,
            failures: 0,
            busy: 0,
            contended: false,
            abstains: None,
            cooling: None,
            uncertain: false,
            done: false,
        }
    }

    fn desk(&self) -> &'a Desk {
        &self.shared.desk
    }

    async fn run(&mut self) -> Result<Option<Guard>> {
        let mut next = Next::Ask;
        loop {
            let now = if self.sent { self.desk().clock.now() } else { self.started };
            if self.sent && self.patience != Patience::Try && now >= self.give_up {
                return Err(self.timeout());
            }
            let heard = match next {
                Next::Ask => self.ask().await,
                Next::Listen(recheck) => self.listen(now, recheck).await,
                Next::Pause(pause) => {
                    self.desk().clock.sleep_until(now.after(pause).min(self.give_up)).await;
                    next = Next::Ask;
                    continue;
                }
            };
            next = match heard {
                Ok(Answer::Granted(grant)) => match self.accept(grant, now)? {
                    Some(guard) => return Ok(Some(guard)),
                    None => Next::Ask,
                },
                Ok(Answer::Busy { .. }) if self.patience == Patience::Try => {
                    self.sent = false;
                    return Ok(None);
                }
                Ok(Answer::Abstains { left }) if self.patience == Patience::Try => {
                    self.sent = false;
                    return Err(abstaining(left));
                }
                Ok(Answer::Abstains { left }) => {
                    self.abstains = Some(left);
                    self.again_later(Some(left), now)
                }
                Ok(Answer::Busy { recheck }) => self.again_later(recheck, now),
                Ok(Answer::Queued { recheck, cooling, .. }) => {
                    self.contended = true;
                    self.cooling = cooling;
                    self.busy = 0;
                    Next::Listen(recheck)
                }
                // Dropping the attempt releases what the engine still has of the claim.
                Ok(Answer::Evicted) => return Err(evicted()),
                Ok(Answer::Refused(refusal)) => {
                    self.sent = false;
                    return Err(refused(refusal, self.claim.terms.mode));
                }
                Err(error) => self.failed(error)?,
            };
        }
    }

    async fn ask(&mut self) -> Result<Answer> {
        self.sent = true;
        let queue = self.patience != Patience::Try;
        let (desk, ttl, give_up) = (self.desk(), self.claim.terms.ttl, self.patience_ends());
        let new = || Arc::clone(&desk.engine).attempt(Arc::clone(&self.claim), queue);
        let step = self.inflight.get_or_insert_with(new);
        let result = keeper::call(desk, step, || bounded(rules::call_timeout(ttl), give_up, desk)).await;
        self.inflight = None;
        self.heard(result)
    }

    async fn listen(&mut self, now: Moment, recheck: Option<Duration>) -> Result<Answer> {
        let mut patience = rules::heartbeat(self.claim.terms.ttl).min(self.give_up.since(now));
        if let Some(recheck) = recheck {
            patience = patience.min(recheck);
        }
        // Not kept in flight: if the caller drops the future, the wait ends and the claim leaves
        // the queue at once.
        let mut step = Arc::clone(&self.desk().engine).wait(Arc::clone(&self.claim), patience);
        let (desk, ttl, give_up) = (self.desk(), self.claim.terms.ttl, self.patience_ends());
        let most = || bounded(patience + rules::call_timeout(ttl), give_up, desk);
        let result = keeper::listen(desk, &mut step, most).await;
        self.heard(result)
    }

    /// When a caller with a bounded wait gives up.
    fn patience_ends(&self) -> Moment {
        if matches!(self.patience, Patience::For(_)) { self.give_up } else { Moment::NEVER }
    }

    fn heard(&mut self, result: Result<Answer>) -> Result<Answer> {
        if result.is_ok() {
            self.silent_since = None;
            self.failures = 0;
            self.abstains = None;
        }
        result
    }

    /// Begins the lease of a grant. `None`: the grant came so late that its lease is over, and the
    /// claim asks again.
    fn accept(&mut self, grant: Grant, sent: Moment) -> Result<Option<Guard>> {
        let term = Term::new(self.desk(), &self.claim, grant, sent, self.max_hold);
        let waited = self.contended || !self.desk().can.same_clock;
        if waited && self.desk().clock.now() >= term.deadline {
            if term.deadline >= term.cap {
                return Err(Error::new(ErrorKind::Lost, "max_hold was over before the engine had answered"));
            }
            return Ok(None);
        }
        self.done = true;
        Ok(Some(term.begin(self.shared, Arc::clone(&self.claim))))
    }

    /// Retries after a pause that spreads the contenders, because there is no queue or the claim
    /// lost its position. Contenders with slow attempts need longer pauses to avoid each other.
    fn again_later(&mut self, recheck: Option<Duration>, sent: Moment) -> Next {
        self.contended = true;
        // An engine in this process answers at once, and the first attempt has no send time.
        let took = if self.desk().can.same_clock { Duration::ZERO } else { self.desk().clock.now().since(sent) };
        let longest = self.claim.terms.ttl / 3;
        let first = Duration::from_millis(5).max(took).min(longest);
        let most = Duration::from_millis(250).max(took * 2).min(longest);
        let dice = (crate::random::bits() & u128::from(u32::MAX)) as u32;
        let pause = backoff::pause(self.busy, first, most, dice);
        self.busy += 1;
        Next::Pause(recheck.map_or(pause, |recheck| pause.min(recheck.max(Duration::from_millis(1)))))
    }

    /// Handles a failed call: retries with the same claim if that may help and the caller still
    /// waits. Without a bounded wait, it gives up once the engine has not responded for a whole
    /// TTL.
    fn failed(&mut self, error: Error) -> Result<Next> {
        let retry = error.is_retryable() && self.patience != Patience::Try;
        let now = self.desk().clock.now();
        let silent_since = *self.silent_since.get_or_insert(now);
        self.uncertain |= error.effect() == Effect::Unknown;
        if !self.uncertain && !retry && !self.contended {
            self.sent = false;
        }
        // A bounded wait includes the time in which the engine is unreachable.
        let bounded = matches!(self.patience, Patience::For(_));
        let silent_too_long = !bounded && now.since(silent_since) >= self.claim.terms.ttl;
        if !retry || now >= self.give_up || silent_too_long {
            // If the last try was cut short, the error before it is more specific.
            let cut_short = error.said().ends_with(keeper::NO_ANSWER);
            return Err(self.last_error.take().filter(|_| cut_short).unwrap_or(error));
        }
        tracing::debug!(%error, "trying again");
        self.last_error = Some(error);
        let dice = (crate::random::bits() & u128::from(u32::MAX)) as u32;
        let most = rules::call_timeout(self.claim.terms.ttl);
        let pause = backoff::pause(self.failures, Duration::from_millis(10), most, dice);
        self.failures += 1;
        Ok(Next::Pause(pause))
    }

    /// The error at the end of the wait. If the engine has not responded lately, that is the
    /// reason.
    fn timeout(&mut self) -> Error {
        let waited = self.desk().clock.now().since(self.started);
        if let Some(error) = self.last_error.take().filter(|_| self.silent_since.is_some()) {
            return error;
        }
        if let Some(left) = self.abstains {
            return abstaining(left);
        }
        let why = match self.cooling {
            None => "somebody else holds it".to_owned(),
            Some(left) => format!(
                "it cools down for about {left:.1?} (strict): the server restarted or was replaced, and a lease that it forgot may still be held"
            ),
        };
        Error::new(ErrorKind::Timeout, format!("not granted within {waited:.1?}; {why}")).retryable()
    }

    fn report(&mut self, result: &Result<Option<Guard>>) {
        let gauges = &self.desk().gauges;
        if gauges.is_on() {
            let label = match result {
                Ok(Some(_)) => "granted",
                Ok(None) => "busy",
                Err(error) => error.kind().as_str(),
            };
            gauges.count("leasehold_acquire_total", Some(("result", label)));
            self.contended |= matches!(result, Ok(None));
            if matches!(result, Ok(Some(_))) {
                gauges.observe("leasehold_acquire_wait_seconds", self.desk().clock.now().since(self.started));
            }
        }
        // The outcome is known: dropping the attempt from here on is no cancellation.
        if !self.done && !self.sent {
            self.done = true;
        }
        self.patience = Patience::Try;
    }
}

impl Drop for Attempt<'_> {
    /// Releases whatever the engine may still have of the claim, also when the caller dropped the
    /// future.
    fn drop(&mut self) {
        let desk = self.desk();
        desk.gauges.waiters(-1);
        if self.contended {
            desk.gauges.count("leasehold_contended_total", None);
        }
        if self.done {
            return;
        }
        if self.patience != Patience::Try {
            desk.gauges.count("leasehold_acquire_total", Some(("result", "cancelled")));
        }
        if self.sent {
            desk.abandon(Arc::clone(&self.claim), self.inflight.take());
        }
    }
}

/// The error during a cool-down: the lock may be free, but the engine grants nothing.
fn abstaining(left: Duration) -> Error {
    let message = format!(
        "cools down for another {left:.1?} (strict): too many servers have restarted and abstain, as leases that they forgot may still be held"
    );
    Error::new(ErrorKind::Unavailable, message).retryable()
}

/// The error of a request that an operator force released.
fn evicted() -> Error {
    let message = "the request was force released (evicted) while it waited; it does not queue again by itself";
    Error::new(ErrorKind::Evicted, message)
}

fn refused(refusal: Refusal, wanted: Mode) -> Error {
    let message = match (refusal, wanted) {
        (Refusal::OtherLimit(limit), Mode::Permits { limit: asked, .. }) => {
            format!("is a semaphore of {limit} at present, and {asked} was asked for; all must name the same limit")
        }
        (Refusal::OtherLimit(limit), _) => format!("is a semaphore of {limit} at present"),
        (Refusal::Upgrade(held), wanted) => format!(
            "this owner holds it ({held}) and asks for more ({wanted}); it would wait for itself: release it first"
        ),
    };
    Error::new(ErrorKind::Conflict, message)
}
