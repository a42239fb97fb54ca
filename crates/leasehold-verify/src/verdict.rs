//! The result of checking a history: which guarantees held, and each violation.

use serde::{Deserialize, Serialize};

use crate::history::{FaultKind, Header, OpId, RunNanos, WorkerId};

/// A guarantee that the checker tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Guarantee {
    /// No two holders with conflicting modes hold a lock at once.
    Exclusion,
    /// Fencing tokens are unique, and rise in the order of the grants.
    Tokens,
    /// An owner that re-enters its lock keeps its token.
    Reentry,
    /// Holders of a semaphore never have more permits than it has in all.
    Permits,
    /// A fenced register never accepts an old token, and is linearizable.
    Fencing,
    /// No increment of a counter in a fenced register is lost.
    Counter,
    /// The engine grants a lock to waiters in the order of their queue.
    Order,
    /// A scheduled job runs once for each tick, and again only if that run was lost.
    Ticks,
    /// A guard never reports a lock as held after its deadline. The holder is notified of a loss by
    /// then, and before another holder is granted the lock. A fault of servers that do not keep the
    /// lock does not lose it.
    Loss,
    /// After each fault the lock can be acquired again within a time bound.
    Recovery,
    /// After all workers have ended, no lock is held or awaited.
    Leaks,
    /// Every call ends at most a second after its deadline.
    Deadlines,
    /// Clients that a server refuses do not reconnect in a tight loop.
    Load,
    /// A force-released holder is notified within a time bound, and the resource refuses its writes
    /// but no other holder's.
    ForceRelease,
}

impl Guarantee {
    /// Every guarantee, in the order of the report.
    pub const ALL: [Self; 14] = [
        Self::Exclusion,
        Self::Tokens,
        Self::Reentry,
        Self::Permits,
        Self::Fencing,
        Self::Counter,
        Self::Order,
        Self::Ticks,
        Self::Loss,
        Self::Recovery,
        Self::Leaks,
        Self::Deadlines,
        Self::Load,
        Self::ForceRelease,
    ];
}

/// What a history shows about one guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingStatus {
    /// It was tested, and no violation was found.
    Kept,
    /// At least one violation was found.
    Broken,
    /// Nothing in this history tests it.
    Untested,
    /// No violation was found, but the search reached its limit before it was complete.
    Undecided,
    /// The engine does not guarantee it under this run's faults: violations are only counted.
    NotGuaranteed,
}

/// The result of testing one guarantee on a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The tested guarantee.
    pub guarantee: Guarantee,
    /// The result.
    pub state: FindingStatus,
    /// How many items were checked: holds, grants, writes or calls, depending on the guarantee.
    pub checked: u64,
    /// How many violations were found.
    pub broken: u64,
    /// What was measured, in details: `1,203 calls, the latest 310 ms after its deadline`.
    pub figure: String,
}

/// A violation of a guarantee, found in a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// The violated guarantee.
    pub guarantee: Guarantee,
    /// When the violation begins.
    pub from: RunNanos,
    /// When the violation ends; equal to `from` if it is an instant.
    pub to: RunNanos,
    /// The workers involved; may be empty.
    pub workers: Vec<WorkerId>,
    /// The numbers of the calls involved; may be empty.
    pub ops: Vec<OpId>,
    /// The violation in one line: `two held "a" for 312 ms`.
    pub title: String,
    /// The violation in a few sentences: the workers, times, tokens, and the fault that was active.
    pub details: String,
    /// Whether only a time bound was exceeded, which a busy machine can cause.
    #[serde(default)]
    pub is_time_bound: bool,
}

/// How soon the lock was granted again after one fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// The fault's number, from 1.
    pub fault: u32,
    /// The kind of the fault.
    pub kind: FaultKind,
    /// What the fault hit: `worker 3`, `the server`.
    pub target: String,
    /// When the fault began.
    pub from: RunNanos,
    /// When the fault ended; `None`: it lasted to the end of the run.
    pub to: Option<RunNanos>,
    /// The time from which recovery is measured: the end of a server or network fault, the
    /// beginning of a kill or stop of a worker.
    pub counted_from: RunNanos,
    /// The first grant after `counted_from`, to any worker; `None`: there was none.
    pub granted: Option<RunNanos>,
    /// The longest allowed time from `counted_from` to `granted`.
    pub bound: RunNanos,
    /// Whether any worker waited for a lock after the fault; without one, no grant is expected.
    pub was_requested: bool,
    /// Whether `bound` was exceeded although running workers requested the lock all the time.
    pub late: bool,
    /// When servers that were not hit could serve again during the fault; `None`: they could not,
    /// or it is not known.
    pub served: Option<RunNanos>,
    /// The first grant after `served` that was certainly made during the fault, and not just before
    /// it; `None`: there was none.
    pub granted_during_fault: Option<RunNanos>,
    /// When every running worker that requested a lock had been granted one since `counted_from`.
    /// `None`: one of them never was, or the fault hit workers.
    pub granted_to_all: Option<RunNanos>,
}

