//! The checker: a history in, a verdict out. Pure: it reads no clock and no file.
//!
//! All checks build on three certainties:
//! - A holder may *rely on* a hold from its grant until the last deadline that the holder knew of.
//! - A lock is *certainly held* from its grant until its last `Held` line, or until the beginning
//!   of a release which answered that the lock was held until then.
//! - What ended before something else began came before it. No other order is certain.
//!
//! A call without an end, or with an unknown outcome, may have had its effect at any time from its
//! beginning on, or never.
//!
//! | guarantee | what is checked | why it gives no false alarm |
//! |---|---|---|
//! | exclusion | per lock, no two spans in which the holders of conflicting holds could rely on them overlap: from the grant to the last deadline that the holder knew of, or until it began to release, knew of the loss, was killed, or an eviction of it began | a deadline guarantees exactly that under any fault; spans that touch do not overlap, a re-entry is no conflict |
//! | tokens | per lock, no token twice except for re-entries; a grant that ended before another was requested has the lower token | concurrent grants may have either order |
//! | re-entry | an owner that requests the lock again while it certainly holds it, and certainly still holds it after the grant, keeps its token | a hold that may have been lost in between is left out |
//! | permits | the sum of the permits that can be relied on never exceeds the limit | the same spans |
//! | fencing | each fenced register is linearizable: its operations have an order that fits their times and its rule | exact search; unknown writes may be placed anywhere or left out; an undecided search is no violation |
//! | fencing, unfenced registers | no write is accepted after one of a later holder of the same lock | only writes that certainly came after it count |
//! | counter | no two accepted writes of one value, each one more than its hold had read, and as high as the number of increments | refused and failed writes do not count, unknown ones only upwards |
//! | order | a waiter that was seen in the queue before another request is served before it | checked only where no fault was near and the worker ran |
//! | ticks | a tick runs again only if its run was lost, and no two runs of a job overlap | a run counts until its worker was stopped |
//! | loss | no `Held` after its deadline or after the loss; a running worker gets a notification of the loss (a check of its own does not count), by the deadline, and before another holder has the lock | a stopped worker cannot be notified; 100 ms are allowed to wake up |
//! | recovery | the lock is granted again within a bound after each fault | only where a worker waited in time and no other fault was near |
//! | leaks | nothing is left at the end | checked after all workers had ended |
//! | deadlines | every call ends within a second of its deadline | the time in which its worker did not run is added |
//! | eviction | an evicted holder is notified within half a second; the token that the eviction returns is above its own, and below that of every holder that stays, and of the next | a stopped worker, or one whose engine was disturbed, cannot be notified |
//! | load | while a server refuses writes, each client connects a few times at first and ten times a second at most | the servers count the connections themselves |

mod counter;
mod deadlines;
mod eviction;
mod exclusion;
mod leaks;
mod load;
mod loss;
mod order;
mod permits;
mod recovery;
mod reentry;
mod register;
mod second;
mod serving;
mod story;
mod ticks;
mod tokens;
mod words;

use crate::guarantees::{self, Claim};
use crate::history::{Call, Class, Event, Nanos, OpId, Outcome, Worker};
use crate::verdict::{Counts, Finding, Promise, State, Verdict, Violation};
use story::Story;

pub(crate) const SECOND: Nanos = 1_000_000_000;

/// How many violations are described in words; all are counted.
const KEPT: usize = 100;

/// How exceeded time bounds are treated: recovery, a call's deadline plus one second, the
/// notification of a loss, the progress of ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Time {
    /// They count like all other violations.
    #[default]
    Fail,
    /// They are reported, but do not count: a busy machine is slow.
    Report,
}

/// The options of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judge {
    /// How exceeded time bounds are treated.
    pub time: Time,
}

/// Checks a history; exceeded time bounds count.
pub fn check(events: &[Event]) -> Verdict {
    check_as(events, Judge::default())
}

