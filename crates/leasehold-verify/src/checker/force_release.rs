//! Checks force releases, `Call::Evict` in the history: the holder is notified soon, the next
//! waiter is granted the lock as soon, and the fence token makes a resource refuse the
//! force-released holder and no other.
//!
//! Once a force release has begun, other holders may acquire the lock: that is the documented
//! exception from exclusion. A release request (`graceful`) has no such exception: the next grant
//! must wait until the holder released or its deadline passed, which the exclusion check tests. Here
//! only the notification of the holder is checked, with the same time bound.

use super::exclusion::capitalized;
use super::format::{describe_fault_at, format_count, format_duration, format_time, format_worker};
use super::timeline::{Hold, Invocation, Timeline};
use super::{GuaranteeResult, ViolationLog};
use crate::history::{Call, OpId, Outcome, RunNanos};
use crate::verdict::Guarantee;

/// A holder must be notified of a force release within this time, also where the engine polls.
const NOTIFICATION_BOUND: RunNanos = 500_000_000;
/// How much later a running worker may act on a notification: it needs processor time to wake up.
const WAKE_UP_GRACE: RunNanos = 100_000_000;

/// A force release, or a release request, that succeeded.
struct ForceRelease<'a> {
    invocation: &'a Invocation<'a>,
    lock: &'a str,
    /// The number of the call by which the target holds the lock or waits; `None`: unknown.
    hold: Option<OpId>,
    /// The holder's token; 0: the target was a waiter.
    token: u64,
    /// Whether the holder was only asked to release.
    is_graceful: bool,
    /// The token that makes a resource refuse the holder; `None`: the engine returned none.
    fence_token: Option<u64>,
    /// Whether the target had no claim any more.
    was_gone: bool,
    ended_at: RunNanos,
}

impl ForceRelease<'_> {
    /// Its target, in the title of a violation.
    fn target_phrase(&self) -> &'static str {
        if self.is_graceful { "a holder asked to release" } else { "a force-released holder of" }
    }
}

/// Checks every force release and release request.
pub(crate) fn check(timeline: &Timeline<'_>) -> GuaranteeResult {
    let mut log = ViolationLog::new(Guarantee::ForceRelease);
    let (locks, mut gone, mut waiters, mut handed_off) = (timeline.holds_by_lock(), 0, 0, 0);
    for invocation in &timeline.calls {
        let (
            Call::Evict { lock, hold, token, graceful },
            Some((end, Outcome::Evicted { token: fence, gone: had_gone })),
        ) = (invocation.call, invocation.ended)
        else {
            continue;
        };
        let (hold, token, graceful) = (*hold, *token, *graceful);
        let force_release = ForceRelease {
            invocation,
            lock,
            hold,
            token,
            is_graceful: graceful,
            fence_token: *fence,
            was_gone: *had_gone,
            ended_at: end,
        };
        log.checked_count += 1;
        gone += u64::from(force_release.was_gone);
        let holds = locks.get(force_release.lock).map_or(&[][..], Vec::as_slice);
        if timeline.header.fencing {
            check_fence_token(timeline, &force_release, holds, &mut log);
        }
        if force_release.token == 0 && !force_release.was_gone {
            waiters += 1;
            check_waiter(timeline, &force_release, &mut log);
        }
        let hits_hold = |hold: &&Hold<'_>| {
            !force_release.was_gone && (hold.token == force_release.token || force_release.token == 0)
        };
        let hold = force_release.hold.and_then(|hold| timeline.hold(hold)).filter(hits_hold);
        if let Some(hold) = hold {
            check_notification(timeline, &force_release, hold, &mut log);
            handed_off += u64::from(check_hand_off(timeline, &force_release, holds, &mut log));
        }
    }
    let figure = match log.checked_count {
        0 => "no force releases".to_owned(),
        n => format!(
            "{} force releases and release requests, {} of claims that were already gone, {} of waiters; {} with a waiter to be served at once",
            format_count(n),
            format_count(gone),
            format_count(waiters),
            format_count(handed_off)
        ),
    };
    log.into_result(figure)
}

