//! Checks a scheduled job: each tick runs once, and again only if that run was lost; runs do not
//! overlap; their tokens rise; and ticks do not stop running.

use std::collections::BTreeMap;

use super::exclusion::capitalized;
use super::format::{describe_fault_at, format_count, format_duration, format_quantity, format_time, format_worker};
use super::timeline::{Invocation, Timeline, WorkerLifetime};
use super::{GuaranteeResult, SECOND, ViolationLog, recovery};
use crate::history::{Call, FaultKind, Outcome, RunNanos};
use crate::verdict::Guarantee;

/// One run of a scheduled job for a tick.
struct TickRun<'a> {
    invocation: &'a Invocation<'a>,
    job: &'a str,
    /// The due time of the tick, in seconds since 1970.
    tick: i64,
    /// The number of this attempt at the tick, from 1.
    attempt: u32,
    token: u64,
    /// Whether the job starts a tick at most once.
    is_at_most_once: bool,
    /// The end of the time in which it certainly ran: its end, or when its worker was stopped or
    /// the run was force-released. Equal to its beginning if the history has no end of it.
    ran_until: RunNanos,
    /// When its work was done; `None`: the history does not show that.
    done_at: Option<RunNanos>,
    /// Whether its worker was stopped during the run, or the run was force-released or asked to
    /// release: then it may have been lost before it was done.
    was_interrupted: bool,
}

/// Checks the runs of every scheduled job.
pub(crate) fn check(timeline: &Timeline<'_>) -> GuaranteeResult {
    let mut log = ViolationLog::new(Guarantee::Ticks);
    let mut jobs: BTreeMap<&str, Vec<TickRun<'_>>> = BTreeMap::new();
    for invocation in &timeline.calls {
        if let Call::Tick { job, tick, attempt, token, once } = invocation.call {
            let run =
                TickRun { is_at_most_once: *once, ..tick_run(timeline, invocation, job, (*tick, *attempt, *token)) };
            jobs.entry(job).or_default().push(run);
        }
    }
    let (mut ticks, mut again) = (0, 0);
    for runs in jobs.values() {
        log.checked_count += runs.len() as u64;
        check_no_overlap(timeline, runs, &mut log);
        check_order(timeline, runs, &mut log);
        check_progress(timeline, runs, &mut log);
        let mut by_tick: BTreeMap<i64, Vec<&TickRun<'_>>> = BTreeMap::new();
        for run in runs {
            by_tick.entry(run.tick).or_default().push(run);
        }
        ticks += by_tick.len() as u64;
        for runs in by_tick.values() {
            again += runs.len() as u64 - 1;
            check_tick(timeline, runs, &mut log);
        }
    }
    let figure = match log.checked_count {
        0 => "no tick ran".to_owned(),
        n => format!(
            "{}, {}, {} of them repeated",
            format_quantity(ticks, "tick"),
            format_quantity(n, "run"),
            format_count(again)
        ),
    };
    log.into_result(figure)
}

/// Builds a run from its call; `is_at_most_once` is left `false`.
fn tick_run<'a>(
    timeline: &Timeline<'_>,
    invocation: &'a Invocation<'a>,
    job: &'a str,
    (tick, attempt, token): (i64, u32, u64),
) -> TickRun<'a> {
    let end = invocation.ended.map_or(invocation.began_at, |(end, _)| end);
    let pause = timeline
        .lifetime(invocation.worker_id)
        .pauses
        .iter()
        .find(|&&(from, to)| to >= invocation.began_at && from <= end);
    let until = pause.map_or(end, |&(from, _)| end.min(from.max(invocation.began_at)));
    let force_release = force_release_began_at(timeline, token, false);
    let until = force_release.map_or(until, |began_at| until.min(began_at.max(invocation.began_at)));
    let release_request = force_release_began_at(timeline, token, true);
    let done = invocation.ended.and_then(|(end, outcome)| (*outcome == Outcome::Done).then_some(end));
    TickRun {
        invocation,
        job,
        tick,
        attempt,
        token,
        is_at_most_once: false,
        ran_until: until,
        done_at: done,
        was_interrupted: pause.is_some() || force_release.is_some() || release_request.is_some(),
    }
}

