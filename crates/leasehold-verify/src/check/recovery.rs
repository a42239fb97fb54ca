//! Checks that a lock can be acquired again within a bound after each fault, and that a free lock
//! can always be acquired.

use std::collections::{BTreeMap, BTreeSet};

use super::story::{Fault, Hold, Made, Story};
use super::words::{at, counted, long};
use super::{Bench, Judged, SECOND, serving};
use crate::history::{Call, Class, FaultKind, Nanos};
use crate::verdict::{Promise, Recovered};

/// A worker that requests again within this time has not given up in between.
const PAUSE: Nanos = SECOND / 2;

pub(crate) fn check(story: &Story<'_>) -> (Judged, Vec<Recovered>) {
    let mut bench = Bench::new(Promise::Recovery);
    let waits: Vec<&Made<'_>> =
        story.calls.iter().filter(|made| matches!(made.call, Call::Lock { waits: true, .. })).collect();
    let mut worst: BTreeMap<FaultKind, Nanos> = BTreeMap::new();
    let mut all = Vec::new();
    for fault in &story.faults {
        let after = After::new(story, fault);
        let mut recovered = after.recovered(story, &waits);
        if recovered.asked {
            recovered.late = after.too_late(story, &recovered);
            // No worker acquired it, and none requested it for long enough: that proves nothing.
            bench.checked += u64::from(recovered.late || recovered.granted.is_some());
            if let Some(took) = recovered.took() {
                let most = worst.entry(fault.kind).or_default();
                *most = took.max(*most);
            }
            if recovered.late {
                after.report(&recovered, &mut bench);
            }
        }
        all.push(recovered);
    }
    let faults = bench.checked;
    for fault in &story.faults {
        serving::while_it_lasts(story, fault, &mut bench);
        serving::left_behind(story, fault, bound(story, fault).1, &mut bench);
    }
    free(story, &mut bench);
    let kinds: Vec<String> =
        worst.iter().map(|(kind, took)| format!("{kind} {}", in_ttls(*took, story.header.ttl))).collect();
    let figure = match (faults, kinds.is_empty()) {
        (0, _) if bench.wrong() > 0 => "a lock that nobody had could not be had".to_owned(),
        (0, _) => "nobody waited for a lock after a fault".to_owned(),
        (n, true) => format!("{}, no grant after any", counted(n, "fault")),
        (_, false) => format!("after {}", kinds.join(", ").replacen(' ', " at most ", 1)),
    };
    (bench.judged(figure), all)
}

fn in_ttls(took: Nanos, ttl: Nanos) -> String {
    match ttl {
        0 => long(took),
        _ => {
            let hundredths = (u128::from(took) * 100 + u128::from(ttl) / 2) / u128::from(ttl);
            format!("{}.{:02} TTL", hundredths / 100, hundredths % 100)
        }
    }
}

/// How long recovered servers may take until a worker has the lock.
pub(super) fn patience(story: &Story<'_>) -> Nanos {
    story.header.ttl.saturating_mul(2).saturating_add(3 * SECOND)
}

/// When locks become available if workers start at `start`: at first servers may wait for leases
/// that they may have lost.
pub(super) fn ready(story: &Story<'_>, start: Nanos) -> Nanos {
    start.saturating_add(story.header.ttl.saturating_mul(2)).saturating_add(2 * SECOND)
}

/// The bound on the recovery time, and when it starts.
fn bound(story: &Story<'_>, fault: &Fault<'_>) -> (Nanos, Nanos) {
    let ttl = story.header.ttl;
    match fault.kind.hits_workers() {
        true => {
            let lapsed = ttl.saturating_add(ttl / 5).saturating_add(SECOND);
            // With this engine the kernel notices the end of a process, so no waiter has to wait
            // for its lease to expire.
            let at_once = fault.kind == FaultKind::Kill && story.header.engine == "file";
            let dying = fault.until().saturating_sub(fault.from);
            (if at_once { lapsed.min(dying.saturating_add((2 * SECOND).max(ttl / 2))) } else { lapsed }, fault.from)
        }
        false => (patience(story), fault.to.unwrap_or(fault.from)),
    }
}

/// The deadline for something expected since `from`: other faults in that time extend it.
pub(super) fn extended(story: &Story<'_>, from: Nanos, by: Nanos, one: Option<u32>) -> Nanos {
    let mut by = by;
    for other in story.faults.iter().filter(|other| Some(other.number) != one) {
        let (bound, counted_from) = bound(story, other);
        let settled =
            if other.to.is_none() && !story.complete { Nanos::MAX } else { counted_from.saturating_add(bound) };
        if other.from <= by && settled >= from {
            by = by.max(settled);
        }
    }
    by
}

