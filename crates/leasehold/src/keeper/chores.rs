//! The keeper's tasks for a lease: renewal and release.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};

use super::Desk;
use crate::claim::Claim;
use crate::clock::Moment;
use crate::engine::{Answer, Released, Renewal, Step};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::logic::{backoff, lease as rules};

pub(super) type Chore = BoxFuture<'static, ()>;

/// Awaits one call to the engine, no longer than `patience`, which is only evaluated if the answer
/// is not there at once.
///
/// # Errors
/// The engine's error, or `Unavailable` with an unknown effect after `patience`.
pub(crate) async fn call<T>(desk: &Desk, step: &mut Step<T>, patience: impl Fn() -> Duration) -> Result<T> {
    let sent = desk.gauges.is_on().then(|| desk.clock.now());
    let result = listen(desk, step, patience).await;
    if let Some(sent) = sent {
        desk.gauges.observe("leasehold_engine_rtt_seconds", desk.clock.now().since(sent));
    }
    result
}

/// As [`call`], for a step that waits for an event: its duration is no round trip.
pub(crate) async fn listen<T>(desk: &Desk, step: &mut Step<T>, patience: impl Fn() -> Duration) -> Result<T> {
    let mut timer = None;
    let result = std::future::poll_fn(|cx| {
        if let Poll::Ready(result) = Pin::new(&mut *step).poll(cx) {
            return Poll::Ready(result);
        }
        let timer = timer.get_or_insert_with(|| desk.clock.sleep_until(desk.clock.now().after(patience())));
        timer.as_mut().poll(cx).map(|()| Err(no_answer()))
    })
    .await;
    if desk.gauges.is_on() {
        let away = matches!(&result, Err(error) if error.kind() == ErrorKind::Unavailable);
        desk.gauges.gauge("leasehold_engine_up", if away { 0.0 } else { 1.0 });
    }
    result.map_err(|error| desk.locate(error))
}

/// The end of the error message of a call that timed out.
pub(crate) const NO_ANSWER: &str = "did not answer in time";

fn no_answer() -> Error {
    Error::new(ErrorKind::Unavailable, NO_ANSWER).retryable().effect_unknown()
}

/// Renews a batch of leases and sets when each is due next.
pub(super) async fn renew(desk: Arc<Desk>, batch: Vec<Arc<Claim>>) {
    let sent = desk.clock.now();
    let last = batch.iter().map(|claim| claim.lease.deadline()).max().unwrap_or(sent);
    let patience = batch.iter().map(|claim| rules::call_timeout(claim.terms.ttl)).min().unwrap_or_default();
    let mut step = Arc::clone(&desk.engine).renew(batch.clone());
    let answers = call(&desk, &mut step, || patience.min(last.since(sent))).await;
    desk.gauges.observe("leasehold_renew_seconds", desk.clock.now().since(sent));
    let answers = answers.unwrap_or_else(|error| {
        tracing::warn!(%error, leases = batch.len(), "leases could not be renewed; trying again");
        Vec::new()
    });
    let unknown = std::iter::repeat(Renewal::Unknown);
    let mut lost = Vec::new();
    for (claim, answer) in batch.iter().zip(answers.into_iter().chain(unknown)) {
        if apply(&desk, claim, answer, sent) {
            lost.push(give_back_lost(Arc::clone(&desk), Arc::clone(claim)));
        }
    }
    join_all(lost).await;
}

/// Applies the engine's answer to a lease. `true`: the lease is lost and was removed from the book.
fn apply(desk: &Arc<Desk>, claim: &Arc<Claim>, answer: Renewal, sent: Moment) -> bool {
    let label = match answer {
        Renewal::Renewed(_) => "renewed",
        Renewal::Held => "held",
        Renewal::Lost => "lost",
        Renewal::Unknown => "unknown",
    };
    desk.gauges.count("leasehold_renew_total", Some(("result", label)));
    let (lease, ttl, now) = (&claim.lease, claim.terms.ttl, desk.clock.now());
    let due = match answer {
        Renewal::Renewed(validity) => {
            let drift = desk.can.drift;
            if !lease.extend(rules::deadline(sent, validity, drift, ttl, lease.cap())) {
                // Too late. The lease is due now: the keeper removes it and releases what the
                // engine extended.
                desk.due_at(claim, now);
                return false;
            }
            let jitter = (claim.id.bits() >> (sent.as_nanos() % 96)) as u32;
            rules::renew_in_time(rules::renew_at(sent, ttl, jitter), sent, lease.deadline())
                .max(now)
                .min(lease.deadline())
        }
        Renewal::Held | Renewal::Unknown => rules::retry_at(now, lease.deadline(), ttl).min(lease.deadline()),
        Renewal::Lost => {
            lease.take_away();
            return bury(desk, claim);
        }
    };
    desk.due_at(claim, due);
    false
}

