//! Checks that a lock is granted again within a time bound after each fault, and that a free lock
//! is always granted to those that request it.

use std::collections::{BTreeMap, BTreeSet};

use super::format::{format_duration, format_quantity, format_time};
use super::timeline::{Fault, Hold, Invocation, Timeline};
use super::{GuaranteeResult, SECOND, ViolationLog, availability};
use crate::history::{Call, FaultKind, OutcomeClass, RunNanos};
use crate::verdict::{Guarantee, Recovery};

/// Requests with at most this pause between them count as one request without a gap.
const MAX_RETRY_GAP: RunNanos = SECOND / 2;

/// Checks the recovery after every fault, which it also returns, and that free locks are granted.
pub(crate) fn check(timeline: &Timeline<'_>) -> (GuaranteeResult, Vec<Recovery>) {
    let mut log = ViolationLog::new(Guarantee::Recovery);
    let waits: Vec<&Invocation<'_>> =
        timeline.calls.iter().filter(|invocation| matches!(invocation.call, Call::Lock { waits: true, .. })).collect();
    let mut worst: BTreeMap<FaultKind, RunNanos> = BTreeMap::new();
    let mut all = Vec::new();
    for fault in &timeline.faults {
        let expectation = RecoveryExpectation::new(timeline, fault);
        let mut recovered = expectation.measure(timeline, &waits);
        if recovered.was_requested {
            recovered.late = expectation.is_overdue(timeline, &recovered);
            // Without a grant, and without requests that lasted long enough, nothing was checked.
            log.checked_count += u64::from(recovered.late || recovered.granted.is_some());
            if let Some(took) = recovered.recovery_time() {
                let most = worst.entry(fault.kind).or_default();
                *most = took.max(*most);
            }
            if recovered.late {
                expectation.report_overdue(&recovered, &mut log);
            }
        }
        all.push(recovered);
    }
    let faults = log.checked_count;
    for fault in &timeline.faults {
        availability::check_during_fault(timeline, fault, &mut log);
        availability::check_starved_workers(timeline, fault, bound_and_start(timeline, fault).1, &mut log);
    }
    check_free_locks(timeline, &mut log);
    let kinds: Vec<String> =
        worst.iter().map(|(kind, took)| format!("{kind} {}", format_in_ttls(*took, timeline.header.ttl))).collect();
    let figure = match (faults, kinds.is_empty()) {
        (0, _) if log.violation_count() > 0 => "a free lock was not granted".to_owned(),
        (0, _) => "no worker waited for a lock after a fault".to_owned(),
        (n, true) => format!("{}, no grant after any of them", format_quantity(n, "fault")),
        (_, false) => format!("after {}", kinds.join(", ").replacen(' ', " at most ", 1)),
    };
    (log.into_result(figure), all)
}

/// A duration as a multiple of the TTL: `1.04 TTL`; in seconds if the TTL is 0.
fn format_in_ttls(duration: RunNanos, ttl: RunNanos) -> String {
    match ttl {
        0 => format_duration(duration),
        _ => {
            let hundredths = (u128::from(duration) * 100 + u128::from(ttl) / 2) / u128::from(ttl);
            format!("{}.{:02} TTL", hundredths / 100, hundredths % 100)
        }
    }
}

/// The longest allowed time from the end of a server or network fault until a lock is granted.
pub(super) fn recovery_bound(timeline: &Timeline<'_>) -> RunNanos {
    timeline.header.ttl.saturating_mul(2).saturating_add(3 * SECOND)
}

/// The earliest time at which a lock must be grantable if the workers start at `start`: servers may
/// cool down first.
pub(super) fn earliest_available(timeline: &Timeline<'_>, start: RunNanos) -> RunNanos {
    start.saturating_add(timeline.header.ttl.saturating_mul(2)).saturating_add(2 * SECOND)
}

