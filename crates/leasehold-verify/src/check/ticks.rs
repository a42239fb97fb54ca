//! Checks that a tick runs once, and again only if its run was lost; that a job's runs do not
//! overlap; that their tokens rise; and that they go on.

use std::collections::BTreeMap;

use super::exclusion::capital;
use super::story::{Life, Made, Story};
use super::words::{at, count, counted, fault_at, long, who};
use super::{Bench, Judged, SECOND, recovery};
use crate::history::{Call, FaultKind, Nanos, Outcome};
use crate::verdict::Promise;

struct Run<'a> {
    made: &'a Made<'a>,
    job: &'a str,
    tick: i64,
    attempt: u32,
    token: u64,
    /// Whether the job starts a tick at most once.
    once: bool,
    /// How long it certainly ran: until its end, or until its worker was stopped during the run.
    /// Equal to its beginning if it has no end.
    until: Nanos,
    /// When it was done, if it was.
    done: Option<Nanos>,
    /// Whether its worker was stopped during the run, or an eviction or release request hit it:
    /// then it may have been lost before it was done.
    asleep: bool,
}

pub(crate) fn check(story: &Story<'_>) -> Judged {
    let mut bench = Bench::new(Promise::Ticks);
    let mut jobs: BTreeMap<&str, Vec<Run<'_>>> = BTreeMap::new();
    for made in &story.calls {
        if let Call::Tick { job, tick, attempt, token, once } = made.call {
            let one = Run { once: *once, ..run(story, made, job, (*tick, *attempt, *token)) };
            jobs.entry(job).or_default().push(one);
        }
    }
    let (mut ticks, mut again) = (0, 0);
    for runs in jobs.values() {
        bench.checked += runs.len() as u64;
        apart(story, runs, &mut bench);
        in_turn(story, runs, &mut bench);
        on_and_on(story, runs, &mut bench);
        let mut by_tick: BTreeMap<i64, Vec<&Run<'_>>> = BTreeMap::new();
        for run in runs {
            by_tick.entry(run.tick).or_default().push(run);
        }
        ticks += by_tick.len() as u64;
        for runs in by_tick.values() {
            again += runs.len() as u64 - 1;
            once(story, runs, &mut bench);
        }
    }
    let figure = match bench.checked {
        0 => "no tick ran".to_owned(),
        n => format!("{}, {}, {} of them again", counted(ticks, "tick"), counted(n, "run"), count(again)),
    };
    bench.judged(figure)
}

fn run<'a>(story: &Story<'_>, made: &'a Made<'a>, job: &'a str, (tick, attempt, token): (i64, u32, u64)) -> Run<'a> {
    let end = made.end.map_or(made.begin, |(end, _)| end);
    let stood = story.life(made.worker).asleep.iter().find(|&&(from, to)| to >= made.begin && from <= end);
    let until = stood.map_or(end, |&(from, _)| end.min(from.max(made.begin)));
    let evicted = evicted(story, token, false);
    let until = evicted.map_or(until, |evicted| until.min(evicted.max(made.begin)));
    let evicted_gracefully = self::evicted(story, token, true);
    let done = made.end.and_then(|(end, outcome)| (*outcome == Outcome::Done).then_some(end));
    Run {
        made,
        job,
        tick,
        attempt,
        token,
        once: false,
        until,
        done,
        asleep: stood.is_some() || evicted.is_some() || evicted_gracefully.is_some(),
    }
}

/// When an eviction of the run with this token began, gracefully or not, if it may have taken
/// effect.
fn evicted(story: &Story<'_>, token: u64, gracefully: bool) -> Option<Nanos> {
    let evicts = |made: &&Made<'_>| {
        let nothing = matches!(made.end, Some((_, Outcome::Failed { .. } | Outcome::Evicted { gone: true, .. })));
        matches!(made.call, Call::Evict { token: other, graceful, .. } if *other == token && *graceful == gracefully)
            && !nothing
    };
    story.calls.iter().find(evicts).map(|made| made.begin)
}

/// No two runs of a job overlap.
fn apart(story: &Story<'_>, runs: &[Run<'_>], bench: &mut Bench) {
    let mut longest: Option<&Run<'_>> = None;
    // The calls are in the order of their beginnings.
    for run in runs {
        if let Some(other) = longest.filter(|other| other.until > run.made.begin && run.until > run.made.begin) {
            let title = format!("two runs of {:?} at once", run.job);
            report(story, other, run, title, bench);
        }
        if longest.is_none_or(|longest| longest.until < run.until) {
            longest = Some(run);
        }
    }
}

/// A later run has the higher token, and no earlier tick. A run whose worker was stopped, or whose
/// engine was disturbed, may begin late.
fn in_turn(story: &Story<'_>, runs: &[Run<'_>], bench: &mut Bench) {
    let (mut token, mut tick): (Option<&Run<'_>>, Option<&Run<'_>>) = (None, None);
    for run in runs {
        let late = |first: &Run<'_>| {
            // It may have been granted before the other.
            let since = first.made.begin.saturating_sub(story.header.ttl);
            let awake = story.life(run.made.worker).awake(since, run.made.begin);
            !awake || story.disturbed(first.made.begin, run.made.begin)
        };
        let higher = token.filter(|first| story.header.fencing && first.token >= run.token);
        if let Some(first) = higher.filter(|first| first.token == run.token || !late(first)) {
            let title = format!("token {} of {:?} came after {}", run.token, run.job, first.token);
            report(story, first, run, title, bench);
        } else if let Some(first) = tick.filter(|first| first.tick > run.tick && !late(first)) {
            let title = format!("tick {} of {:?} ran after tick {}", run.tick, run.job, first.tick);
            report(story, first, run, title, bench);
        }
        if token.is_none_or(|first| first.token < run.token) {
            token = Some(run);
        }
        if tick.is_none_or(|first| first.tick < run.tick) {
            tick = Some(run);
        }
    }
}

