//! The calls of the keeper, guards and requests to the engine, and the keeper's tasks: renewal and
//! release.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};

use super::LeaseManager;
use crate::clock::Instant;
use crate::engine::Claim;
use crate::engine::{AcquireReply, ReleaseReply, RenewReply, Step};
use crate::logic::{backoff, lease as rules};
use crate::types::{Effect, Error, ErrorKind, Result};

/// A renewal or a release that the keeper runs beside others.
pub(super) type Task = BoxFuture<'static, ()>;

/// Awaits one call to the engine, no longer than `timeout`, which is only evaluated if the call
/// does not complete at once. Reports its duration as a round trip.
///
/// # Errors
/// The engine's error, or `Unavailable` with an unknown effect after `timeout`.
pub(crate) async fn call<T>(manager: &LeaseManager, step: &mut Step<T>, timeout: impl Fn() -> Duration) -> Result<T> {
    let sent = manager.metrics.is_enabled().then(|| manager.clock.now());
    let result = call_unmetered(manager, step, timeout).await;
    if let Some(sent) = sent {
        manager.metrics.record_duration("leasehold_engine_rtt_seconds", manager.clock.now().duration_since(sent));
    }
    result
}

/// As [`call`], for a step that waits for an event: its duration is not reported as a round trip.
pub(crate) async fn call_unmetered<T>(
    manager: &LeaseManager,
    step: &mut Step<T>,
    timeout: impl Fn() -> Duration,
) -> Result<T> {
    let mut timer = None;
    let result = std::future::poll_fn(|cx| {
        if let Poll::Ready(result) = Pin::new(&mut *step).poll(cx) {
            return Poll::Ready(result);
        }
        let timer =
            timer.get_or_insert_with(|| manager.clock.sleep_until(manager.clock.now().saturating_add(timeout())));
        timer.as_mut().poll(cx).map(|()| Err(timeout_error()))
    })
    .await;
    if manager.metrics.is_enabled() {
        let is_unavailable = matches!(&result, Err(error) if error.kind() == ErrorKind::Unavailable);
        manager.metrics.set_gauge("leasehold_engine_up", if is_unavailable { 0.0 } else { 1.0 });
    }
    result.map_err(|error| manager.add_location(error))
}

/// The message of the error of a call that timed out.
pub(crate) const NO_RESPONSE: &str = "did not answer in time";

/// The error of a call that timed out.
fn timeout_error() -> Error {
    Error::new(ErrorKind::Unavailable, NO_RESPONSE).retryable().effect_unknown()
}

/// Renews a batch of leases in one call, and sets when each is due next. Releases those that are
/// lost.
pub(super) async fn renew(manager: Arc<LeaseManager>, batch: Vec<Arc<Claim>>) {
    let sent = manager.clock.now();
    let last = batch.iter().map(|claim| claim.lease.deadline()).max().unwrap_or(sent);
    let timeout = batch.iter().map(|claim| rules::call_timeout(claim.options.ttl)).min().unwrap_or_default();
    let mut step = Arc::clone(&manager.engine).renew(batch.clone());
    let answers = call(&manager, &mut step, || timeout.min(last.duration_since(sent))).await;
    manager.metrics.record_duration("leasehold_renew_seconds", manager.clock.now().duration_since(sent));
    let answers = answers.unwrap_or_else(|error| {
        tracing::warn!(%error, leases = batch.len(), "leases could not be renewed; trying again");
        Vec::new()
    });
    let unknown = std::iter::repeat(RenewReply::Unknown);
    let mut lost = Vec::new();
    for (claim, answer) in batch.iter().zip(answers.into_iter().chain(unknown)) {
        if apply_renewal(&manager, claim, answer, sent) {
            lost.push(release_lost(Arc::clone(&manager), Arc::clone(claim)));
        }
    }
    join_all(lost).await;
}

/// Applies the engine's answer to a renewal that was sent at `sent`. `true`: the lease is lost and
/// not tracked any more, and the caller releases its claim.
fn apply_renewal(manager: &Arc<LeaseManager>, claim: &Arc<Claim>, answer: RenewReply, sent: Instant) -> bool {
    let label = match answer {
        RenewReply::Renewed(_) => "renewed",
        RenewReply::Held => "held",
        RenewReply::Lost => "lost",
        RenewReply::Unknown => "unknown",
    };
    manager.metrics.increment("leasehold_renew_total", Some(("result", label)));
    let (lease, ttl, now) = (&claim.lease, claim.options.ttl, manager.clock.now());
    let due = match answer {
        RenewReply::Renewed(expires_at) => {
            let drift = manager.capabilities.drift;
            if !lease.extend(rules::deadline(expires_at, drift, ttl, lease.max_deadline())) {
                // The answer came after the deadline. The keeper finds the lease expired and
                // releases the claim, which the engine has extended.
                manager.set_due(claim, now);
                return false;
            }
            let jitter = (claim.id.bits() >> (sent.as_nanos() % 96)) as u32;
            rules::limit_renew_at(rules::renew_at(sent, ttl, jitter), sent, lease.deadline())
                .max(now)
                .min(lease.deadline())
        }
        RenewReply::Held | RenewReply::Unknown => rules::retry_at(now, lease.deadline(), ttl).min(lease.deadline()),
        RenewReply::Lost => {
            lease.revoke();
            return remove_lost(manager, claim);
        }
    };
    manager.set_due(claim, due);
    false
}