/// The longest allowed recovery time after this fault, and the time from which it counts.
fn bound_and_start(timeline: &Timeline<'_>, fault: &Fault<'_>) -> (RunNanos, RunNanos) {
    let ttl = timeline.header.ttl;
    match fault.kind.targets_workers() {
        true => {
            let lease_end = ttl.saturating_add(ttl / 5).saturating_add(SECOND);
            // With this engine the kernel detects the end of a process, so no waiter waits for the
            // lease to expire.
            let detected_at_once = fault.kind == FaultKind::Kill && timeline.header.engine == "file";
            let dying = fault.effective_end().saturating_sub(fault.from);
            let dying_bound = dying.saturating_add((2 * SECOND).max(ttl / 2));
            (if detected_at_once { lease_end.min(dying_bound) } else { lease_end }, fault.from)
        }
        false => (recovery_bound(timeline), fault.to.unwrap_or(fault.from)),
    }
}

/// Extends the deadline `by` of something expected since `from`: each fault in that time, except
/// the one with the number `except`, must recover first.
pub(super) fn extended_deadline(
    timeline: &Timeline<'_>,
    from: RunNanos,
    by: RunNanos,
    except: Option<u32>,
) -> RunNanos {
    let mut by = by;
    for other in timeline.faults.iter().filter(|other| Some(other.number) != except) {
        let (bound, counted_from) = bound_and_start(timeline, other);
        let settled = if other.to.is_none() && !timeline.is_complete {
            RunNanos::MAX
        } else {
            counted_from.saturating_add(bound)
        };
        if other.from <= by && settled >= from {
            by = by.max(settled);
        }
    }
    by
}

/// Whether, at time `by`, running workers had made relevant requests without a gap for at least
/// `duration`, since `from` at the earliest. They may wait in one call, or retry.
pub(super) fn was_requested_throughout(
    timeline: &Timeline<'_>,
    (from, by): (RunNanos, RunNanos),
    duration: RunNanos,
    is_relevant: impl Fn(&Invocation<'_>) -> bool,
) -> bool {
    // The latest span of requests without a gap, over the calls so far.
    let mut requesting: Option<(RunNanos, RunNanos)> = None;
    for invocation in timeline
        .calls
        .iter()
        .take_while(|invocation| invocation.began_at <= by)
        .filter(|invocation| is_relevant(invocation))
    {
        let (begin, end) = (invocation.began_at.max(from), invocation.ended.map_or(RunNanos::MAX, |(end, _)| end));
        if end < from || !timeline.lifetime(invocation.worker_id).ran_throughout(begin, end.min(by)) {
            continue;
        }
        requesting = match requesting {
            Some((since, until)) if begin <= until.saturating_add(MAX_RETRY_GAP) => Some((since, until.max(end))),
            _ => Some((begin, end)),
        };
    }
    requesting
        .is_some_and(|(since, until)| since.saturating_add(duration) <= by && until.saturating_add(MAX_RETRY_GAP) > by)
}

/// Reports each lock that no worker can have held and that was not granted within the bound
/// although running workers requested it, also without any fault.
fn check_free_locks(timeline: &Timeline<'_>, log: &mut ViolationLog) {
    let (ttl, bound) = (timeline.header.ttl, recovery_bound(timeline));
    let reported_before = log.violations.len();
    let mut locks = timeline.holds_by_lock();
    for invocation in &timeline.calls {
        if let Call::Lock { lock, .. } = invocation.call {
            locks.entry(lock).or_default();
        }
    }
    for (lock, holds) in locks {
        let requests_it =
            |invocation: &Invocation<'_>| matches!(invocation.call, Call::Lock { lock: other, .. } if other == lock);
        // Calls with an unknown outcome: they may have held the lock for a while.
        let possible_holds =
            timeline.calls.iter().filter(|invocation| requests_it(invocation)).filter_map(|invocation| {
                let end = match invocation.ended {
                    Some((end, outcome)) if outcome.class() == OutcomeClass::Unknown => end,
                    Some(_) => return None,
                    None => timeline.lifetime(invocation.worker_id).killed_at.unwrap_or(RunNanos::MAX),
                };
                Some((invocation.began_at, end.saturating_add(ttl.saturating_mul(2))))
            });
        let possible_holds: Vec<(RunNanos, RunNanos)> = possible_holds.collect();
        let (mut last, mut since) = (0, earliest_available(timeline, 0));
        let grant_times =
            holds.iter().map(|hold| (hold.granted_at, last_end(hold, ttl))).chain([(timeline.last_event_at, 0)]);
        for (next, then) in grant_times {
            let by = extended_deadline(timeline, since, since.saturating_add(bound), None);
            let paused = || timeline.workers.values().any(|life| life.paused_time(since, by) > 0);
            let maybe_held = || possible_holds.iter().any(|&(from, to)| from <= by && to >= since);
            // Whether the check of a fault has reported the same time already.
            let mut before = log.violations.iter().take(reported_before);
            let mut reported = || before.any(|one| one.from <= next && one.from >= last);
            if next > by
                && !reported()
                && !paused()
                && !maybe_held()
                && was_requested_throughout(timeline, (since, by), ttl.saturating_add(3 * SECOND), requests_it)
            {
                let title = format!("no worker was granted {lock:?} for {}", format_duration(next - since));
                let details = format!(
                    "No worker can have held {lock:?} from {} on, running workers requested it, and no fault was near. The engine should have granted it by {}.",
                    format_time(since),
                    format_time(by)
                );
                log.checked_count += 1;
                log.add_time_violation((since, next), &[], &[], title, details);
            }
            (last, since) = (next, since.max(then));
        }
    }
}

/// The latest time at which the engine may still have kept this hold.
fn last_end(hold: &Hold<'_>, ttl: RunNanos) -> RunNanos {
    hold.released_by.unwrap_or(hold.deadline.max(hold.relied_on_until).saturating_add(ttl))
}

/// The lock that this call requests; `None`: it is another call.
fn requested_lock<'a>(invocation: &Invocation<'a>) -> Option<&'a str> {
    if let Call::Lock { lock, .. } = invocation.call { Some(lock) } else { None }
}

