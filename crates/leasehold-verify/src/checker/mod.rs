//! The checker: takes a history and returns a verdict. It reads no clock and no file.
//!
//! All checks build on these facts:
//! - A holder may *rely on* a lock from its grant until the last deadline that the holder knew of.
//! - A lock is *certainly held* from its grant until its last `Held` line, or until the beginning
//!   of a release whose outcome was `Released`.
//! - An operation that ended before another began came before it. No other order is certain.
//! - A call without an end, or with an unknown outcome, may have taken effect at any time after its
//!   beginning, or never.
//!
//! | guarantee | what is checked | why it gives no false alarm |
//! |---|---|---|
//! | exclusion | per lock, of two conflicting holders, the times in which they could rely on the lock do not overlap: from the grant to the last deadline that the holder knew of, or until it began to release, was notified of the loss, was killed, or its force release began | the deadline guarantees exactly that under any fault; times that only touch do not overlap, and a re-entry is no conflict |
//! | tokens | per lock, no token twice except for re-entries; a grant that ended before another was requested has the lower token | concurrent grants may have either order |
//! | re-entry | an owner that requests the lock again while it certainly holds it, and certainly still holds it after the grant, keeps its token | a hold that may have been lost in between is left out |
//! | permits | the sum of the permits that holders can rely on never exceeds the limit | a holder can rely on them as with exclusion |
//! | fencing | each fenced register is linearizable: its operations have an order that fits their times and its rule | the search is exact; unknown writes may be placed anywhere or left out; an undecided search is no violation |
//! | fencing, unfenced registers | no write is accepted after one of a later holder of the same lock | only writes that certainly came after it count |
//! | counter | no value is written twice, each write is one more than its holder had read, and the highest value is the number of increments | refused and failed writes do not count, unknown ones only upwards |
//! | order | a waiter that was seen in the queue before another request is served before it | checked only where no fault was near and the worker ran |
//! | ticks | a tick runs again only if its run was lost, and no two runs of a job overlap | a run counts until its worker was stopped |
//! | loss | no `Held` after its deadline or after the loss; a running worker gets a notification of the loss (a check of its own does not count), by the deadline, and before another holder has the lock | a stopped worker cannot be notified; 100 ms are allowed to wake up |
//! | recovery | the lock is granted again within a bound after each fault | only where a worker waited in time and no other fault was near |
//! | leaks | no lock or waiter is left at the end | checked after all workers had ended |
//! | deadlines | every call ends within a second of its deadline | the time in which its worker did not run is added |
//! | force release | a force-released holder is notified within half a second; the returned fence token is above its own token, and below that of every remaining holder and of the next one | a stopped worker, or one whose engine was disturbed, cannot be notified |
//! | load | while a server refuses writes, each client opens at most ten connections, and ten more each second | the proxies in front of the servers count the connections |

mod availability;
mod counter;
mod deadlines;
mod exclusion;
mod force_release;
mod format;
mod leaks;
mod load;
mod loss;
mod order;
mod permits;
mod porcupine;
mod recovery;
mod reentry;
mod register;
mod ticks;
mod timeline;
mod tokens;

use crate::guarantees::{self, GuaranteeLevel};
use crate::history::{Call, Event, OpId, Outcome, OutcomeClass, RunNanos, WorkerId};
use crate::verdict::{Finding, FindingStatus, Guarantee, Totals, Verdict, Violation};
use timeline::Timeline;

/// A second, in nanoseconds.
pub(crate) const SECOND: RunNanos = 1_000_000_000;

/// A verdict describes at most this many violations; all are counted.
const MAX_DESCRIBED_VIOLATIONS: usize = 100;

/// Whether an exceeded time bound is a violation: the recovery after a fault, a call's deadline
/// plus a second, the notification of a loss or force release, the interval between ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeBounds {
    /// An exceeded time bound is a violation.
    #[default]
    Fail,
    /// An exceeded time bound is listed in [`Verdict::late`] and is no violation: the machine may
    /// be busy.
    Report,
}

/// The options of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckOptions {
    /// Whether an exceeded time bound is a violation.
    pub time_bounds: TimeBounds,
}

/// Checks a history; exceeded time bounds are violations.
pub fn check(events: &[Event]) -> Verdict {
    check_with(events, CheckOptions::default())
}

