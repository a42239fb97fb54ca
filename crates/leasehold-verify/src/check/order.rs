//! Checks that the engine grants a lock to waiters in the order of their queue.

use super::exclusion::capital;
use super::story::{Hold, Made, Story};
use super::words::{at, count, fault_at, who};
use super::{Bench, Judged};
use crate::history::{Call, Mode, Nanos, OpId, Outcome, Worker, Workload};
use crate::verdict::Promise;

pub(crate) fn check(story: &Story<'_>) -> Judged {
    let mut bench = Bench::new(Promise::Order);
    if story.header.workload != Workload::Queue {
        return bench.judged("nobody was seen in line".to_owned());
    }
    if !story.header.fair {
        return bench.judged("the engine does not promise it".to_owned());
    }
    let mut excused = 0;
    for holds in story.by_lock().values() {
        // Exclusive holders are granted the lock one after the other: ordered by token, or by the
        // time of the grant.
        let served = |hold: &&Hold<'_>| if story.header.fencing { hold.token } else { hold.granted };
        let alone = holds.iter().copied().filter(|hold| hold.waits && hold.mode == Mode::Exclusive);
        let mut line: Vec<&Hold<'_>> = alone.collect();
        line.sort_by_key(|hold| (served(hold), hold.granted));
        // Of the holds granted before, the one that was requested last. Holds of equal rank have no
        // order.
        let mut latest: Option<&Hold<'_>> = None;
        for group in line.chunk_by(|a, b| served(a) == served(b)) {
            for hold in group {
                let Some(queued) = hold.queued else { continue };
                bench.checked += 1;
                let Some(other) = latest.filter(|other| other.asked > queued) else { continue };
                if quiet(story, hold.worker, queued, hold.granted) {
                    let came_to = format!("was granted it at {} with token {}", at(hold.granted), hold.token);
                    report(story, (hold.worker, hold.op), (queued, hold.granted), &came_to, other, &mut bench);
                } else {
                    excused += 1;
                }
            }
            latest = group.iter().copied().chain(latest).max_by_key(|hold| hold.asked);
        }
        for waiter in story.calls.iter().filter(|made| gave_up(made, holds)) {
            let Some(queued) = waiter.queued else { continue };
            bench.checked += 1;
            let until = waiter.due.unwrap_or(Nanos::MAX).min(waiter.end.map_or(Nanos::MAX, |(end, _)| end));
            let mut later = line.iter().filter(|hold| hold.asked > queued && hold.granted < until);
            let Some(other) = later.next() else { continue };
            if quiet(story, waiter.worker, queued, other.granted) {
                let came_to = format!("waited until {} and was not granted it", at(until));
                report(story, (waiter.worker, waiter.op), (queued, until), &came_to, other, &mut bench);
            } else {
                excused += 1;
            }
        }
    }
    let mut figure = format!("{} overtaken of {}", count(bench.wrong()), count(bench.checked));
    if excused > 0 {
        figure.push_str(&format!("; {} while a fault went on", count(excused)));
    }
    if bench.checked == 0 {
        figure = "nobody was seen in line".to_owned();
    }
    bench.judged(figure)
}

/// Whether this call requested one of these locks exclusively, and timed out first.
fn gave_up(made: &Made<'_>, holds: &[&Hold<'_>]) -> bool {
    let Call::Lock { lock, mode: Mode::Exclusive, waits: true, .. } = made.call else { return false };
    matches!(made.end, Some((_, Outcome::TimedOut))) && holds.first().is_some_and(|hold| hold.lock == lock)
}

/// Whether no fault was near while it was queued, nor within a TTL before.
fn quiet(story: &Story<'_>, worker: Worker, queued: Nanos, until: Nanos) -> bool {
    let near = |from: Nanos, to: Nanos| from <= until && to.saturating_add(story.header.ttl) >= queued;
    let fault = story.faults.iter().any(|fault| near(fault.from, fault.until()));
    !fault && story.life(worker).awake(queued, until)
}

fn report(
    story: &Story<'_>,
    (worker, op): (Worker, OpId),
    (queued, until): (Nanos, Nanos),
    came_to: &str,
    other: &Hold<'_>,
    bench: &mut Bench,
) {
    let title = format!("worker {worker} was overtaken by worker {} in the line for {:?}", other.worker, other.lock);
    let words = format!(
        "{} was seen in the line for {:?} at {} and {came_to}. {} asked for it later, at {}, and was granted it before, at {} with token {}. {}",
        capital(&who(story, worker)),
        other.lock,
        at(queued),
        capital(&who(story, other.worker)),
        at(other.asked),
        at(other.granted),
        other.token,
        fault_at(story, queued),
    );
    bench.broken((queued, until), &[worker, other.worker], &[op, other.op], title, words);
}
