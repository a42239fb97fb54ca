//! Checks whether the other servers serve while one is hit, and whether every worker is served
//! again, not only some.

use super::recovery::{asked_for, extended, patience};
use super::story::{Fault, Made, Story};
use super::words::{at, counted, long};
use super::{Bench, SECOND};
use crate::history::{Call, Nanos, Worker};

/// After this many grants to others per worker, a queued waiter has been passed over.
const TURNS: u64 = 4;

/// The first grant after the other servers could serve that certainly does not stem from before the
/// fault.
pub(super) fn meanwhile(story: &Story<'_>, fault: &Fault<'_>) -> Option<Nanos> {
    let served = fault.served?;
    let since = story.holds.partition_point(|hold| hold.granted <= served);
    let surely = fault.from.saturating_add(SECOND);
    let mut later = story.holds.iter().skip(since);
    later.find(|hold| hold.asked >= fault.from || hold.granted >= surely).map(|hold| hold.granted)
}

/// Other servers can serve during this fault: if it lasts long enough, a lock must be granted
/// before it ends.
pub(super) fn while_it_lasts(story: &Story<'_>, fault: &Fault<'_>, bench: &mut Bench) {
    let Some(since) = fault.served else { return };
    let bound = patience(story);
    let by = extended(story, since, since.saturating_add(bound), Some(fault.number));
    if story.last <= by || fault.to.is_some_and(|to| to <= by) {
        return;
    }
    bench.checked += 1;
    let granted = meanwhile(story, fault);
    let waits = |made: &Made<'_>| matches!(made.call, Call::Lock { .. });
    if granted.is_some_and(|granted| granted <= by) || !asked_for(story, (since, by), 3 * SECOND, waits) {
        return;
    }
    let (number, kind, target) = (fault.number, fault.kind, fault.target);
    let title = format!("no lock for more than {} while fault {number} ({kind} of {target}) went on", long(bound));
    let words = format!(
        "Fault {number} ({kind} of {target}) began at {}. Other servers could serve from {} on, so the lock was to be had by {}, and it was asked for all the time.",
        at(fault.from),
        at(since),
        at(by)
    );
    bench.late((since, granted.unwrap_or(by)), &[], &[], title, words);
}

/// When the last of the running, requesting workers had a lock again after `from`, and which
/// workers had none.
pub(super) fn everybody(story: &Story<'_>, from: Nanos) -> (Option<Nanos>, Vec<Worker>) {
    let (mut last, mut without) = (None, Vec::new());
    for (&worker, life) in &story.workers {
        let gone = |end: Option<Nanos>| end.is_some_and(|end| end <= from);
        if life.started > from || gone(life.killed) || gone(life.ended) {
            continue;
        }
        let asked = |made: &&Made<'_>| {
            made.worker == worker
                && matches!(made.call, Call::Lock { .. })
                && made.end.is_none_or(|(end, _)| end >= from)
        };
        let granted = story.holds.iter().find(|hold| hold.worker == worker && hold.granted >= from);
        match granted {
            Some(hold) => last = last.max(Some(hold.granted)),
            None if story.calls.iter().any(|made| asked(&made)) => without.push(worker),
            None => {}
        }
    }
    if without.is_empty() { (last, without) } else { (None, without) }
}

/// Reports a worker that stayed in the queue while others acquired the lock many times: a fault
/// left it behind.
pub(super) fn left_behind(story: &Story<'_>, fault: &Fault<'_>, from: Nanos, bench: &mut Bench) {
    let bound = patience(story).saturating_mul(2);
    let by = extended(story, from, from.saturating_add(bound), Some(fault.number));
    if !story.header.fair || fault.kind.hits_workers() || story.last <= by {
        return;
    }
    let half = from.saturating_add(patience(story));
    let others = story.holds.iter().filter(|hold| hold.granted > half && hold.granted <= by).count() as u64;
    if others < TURNS.saturating_mul(u64::from(story.header.lanes)) {
        return;
    }
    for worker in everybody(story, from).1 {
        let waits = |made: &Made<'_>| made.worker == worker && matches!(made.call, Call::Lock { waits: true, .. });
        if !asked_for(story, (from, by), patience(story), waits) {
            continue;
        }
        let number = fault.number;
        let title = format!("worker {worker} had no lock for {} after fault {number}", long(by - from));
        let words = format!(
            "Fault {number} ({} of {}) was over at {}. Worker {worker} waited in line for a lock from then on, and had none by {}, while there were {} of others.",
            fault.kind,
            fault.target,
            at(from),
            at(by),
            counted(others, "grant"),
        );
        bench.checked += 1;
        bench.late((from, by), &[worker], &[], title, words);
    }
}