/// Checks a history with these options.
pub fn check_with(events: &[Event], options: CheckOptions) -> Verdict {
    let mut timeline = Timeline::from_events(events);
    timeline.header.exclusion =
        guarantees::assess_history(&timeline.header, Guarantee::Exclusion).level == GuaranteeLevel::Guaranteed;
    timeline.header.fencing =
        guarantees::assess_history(&timeline.header, Guarantee::Tokens).level == GuaranteeLevel::Guaranteed;
    let (recovery, recovered) = recovery::check(&timeline);
    let (fencing, second_opinion) = register::check(&timeline);
    let results = [
        exclusion::check(&timeline),
        tokens::check(&timeline),
        reentry::check(&timeline),
        permits::check(&timeline),
        fencing,
        counter::check(&timeline),
        order::check(&timeline),
        ticks::check(&timeline),
        loss::check(&timeline),
        recovery,
        leaks::check(&timeline),
        deadlines::check(&timeline),
        load::check(&timeline),
        force_release::check(&timeline),
    ];
    let (mut findings, mut violations, mut late) = (Vec::new(), Vec::new(), Vec::new());
    for mut result in results {
        if guarantees::assess_history(&timeline.header, result.finding.guarantee).level != GuaranteeLevel::Guaranteed {
            result.mark_not_guaranteed();
        }
        if options.time_bounds == TimeBounds::Report {
            late.extend(result.take_time_violations());
        }
        findings.push(result.finding);
        violations.extend(result.violations);
    }
    violations.sort_by(|a, b| (a.from, a.to, a.guarantee, &a.ops).cmp(&(b.from, b.to, b.guarantee, &b.ops)));
    let violations_in_all = violations.len() as u64;
    violations.truncate(MAX_DESCRIBED_VIOLATIONS);
    let counts = totals(&timeline);
    let complete = timeline.is_complete;
    Verdict {
        header: timeline.header,
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

/// The result of checking one guarantee.
pub(crate) struct GuaranteeResult {
    finding: Finding,
    violations: Vec<Violation>,
}

impl GuaranteeResult {
    /// Marks the guarantee as not guaranteed under this run's faults: its violations stay counted
    /// in the finding, and are removed from the verdict.
    fn mark_not_guaranteed(&mut self) {
        if self.finding.checked > 0 {
            self.finding.state = FindingStatus::NotGuaranteed;
            self.finding.figure = format!("not guaranteed under these faults; {}", self.finding.figure);
            self.violations.clear();
        }
    }

    /// Removes the violations that are only exceeded time bounds, and returns them.
    fn take_time_violations(&mut self) -> Vec<Violation> {
        let late: Vec<Violation> = self.violations.extract_if(.., |one| one.is_time_bound).collect();
        if !late.is_empty() {
            self.finding.broken -= late.len() as u64;
            self.finding.figure = format!("{}; {} over a time bound, only reported", self.finding.figure, late.len());
            if self.violations.is_empty() && self.finding.state == FindingStatus::Broken {
                self.finding.state = FindingStatus::Kept;
            }
        }
        late
    }
}

/// Collects the violations of one guarantee during its check.
pub(crate) struct ViolationLog {
    guarantee: Guarantee,
    /// How many items were checked.
    checked_count: u64,
    /// Whether a search reached its limit.
    is_undecided: bool,
    violations: Vec<Violation>,
}

impl ViolationLog {
    fn new(guarantee: Guarantee) -> Self {
        Self { guarantee, checked_count: 0, is_undecided: false, violations: Vec::new() }
    }

    /// Records a violation. `span` is its beginning and end; `description` is a few sentences.
    fn add_violation(
        &mut self,
        span: (RunNanos, RunNanos),
        workers: &[WorkerId],
        ops: &[OpId],
        title: String,
        description: String,
    ) {
        self.push(span, workers, ops, title, description, false);
    }

    /// Records an exceeded time bound, which [`TimeBounds`] may exclude from the violations. `span`
    /// is its beginning and end.
    fn add_time_violation(
        &mut self,
        span: (RunNanos, RunNanos),
        workers: &[WorkerId],
        ops: &[OpId],
        title: String,
        description: String,
    ) {
        self.push(span, workers, ops, title, description, true);
    }

    fn push(
        &mut self,
        span: (RunNanos, RunNanos),
        workers: &[WorkerId],
        ops: &[OpId],
        title: String,
        description: String,
        is_time_bound: bool,
    ) {
        let (guarantee, ops) = (self.guarantee, ops.to_vec());
        let mut workers = workers.to_vec();
        workers.sort_unstable();
        workers.dedup();
        let (from, to) = (span.0, span.1.max(span.0));
        self.violations.push(Violation {
            guarantee,
            from,
            to,
            workers,
            ops,
            title,
            details: description,
            is_time_bound,
        });
    }

    /// The number of violations recorded so far.
    fn violation_count(&self) -> u64 {
        self.violations.len() as u64
    }

    /// Ends the check. `figure` says in words what was measured.
    fn into_result(self, figure: String) -> GuaranteeResult {
        let state = match (self.violations.is_empty(), self.checked_count) {
            (false, _) => FindingStatus::Broken,
            (true, _) if self.is_undecided => FindingStatus::Undecided,
            (true, 0) => FindingStatus::Untested,
            (true, _) => FindingStatus::Kept,
        };
        let broken = self.violation_count();
        let finding = Finding { guarantee: self.guarantee, state, checked: self.checked_count, broken, figure };
        GuaranteeResult { finding, violations: self.violations }
    }
}

/// Counts the calls, grants, losses and faults of the history.
fn totals(timeline: &Timeline<'_>) -> Totals {
    let mut counts = Totals {
        calls: timeline.calls.len() as u64,
        grants: timeline.holds.len() as u64,
        losses: timeline.holds.iter().filter(|hold| hold.lost.is_some()).count() as u64,
        losses_while_running: loss::notified_losses(timeline),
        faults: timeline.faults.len() as u64,
        workers: timeline.workers.len() as u64,
        lasted: timeline.last_event_at,
        ..Totals::default()
    };
    for invocation in &timeline.calls {
        match invocation.ended.map(|(_, outcome)| outcome.class()) {
            Some(OutcomeClass::Ok) => counts.ok += 1,
            Some(OutcomeClass::Failed) => counts.failed += 1,
            Some(OutcomeClass::Unknown) => counts.unknown += 1,
            None => counts.open += 1,
        }
        if let (Call::Write { .. }, Some((_, Outcome::Refused { .. }))) = (invocation.call, invocation.ended) {
            counts.refused += 1;
        }
    }
    counts
}