/// Checks that the fence token is above the force-released holder's token, and below that of every
/// remaining and later holder.
fn check_fence_token(
    timeline: &Timeline<'_>,
    force_release: &ForceRelease<'_>,
    holds: &[&Hold<'_>],
    log: &mut ViolationLog,
) {
    let Some(fence) = force_release.fence_token else { return };
    if !force_release.was_gone && fence <= force_release.token {
        let title = format!(
            "the force release of token {} of {:?} does not fence it off",
            force_release.token, force_release.lock
        );
        report_fence_token(
            timeline,
            force_release,
            None,
            title,
            &format!("It returned the fence token {fence}, which is not higher."),
            log,
        );
    }
    for hold in holds.iter().filter(|hold| Some(hold.op) != force_release.hold && hold.token <= fence) {
        let stays =
            hold.granted_at < force_release.invocation.began_at && hold.certainly_held_until > force_release.ended_at;
        let next = hold.requested_at > force_release.ended_at;
        let (title, how) = match (stays, next) {
            (true, _) => ("fences off a holder that stays", "still held it"),
            (_, true) => ("fences off the next holder", "requested it after that"),
            _ => continue,
        };
        let title = format!("the force release of token {} of {:?} {title}", force_release.token, force_release.lock);
        let how = format!(
            "It returned the fence token {fence}. {} {how}, with token {}.",
            capitalized(&format_worker(timeline, hold.worker)),
            hold.token
        );
        report_fence_token(timeline, force_release, Some(hold), title, &how, log);
        return;
    }
}

/// Checks that the holder is notified in time, if its worker ran and the engine was not disturbed.
fn check_notification(
    timeline: &Timeline<'_>,
    force_release: &ForceRelease<'_>,
    hold: &Hold<'_>,
    log: &mut ViolationLog,
) {
    let from = force_release.ended_at.max(hold.granted_at);
    let by = from.saturating_add(NOTIFICATION_BOUND).saturating_add(WAKE_UP_GRACE);
    let began = force_release.invocation.began_at.min(hold.granted_at);
    let released = hold.release_began_at.is_some_and(|release| release <= by);
    if released
        || timeline.last_event_at < by
        || !timeline.lifetime(hold.worker).ran_throughout(began, by)
        || timeline.is_engine_disturbed(began, by)
    {
        return;
    }
    let lost = hold.lost.map(|(lost, _)| lost);
    let notified = if force_release.is_graceful { hold.release_requested_at.or(lost) } else { lost };
    match notified {
        Some(notified) if notified <= by => {}
        Some(lost) => {
            let title = format!(
                "{} {:?} was notified {} later",
                force_release.target_phrase(),
                hold.lock,
                format_duration(lost - from)
            );
            let how = format!("It was notified only at {}, although it ran all the time.", format_time(lost));
            report_missing_notification(timeline, force_release, hold, (title, how), lost, log);
        }
        None => {
            let title = format!("{} {:?} was never notified", force_release.target_phrase(), hold.lock);
            let how = format!("It was not notified by {}, although it ran all the time.", format_time(by));
            report_missing_notification(timeline, force_release, hold, (title, how), by, log);
        }
    }
}

/// Checks that the request of a force-released waiter ends in time, granted or not.
fn check_waiter(timeline: &Timeline<'_>, force_release: &ForceRelease<'_>, log: &mut ViolationLog) {
    let (began, ended) = (force_release.invocation.began_at, force_release.ended_at);
    let by = ended.saturating_add(NOTIFICATION_BOUND).saturating_add(WAKE_UP_GRACE);
    let Some(request) = timeline.calls.iter().find(|call| Some(call.op) == force_release.hold) else { return };
    let has_ended = request.ended.is_some_and(|(end, _)| end <= by);
    if has_ended
        || timeline.last_event_at < by
        || timeline.is_engine_disturbed(began, by)
        || !timeline.lifetime(request.worker_id).ran_throughout(began, by)
    {
        return;
    }
    let title = format!("the request of a force-released waiter of {:?} did not end", force_release.lock);
    let how = format!("It had not ended by {}, although its worker ran all the time.", format_time(by));
    log.add_time_violation(
        (began, by),
        &[force_release.invocation.worker_id, request.worker_id],
        &[force_release.invocation.op, request.op],
        title,
        describe(timeline, force_release, &how),
    );
}

/// Checks that a waiter is granted the lock of a force-released holder within the same time bound.
/// Returns whether that could be checked: `false` if the history does not show that a waiter had to
/// be granted the lock.
fn check_hand_off(
    timeline: &Timeline<'_>,
    force_release: &ForceRelease<'_>,
    holds: &[&Hold<'_>],
    log: &mut ViolationLog,
) -> bool {
    let (began, ended) = (force_release.invocation.began_at, force_release.ended_at);
    let by = ended.saturating_add(NOTIFICATION_BOUND).saturating_add(WAKE_UP_GRACE);
    if force_release.is_graceful || timeline.last_event_at < by || timeline.is_engine_disturbed(began, by) {
        return false;
    }
    let others = || holds.iter().filter(|hold| Some(hold.op) != force_release.hold);
    // A server may keep a lease for longer than its holder relied on it.
    let is_over = |hold: &Hold<'_>| {
        let lease_end = hold.deadline.saturating_add(timeline.header.ttl);
        [hold.released_by, Some(lease_end)].into_iter().flatten().any(|end| end < began)
            || hold.force_released_at.is_some_and(|began_at| began_at < began)
                && hold.lost.is_some_and(|(lost, _)| lost < began)
    };
    if others().any(|hold| hold.granted_at < ended && !is_over(hold)) {
        return false;
    }
    let requests = || {
        let all = timeline.calls.iter().filter(|call| call.began_at <= by);
        all.filter(|call| matches!(call.call, Call::Lock { lock, .. } if lock == force_release.lock))
    };
    // A request with an unknown outcome may hold the lock until its lease ends.
    let is_old = |end: RunNanos| end.saturating_add(timeline.header.ttl.saturating_mul(2)) < began;
    let lifetime = |request: &Invocation<'_>| timeline.lifetime(request.worker_id);
    let is_clear = |request: &Invocation<'_>| match request.ended {
        Some((end, _)) if end >= began => lifetime(request).ran_throughout(began, by),
        Some((_, Outcome::Granted { .. } | Outcome::Busy | Outcome::Failed { .. })) => true,
        Some((end, Outcome::TimedOut)) => end.saturating_add(WAKE_UP_GRACE) < began,
        Some((end, _)) => is_old(end),
        None => lifetime(request).killed_at.map_or(lifetime(request).ran_throughout(began, by), is_old),
    };
    if !requests().all(is_clear) {
        return false;
    }
    let waits = |request: &&Invocation<'_>| {
        let waiting = matches!(request.call, Call::Lock { waits: true, .. });
        // Not every workload records when a request is in the queue.
        let queued_by = request.queued_at.unwrap_or(request.began_at.saturating_add(NOTIFICATION_BOUND));
        let stays = request
            .ended
            .is_none_or(|(end, outcome)| end > by || end > began && matches!(outcome, Outcome::Granted { .. }));
        waiting && timeline.header.fair && queued_by < began && stays
    };
    let Some(waiter) = requests().find(waits) else { return false };
    if others().any(|hold| hold.granted_at >= began && hold.granted_at <= by) {
        return true;
    }
    let title = format!(
        "no waiter of {:?} was granted it within {} of a force release",
        force_release.lock,
        format_duration(by - ended)
    );
    let how = format!("{} waited all that time.", capitalized(&format_worker(timeline, waiter.worker_id)));
    log.add_time_violation(
        (began, by),
        &[force_release.invocation.worker_id, waiter.worker_id],
        &[force_release.invocation.op, waiter.op],
        title,
        describe(timeline, force_release, &how),
    );
    true
}