/// When a force release of the run with this token began (or, with `is_graceful`, a release
/// request), if that may have taken effect.
fn force_release_began_at(timeline: &Timeline<'_>, token: u64, is_graceful: bool) -> Option<RunNanos> {
    let hits_run = |invocation: &&Invocation<'_>| {
        let had_no_effect =
            matches!(invocation.ended, Some((_, Outcome::Failed { .. } | Outcome::Evicted { gone: true, .. })));
        matches!(invocation.call, Call::Evict { token: other, graceful, .. } if *other == token && *graceful == is_graceful)
            && !had_no_effect
    };
    timeline.calls.iter().find(hits_run).map(|invocation| invocation.began_at)
}

/// Reports each run of a job that began while another one certainly ran.
fn check_no_overlap(timeline: &Timeline<'_>, runs: &[TickRun<'_>], log: &mut ViolationLog) {
    let mut longest: Option<&TickRun<'_>> = None;
    // The runs are in the order of their beginnings.
    for run in runs {
        if let Some(other) =
            longest.filter(|other| other.ran_until > run.invocation.began_at && run.ran_until > run.invocation.began_at)
        {
            let title = format!("two runs of {:?} at once", run.job);
            report_pair(timeline, other, run, title, log);
        }
        if longest.is_none_or(|longest| longest.ran_until < run.ran_until) {
            longest = Some(run);
        }
    }
}

/// Reports each run whose token or tick is lower than that of a run that began before it. Excused
/// is a run that may have begun late, because its worker did not run or the engine was disturbed.
fn check_order(timeline: &Timeline<'_>, runs: &[TickRun<'_>], log: &mut ViolationLog) {
    let (mut token, mut tick): (Option<&TickRun<'_>>, Option<&TickRun<'_>>) = (None, None);
    for run in runs {
        let late = |first: &TickRun<'_>| {
            // A run may begin some time after its lock was granted, so its token may be older.
            let since = first.invocation.began_at.saturating_sub(timeline.header.ttl);
            let ran = timeline.lifetime(run.invocation.worker_id).ran_throughout(since, run.invocation.began_at);
            !ran || timeline.is_engine_disturbed(first.invocation.began_at, run.invocation.began_at)
        };
        let higher = token.filter(|first| timeline.header.fencing && first.token >= run.token);
        if let Some(first) = higher.filter(|first| first.token == run.token || !late(first)) {
            let title = format!("token {} of {:?} came after {}", run.token, run.job, first.token);
            report_pair(timeline, first, run, title, log);
        } else if let Some(first) = tick.filter(|first| first.tick > run.tick && !late(first)) {
            let title = format!("tick {} of {:?} ran after tick {}", run.tick, run.job, first.tick);
            report_pair(timeline, first, run, title, log);
        }
        if token.is_none_or(|first| first.token < run.token) {
            token = Some(run);
        }
        if tick.is_none_or(|first| first.tick < run.tick) {
            tick = Some(run);
        }
    }
}

/// Reports each gap between runs that is longer than allowed: a tick is due every second, and
/// faults extend the bound.
fn check_progress(timeline: &Timeline<'_>, runs: &[TickRun<'_>], log: &mut ViolationLog) {
    // While a clock that was set back catches up, no tick is due.
    if timeline.faults.iter().any(|fault| fault.kind == FaultKind::Clock) {
        return;
    }
    let end = timeline.workers.values().filter_map(|life| life.ended_at).min().unwrap_or(timeline.last_event_at);
    let Some(job) = runs.first().map(|run| run.job) else { return };
    // Each fault extends the bound; the extra second covers the time until the next tick is due.
    let bound = recovery::recovery_bound(timeline).saturating_add(SECOND);
    let first = timeline.workers.values().map(|life| life.started_at).min().unwrap_or(0);
    let points = [recovery::earliest_available(timeline, first)]
        .into_iter()
        .chain(runs.iter().map(|run| run.invocation.began_at));
    let begin_times = runs.iter().map(|run| run.invocation.began_at).chain([end]);
    for (from, next) in points.zip(begin_times) {
        let without_faults = from.saturating_add(bound);
        let by = match recovery::extended_deadline(timeline, from, without_faults, None) {
            by if by > without_faults => by.saturating_add(SECOND),
            by => by,
        };
        let since = by.saturating_sub(bound).max(from);
        let existed = |life: &WorkerLifetime| life.started_at <= since && life.ended_at.is_none_or(|ended| ended > by);
        if next <= by || !timeline.workers.values().any(|life| existed(life) && life.ran_throughout(since, by)) {
            continue;
        }
        let title = format!("no tick of {job:?} for {}", format_duration(next - from));
        let details = format!(
            "{job:?} is due every second. After {} a tick should have run by {}, and none did before {}, although a worker was running. {}",
            format_time(from),
            format_time(by),
            format_time(next),
            describe_fault_at(timeline, by)
        );
        log.add_time_violation((from, next), &[], &[], title, details);
    }
}