/// A tick is always due within a second: a run follows soon after another, and soon after each
/// fault.
fn on_and_on(story: &Story<'_>, runs: &[Run<'_>], bench: &mut Bench) {
    // While a clock that was set back catches up, nothing is due.
    if story.faults.iter().any(|fault| fault.kind == FaultKind::Clock) {
        return;
    }
    let end = story.workers.values().filter_map(|life| life.ended).min().unwrap_or(story.last);
    let Some(job) = runs.first().map(|run| run.job) else { return };
    // Each fault extends the bound; the extra second covers the time until the next tick is due.
    let bound = recovery::patience(story).saturating_add(SECOND);
    let first = story.workers.values().map(|life| life.started).min().unwrap_or(0);
    let points = [recovery::ready(story, first)].into_iter().chain(runs.iter().map(|run| run.made.begin));
    let nexts = runs.iter().map(|run| run.made.begin).chain([end]);
    for (from, next) in points.zip(nexts) {
        let alone = from.saturating_add(bound);
        let by = match recovery::extended(story, from, alone, None) {
            by if by > alone => by.saturating_add(SECOND),
            by => by,
        };
        let since = by.saturating_sub(bound).max(from);
        let there = |life: &Life| life.started <= since && life.ended.is_none_or(|ended| ended > by);
        if next <= by || !story.workers.values().any(|life| there(life) && life.awake(since, by)) {
            continue;
        }
        let title = format!("no tick of {job:?} for {}", long(next - from));
        let words = format!(
            "{job:?} is due every second. After {} a tick should have run by {}, and none did before {}, though somebody was there to run it. {}",
            at(from),
            at(by),
            at(next),
            fault_at(story, by)
        );
        bench.late((from, next), &[], &[], title, words);
    }
}

/// Checks the runs of one tick.
fn once(story: &Story<'_>, runs: &[&Run<'_>], bench: &mut Bench) {
    let mut attempts: BTreeMap<u32, &Run<'_>> = BTreeMap::new();
    // The first run that was certainly done and not lost.
    let mut first: Option<&Run<'_>> = None;
    for &run in runs {
        let earlier = attempts.values().next().copied().filter(|_| run.once);
        if let Some(other) = earlier {
            let title = format!("tick {} of {:?} began again, though at most once is asked for", run.tick, run.job);
            report(story, other, run, title, bench);
        } else if let Some(other) = attempts.insert(run.attempt, run).filter(|_| counts_attempts(story, run)) {
            let title = format!("try {} of tick {} of {:?} ran twice", run.attempt, run.tick, run.job);
            report(story, other, run, title, bench);
        } else if let Some(other) = first.filter(|other| settled(story, other, run)) {
            let title = format!("tick {} of {:?} ran again after it was done", run.tick, run.job);
            report(story, other, run, title, bench);
        }
        let earlier = |done: Nanos| first.and_then(|first| first.done).is_none_or(|first| done < first);
        if !run.asleep && run.done.is_some_and(earlier) {
            first = Some(run);
        }
    }
}

/// Whether no two starts of a tick may have the same attempt number. If the servers may have lost
/// data, the number of earlier starts is unknown: the run then counts as attempt 2.
fn counts_attempts(story: &Story<'_>, run: &Run<'_>) -> bool {
    let forgets = |kind: FaultKind| matches!(kind, FaultKind::Wipe | FaultKind::Failover);
    run.attempt < 2 || !story.faults.iter().any(|fault| forgets(fault.kind))
}

/// Whether the first run was done, and recorded as done when the second began, or both were done. A
/// worker that was killed within a TTL after the end of its run, or whose engine or connection was
/// disturbed then, may not have recorded the end: such a run counts as lost.
fn settled(story: &Story<'_>, first: &Run<'_>, second: &Run<'_>) -> bool {
    let Some(done) = first.done else { return false };
    let life = story.life(first.made.worker);
    let soon = done.saturating_add(story.header.ttl).min(second.made.begin.max(done));
    let could_say = life.awake(done, soon) && !story.disturbed(done, soon);
    could_say && (second.done.is_some() || done < second.made.begin)
}

fn report(story: &Story<'_>, first: &Run<'_>, second: &Run<'_>, title: String, bench: &mut Bench) {
    let say = |run: &Run<'_>| {
        let end = match run.made.end {
            Some((end, Outcome::Done)) => format!("was done at {}", at(end)),
            Some((end, _)) => format!("ended at {} without being done", at(end)),
            None => "did not end".to_owned(),
        };
        format!(
            "{} began tick {} of {:?} (try {}, token {}) at {} and {end}.",
            capital(&who(story, run.made.worker)),
            run.tick,
            run.job,
            run.attempt,
            run.token,
            at(run.made.begin)
        )
    };
    let words = format!("{} {} {}", say(first), say(second), fault_at(story, second.made.begin));
    let (from, to) = (second.made.begin, first.until.min(second.until));
    bench.broken((from, to), &[first.made.worker, second.made.worker], &[first.made.op, second.made.op], title, words);
}