/// Reports that a holder was notified late or never; the violation lasts until `until`.
fn report_missing_notification(
    timeline: &Timeline<'_>,
    force_release: &ForceRelease<'_>,
    hold: &Hold<'_>,
    (title, explanation): (String, String),
    until: RunNanos,
    log: &mut ViolationLog,
) {
    let details = describe(timeline, force_release, &explanation);
    log.add_time_violation(
        (force_release.invocation.began_at, until),
        &[force_release.invocation.worker_id, hold.worker],
        &[force_release.invocation.op, hold.op],
        title,
        details,
    );
}

/// Reports a wrong fence token; `other` is the holder that it fences off by mistake, if any.
fn report_fence_token(
    timeline: &Timeline<'_>,
    force_release: &ForceRelease<'_>,
    other: Option<&Hold<'_>>,
    title: String,
    explanation: &str,
    log: &mut ViolationLog,
) {
    let mut workers = vec![force_release.invocation.worker_id];
    let mut ops = vec![force_release.invocation.op];
    if let Some(hold) = other {
        workers.push(hold.worker);
        ops.push(hold.op);
    }
    log.add_violation(
        (force_release.invocation.began_at, force_release.ended_at),
        &workers,
        &ops,
        title,
        describe(timeline, force_release, explanation),
    );
}

/// Describes the force release in a sentence, followed by `explanation`.
fn describe(timeline: &Timeline<'_>, force_release: &ForceRelease<'_>, explanation: &str) -> String {
    format!(
        "{} {} {} of {:?} from {} to {}{}. {explanation} {}",
        capitalized(&format_worker(timeline, force_release.invocation.worker_id)),
        if force_release.is_graceful { "requested a release by" } else { "force-released" },
        match force_release.token {
            0 => "a waiter".to_owned(),
            token => format!("the holder with token {token}"),
        },
        force_release.lock,
        format_time(force_release.invocation.began_at),
        format_time(force_release.ended_at),
        if force_release.was_gone { "; the claim was already gone" } else { "" },
        describe_fault_at(timeline, force_release.invocation.began_at),
    )
}
