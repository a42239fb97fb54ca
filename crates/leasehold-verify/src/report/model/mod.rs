//! A history as a drawing: lanes, lives, spans, marks, bands and flags.

mod build;
mod finish;
mod thin;

pub(crate) use build::read;
pub(crate) use thin::MOST_SPANS;

use crate::history::{Class, FaultKind, Mode, Nanos, OpId, Outcome, Worker};

/// The maximum of rows per lane; further concurrent calls overlap.
pub(crate) const MOST_ROWS: usize = 6;

/// The whole drawing.
#[derive(Debug, Default)]
pub(crate) struct Run {
    /// The time of the last event.
    pub(crate) end: Nanos,
    pub(crate) lanes: Vec<Lane>,
    /// The names of the locks, in the order of their first requests.
    pub(crate) locks: Vec<String>,
    pub(crate) lives: Vec<Life>,
    pub(crate) pauses: Vec<Pause>,
    /// Ordered by lane, row and beginning.
    pub(crate) spans: Vec<Span>,
    /// Ordered by lane, row and time.
    pub(crate) marks: Vec<Mark>,
    pub(crate) bands: Vec<Band>,
    pub(crate) flags: Vec<Flag>,
    /// How many calls are omitted because there are too many.
    pub(crate) left_out: u64,
}

/// A lane shows successive processes, one after the other.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) name: String,
    /// The maximum of concurrent calls.
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
    /// It exited, or the run ended.
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
    /// It was not stopped: the machine was busy.
    pub(crate) stalled: bool,
}

/// A request for a lock and its outcome, or the run of a tick.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) op: OpId,
    pub(crate) worker: Worker,
    pub(crate) lane: usize,
    pub(crate) row: usize,
    /// The index of the lock.
    pub(crate) lock: usize,
    pub(crate) kind: Kind,
    pub(crate) owner: Option<String>,
    pub(crate) begin: Nanos,
    /// When it was seen in the queue.
    pub(crate) queued: Option<Nanos>,
    /// When it learned of the grant.
    pub(crate) granted: Option<Nanos>,
    pub(crate) token: Option<u64>,
    /// Until when it could rely on its hold.
    pub(crate) sure: Nanos,
    /// Until when it had neither released it nor learned of the loss.
    pub(crate) to: Nanos,
    /// When everything was done: the same, or the end of the release.
    pub(crate) end: Nanos,
    /// The last known deadline.
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

/// The outcome of a request for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The history has no end for it.
    Open,
    /// Its process was killed.
    Killed,
    /// Not granted: another holder had it.
    Busy,
    /// Timed out.
    TimedOut,
    /// Not granted: an error.
    Failed(String),
    /// It is unknown whether it was granted.
    Unknown(String),
    /// Released.
    Released,
    /// The release failed with an error; its effect is unknown.
    ReleaseFailed(String),
    /// Lost, and the holder learned of it.
    Lost(String),
    /// A tick's work was done.
    Done,
}

impl Fate {
    /// Its code in the page's data.
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

    /// A description in words.
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
    /// The written value; `None`: a read.
    pub(crate) wrote: Option<u64>,
    /// `None`: it has no end.
    pub(crate) outcome: Option<Outcome>,
}

impl Mark {
    /// Its appearance.
    pub(crate) fn look(&self) -> Look {
        match &self.outcome {
            Some(Outcome::Refused { .. }) => Look::Refused,
            Some(outcome) if outcome.class() == Class::Ok && self.wrote.is_none() => Look::Read,
            Some(outcome) if outcome.class() == Class::Ok => Look::Accepted,
            _ => Look::Unknown,
        }
    }
}

/// A mark's appearance; the numbers are the codes in the page's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Accepted = 0,
    Refused = 1,
    Read = 2,
    /// Failed, or unknown.
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
    /// The lanes that it hits; empty: all lanes.
    pub(crate) lanes: Vec<usize>,
}

/// A longer target is truncated in a label.
const LONGEST: usize = 32;

impl Band {
    /// The kind and the target, in short.
    pub(crate) fn label(&self) -> String {
        let cut = if self.target.chars().count() > LONGEST { "…" } else { "" };
        format!("{} {}{cut}", self.kind, self.target.chars().take(LONGEST).collect::<String>())
    }

    /// Its CSS class: its colour depends on what it hits.
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

/// The place of a violation.
#[derive(Debug)]
pub(crate) struct Flag {
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
    /// The lanes of the workers involved; empty: all lanes.
    pub(crate) lanes: Vec<usize>,
}
