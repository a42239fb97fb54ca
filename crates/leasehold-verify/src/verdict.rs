//! Which guarantees held.

use serde::{Deserialize, Serialize};

use crate::history::{FaultKind, Header, OpId, RunNanos, WorkerId};

/// A guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Guarantee {
    /// No two claims whose modes conflict hold a lock at once.
    Exclusion,
    /// Tokens are unique, and rise in the order of the grants.
    Tokens,
    /// A re-entering owner keeps its token.
    Reentry,
    /// Holders never have more permits than the limit.
    Permits,
    /// A fenced register never accepts an old token, and is linearizable.
    Fencing,
    /// No increment is lost.
    Counter,
    /// The engine grants a lock to waiters in the order of their queue.
    Order,
    /// A tick runs once, and runs again only if its run was lost.
    Ticks,
    /// A guard never reports a lock as held after its deadline. Its holder gets a notification of
    /// the loss by then, without a call of its own, and before anyone else holds the lock. A fault
    /// of servers that do not keep a lock does not lose it.
    Loss,
    /// The lock can be acquired again within a bound after each fault.
    Recovery,
    /// No lock or waiter is left behind.
    Leaks,
    /// Every call ends within a second of its deadline.
    Deadlines,
    /// Clients that a server refuses do not reconnect in a tight loop.
    Load,
    /// An evicted holder learns of it within a bound, and its writes are fenced off; no other
    /// holder's are.
    Eviction,
}

impl Guarantee {
    /// All guarantees.
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
        Self::Eviction,
    ];
}

/// The result for a guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingStatus {
    /// It was tested, and it held.
    Kept,
    /// It did not hold.
    Broken,
    /// This history does not test it.
    Untested,
    /// It was tested, and no violation was found before the search hit its limit.
    Undecided,
    /// The engine does not guarantee it under this run's faults: violations are only counted.
    Unpromised,
}

/// A guarantee's result in a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The guarantee.
    pub promise: Guarantee,
    /// Its result.
    pub state: FindingStatus,
    /// How many items were checked: pairs of neighbouring holds, grants, writes, calls, …
    pub checked: u64,
    /// How many of them were violations.
    pub broken: u64,
    /// The figure, in words: `1,203 calls, the latest 310 ms after its deadline`, `after kill at
    /// most 1.04 TTL`.
    pub figure: String,
}

/// A violation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// The guarantee that it breaks.
    pub promise: Guarantee,
    /// Its start.
    pub from: RunNanos,
    /// Its end; equal to the start if it is an instant.
    pub to: RunNanos,
    /// The workers involved.
    pub workers: Vec<WorkerId>,
    /// The calls involved.
    pub ops: Vec<OpId>,
    /// One line: `two held "a" for 312 ms`.
    pub title: String,
    /// A few sentences for people: who, when, with which token, and which fault was active.
    pub words: String,
    /// Whether it is an exceeded time bound.
    #[serde(default)]
    pub about_time: bool,
}

/// The recovery from one fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// The fault's number.
    pub fault: u32,
    /// Its kind.
    pub kind: FaultKind,
    /// Its target.
    pub target: String,
    /// When it began.
    pub from: RunNanos,
    /// When it ended; `None`: it lasted to the end of the run.
    pub to: Option<RunNanos>,
    /// When the recovery time starts: at the fault's end, or at its beginning if it has no end.
    pub counted_from: RunNanos,
    /// The first grant after that, to any worker; `None`: there was none.
    pub granted: Option<RunNanos>,
    /// The bound on the recovery time.
    pub bound: RunNanos,
    /// Whether any worker requested a lock after it; without a request it proves nothing.
    pub asked: bool,
    /// Whether it took too long although the running workers requested locks all the time.
    pub late: bool,
    /// When other servers could serve in the meantime.
    pub served: Option<RunNanos>,
    /// The first grant after that which certainly does not stem from before the fault.
    pub meanwhile: Option<RunNanos>,
    /// When the last of the running, requesting workers had a lock again; `None`: one of them had
    /// none, or the fault hit workers.
    pub everybody: Option<RunNanos>,
}

impl Recovery {
    /// The recovery time.
    pub fn recovery_time(&self) -> Option<RunNanos> {
        self.granted.map(|granted| granted.saturating_sub(self.counted_from))
    }

    /// The time from the fault's beginning until other servers granted a lock.
    pub fn time_to_grant_elsewhere(&self) -> Option<RunNanos> {
        self.meanwhile.map(|granted| granted.saturating_sub(self.from))
    }

    /// The recovery time until every requesting worker had a lock.
    pub fn recovery_time_of_all_workers(&self) -> Option<RunNanos> {
        self.everybody.map(|granted| granted.saturating_sub(self.counted_from))
    }
}

/// The totals of a history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// All calls.
    pub calls: u64,
    /// Calls that succeeded.
    pub ok: u64,
    /// Calls that failed without an effect.
    pub failed: u64,
    /// Calls with an unknown outcome.
    pub unknown: u64,
    /// Calls without an end: their worker was killed, or they hang.
    pub open: u64,
    /// Grants.
    pub grants: u64,
    /// Losses that a holder learned of.
    pub losses: u64,
    /// Losses of holders that ran all the time, so the time of the notification was checked.
    #[serde(default)]
    pub told: u64,
    /// Writes that a register refused.
    pub refused: u64,
    /// Faults.
    pub faults: u64,
    /// Workers, over all lanes.
    pub workers: u64,
    /// The duration of the run.
    pub lasted: RunNanos,
}

/// The second checker's result for the register's history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecondOpinion {
    /// There is no such history, or it is too long.
    None,
    /// It agrees.
    Agrees,
    /// It disagrees: one of the two checkers is wrong, which counts as a violation.
    Differs,
    /// It did not finish in time.
    Undecided,
}

/// The result of checking a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The workload and the engine.
    pub header: Header,
    /// Whether the history has its last line.
    pub complete: bool,
    /// The result for each guarantee.
    pub findings: Vec<Finding>,
    /// The violations, by time.
    pub violations: Vec<Violation>,
    /// The number of violations; the list may be shorter.
    pub violations_in_all: u64,
    /// Exceeded time bounds, if they are only reported.
    #[serde(default)]
    pub late: Vec<Violation>,
    /// The recovery from each fault.
    pub recovered: Vec<Recovery>,
    /// The totals.
    pub counts: Totals,
    /// The result of porcupine, the second checker.
    pub second_opinion: SecondOpinion,
}

impl Verdict {
    /// Whether there is no violation.
    pub fn has_no_violations(&self) -> bool {
        self.violations_in_all == 0
    }

    /// Whether anything was granted or run: a history in which every call failed proves nothing.
    pub fn has_evidence(&self) -> bool {
        let ticks = self.findings.iter().any(|finding| finding.promise == Guarantee::Ticks && finding.checked > 0);
        self.counts.grants > 0 || ticks
    }

    /// Whether a negative control was detected: one of the guarantees that it must break is broken.
    pub fn is_control_detected(&self) -> bool {
        let must = &self.header.must_break;
        let counts = |finding: &&Finding| must.is_empty() || must.contains(&finding.promise);
        self.findings.iter().filter(counts).any(|finding| finding.state == FindingStatus::Broken)
    }

    /// Whether the run ended as expected: without a violation, or, in a negative control, with the
    /// expected one.
    pub fn is_as_expected(&self) -> bool {
        let decided = self.findings.iter().all(|finding| finding.state != FindingStatus::Undecided);
        let right = if self.header.guard { decided && self.has_no_violations() } else { self.is_control_detected() };
        self.complete && self.has_evidence() && right
    }
}