impl Recovery {
    /// The time from `counted_from` to the first grant; `None`: there was no grant.
    pub fn recovery_time(&self) -> Option<RunNanos> {
        self.granted.map(|granted| granted.saturating_sub(self.counted_from))
    }

    /// The time from the fault's beginning until servers that were not hit granted a lock; `None`:
    /// they granted none.
    pub fn time_to_grant_elsewhere(&self) -> Option<RunNanos> {
        self.granted_during_fault.map(|granted| granted.saturating_sub(self.from))
    }

    /// The time from `counted_from` until every requesting worker had a lock again; `None`: one of
    /// them never had, or the fault hit workers.
    pub fn recovery_time_of_all_workers(&self) -> Option<RunNanos> {
        self.granted_to_all.map(|granted| granted.saturating_sub(self.counted_from))
    }
}

/// How many calls, grants, losses and faults a history has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// How many calls were made.
    pub calls: u64,
    /// How many of the calls succeeded.
    pub ok: u64,
    /// How many of the calls failed without any effect.
    pub failed: u64,
    /// How many of the calls failed and may have taken effect.
    pub unknown: u64,
    /// How many of the calls have no end: their worker was killed, or they hang.
    pub open: u64,
    /// How often a lock was granted.
    pub grants: u64,
    /// How often a holder was notified that it lost its lock.
    pub losses: u64,
    /// Those of `losses` whose holder ran all the time, so that the time of its notification could
    /// be checked.
    #[serde(default)]
    pub losses_while_running: u64,
    /// How many writes a register refused because of a stale token.
    pub refused: u64,
    /// How many faults were injected.
    pub faults: u64,
    /// How many worker processes ran, including those that replaced killed ones.
    pub workers: u64,
    /// How long the run lasted, up to its last event.
    pub lasted: RunNanos,
}

/// Whether the independent checker porcupine agrees with the built-in one on the fenced registers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecondOpinion {
    /// porcupine did not run: no register was used with tokens, or the histories are too long.
    None,
    /// Both checkers come to the same result.
    Agrees,
    /// The results differ: one of the two checkers is wrong, which counts as a violation.
    Differs,
    /// One of the checkers reached its limit on a register.
    Undecided,
}

/// The result of checking a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The parameters of the run: engine, workload, faults and seed.
    pub header: Header,
    /// Whether the history has its last line, so that the run completed.
    pub complete: bool,
    /// The result for each guarantee.
    pub findings: Vec<Finding>,
    /// The first violations, ordered by time; their number is limited.
    pub violations: Vec<Violation>,
    /// The number of all violations, including those that `violations` leaves out.
    pub violations_in_all: u64,
    /// Exceeded time bounds that do not count as violations; empty unless
    /// [`TimeBounds::Report`](crate::checker::TimeBounds::Report) was chosen.
    #[serde(default)]
    pub late: Vec<Violation>,
    /// For each fault, how soon the lock was granted again.
    pub recovered: Vec<Recovery>,
    /// How many calls, grants, losses and faults the history has.
    pub counts: Totals,
    /// Whether the independent checker porcupine agrees.
    pub second_opinion: SecondOpinion,
}

impl Verdict {
    /// Whether no violation was found. Exceeded time bounds in `late` do not count.
    pub fn has_no_violations(&self) -> bool {
        self.violations_in_all == 0
    }

    /// Whether any lock was granted or any tick ran: a history without either proves nothing.
    pub fn has_evidence(&self) -> bool {
        let ticks = self.findings.iter().any(|finding| finding.guarantee == Guarantee::Ticks && finding.checked > 0);
        self.counts.grants > 0 || ticks
    }

    /// Whether the checker detected a negative control: at least one guarantee that it must break
    /// is broken.
    pub fn is_control_detected(&self) -> bool {
        let must = &self.header.must_break;
        let counts = |finding: &&Finding| must.is_empty() || must.contains(&finding.guarantee);
        self.findings.iter().filter(counts).any(|finding| finding.state == FindingStatus::Broken)
    }

    /// Whether the run passes: it is complete, has evidence, and either no violation was found or,
    /// in a negative control, the expected one was.
    pub fn is_as_expected(&self) -> bool {
        let decided = self.findings.iter().all(|finding| finding.state != FindingStatus::Undecided);
        let right = if self.header.guard { decided && self.has_no_violations() } else { self.is_control_detected() };
        self.complete && self.has_evidence() && right
    }
}