/// Checks a history with these options.
pub fn check_as(events: &[Event], judge: Judge) -> Verdict {
    let mut story = Story::read(events);
    story.header.exclusion = guarantees::of_history(&story.header, Promise::Exclusion).claim == Claim::Guaranteed;
    story.header.fencing = guarantees::of_history(&story.header, Promise::Tokens).claim == Claim::Guaranteed;
    let (recovery, recovered) = recovery::check(&story);
    let (fencing, second_opinion) = register::check(&story);
    let rooms = [
        exclusion::check(&story),
        tokens::check(&story),
        reentry::check(&story),
        permits::check(&story),
        fencing,
        counter::check(&story),
        order::check(&story),
        ticks::check(&story),
        loss::check(&story),
        recovery,
        leaks::check(&story),
        deadlines::check(&story),
        load::check(&story),
        eviction::check(&story),
    ];
    let (mut findings, mut violations, mut late) = (Vec::new(), Vec::new(), Vec::new());
    for mut room in rooms {
        if guarantees::of_history(&story.header, room.finding.promise).claim != Claim::Guaranteed {
            room.is_only_counted();
        }
        if judge.time == Time::Report {
            late.extend(room.is_not_about_time());
        }
        findings.push(room.finding);
        violations.extend(room.violations);
    }
    violations.sort_by(|a, b| (a.from, a.to, a.promise, &a.ops).cmp(&(b.from, b.to, b.promise, &b.ops)));
    let violations_in_all = violations.len() as u64;
    violations.truncate(KEPT);
    let counts = counts(&story);
    let complete = story.complete;
    Verdict {
        header: story.header,
        complete,
        findings,
        violations,
        violations_in_all,
        late,
        recovered,
        counts,
        second_opinion,
    }
}

/// The result of one guarantee's check.
pub(crate) struct Judged {
    finding: Finding,
    violations: Vec<Violation>,
}

impl Judged {
    /// The engine does not guarantee it under this run's faults: violations are only counted.
    fn is_only_counted(&mut self) {
        if self.finding.checked > 0 {
            self.finding.state = State::Unpromised;
            self.finding.figure = format!("not promised under these faults; {}", self.finding.figure);
            self.violations.clear();
        }
    }

    /// Exceeded time bounds are reported, but do not count.
    fn is_not_about_time(&mut self) -> Vec<Violation> {
        let late: Vec<Violation> = self.violations.extract_if(.., |one| one.about_time).collect();
        if !late.is_empty() {
            self.finding.broken -= late.len() as u64;
            self.finding.figure = format!("{}; {} about time, only reported", self.finding.figure, late.len());
            if self.violations.is_empty() && self.finding.state == State::Broken {
                self.finding.state = State::Kept;
            }
        }
        late
    }
}

/// Collects the results of a check.
pub(crate) struct Bench {
    promise: Promise,
    checked: u64,
    undecided: bool,
    violations: Vec<Violation>,
}

impl Bench {
    fn new(promise: Promise) -> Self {
        Self { promise, checked: 0, undecided: false, violations: Vec::new() }
    }

    /// Records a violation.
    fn broken(&mut self, span: (Nanos, Nanos), workers: &[Worker], ops: &[OpId], title: String, words: String) {
        self.say(span, workers, ops, title, words, false);
    }

    /// Records an exceeded time bound.
    fn late(&mut self, span: (Nanos, Nanos), workers: &[Worker], ops: &[OpId], title: String, words: String) {
        self.say(span, workers, ops, title, words, true);
    }

    fn say(
        &mut self,
        span: (Nanos, Nanos),
        workers: &[Worker],
        ops: &[OpId],
        title: String,
        words: String,
        about_time: bool,
    ) {
        let (promise, ops) = (self.promise, ops.to_vec());
        let mut workers = workers.to_vec();
        workers.sort_unstable();
        workers.dedup();
        let (from, to) = (span.0, span.1.max(span.0));
        self.violations.push(Violation { promise, from, to, workers, ops, title, words, about_time });
    }

    /// The number of violations.
    fn wrong(&self) -> u64 {
        self.violations.len() as u64
    }

    /// The result: kept if anything was checked and there is no violation.
    fn judged(self, figure: String) -> Judged {
        let state = match (self.violations.is_empty(), self.checked) {
            (false, _) => State::Broken,
            (true, _) if self.undecided => State::Undecided,
            (true, 0) => State::Untested,
            (true, _) => State::Kept,
        };
        let broken = self.wrong();
        let finding = Finding { promise: self.promise, state, checked: self.checked, broken, figure };
        Judged { finding, violations: self.violations }
    }
}

fn counts(story: &Story<'_>) -> Counts {
    let mut counts = Counts {
        calls: story.calls.len() as u64,
        grants: story.holds.len() as u64,
        losses: story.holds.iter().filter(|hold| hold.lost.is_some()).count() as u64,
        told: loss::told(story),
        faults: story.faults.len() as u64,
        workers: story.workers.len() as u64,
        lasted: story.last,
        ..Counts::default()
    };
    for made in &story.calls {
        match made.end.map(|(_, outcome)| outcome.class()) {
            Some(Class::Ok) => counts.ok += 1,
            Some(Class::Failed) => counts.failed += 1,
            Some(Class::Unknown) => counts.unknown += 1,
            None => counts.open += 1,
        }
        if let (Call::Write { .. }, Some((_, Outcome::Refused { .. }))) = (made.call, made.end) {
            counts.refused += 1;
        }
    }
    counts
}
