//! The checker: a history in, a verdict out. Pure: it reads no clock and no file.
//!
//! Everything rests on three kinds of certainty. A hold may be *relied on* from its grant until the last deadline that its holder knew of. It is *surely held*
//! from its grant until its last `Held` line, or until its giving back began if that answered that it was held to the end. And what ended before another thing began came before
//! it; nothing else says an order. A call without an end, or whose outcome nobody knows, may have been done at any time from its beginning
//! on, or never.
//!
//! | promise | what is checked | why it gives no false alarm |
//! |---|---|---|
//! | exclusion | per lock, no two stretches in which the holders of conflicting holds could rely on them overlap: from the grant to the last deadline that the holder knew of, or until it began to give it back, knew of the loss, was killed, or somebody began to evict it | that is what a deadline promises, whatever goes wrong; stretches that touch do not overlap, a re-entry is no conflict |
//! | tokens | per lock, no token twice but for re-entries; a grant that ended before another was asked for has the lower token | grants at the same time may have either order |
//! | re-entry | who asks again while it surely holds, and surely still holds after the grant, keeps its token | a hold that may have been lost in between is left out |
//! | permits | the sum of the permits that can be relied on never exceeds the limit | the same stretches |
//! | fencing | each fenced register is linearizable: its operations have an order that fits their times and its rule | the search is exact; unknown writes may be put anywhere or left out; what takes too long to decide is not called wrong |
//! | fencing, unfenced registers | no write is accepted after one of a later holder of the same lock | only writes that surely came after it count |
//! | counter | no two accepted writes of one value, each one more than what its hold had read, and as high as there were increments | refused and failed writes do not count, unknown ones only upwards |
//! | order | who was seen in line before another asked is served before it | only judged where no fault was near and the worker ran |
//! | ticks | a tick runs again only when its run was lost, and two runs of a job are not at once | a run counts up to where its worker was stopped |
//! | loss | no `Held` after its deadline or after the loss; a worker that ran was told of the loss unasked (a look does not count), by the deadline, and before another held the lock | a worker that did not run cannot be told, and 100 ms are allowed to wake up |
//! | recovery | the lock is granted again within a bound after each fault | only where somebody waited in time and no other fault was near |
//! | leaks | nothing is left at the end | it was looked for after all had ended |
//! | deadlines | every call ends by its deadline and a second | the time in which its worker did not run is added |
//! | eviction | an evicted holder is told within half a second; the token that the eviction answers is above its own, and below that of every holder that stays, and of the next | who did not run, or whose engine was disturbed, cannot be told |
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

/// The most violations that are kept in words; all are counted.
const KEPT: usize = 100;

/// What becomes of judgements about time: recovery, a call's deadline and a second, how soon a loss was told, whether ticks go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Time {
    /// They count as all others do.
    #[default]
    Fail,
    /// They are told, and do not count: a machine that is busy with something else is slow.
    Report,
}

/// How a history is judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judge {
    /// What becomes of judgements about time.
    pub time: Time,
}

/// Judges a history, also about time.
pub fn check(events: &[Event]) -> Verdict {
    check_as(events, Judge::default())
}

/// Judges a history.
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

/// What one promise's check says.
pub(crate) struct Judged {
    finding: Finding,
    violations: Vec<Violation>,
}

impl Judged {
    /// The engine promises nothing of it under the faults of this run: what was seen is only counted.
    fn is_only_counted(&mut self) {
        if self.finding.checked > 0 {
            self.finding.state = State::Unpromised;
            self.finding.figure = format!("not promised under these faults; {}", self.finding.figure);
            self.violations.clear();
        }
    }

    /// What is about time is told, and does not count.
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

/// What a check found, as it goes on.
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

    /// Something that must not have happened.
    fn broken(&mut self, span: (Nanos, Nanos), workers: &[Worker], ops: &[OpId], title: String, words: String) {
        self.say(span, workers, ops, title, words, false);
    }

    /// Something that took too long.
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

    /// How many were wrong.
    fn wrong(&self) -> u64 {
        self.violations.len() as u64
    }

    /// Done: kept if anything was checked and nothing is wrong.
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