/// Which locks must be granted again after a fault, and by when.
struct RecoveryExpectation<'a> {
    fault: &'a Fault<'a>,
    /// The time from which the recovery counts.
    counted_from: RunNanos,
    /// The longest allowed recovery time, without other faults.
    bound: RunNanos,
    /// How long workers must have requested a lock without a grant before that is a violation.
    request_time: RunNanos,
    /// The locks that the workers hit by the fault held; `None`: any lock, as servers or
    /// connections were hit.
    affected_locks: Option<BTreeSet<&'a str>>,
}

impl<'a> RecoveryExpectation<'a> {
    /// What must be granted again after this fault.
    fn new(timeline: &'a Timeline<'a>, fault: &'a Fault<'a>) -> Self {
        let (bound, counted_from) = bound_and_start(timeline, fault);
        if !fault.kind.targets_workers() {
            return Self { fault, counted_from, bound, request_time: 3 * SECOND, affected_locks: None };
        }
        let t = fault.from;
        let held = timeline.holds.iter().take_while(|hold| hold.granted_at <= t).filter(|hold| {
            let over = hold.deadline <= t
                || hold.release_began_at.is_some_and(|release| release <= t)
                || hold.lost.is_some_and(|(lost, _)| lost <= t);
            // The worker was stopped so briefly that it kept the lock.
            let kept = fault.kind == FaultKind::Stop && fault.to.is_some_and(|to| hold.certainly_held_until >= to);
            fault.workers.contains(&hold.worker) && !over && !kept
        });
        let locks = held.map(|hold| hold.lock).collect();
        Self { fault, counted_from, bound, request_time: SECOND, affected_locks: Some(locks) }
    }

    /// Whether this call requests a lock that should be free again.
    fn is_relevant(&self, invocation: &Invocation<'_>) -> bool {
        let Call::Lock { lock, .. } = invocation.call else { return false };
        match &self.affected_locks {
            Some(locks) => locks.contains(lock.as_str()) && !self.fault.workers.contains(&invocation.worker_id),
            None => true,
        }
    }

