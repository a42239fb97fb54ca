//! Checks that the engine grants a lock to waiters in the order of its queue.

use super::exclusion::capitalized;
use super::format::{describe_fault_at, format_count, format_time, format_worker};
use super::timeline::{Hold, Invocation, Timeline};
use super::{GuaranteeResult, ViolationLog};
use crate::history::{Call, Mode, OpId, Outcome, RunNanos, WorkerId, Workload};
use crate::verdict::Guarantee;

/// Checks the waiters of the workload `queue`.
pub(crate) fn check(timeline: &Timeline<'_>) -> GuaranteeResult {
    let mut log = ViolationLog::new(Guarantee::Order);
    if timeline.header.workload != Workload::Queue {
        return log.into_result("no worker was seen in the queue".to_owned());
    }
    if !timeline.header.fair {
        return log.into_result("not guaranteed by this engine".to_owned());
    }
    let mut excused = 0;
    for holds in timeline.holds_by_lock().values() {
        // Exclusive holders are granted the lock one after the other. Their order is that of their
        // tokens if the engine guarantees rising tokens, otherwise that of the grants' times.
        let grant_order = |hold: &&Hold<'_>| if timeline.header.fencing { hold.token } else { hold.granted_at };
        let alone = holds.iter().copied().filter(|hold| hold.is_waiting && hold.mode == Mode::Exclusive);
        let mut grants: Vec<&Hold<'_>> = alone.collect();
        grants.sort_by_key(|hold| (grant_order(hold), hold.granted_at));
        // Of the earlier grants, the one that was requested last. Among grants that are equal in
        // this order, none is earlier.
        let mut latest: Option<&Hold<'_>> = None;
        for group in grants.chunk_by(|a, b| grant_order(a) == grant_order(b)) {
            for hold in group {
                let Some(queued) = hold.queued_at else { continue };
                log.checked_count += 1;
                let Some(other) = latest.filter(|other| other.requested_at > queued) else { continue };
                if is_undisturbed(timeline, hold.worker, queued, hold.granted_at) {
                    let outcome =
                        format!("was granted it at {} with token {}", format_time(hold.granted_at), hold.token);
                    report_overtaking(
                        timeline,
                        (hold.worker, hold.op),
                        (queued, hold.granted_at),
                        &outcome,
                        other,
                        &mut log,
                    );
                } else {
                    excused += 1;
                }
            }
            latest = group.iter().copied().chain(latest).max_by_key(|hold| hold.requested_at);
        }
        for waiter in timeline.calls.iter().filter(|invocation| timed_out(invocation, holds)) {
            let Some(queued) = waiter.queued_at else { continue };
            log.checked_count += 1;
            let until =
                waiter.deadline.unwrap_or(RunNanos::MAX).min(waiter.ended.map_or(RunNanos::MAX, |(end, _)| end));
            let mut later = grants.iter().filter(|hold| hold.requested_at > queued && hold.granted_at < until);
            let Some(other) = later.next() else { continue };
            if is_undisturbed(timeline, waiter.worker_id, queued, other.granted_at) {
                let outcome = format!("waited until {} and was not granted it", format_time(until));
                report_overtaking(timeline, (waiter.worker_id, waiter.op), (queued, until), &outcome, other, &mut log);
            } else {
                excused += 1;
            }
        }
    }
    let mut figure =
        format!("{} overtaken of {}", format_count(log.violation_count()), format_count(log.checked_count));
    if excused > 0 {
        figure.push_str(&format!("; {} during a fault", format_count(excused)));
    }
    if log.checked_count == 0 {
        figure = "no worker was seen in the queue".to_owned();
    }
    log.into_result(figure)
}

/// Whether this call waited for the exclusive lock of these holds, and timed out.
fn timed_out(invocation: &Invocation<'_>, holds: &[&Hold<'_>]) -> bool {
    let Call::Lock { lock, mode: Mode::Exclusive, waits: true, .. } = invocation.call else { return false };
    matches!(invocation.ended, Some((_, Outcome::TimedOut))) && holds.first().is_some_and(|hold| hold.lock == lock)
}

/// Whether the worker ran all the time from `queued` to `until`, and no fault was active then or in
/// the TTL before.
fn is_undisturbed(timeline: &Timeline<'_>, worker: WorkerId, queued: RunNanos, until: RunNanos) -> bool {
    let near = |from: RunNanos, to: RunNanos| from <= until && to.saturating_add(timeline.header.ttl) >= queued;
    let fault = timeline.faults.iter().any(|fault| near(fault.from, fault.effective_end()));
    !fault && timeline.lifetime(worker).ran_throughout(queued, until)
}

/// Reports a waiter that was overtaken: `outcome` says how its wait ended, `other` is the hold that
/// was requested later and granted earlier.
fn report_overtaking(
    timeline: &Timeline<'_>,
    (worker, op): (WorkerId, OpId),
    (queued, until): (RunNanos, RunNanos),
    outcome: &str,
    other: &Hold<'_>,
    log: &mut ViolationLog,
) {
    let title = format!("worker {worker} was overtaken by worker {} in the queue for {:?}", other.worker, other.lock);
    let details = format!(
        "{} was queued for {:?} at {} and {outcome}. {} requested it later, at {}, and was granted it earlier, at {} with token {}. {}",
        capitalized(&format_worker(timeline, worker)),
        other.lock,
        format_time(queued),
        capitalized(&format_worker(timeline, other.worker)),
        format_time(other.requested_at),
        format_time(other.granted_at),
        other.token,
        describe_fault_at(timeline, queued),
    );
    log.add_violation((queued, until), &[worker, other.worker], &[op, other.op], title, details);
}
