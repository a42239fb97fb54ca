//! Checks that other servers grant locks while one is down, and that every worker is granted a lock
//! again after a fault.

use super::format::{format_duration, format_quantity, format_time};
use super::recovery::{extended_deadline, recovery_bound, was_requested_throughout};
use super::timeline::{Fault, Invocation, Timeline};
use super::{SECOND, ViolationLog};
use crate::history::{Call, RunNanos, WorkerId};

/// A queued waiter has starved if, since then, the other workers had this many grants per worker.
const MAX_OVERTAKES_PER_WORKER: u64 = 4;

/// The first grant after the other servers could serve that was certainly made during the fault: it
/// was requested after the fault began, or granted at least a second after that. `None`: there is
/// none.
pub(super) fn first_grant_elsewhere(timeline: &Timeline<'_>, fault: &Fault<'_>) -> Option<RunNanos> {
    let served = fault.served_elsewhere_since?;
    let since = timeline.holds.partition_point(|hold| hold.granted_at <= served);
    let one_second_in = fault.from.saturating_add(SECOND);
    let mut later = timeline.holds.iter().skip(since);
    later.find(|hold| hold.requested_at >= fault.from || hold.granted_at >= one_second_in).map(|hold| hold.granted_at)
}

/// Reports a fault during which other servers could serve, and granted no lock within the bound.
pub(super) fn check_during_fault(timeline: &Timeline<'_>, fault: &Fault<'_>, log: &mut ViolationLog) {
    let Some(since) = fault.served_elsewhere_since else { return };
    let bound = recovery_bound(timeline);
    let by = extended_deadline(timeline, since, since.saturating_add(bound), Some(fault.number));
    if timeline.last_event_at <= by || fault.to.is_some_and(|to| to <= by) {
        return;
    }
    log.checked_count += 1;
    let granted = first_grant_elsewhere(timeline, fault);
    let waits = |invocation: &Invocation<'_>| matches!(invocation.call, Call::Lock { .. });
    if granted.is_some_and(|granted| granted <= by)
        || !was_requested_throughout(timeline, (since, by), 3 * SECOND, waits)
    {
        return;
    }
    let (number, kind, target) = (fault.number, fault.kind, fault.target);
    let title = format!("no lock for more than {} during fault {number} ({kind} of {target})", format_duration(bound));
    let description = format!(
        "Fault {number} ({kind} of {target}) began at {}. Other servers could serve from {} on, so they should have granted the lock by {}. Workers requested it all the time.",
        format_time(fault.from),
        format_time(since),
        format_time(by)
    );
    log.add_time_violation((since, granted.unwrap_or(by)), &[], &[], title, description);
}

/// When every running worker that requested a lock had been granted one since `from`; and the
/// workers that were granted none. The time is `None` if there are such workers.
pub(super) fn last_worker_served(timeline: &Timeline<'_>, from: RunNanos) -> (Option<RunNanos>, Vec<WorkerId>) {
    let (mut last, mut unserved) = (None, Vec::new());
    for (&worker, life) in &timeline.workers {
        let ended = |end: Option<RunNanos>| end.is_some_and(|end| end <= from);
        if life.started_at > from || ended(life.killed_at) || ended(life.ended_at) {
            continue;
        }
        let requested = |invocation: &&Invocation<'_>| {
            invocation.worker_id == worker
                && matches!(invocation.call, Call::Lock { .. })
                && invocation.ended.is_none_or(|(end, _)| end >= from)
        };
        let granted = timeline.holds.iter().find(|hold| hold.worker == worker && hold.granted_at >= from);
        match granted {
            Some(hold) => last = last.max(Some(hold.granted_at)),
            None if timeline.calls.iter().any(|invocation| requested(&invocation)) => unserved.push(worker),
            None => {}
        }
    }
    if unserved.is_empty() { (last, unserved) } else { (None, unserved) }
}

/// Reports each worker that waited in the queue from `from` on, after a fault, and was granted no
/// lock while the others were granted many.
pub(super) fn check_starved_workers(
    timeline: &Timeline<'_>,
    fault: &Fault<'_>,
    from: RunNanos,
    log: &mut ViolationLog,
) {
    let bound = recovery_bound(timeline).saturating_mul(2);
    let by = extended_deadline(timeline, from, from.saturating_add(bound), Some(fault.number));
    if !timeline.header.fair || fault.kind.targets_workers() || timeline.last_event_at <= by {
        return;
    }
    let half = from.saturating_add(recovery_bound(timeline));
    let others = timeline.holds.iter().filter(|hold| hold.granted_at > half && hold.granted_at <= by).count() as u64;
    if others < MAX_OVERTAKES_PER_WORKER.saturating_mul(u64::from(timeline.header.lanes)) {
        return;
    }
    for worker in last_worker_served(timeline, from).1 {
        let waits = |invocation: &Invocation<'_>| {
            invocation.worker_id == worker && matches!(invocation.call, Call::Lock { waits: true, .. })
        };
        if !was_requested_throughout(timeline, (from, by), recovery_bound(timeline), waits) {
            continue;
        }
        let number = fault.number;
        let title = format!("worker {worker} had no lock for {} after fault {number}", format_duration(by - from));
        let description = format!(
            "Fault {number} ({} of {}) ended at {}. Worker {worker} was queued for a lock from then on, and had none by {}. Other workers had {} meanwhile.",
            fault.kind,
            fault.target,
            format_time(from),
            format_time(by),
            format_quantity(others, "grant"),
        );
        log.checked_count += 1;
        log.add_time_violation((from, by), &[worker], &[], title, description);
    }
}
