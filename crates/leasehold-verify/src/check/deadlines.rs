//! Checks that every call ends within a second of its deadline.

use super::exclusion::capital;
use super::story::{Made, Story};
use super::words::{at, counted, fault_at, long, who};
use super::{Bench, Judged};
use crate::history::{Call, Nanos};
use crate::verdict::Promise;

/// How much later than its deadline a call may end.
const GRACE: Nanos = 1_000_000_000;

pub(crate) fn check(story: &Story<'_>) -> Judged {
    let mut bench = Bench::new(Promise::Deadlines);
    let mut latest: Option<(Nanos, bool)> = None;
    for made in &story.calls {
        let life = story.life(made.worker);
        let end = made.end.map(|(end, _)| end);
        // A killed worker ends no more calls; a call that was overdue by then is late all the same.
        let last = life.killed.map_or(story.last, |killed| killed.min(story.last));
        let until = end.unwrap_or(last).max(made.begin);
        let slept = life.slept(made.begin, until);
        let due = made.due.map(|due| due.saturating_add(slept));
        match (end, due) {
            (Some(end), Some(due)) => {
                bench.checked += 1;
                let late = if end >= due { (end - due, true) } else { (due - end, false) };
                let key = |(by, after): (Nanos, bool)| if after { i128::from(by) } else { -i128::from(by) };
                latest = latest.filter(|&one| key(one) >= key(late)).or(Some(late));
                if end > due.saturating_add(GRACE) {
                    report(story, made, Some((end, end - due)), &mut bench);
                }
            }
            (Some(_), None) => {}
            // The work of a tick is dropped when its lock is lost.
            (None, _) if matches!(made.call, Call::Tick { .. }) => {}
            // A worker that is stopped to the end of the history cannot end a call.
            (None, _) if life.asleep.last().is_some_and(|&(_, to)| to == Nanos::MAX) => {}
            (None, due) => {
                let overdue = due.is_some_and(|due| last > due.saturating_add(GRACE));
                if overdue || (story.complete && life.killed.is_none()) {
                    bench.checked += 1;
                    report(story, made, None, &mut bench);
                }
            }
        }
    }
    let hung = bench.violations.iter().filter(|one| one.title.ends_with("never ended")).count() as u64;
    let mut figure = match latest {
        None => "no call has a deadline".to_owned(),
        Some((by, after)) => {
            let side = if after { "after" } else { "before" };
            format!("{}, the latest {} {side} its deadline", counted(bench.checked - hung, "call"), long(by))
        }
    };
    if hung > 0 {
        figure.push_str(&format!(", {} hung", counted(hung, "call")));
    }
    bench.judged(figure)
}

fn report(story: &Story<'_>, made: &Made<'_>, ended: Option<(Nanos, Nanos)>, bench: &mut Bench) {
    let name = name(made.call);
    let due = made.due.map_or_else(String::new, |due| format!(" and was to end by {}", at(due)));
    let who = capital(&who(story, made.worker));
    let (to, title, what) = match ended {
        Some((end, late)) => {
            let title = format!("{name} ended {} after its deadline", long(late));
            (end, title, format!("It ended at {}, not counting the time in which its worker did not run.", at(end)))
        }
        None => (
            story.last,
            format!("{name} never ended"),
            format!("It had not ended at {}, the last line.", at(story.last)),
        ),
    };
    let words = format!("{who} called {name} at {}{due}. {what} {}", at(made.begin), fault_at(story, made.begin));
    // A call that should have ended and had not when the history did hangs: that is not a matter of
    // time.
    let hangs = ended.is_none() && story.complete && story.life(made.worker).killed.is_none();
    let (span, workers, ops) = ((made.begin, to), [made.worker], [made.op]);
    match hangs {
        true => bench.broken(span, &workers, &ops, title, words),
        false => bench.late(span, &workers, &ops, title, words),
    }
}

fn name(call: &Call) -> String {
    match call {
        Call::Lock { lock, .. } => format!("lock {lock:?}"),
        Call::Release { hold } => format!("the giving back of hold {hold}"),
        Call::Write { register, .. } => format!("a write to {register:?}"),
        Call::Read { register, .. } => format!("a read of {register:?}"),
        Call::Evict { lock, token, .. } => format!("the eviction of token {token} of {lock:?}"),
        Call::Tick { job, tick, .. } => format!("tick {tick} of {job:?}"),
    }
}
