//! Checks that no guard reports a lock as held after its deadline, and that a holder is notified of
//! a loss by then and before another holder is granted the lock.

use super::exclusion::capitalized;
use super::format::{describe_fault_at, format_duration, format_quantity, format_time, format_worker};
use super::timeline::{Fault, Hold, Timeline};
use super::{GuaranteeResult, ViolationLog};
use crate::history::{Mode, RunNanos};
use crate::verdict::Guarantee;

/// How much later than it should a running worker may be notified: it needs processor time to wake
/// up.
const WAKE_UP_GRACE: RunNanos = 100_000_000;

/// After a check shows the loss, the notification must come within this time. Workers wait twice as
/// long for it before they release.
const NOTIFICATION_BOUND: RunNanos = 500_000_000;

/// Checks every hold's checks and its loss.
pub(crate) fn check(timeline: &Timeline<'_>) -> GuaranteeResult {
    let mut log = ViolationLog::new(Guarantee::Loss);
    // How much later than the deadline each holder that ran was notified; negative: earlier.
    let mut notification_delays: Vec<i128> = Vec::new();
    for holds in timeline.holds_by_lock().values() {
        let exclusive_holds: Vec<&Hold<'_>> =
            holds.iter().copied().filter(|hold| hold.mode == Mode::Exclusive).collect();
        for hold in holds {
            let over = hold.lost.is_some() || hold.unheld_since.is_some();
            log.checked_count += hold.held_checks.len() as u64 + u64::from(over);
            check_held_lines(timeline, hold, &mut log);
            let Some((lost, deadline)) = hold.lost else {
                check_missing_notification(timeline, hold, &mut log);
                continue;
            };
            // A holder that ignores a release request loses the lock at its deadline, as intended.
            if hold.force_released_at.is_none() && hold.release_requested_at.is_none() {
                check_unneeded_loss(timeline, hold, lost, &mut log);
            }
            if ran_until_loss(timeline, hold, lost, deadline) {
                notification_delays.push(i128::from(lost) - i128::from(deadline));
            }
            // A shared holder conflicts only with exclusive ones.
            let others = if hold.mode == Mode::Exclusive { holds } else { &exclusive_holds };
            // The force-release check covers the notification of force-released holders.
            let must_be_first = timeline.header.exclusion && hold.force_released_at.is_none();
            let overtaken =
                must_be_first && check_notified_before_next_grant(timeline, hold, lost, deadline, others, &mut log);
            if !overtaken {
                check_late_notification(timeline, hold, lost, deadline, &mut log);
            }
        }
    }
    notification_delays.sort_unstable();
    let figure = summary(timeline, &notification_delays);
    log.into_result(figure)
}

/// How many losses have a holder that ran all the time, so that the time of its notification
/// counts.
pub(super) fn notified_losses(timeline: &Timeline<'_>) -> u64 {
    let ran =
        |hold: &&Hold<'_>| hold.lost.is_some_and(|(lost, deadline)| ran_until_loss(timeline, hold, lost, deadline));
    timeline.holds.iter().filter(ran).count() as u64
}

/// Whether the holder ran all the time from the deadline, or the loss if that was earlier, until it
/// was notified.
fn ran_until_loss(timeline: &Timeline<'_>, hold: &Hold<'_>, lost: RunNanos, deadline: RunNanos) -> bool {
    timeline.lifetime(hold.worker).ran_throughout(deadline.min(lost), lost)
}

/// What was measured, in details: the number of checks and losses, and when holders that ran were
/// notified.
fn summary(timeline: &Timeline<'_>, notification_delays: &[i128]) -> String {
    let losses = timeline.holds.iter().filter(|hold| hold.lost.is_some()).count() as u64;
    let checks: u64 = timeline.holds.iter().map(|hold| hold.held_checks.len() as u64).sum();
    let seen =
        format!("{}, {}", format_quantity(checks, "check"), format_quantity(losses, "loss").replace("losss", "losses"));
    match (notification_delays.get(notification_delays.len() / 2), notification_delays.last()) {
        (Some(&median), Some(&latest)) => {
            let running = notification_delays.len() as u64;
            let ran = if running == losses { String::new() } else { format!(" ({running} running)") };
            format!(
                "{seen}{ran}: notified {} (median), {} (latest)",
                relative_to_deadline(median),
                relative_to_deadline(latest)
            )
        }
        _ if checks == 0 && losses == 0 => "no checks, no losses".to_owned(),
        _ if losses == 0 => format!(
            "{checks_only}, none held after a deadline; no losses",
            checks_only = format_quantity(checks, "check")
        ),
        _ => format!("{seen}: no such holder ran, so notification times do not count"),
    }
}

