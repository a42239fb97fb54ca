//! Which promises were kept.

use serde::{Deserialize, Serialize};

use crate::history::{FaultKind, Header, Nanos, OpId, Worker};

/// A promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Promise {
    /// No two hold a lock at once whose modes forbid it.
    Exclusion,
    /// Tokens are unique, and rise in the order of the grants.
    Tokens,
    /// Who re-enters keeps its token.
    Reentry,
    /// No more permits are out than there are.
    Permits,
    /// A fenced register never accepts an old token, and is linearizable.
    Fencing,
    /// No increment is lost.
    Counter,
    /// Who was in line first is served first.
    Order,
    /// A tick runs once, again only when its run was lost.
    Ticks,
    /// A guard is never held after its deadline, and its holder is told of the loss, unasked, by then and before anybody else holds the lock. No lock
    /// is lost by a fault of servers that do not keep it.
    Loss,
    /// The lock can be had again within a bound after each fault.
    Recovery,
    /// Nothing is left behind.
    Leaks,
    /// Every call ends by its deadline and a second.
    Deadlines,
    /// Clients that a server refuses do not reconnect again and again.
    Load,
    /// An evicted holder is told soon, and fenced off; no other holder is.
    Eviction,
}

impl Promise {
    /// All of them.
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

/// What became of a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It was put to the test and held.
    Kept,
    /// It did not hold.
    Broken,
    /// Nothing in this history puts it to the test.
    Untested,
    /// It was put to the test, nothing wrong was found, and the search did not come to its end.
    Undecided,
    /// The engine does not promise it under the faults of this run: what was seen is only counted.
    Unpromised,
}

/// A promise in a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Which.
    pub promise: Promise,
    /// What became of it.
    pub state: State,
    /// How many things were checked: pairs of neighbouring holds, grants, writes, calls, …
    pub checked: u64,
    /// How many of them were wrong.
    pub broken: u64,
    /// The figure, in words: `latest 0.9 of 1,203 calls, 0.31 s after its deadline`, `at most 1.04 TTL after a kill`.
    pub figure: String,
}

/// Something that must not have happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// Which promise it breaks.
    pub promise: Promise,
    /// From when.
    pub from: Nanos,
    /// Until when; the same if it is a moment.
    pub to: Nanos,
    /// Who was in it.
    pub workers: Vec<Worker>,
    /// The calls to look at.
    pub ops: Vec<OpId>,
    /// In a line: `two held "a" for 312 ms`.
    pub title: String,
    /// What happened, in a few sentences for a person: who, when, with which token, and which fault was going on.
    pub words: String,
    /// Whether it is about how long something took.
    #[serde(default)]
    pub about_time: bool,
}

/// What happened after one fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovered {
    /// Its number.
    pub fault: u32,
    /// Which.
    pub kind: FaultKind,
    /// What it hit.
    pub target: String,
    /// From when until when it lasted.
    pub from: Nanos,
    /// `None`: to the end.
    pub to: Option<Nanos>,
    /// From when on recovery counts: its end, or its beginning for what has none.
    pub counted_from: Nanos,
    /// The first grant after that, to anybody; `None`: never.
    pub granted: Option<Nanos>,
    /// The most that it may take.
    pub bound: Nanos,
    /// Whether anybody asked for a lock after it, so that it says something.
    pub asked: bool,
    /// Whether it took too long, though those who ran had asked all the time.
    pub late: bool,
    /// From when on other servers could serve meanwhile.
    pub served: Option<Nanos>,
    /// The first grant since then that is surely none of before the fault.
    pub meanwhile: Option<Nanos>,
    /// When the last of those who ran and asked had a lock again; `None`: one of them had none, or it hit workers.
    pub everybody: Option<Nanos>,
}

impl Recovered {
    /// How long it took.
    pub fn took(&self) -> Option<Nanos> {
        self.granted.map(|granted| granted.saturating_sub(self.counted_from))
    }

    /// How long it took from its beginning until other servers granted a lock.
    pub fn took_meanwhile(&self) -> Option<Nanos> {
        self.meanwhile.map(|granted| granted.saturating_sub(self.from))
    }

    /// How long it took until everybody who asked had had one.
    pub fn took_everybody(&self) -> Option<Nanos> {
        self.everybody.map(|granted| granted.saturating_sub(self.counted_from))
    }
}

/// How many of everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Calls.
    pub calls: u64,
    /// Those that did what they say.
    pub ok: u64,
    /// Those that failed and did nothing.
    pub failed: u64,
    /// Those of which nobody knows.
    pub unknown: u64,
    /// Those that have no end: their worker was killed, or they hang.
    pub open: u64,
    /// Grants.
    pub grants: u64,
    /// Losses that a holder learned of.
    pub losses: u64,
    /// Those of holders that ran all the time, so that it was judged when they learned of it.
    #[serde(default)]
    pub told: u64,
    /// Writes that a register refused.
    pub refused: u64,
    /// Faults.
    pub faults: u64,
    /// Workers, all processes together.
    pub workers: u64,
    /// How long it lasted.
    pub lasted: Nanos,
}

/// What the second opinion says of the register's history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecondOpinion {
    /// There is no such history, or it is too long.
    None,
    /// It says so, too.
    Agrees,
    /// It says otherwise: one of the two checkers is wrong, which counts as a violation.
    Differs,
    /// It did not come to an end in time.
    Undecided,
}

/// What a history shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// What was run on what.
    pub header: Header,
    /// Whether the history is whole: it has its last line.
    pub complete: bool,
    /// Each promise.
    pub findings: Vec<Finding>,
    /// All that must not have happened, by time.
    pub violations: Vec<Violation>,
    /// How many there were; the list may be shorter.
    pub violations_in_all: u64,
    /// What took too long, where that is only reported.
    #[serde(default)]
    pub late: Vec<Violation>,
    /// What happened after each fault.
    pub recovered: Vec<Recovered>,
    /// How many of everything.
    pub counts: Counts,
    /// What porcupine says.
    pub second_opinion: SecondOpinion,
}

impl Verdict {
    /// Whether everything held.
    pub fn holds(&self) -> bool {
        self.violations_in_all == 0
    }

    /// Whether anything was granted or run: a history in which every call failed shows nothing.
    pub fn shows_something(&self) -> bool {
        let ticks = self.findings.iter().any(|finding| finding.promise == Promise::Ticks && finding.checked > 0);
        self.counts.grants > 0 || ticks
    }

    /// Whether a negative control shows what it should: one of the promises is broken that nothing else would break.
    pub fn found_out(&self) -> bool {
        let must = &self.header.must_break;
        let counts = |finding: &&Finding| must.is_empty() || must.contains(&finding.promise);
        self.findings.iter().filter(counts).any(|finding| finding.state == State::Broken)
    }

    /// Whether the run says what it should: nothing wrong; or, in a negative control, what had to be found.
    pub fn as_expected(&self) -> bool {
        let decided = self.findings.iter().all(|finding| finding.state != State::Undecided);
        let right = if self.header.guard { decided && self.holds() } else { self.found_out() };
        self.complete && self.shows_something() && right
    }
}