/// Checks the runs of one tick: none after a completed one, and no attempt number twice.
fn check_tick(timeline: &Timeline<'_>, runs: &[&TickRun<'_>], log: &mut ViolationLog) {
    let mut attempts: BTreeMap<u32, &TickRun<'_>> = BTreeMap::new();
    // Of the runs that were certainly not lost, the one that was done first.
    let mut first: Option<&TickRun<'_>> = None;
    for &run in runs {
        let earlier = attempts.values().next().copied().filter(|_| run.is_at_most_once);
        if let Some(other) = earlier {
            let title = format!("tick {} of {:?} began again, although it is at-most-once", run.tick, run.job);
            report_pair(timeline, other, run, title, log);
        } else if let Some(other) = attempts.insert(run.attempt, run).filter(|_| has_unique_attempts(timeline, run)) {
            let title = format!("attempt {} of tick {} of {:?} ran twice", run.attempt, run.tick, run.job);
            report_pair(timeline, other, run, title, log);
        } else if let Some(other) = first.filter(|other| was_recorded_done(timeline, other, run)) {
            let title = format!("tick {} of {:?} ran again after it was done", run.tick, run.job);
            report_pair(timeline, other, run, title, log);
        }
        let earlier = |done: RunNanos| first.and_then(|first| first.done_at).is_none_or(|first| done < first);
        if !run.was_interrupted && run.done_at.is_some_and(earlier) {
            first = Some(run);
        }
    }
}

/// Whether this run's attempt number must be unique among the runs of its tick. If the servers may
/// have lost data, the number of earlier attempts is unknown, and the run then counts as attempt 2.
fn has_unique_attempts(timeline: &Timeline<'_>, run: &TickRun<'_>) -> bool {
    let loses_data = |kind: FaultKind| matches!(kind, FaultKind::Wipe | FaultKind::Failover);
    run.attempt < 2 || !timeline.faults.iter().any(|fault| loses_data(fault.kind))
}

/// Whether the second run is a violation because the first was done: the engine had recorded that
/// when the second began, or both were done. The first run counts as lost if its worker did not
/// run, or the engine was disturbed, in the TTL after its end: it may not have recorded the end.
fn was_recorded_done(timeline: &Timeline<'_>, first: &TickRun<'_>, second: &TickRun<'_>) -> bool {
    let Some(done) = first.done_at else { return false };
    let life = timeline.lifetime(first.invocation.worker_id);
    let soon = done.saturating_add(timeline.header.ttl).min(second.invocation.began_at.max(done));
    let could_record = life.ran_throughout(done, soon) && !timeline.is_engine_disturbed(done, soon);
    could_record && (second.done_at.is_some() || done < second.invocation.began_at)
}

/// Reports two runs that contradict each other, the earlier one first.
fn report_pair(
    timeline: &Timeline<'_>,
    first: &TickRun<'_>,
    second: &TickRun<'_>,
    title: String,
    log: &mut ViolationLog,
) {
    let describe = |run: &TickRun<'_>| {
        let end = match run.invocation.ended {
            Some((end, Outcome::Done)) => format!("was done at {}", format_time(end)),
            Some((end, _)) => format!("ended at {} without completing", format_time(end)),
            None => "did not end".to_owned(),
        };
        format!(
            "{} began tick {} of {:?} (attempt {}, token {}) at {} and {end}.",
            capitalized(&format_worker(timeline, run.invocation.worker_id)),
            run.tick,
            run.job,
            run.attempt,
            run.token,
            format_time(run.invocation.began_at)
        )
    };
    let details =
        format!("{} {} {}", describe(first), describe(second), describe_fault_at(timeline, second.invocation.began_at));
    let (from, to) = (second.invocation.began_at, first.ran_until.min(second.ran_until));
    log.add_violation(
        (from, to),
        &[first.invocation.worker_id, second.invocation.worker_id],
        &[first.invocation.op, second.invocation.op],
        title,
        details,
    );
}