    /// Measures how soon a lock was granted again. `waiting_calls` are all requests that wait.
    fn measure(&self, timeline: &Timeline<'_>, waiting_calls: &[&Invocation<'_>]) -> Recovery {
        // A grant of a lock that no worker waits for does not show that waiters are served.
        let waited: BTreeSet<&str> = waiting_calls.iter().filter_map(|invocation| requested_lock(invocation)).collect();
        let open = |invocation: &&&Invocation<'_>| {
            invocation.ended.is_none_or(|(end, _)| end >= self.counted_from) && self.is_relevant(invocation)
        };
        let was_requested = waiting_calls.iter().any(|invocation| open(&invocation));
        let first = timeline.holds.partition_point(|hold| hold.granted_at < self.counted_from);
        let granted = timeline.holds.iter().skip(first).find(|hold| match &self.affected_locks {
            Some(locks) => locks.contains(hold.lock) && !self.fault.workers.contains(&hold.worker),
            None => !was_requested || waited.contains(hold.lock),
        });
        Recovery {
            fault: self.fault.number,
            kind: self.fault.kind,
            target: self.fault.target.to_owned(),
            from: self.fault.from,
            to: self.fault.to,
            counted_from: self.counted_from,
            granted: granted.map(|hold| hold.granted_at),
            bound: match self.deadline(timeline) {
                RunNanos::MAX => self.bound,
                by => by.saturating_sub(self.counted_from),
            },
            was_requested,
            late: false,
            served: self.fault.served_elsewhere_since,
            granted_during_fault: availability::first_grant_elsewhere(timeline, self.fault),
            granted_to_all: availability::last_worker_served(timeline, self.counted_from)
                .0
                .filter(|_| self.affected_locks.is_none()),
        }
    }

    /// The time by which the lock must be granted. Other faults extend it, and so do other workers
    /// that hold the same lock, shared or with permits.
    fn deadline(&self, timeline: &Timeline<'_>) -> RunNanos {
        let from = self.counted_from;
        let by = extended_deadline(timeline, from, from.saturating_add(self.bound), Some(self.fault.number));
        let Some(locks) = &self.affected_locks else { return by };
        let beside = timeline
            .holds
            .iter()
            .take_while(|hold| hold.granted_at <= from)
            .filter(|hold| locks.contains(hold.lock) && !self.fault.workers.contains(&hold.worker));
        let ends = beside.map(|hold| last_end(hold, timeline.header.ttl).saturating_add(self.request_time));
        ends.fold(by, RunNanos::max)
    }

    /// Whether the lock was not granted in time, although running workers requested it.
    fn is_overdue(&self, timeline: &Timeline<'_>, recovered: &Recovery) -> bool {
        let by = self.deadline(timeline);
        // In a truncated history, a fault without an end is still active.
        let over = self.affected_locks.is_some() || self.fault.to.is_some() || timeline.is_complete;
        if !over || timeline.last_event_at <= by || recovered.granted.is_some_and(|granted| granted <= by) {
            return false;
        }
        was_requested_throughout(timeline, (self.counted_from, by), self.request_time, |invocation| {
            self.is_relevant(invocation)
        })
    }

    /// Reports that the lock was not granted in time.
    fn report_overdue(&self, recovered: &Recovery, log: &mut ViolationLog) {
        let (number, kind, target) = (self.fault.number, self.fault.kind, self.fault.target);
        let by = self.counted_from.saturating_add(recovered.bound);
        let (took, then) = match recovered.granted {
            Some(granted) => (
                format_duration(granted.saturating_sub(self.counted_from)),
                format!("The first grant after it was at {}.", format_time(granted)),
            ),
            None => {
                (format!("more than {}", format_duration(recovered.bound)), "There was no grant after it.".to_owned())
            }
        };
        let title = format!("no lock for {took} after fault {number} ({kind} of {target})");
        let details = format!(
            "Fault {number} ({kind} of {target}) began at {}, and recovery counts from {}. The engine should have granted the lock by {}, and a worker waited for it. {then}",
            format_time(self.fault.from),
            format_time(self.counted_from),
            format_time(by),
        );
        let to = recovered.granted.unwrap_or(by);
        log.add_time_violation((self.counted_from, to), self.fault.workers, &[], title, details);
    }
}