/// Whether running workers had requested it for a while by then, since `from`: they waited, or
/// retried.
pub(super) fn asked_for(
    story: &Story<'_>,
    (from, by): (Nanos, Nanos),
    a_while: Nanos,
    concerns: impl Fn(&Made<'_>) -> bool,
) -> bool {
    // The span in which workers request the lock without a gap, by the calls so far in the order of
    // their beginnings.
    let mut asking: Option<(Nanos, Nanos)> = None;
    for made in story.calls.iter().take_while(|made| made.begin <= by).filter(|made| concerns(made)) {
        let (begin, end) = (made.begin.max(from), made.end.map_or(Nanos::MAX, |(end, _)| end));
        if end < from || !story.life(made.worker).awake(begin, end.min(by)) {
            continue;
        }
        asking = match asking {
            Some((since, until)) if begin <= until.saturating_add(PAUSE) => Some((since, until.max(end))),
            _ => Some((begin, end)),
        };
    }
    asking.is_some_and(|(since, until)| since.saturating_add(a_while) <= by && until.saturating_add(PAUSE) > by)
}

/// Checks that a free lock is granted on request, also without faults.
fn free(story: &Story<'_>, bench: &mut Bench) {
    let (ttl, bound) = (story.header.ttl, patience(story));
    let said_before = bench.violations.len();
    let mut locks = story.by_lock();
    for made in &story.calls {
        if let Call::Lock { lock, .. } = made.call {
            locks.entry(lock).or_default();
        }
    }
    for (lock, holds) in locks {
        let of = |made: &Made<'_>| matches!(made.call, Call::Lock { lock: other, .. } if other == lock);
        // Calls with an unknown outcome: they may have held the lock for a while.
        let unclear = story.calls.iter().filter(|made| of(made)).filter_map(|made| {
            let end = match made.end {
                Some((end, outcome)) if outcome.class() == Class::Unknown => end,
                Some(_) => return None,
                None => story.life(made.worker).killed.unwrap_or(Nanos::MAX),
            };
            Some((made.begin, end.saturating_add(ttl.saturating_mul(2))))
        });
        let unclear: Vec<(Nanos, Nanos)> = unclear.collect();
        let (mut last, mut since) = (0, ready(story, 0));
        let nexts = holds.iter().map(|hold| (hold.granted, last_end(hold, ttl))).chain([(story.last, 0)]);
        for (next, then) in nexts {
            let by = extended(story, since, since.saturating_add(bound), None);
            let slept = || story.workers.values().any(|life| life.slept(since, by) > 0);
            let maybe = || unclear.iter().any(|&(from, to)| from <= by && to >= since);
            // Already reported for a fault.
            let mut before = bench.violations.iter().take(said_before);
            let mut said = || before.any(|one| one.from <= next && one.from >= last);
            if next > by
                && !said()
                && !slept()
                && !maybe()
                && asked_for(story, (since, by), ttl.saturating_add(3 * SECOND), of)
            {
                let title = format!("nobody was granted {lock:?} for {}", long(next - since));
                let words = format!(
                    "Nobody can have had {lock:?} from {} on, those who asked for it ran all the time, and whatever had gone wrong was over. It was to be had by {}.",
                    at(since),
                    at(by)
                );
                bench.checked += 1;
                bench.late((since, next), &[], &[], title, words);
            }
            (last, since) = (next, since.max(then));
        }
    }
}

/// When a hold was over at the latest.
fn last_end(hold: &Hold<'_>, ttl: Nanos) -> Nanos {
    hold.gone.unwrap_or(hold.deadline.max(hold.valid).saturating_add(ttl))
}

fn lock_of<'a>(made: &Made<'a>) -> Option<&'a str> {
    if let Call::Lock { lock, .. } = made.call { Some(lock) } else { None }
}

/// What to expect after a fault.
struct After<'a> {
    fault: &'a Fault<'a>,
    counted_from: Nanos,
    bound: Nanos,
    /// The part of the bound within which a free lock must be granted.
    slack: Nanos,
    /// The locks that the workers hit by the fault held; `None`: any lock.
    locks: Option<BTreeSet<&'a str>>,
}

