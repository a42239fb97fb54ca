//! Checks that every call ends at most a second after its deadline.

use super::exclusion::capitalized;
use super::format::{describe_fault_at, format_duration, format_quantity, format_time, format_worker};
use super::timeline::{Invocation, Timeline};
use super::{GuaranteeResult, ViolationLog};
use crate::history::{Call, RunNanos};
use crate::verdict::Guarantee;

/// How much later than its deadline a call may end.
const DEADLINE_GRACE: RunNanos = 1_000_000_000;

/// Checks every call against its deadline.
pub(crate) fn check(timeline: &Timeline<'_>) -> GuaranteeResult {
    let mut log = ViolationLog::new(Guarantee::Deadlines);
    // The latest end of a call: its distance to the deadline, and whether it is after it.
    let mut latest: Option<(RunNanos, bool)> = None;
    for invocation in &timeline.calls {
        let life = timeline.lifetime(invocation.worker_id);
        let end = invocation.ended.map(|(end, _)| end);
        // A killed worker ends no more calls. A call that was overdue when the worker was killed
        // counts as late.
        let last = life.killed_at.map_or(timeline.last_event_at, |killed| killed.min(timeline.last_event_at));
        let until = end.unwrap_or(last).max(invocation.began_at);
        let paused = life.paused_time(invocation.began_at, until);
        let due = invocation.deadline.map(|due| due.saturating_add(paused));
        match (end, due) {
            (Some(end), Some(due)) => {
                log.checked_count += 1;
                let late = if end >= due { (end - due, true) } else { (due - end, false) };
                let key = |(by, after): (RunNanos, bool)| if after { i128::from(by) } else { -i128::from(by) };
                latest = latest.filter(|&one| key(one) >= key(late)).or(Some(late));
                if end > due.saturating_add(DEADLINE_GRACE) {
                    report_late_call(timeline, invocation, Some((end, end - due)), &mut log);
                }
            }
            (Some(_), None) => {}
            // The work of a tick is cancelled when its lock is lost, so it needs no end.
            (None, _) if matches!(invocation.call, Call::Tick { .. }) => {}
            // A worker that is stopped to the end of the history cannot end a call.
            (None, _) if life.pauses.last().is_some_and(|&(_, to)| to == RunNanos::MAX) => {}
            (None, due) => {
                let overdue = due.is_some_and(|due| last > due.saturating_add(DEADLINE_GRACE));
                if overdue || (timeline.is_complete && life.killed_at.is_none()) {
                    log.checked_count += 1;
                    report_late_call(timeline, invocation, None, &mut log);
                }
            }
        }
    }
    let hung = log.violations.iter().filter(|one| one.title.ends_with("never ended")).count() as u64;
    let mut figure = match latest {
        None => "no call has a deadline".to_owned(),
        Some((by, after)) => {
            let side = if after { "after" } else { "before" };
            format!(
                "{}, the latest {} {side} its deadline",
                format_quantity(log.checked_count - hung, "call"),
                format_duration(by)
            )
        }
    };
    if hung > 0 {
        figure.push_str(&format!(", {} hung", format_quantity(hung, "call")));
    }
    log.into_result(figure)
}

/// Reports a call that ended late or never. `end_and_delay` is when it ended, and how much after
/// its deadline; `None`: it never ended.
fn report_late_call(
    timeline: &Timeline<'_>,
    invocation: &Invocation<'_>,
    end_and_delay: Option<(RunNanos, RunNanos)>,
    log: &mut ViolationLog,
) {
    let name = call_name(invocation.call);
    let due = invocation.deadline.map_or_else(String::new, |due| format!(" with the deadline {}", format_time(due)));
    let worker = capitalized(&format_worker(timeline, invocation.worker_id));
    let (to, title, what) = match end_and_delay {
        Some((end, late)) => {
            let title = format!("{name} ended {} after its deadline", format_duration(late));
            (
                end,
                title,
                format!("It ended at {}. Times in which its worker did not run do not count.", format_time(end)),
            )
        }
        None => (
            timeline.last_event_at,
            format!("{name} never ended"),
            format!("It had not ended at {}, the end of the history.", format_time(timeline.last_event_at)),
        ),
    };
    let details = format!(
        "{worker} called {name} at {}{due}. {what} {}",
        format_time(invocation.began_at),
        describe_fault_at(timeline, invocation.began_at)
    );
    // A call that had not ended when the history did hangs. That is not an exceeded time bound.
    let hangs =
        end_and_delay.is_none() && timeline.is_complete && timeline.lifetime(invocation.worker_id).killed_at.is_none();
    let (span, workers, ops) = ((invocation.began_at, to), [invocation.worker_id], [invocation.op]);
    match hangs {
        true => log.add_violation(span, &workers, &ops, title, details),
        false => log.add_time_violation(span, &workers, &ops, title, details),
    }
}

/// What was called, in words.
fn call_name(call: &Call) -> String {
    match call {
        Call::Lock { lock, .. } => format!("lock {lock:?}"),
        Call::Release { hold } => format!("the release of hold {hold}"),
        Call::Write { register, .. } => format!("a write to {register:?}"),
        Call::Read { register, .. } => format!("a read of {register:?}"),
        Call::Evict { lock, token, .. } => format!("the force release of token {token} of {lock:?}"),
        Call::Tick { job, tick, .. } => format!("tick {tick} of {job:?}"),
    }
}