/// The distance to the deadline in words; a positive offset is after it.
fn relative_to_deadline(offset: i128) -> String {
    let far = format_duration(u64::try_from(offset.unsigned_abs()).unwrap_or(u64::MAX));
    if offset > 0 { format!("{far} after the deadline") } else { format!("{far} before the deadline") }
}

/// Checks the times at which the holder found the lock held: none after the deadline or the loss,
/// and no lease longer than the TTL.
fn check_held_lines(timeline: &Timeline<'_>, hold: &Hold<'_>, log: &mut ViolationLog) {
    let worker = capitalized(&format_worker(timeline, hold.worker));
    let ttl = timeline.header.ttl;
    for &(t, deadline) in &hold.held_checks {
        let (title, why) = match hold.lost {
            _ if ttl > 0 && deadline > t.saturating_add(ttl) => (
                format!("{:?} had a lease of {}, longer than its TTL", hold.lock, format_duration(deadline - t)),
                format!("its deadline was {}, though leases last {}", format_time(deadline), format_duration(ttl)),
            ),
            _ if t > deadline => {
                let by = format_duration(t - deadline);
                (
                    format!("{:?} was held {by} after its deadline", hold.lock),
                    format!("its deadline was {}", format_time(deadline)),
                )
            }
            Some((lost, _)) if t > lost => (
                format!("{:?} was held after it was lost", hold.lock),
                format!("its holder learned of the loss at {}", format_time(lost)),
            ),
            _ => continue,
        };
        let details = format!(
            "{worker} was granted {:?} at {} with token {}. At {} its guard reported it as held, but {why}. {}",
            hold.lock,
            format_time(hold.granted_at),
            hold.token,
            format_time(t),
            describe_fault_at(timeline, t)
        );
        log.add_violation((deadline.min(t), t), &[hold.worker], &[hold.op], title, details);
    }
}

/// Reports a lock that a running holder lost although every fault at that time hit only servers
/// that do not keep the lock. It is a time bound: on a busy machine a renewal may be late.
fn check_unneeded_loss(timeline: &Timeline<'_>, hold: &Hold<'_>, lost: RunNanos, log: &mut ViolationLog) {
    let since = lost.saturating_sub(timeline.header.ttl.saturating_mul(2));
    let near = |fault: &&Fault<'_>| {
        let until = fault.effective_end().saturating_add(timeline.header.ttl);
        !fault.kind.targets_workers() && fault.from <= lost && until >= since
    };
    let mut unrelated_fault = None;
    for fault in timeline.faults.iter().filter(near) {
        if !fault.unaffected_locks.iter().any(|lock| lock == hold.lock) {
            return;
        }
        unrelated_fault = Some(fault);
    }
    let released = hold.release_began_at.is_some_and(|release| release <= lost);
    let Some(fault) = unrelated_fault
        .filter(|_| !released && timeline.lifetime(hold.worker).ran_throughout(since.max(hold.granted_at), lost))
    else {
        return;
    };
    let title = format!("{:?} was lost by fault {}, which did not hit its server", hold.lock, fault.number);
    let details = format!(
        "{} was granted {:?} at {} with token {}, and lost it at {}. Fault {} ({} of {}) began at {} and did not hit the server of this lock.",
        capitalized(&format_worker(timeline, hold.worker)),
        hold.lock,
        format_time(hold.granted_at),
        hold.token,
        format_time(lost),
        fault.number,
        fault.kind,
        fault.target,
        format_time(fault.from),
    );
    log.add_time_violation((fault.from, lost), &[hold.worker], &[hold.op], title, details);
}

