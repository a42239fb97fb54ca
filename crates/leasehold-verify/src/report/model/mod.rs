//! A history as what is drawn: lanes, lives, spans, marks, bands and flags.

mod build;
mod finish;
mod thin;

pub(crate) use build::read;
pub(crate) use thin::MOST_SPANS;

use crate::history::{Class, FaultKind, Mode, Nanos, OpId, Outcome, Worker};

/// More calls at once than this on one lane are drawn over each other.
pub(crate) const MOST_ROWS: usize = 6;

/// All that is drawn.
#[derive(Debug, Default)]
pub(crate) struct Run {
    /// When the last thing happened.
    pub(crate) end: Nanos,
    pub(crate) lanes: Vec<Lane>,
    /// The names of the locks, in the order in which they were asked for.
    pub(crate) locks: Vec<String>,
    pub(crate) lives: Vec<Life>,
    pub(crate) pauses: Vec<Pause>,
    /// By lane, row and beginning.
    pub(crate) spans: Vec<Span>,
    /// By lane, row and time.
    pub(crate) marks: Vec<Mark>,
    pub(crate) bands: Vec<Band>,
    pub(crate) flags: Vec<Flag>,
    /// How many calls are not drawn, because there are so many.
    pub(crate) left_out: u64,
}

/// Where the processes of one place are drawn, one after the other.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) name: String,
    /// How many calls go on at once, at most.
    pub(crate) rows: usize,
}

/// A process.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) worker: Worker,
    pub(crate) lane: usize,
    pub(crate) pid: Option<u32>,
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
    pub(crate) death: Death,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    /// By itself, or with the run.
    Ended,
    /// It was killed.
    Killed,
}

/// A time in which a process did not run.
#[derive(Debug)]
pub(crate) struct Pause {
    pub(crate) worker: Worker,
    pub(crate) lane: usize,
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
    /// Nobody stopped it: the machine was busy.
    pub(crate) stalled: bool,
}

/// A call for a lock and what came of it, or the run of a tick.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) op: OpId,
    pub(crate) worker: Worker,
    pub(crate) lane: usize,
    pub(crate) row: usize,
    /// Which of the locks.
    pub(crate) lock: usize,
    pub(crate) kind: Kind,
    pub(crate) owner: Option<String>,
    pub(crate) begin: Nanos,
    /// When it was seen in line.
    pub(crate) queued: Option<Nanos>,
    /// When it learned of the grant.
    pub(crate) granted: Option<Nanos>,
    pub(crate) token: Option<u64>,
    /// Until when it may have relied on its hold.
    pub(crate) sure: Nanos,
    /// Until when it had not given it back, nor learned that it is lost.
    pub(crate) to: Nanos,
    /// When all was done: the same, or when giving back ended.
    pub(crate) end: Nanos,
    /// The last deadline that was seen.
    pub(crate) deadline: Nanos,
    pub(crate) fate: Fate,
}

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Lock(Mode),
    /// The run of a tick, with the tick and the attempt.
    Tick(i64, u32),
}

/// What became of a call for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// There is no end in the history.
    Open,
    /// Its process was killed.
    Killed,
    /// Not granted: somebody else had it.
    Busy,
    /// Not granted in time.
    TimedOut,
    /// Not granted: an error.
    Failed(String),
    /// Nobody knows whether it was granted.
    Unknown(String),
    /// Given back.
    Released,
    /// Given back, nobody knows how: an error.
    ReleaseFailed(String),
    /// Lost, and it learned of it.
    Lost(String),
    /// A tick's work was done.
    Done,
}

impl Fate {
    /// Its number in the page's data.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Open => 0,
            Self::Killed => 1,
            Self::Busy => 2,
            Self::TimedOut => 3,
            Self::Failed(_) => 4,
            Self::Unknown(_) => 5,
            Self::Released => 6,
            Self::ReleaseFailed(_) => 7,
            Self::Lost(_) => 8,
            Self::Done => 9,
        }
    }

    /// The error or the reason.
    pub(crate) fn why(&self) -> &str {
        match self {
            Self::Failed(why) | Self::Unknown(why) | Self::ReleaseFailed(why) | Self::Lost(why) => why,
            _ => "",
        }
    }

    /// In words.
    pub(crate) fn words(&self) -> &'static str {
        match self {
            Self::Open => "no end",
            Self::Killed => "its process was killed",
            Self::Busy => "somebody else had it",
            Self::TimedOut => "not granted in time",
            Self::Failed(_) => "failed",
            Self::Unknown(_) => "nobody knows whether it was granted",
            Self::Released => "given back",
            Self::ReleaseFailed(_) => "giving it back failed",
            Self::Lost(_) => "lost",
            Self::Done => "done",
        }
    }
}

/// A write or a read of a register.
#[derive(Debug)]
pub(crate) struct Mark {
    pub(crate) worker: Worker,
    pub(crate) lane: usize,
    pub(crate) row: usize,
    pub(crate) from: Nanos,
    pub(crate) t: Nanos,
    pub(crate) register: String,
    pub(crate) token: Option<u64>,
    /// What was written; `None`: it is a read.
    pub(crate) wrote: Option<u64>,
    /// `None`: it has no end.
    pub(crate) outcome: Option<Outcome>,
}

impl Mark {
    /// How it looks.
    pub(crate) fn look(&self) -> Look {
        match &self.outcome {
            Some(Outcome::Refused { .. }) => Look::Refused,
            Some(outcome) if outcome.class() == Class::Ok && self.wrote.is_none() => Look::Read,
            Some(outcome) if outcome.class() == Class::Ok => Look::Accepted,
            _ => Look::Unknown,
        }
    }
}

/// How a mark looks; the numbers are those in the page's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Accepted = 0,
    Refused = 1,
    Read = 2,
    /// Failed, or nobody knows.
    Unknown = 3,
}

/// A fault.
#[derive(Debug)]
pub(crate) struct Band {
    pub(crate) fault: u32,
    pub(crate) kind: FaultKind,
    pub(crate) target: String,
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
    pub(crate) note: String,
    /// The lanes that it hits; none: it is over all of them.
    pub(crate) lanes: Vec<usize>,
}

/// A longer target is cut off in a label.
const LONGEST: usize = 32;

impl Band {
    /// What it is and what it hits, in short.
    pub(crate) fn label(&self) -> String {
        let cut = if self.target.chars().count() > LONGEST { "…" } else { "" };
        format!("{} {}{cut}", self.kind, self.target.chars().take(LONGEST).collect::<String>())
    }

    /// Its colour: what it is done to.
    pub(crate) fn class(&self) -> &'static str {
        match self.kind {
            FaultKind::Kill | FaultKind::Stop => "proc",
            FaultKind::Cut | FaultKind::LostReply | FaultKind::Delay | FaultKind::Duplicate | FaultKind::Partition => {
                "net"
            }
            FaultKind::Crash
            | FaultKind::Wipe
            | FaultKind::Failover
            | FaultKind::Leader
            | FaultKind::Clock
            | FaultKind::Ahead
            | FaultKind::Evict
            | FaultKind::DiskFull
            | FaultKind::ReadOnly
            | FaultKind::Hang
            | FaultKind::Reshard
            | FaultKind::Grow => "srv",
        }
    }
}

/// Where a violation is.
#[derive(Debug)]
pub(crate) struct Flag {
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
    /// The lanes of those who were in it; none: it is over all of them.
    pub(crate) lanes: Vec<usize>,
}