/// Removes a lost lease from the book and reports the loss, once. `false`: its guard released it
/// meanwhile.
pub(super) fn bury(desk: &Desk, claim: &Claim) -> bool {
    let (kept, lease) = (desk.book.remove(claim), &claim.lease);
    let Some(reason) = lease.lost_reason().filter(|_| kept) else { return false };
    let (name, engine) = (claim.name(), desk.engine.url());
    tracing::warn!(%name, engine, token = lease.token().0, reason = reason.as_str(), "lock lost");
    desk.gauges.count("leasehold_lost_total", Some(("reason", reason.as_str())));
    desk.count_held();
    if desk.gauges.is_on() {
        let end = desk.clock.now().min(lease.deadline());
        desk.gauges.observe("leasehold_hold_seconds", end.since(lease.granted()));
    }
    true
}

/// Releases a lost claim, so that no waiter waits for what the engine still has of it (on some of
/// several servers, say). It first waits for the drift allowance, in which the holder learns of the
/// loss.
pub(super) async fn give_back_lost(desk: Arc<Desk>, claim: Arc<Claim>) {
    desk.clock.sleep_until(desk.clock.now().after(desk.can.drift.of(claim.terms.ttl))).await;
    give_back(desk, claim, None).await;
}

/// Releases an abandoned claim and notifies the tasks that wait for that.
pub(super) async fn pay_back(desk: Arc<Desk>, claim: Arc<Claim>, inflight: Option<Step<Answer>>) {
    give_back(Arc::clone(&desk), claim, inflight).await;
    desk.paid();
}

/// Releases a claim after the call that may still grant it has ended. Retries until the claim's TTL
/// is over; by then it has expired at the engine.
pub(super) async fn give_back(desk: Arc<Desk>, claim: Arc<Claim>, inflight: Option<Step<Answer>>) {
    let start = desk.clock.now();
    let ttl = claim.terms.ttl;
    if let Some(mut step) = inflight {
        // Whatever the answer is, the claim is released next.
        let _ = call(&desk, &mut step, || rules::call_timeout(ttl)).await;
    }
    // Retries even errors that look final (too many open files, say), because no other task
    // releases this claim.
    while let Err(error) = release(&desk, &claim, || start.after(ttl)).await {
        let next = desk.clock.now().after(rules::call_timeout(ttl) / 10);
        if next >= start.after(ttl) {
            tracing::warn!(%error, name = %claim.name(), "a claim could not be given back; it ends with its TTL");
            return;
        }
        desk.clock.sleep_until(next).await;
    }
}

/// Releases a claim and retries until the engine responds or `bound` is reached. After a lost
/// reply, `Absent` means that an earlier request took effect.
pub(crate) async fn release(desk: &Desk, claim: &Arc<Claim>, bound: impl Fn() -> Moment) -> Result<Released> {
    let mut attempt = 0;
    let mut maybe_done = false;
    loop {
        let mut step = Arc::clone(&desk.engine).release(Arc::clone(claim));
        let error = match call(desk, &mut step, || rules::call_timeout(claim.terms.ttl)).await {
            Ok(Released::Absent) if maybe_done => return Ok(Released::Released),
            Ok(released) => return Ok(released),
            Err(error) => error.about(claim.name()),
        };
        maybe_done |= error.effect() == Effect::Unknown;
        let patience = rules::call_timeout(claim.terms.ttl);
        let pause = backoff::pause(attempt, patience / 50, patience / 2, claim.id.bits() as u32);
        let next = desk.clock.now().after(pause);
        if !(error.is_retryable() || error.effect() == Effect::Unknown) || next >= bound() {
            return Err(error);
        }
        attempt += 1;
        desk.clock.sleep_until(next).await;
    }
}

impl Desk {
    /// Sets when a lease is due next.
    fn due_at(&self, claim: &Claim, due: Moment) {
        if self.book.set_due(claim, due) {
            self.wake.notify_one();
        }
    }

    /// Reports the metrics of all leases.
    pub(super) fn report(&self, now: Moment) {
        self.count_held();
        let (oldest, shortest) = self.book.extremes(now).unwrap_or_default();
        self.gauges.gauge("leasehold_oldest_held_seconds", oldest.as_secs_f64());
        self.gauges.gauge("leasehold_lease_remaining_seconds", shortest.as_secs_f64());
    }
}