/// Stops tracking a lost lease and reports the loss. `false`: it was not tracked, because its guard
/// has released it or the loss was reported before.
pub(super) fn remove_lost(manager: &LeaseManager, claim: &Claim) -> bool {
    let (was_tracked, lease) = (manager.renewals.remove(claim), &claim.lease);
    let Some(reason) = lease.lost_reason().filter(|_| was_tracked) else { return false };
    let (name, engine) = (claim.name(), manager.engine.url());
    tracing::warn!(%name, engine, token = lease.token().0, reason = reason.as_str(), "lock lost");
    manager.metrics.increment("leasehold_lost_total", Some(("reason", reason.as_str())));
    manager.report_held();
    if manager.metrics.is_enabled() {
        let end = manager.clock.now().min(lease.deadline());
        manager.metrics.record_duration("leasehold_hold_seconds", end.duration_since(lease.granted_at()));
    }
    true
}

/// Releases a lost claim, which the engine may still store (on some of several servers, for
/// example), so that no waiter waits for its TTL. It first waits for the drift margin, in which the
/// holder learns of the loss.
pub(super) async fn release_lost(manager: Arc<LeaseManager>, claim: Arc<Claim>) {
    manager
        .clock
        .sleep_until(manager.clock.now().saturating_add(manager.capabilities.drift.margin_for(claim.options.ttl)))
        .await;
    release_within_ttl(manager, claim, None).await;
}

/// Releases an abandoned claim, and counts it as released for
/// [`wait_all_released`](LeaseManager::wait_all_released).
pub(super) async fn release_abandoned(
    manager: Arc<LeaseManager>,
    claim: Arc<Claim>,
    inflight: Option<Step<AcquireReply>>,
) {
    release_within_ttl(Arc::clone(&manager), claim, inflight).await;
    manager.count_abandoned_released();
}

/// Releases a claim after `inflight`, the call that may still grant it, has ended. Retries for the
/// claim's TTL; by then the claim has expired at the engine.
pub(super) async fn release_within_ttl(
    manager: Arc<LeaseManager>,
    claim: Arc<Claim>,
    inflight: Option<Step<AcquireReply>>,
) {
    let start = manager.clock.now();
    let ttl = claim.options.ttl;
    if let Some(mut step) = inflight {
        // The result does not matter: the claim is released in any case.
        let _ = call(&manager, &mut step, || rules::call_timeout(ttl)).await;
    }
    // Retries even errors that look permanent (too many open files, for example), because no other
    // task releases this claim.
    while let Err(error) = release(&manager, &claim, || start.saturating_add(ttl)).await {
        let next = manager.clock.now().saturating_add(rules::call_timeout(ttl) / 10);
        if next >= start.saturating_add(ttl) {
            tracing::warn!(%error, name = %claim.name(), "a claim could not be released; it expires at its TTL");
            return;
        }
        manager.clock.sleep_until(next).await;
    }
}

/// Releases a claim and retries until the engine responds or `give_up_at` is reached. If an earlier
/// try had no reply and the claim is absent now, that try released it: the result is `Released`.
pub(crate) async fn release(
    manager: &LeaseManager,
    claim: &Arc<Claim>,
    give_up_at: impl Fn() -> Instant,
) -> Result<ReleaseReply> {
    let mut attempt = 0;
    let mut maybe_released = false;
    loop {
        let mut step = Arc::clone(&manager.engine).release(Arc::clone(claim));
        let error = match call(manager, &mut step, || rules::call_timeout(claim.options.ttl)).await {
            Ok(ReleaseReply::Absent) if maybe_released => return Ok(ReleaseReply::Released),
            Ok(reply) => return Ok(reply),
            Err(error) => error.about_lock(claim.name()),
        };
        maybe_released |= error.effect() == Effect::Unknown;
        let timeout = rules::call_timeout(claim.options.ttl);
        let pause = backoff::pause(attempt, timeout / 50, timeout / 2, claim.id.bits() as u32);
        let next = manager.clock.now().saturating_add(pause);
        if !(error.is_retryable() || error.effect() == Effect::Unknown) || next >= give_up_at() {
            return Err(error);
        }
        attempt += 1;
        manager.clock.sleep_until(next).await;
    }
}

impl LeaseManager {
    /// Sets when a lease is due next, and wakes the keeper if it would check later.
    fn set_due(&self, claim: &Claim, due: Instant) {
        if self.renewals.set_due(claim, due) {
            self.wakeup.notify_one();
        }
    }

    /// Sets the gauges that depend on all leases.
    pub(super) fn report_metrics(&self, now: Instant) {
        self.report_held();
        let (oldest, shortest) = self.renewals.oldest_age_and_shortest_remaining(now).unwrap_or_default();
        self.metrics.set_gauge("leasehold_oldest_held_seconds", oldest.as_secs_f64());
        self.metrics.set_gauge("leasehold_lease_remaining_seconds", shortest.as_secs_f64());
    }
}