impl<'a> After<'a> {
    fn new(story: &'a Story<'a>, fault: &'a Fault<'a>) -> Self {
        let (bound, counted_from) = bound(story, fault);
        if !fault.kind.hits_workers() {
            return Self { fault, counted_from, bound, slack: 3 * SECOND, locks: None };
        }
        let t = fault.from;
        let held = story.holds.iter().take_while(|hold| hold.granted <= t).filter(|hold| {
            let over = hold.deadline <= t
                || hold.release.is_some_and(|release| release <= t)
                || hold.lost.is_some_and(|(lost, _)| lost <= t);
            // Stopped so briefly that it kept the lock.
            let kept = fault.kind == FaultKind::Stop && fault.to.is_some_and(|to| hold.until >= to);
            fault.workers.contains(&hold.worker) && !over && !kept
        });
        let locks = held.map(|hold| hold.lock).collect();
        Self { fault, counted_from, bound, slack: SECOND, locks: Some(locks) }
    }

    /// Whether this call requests a lock that should be free again.
    fn concerns(&self, made: &Made<'_>) -> bool {
        let Call::Lock { lock, .. } = made.call else { return false };
        match &self.locks {
            Some(locks) => locks.contains(lock.as_str()) && !self.fault.workers.contains(&made.worker),
            None => true,
        }
    }

    fn recovered(&self, story: &Story<'_>, waits: &[&Made<'_>]) -> Recovered {
        // A lock that one worker holds all the time without waiters proves nothing about the
        // others.
        let waited: BTreeSet<&str> = waits.iter().filter_map(|made| lock_of(made)).collect();
        let open = |made: &&&Made<'_>| made.end.is_none_or(|(end, _)| end >= self.counted_from) && self.concerns(made);
        let asked = waits.iter().any(|made| open(&made));
        let first = story.holds.partition_point(|hold| hold.granted < self.counted_from);
        let granted = story.holds.iter().skip(first).find(|hold| match &self.locks {
            Some(locks) => locks.contains(hold.lock) && !self.fault.workers.contains(&hold.worker),
            None => !asked || waited.contains(hold.lock),
        });
        Recovered {
            fault: self.fault.number,
            kind: self.fault.kind,
            target: self.fault.target.to_owned(),
            from: self.fault.from,
            to: self.fault.to,
            counted_from: self.counted_from,
            granted: granted.map(|hold| hold.granted),
            bound: match self.by(story) {
                Nanos::MAX => self.bound,
                by => by.saturating_sub(self.counted_from),
            },
            asked,
            late: false,
            served: self.fault.served,
            meanwhile: serving::meanwhile(story, self.fault),
            everybody: serving::everybody(story, self.counted_from).0.filter(|_| self.locks.is_none()),
        }
    }

    /// The deadline for a grant: other faults in that time extend it, and so do holds that were there
    /// beside those of the workers that the fault hit (shared, or with permits left).
    fn by(&self, story: &Story<'_>) -> Nanos {
        let from = self.counted_from;
        let by = extended(story, from, from.saturating_add(self.bound), Some(self.fault.number));
        let Some(locks) = &self.locks else { return by };
        let beside = story
            .holds
            .iter()
            .take_while(|hold| hold.granted <= from)
            .filter(|hold| locks.contains(hold.lock) && !self.fault.workers.contains(&hold.worker));
        let ends = beside.map(|hold| last_end(hold, story.header.ttl).saturating_add(self.slack));
        ends.fold(by, Nanos::max)
    }

    /// Whether it was not granted by then, although running workers had requested it for a while.
    fn too_late(&self, story: &Story<'_>, recovered: &Recovered) -> bool {
        let by = self.by(story);
        // In a history that was cut short, a fault without an end goes on.
        let over = self.locks.is_some() || self.fault.to.is_some() || story.complete;
        if !over || story.last <= by || recovered.granted.is_some_and(|granted| granted <= by) {
            return false;
        }
        asked_for(story, (self.counted_from, by), self.slack, |made| self.concerns(made))
    }

    fn report(&self, recovered: &Recovered, bench: &mut Bench) {
        let (number, kind, target) = (self.fault.number, self.fault.kind, self.fault.target);
        let by = self.counted_from.saturating_add(recovered.bound);
        let (took, then) = match recovered.granted {
            Some(granted) => (
                long(granted.saturating_sub(self.counted_from)),
                format!("The first grant after it was at {}.", at(granted)),
            ),
            None => (format!("more than {}", long(recovered.bound)), "There was no grant after it.".to_owned()),
        };
        let title = format!("no lock for {took} after fault {number} ({kind} of {target})");
        let words = format!(
            "Fault {number} ({kind} of {target}) began at {}, and recovery counts from {}. The lock was to be had again by {}, and somebody waited \
             for it. {then}",
            at(self.fault.from),
            at(self.counted_from),
            at(by),
        );
        let to = recovered.granted.unwrap_or(by);
        bench.late((self.counted_from, to), self.fault.workers, &[], title, words);
    }
}