/// Reports a loss that a check of the holder's own showed, and of which it was never notified.
fn check_missing_notification(timeline: &Timeline<'_>, hold: &Hold<'_>, log: &mut ViolationLog) {
    let Some(unheld) = hold.unheld_since else { return };
    let by = unheld.saturating_add(NOTIFICATION_BOUND);
    let end = hold.release_began_at.unwrap_or(timeline.last_event_at);
    if end >= by && timeline.lifetime(hold.worker).ran_throughout(unheld, by) {
        let details = format!(
            "A check at {} showed that it was no longer held, and its holder was never notified",
            format_time(unheld)
        );
        report_notification(timeline, hold, (unheld, end), &details, "was never notified", log);
    }
}

/// Reports a notification that came too long after the deadline, or after a check that showed the
/// loss.
fn check_late_notification(
    timeline: &Timeline<'_>,
    hold: &Hold<'_>,
    lost: RunNanos,
    deadline: RunNanos,
    log: &mut ViolationLog,
) {
    let since = hold.unheld_since.map_or(deadline, |unheld| unheld.min(deadline));
    if lost > since.saturating_add(WAKE_UP_GRACE) && timeline.lifetime(hold.worker).ran_throughout(since, lost) {
        let details = format!(
            "It was no longer held at {}, and its holder was notified at {}",
            format_time(since),
            format_time(lost)
        );
        let late = format!("was notified {} late", format_duration(lost - since));
        report_notification(timeline, hold, (since, lost), &details, &late, log);
    }
}

/// Reports a late or missing notification. `title` completes "the loss of LOCK …".
fn report_notification(
    timeline: &Timeline<'_>,
    hold: &Hold<'_>,
    span: (RunNanos, RunNanos),
    explanation: &str,
    title: &str,
    log: &mut ViolationLog,
) {
    let details = format!(
        "{} was granted {:?} at {} with token {}. {explanation}, although it ran all the time. {}",
        capitalized(&format_worker(timeline, hold.worker)),
        hold.lock,
        format_time(hold.granted_at),
        hold.token,
        describe_fault_at(timeline, span.0),
    );
    log.add_time_violation(span, &[hold.worker], &[hold.op], format!("the loss of {:?} {title}", hold.lock), details);
}

/// Reports a holder that ran all the time, and was notified of its loss only after another holder
/// was granted the lock. Returns whether it was reported.
fn check_notified_before_next_grant(
    timeline: &Timeline<'_>,
    hold: &Hold<'_>,
    lost: RunNanos,
    deadline: RunNanos,
    others: &[&Hold<'_>],
    log: &mut ViolationLog,
) -> bool {
    let from = others.partition_point(|other| other.granted_at <= hold.granted_at);
    let after = others.iter().skip(from).take_while(|other| other.granted_at.saturating_add(WAKE_UP_GRACE) < lost);
    // Whether the other grant certainly came after this hold's: a grant may be recorded late.
    let later = |other: &Hold<'_>| {
        let by_token = timeline.header.fencing && other.token > hold.token;
        by_token || other.requested_at >= hold.granted_at || other.certainly_held_until > other.granted_at
    };
    let Some(other) = after.copied().find(|other| other.conflicts_with(hold) && later(other)) else { return false };
    let released = hold.release_began_at.is_some_and(|release| release <= other.granted_at);
    if released || !timeline.lifetime(hold.worker).ran_throughout(deadline.min(other.granted_at), lost) {
        return false;
    }
    let title =
        format!("the loss of {:?} was notified {} too late", hold.lock, format_duration(lost - other.granted_at));
    let details = format!(
        "{} was granted {:?} at {} with token {}. {} was granted it at {} with token {}, and the first was notified of its loss only at {}, although it ran all the time. {}",
        capitalized(&format_worker(timeline, hold.worker)),
        hold.lock,
        format_time(hold.granted_at),
        hold.token,
        capitalized(&format_worker(timeline, other.worker)),
        format_time(other.granted_at),
        other.token,
        format_time(lost),
        describe_fault_at(timeline, other.granted_at),
    );
    log.add_time_violation(
        (other.granted_at, lost),
        &[hold.worker, other.worker],
        &[hold.op, other.op],
        title,
        details,
    );
    true
}
