//! A history as a drawing: lanes, lives, spans, marks, bands and flags.

mod builder;
mod span_layout;
mod thinning;

pub(crate) use builder::build;
pub(crate) use thinning::MAX_SPANS;

use crate::history::{FaultKind, Mode, OpId, Outcome, OutcomeClass, RunNanos, WorkerId};

/// The maximum of rows per lane; further concurrent calls overlap.
pub(crate) const MAX_ROWS: usize = 6;

/// The whole drawing.
#[derive(Debug, Default)]
pub(crate) struct TimelineModel {
    /// The time of the last event.
    pub(crate) end: RunNanos,
    pub(crate) lanes: Vec<Lane>,
    /// The names of the locks, in the order of their first requests.
    pub(crate) locks: Vec<String>,
    pub(crate) lifetimes: Vec<ProcessLifetime>,
    pub(crate) pauses: Vec<Pause>,
    /// Ordered by lane, row and beginning.
    pub(crate) spans: Vec<Span>,
    /// Ordered by lane, row and time.
    pub(crate) marks: Vec<RegisterMark>,
    pub(crate) bands: Vec<FaultBand>,
    pub(crate) flags: Vec<ViolationMark>,
    /// How many calls are omitted because there are too many.
    pub(crate) omitted_calls: u64,
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
pub(crate) struct ProcessLifetime {
    pub(crate) worker: WorkerId,
    pub(crate) lane: usize,
    pub(crate) pid: Option<u32>,
    pub(crate) from: RunNanos,
    pub(crate) to: RunNanos,
    pub(crate) end: ProcessEnd,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessEnd {
    /// It exited, or the run ended.
    Exited,
    /// It was killed.
    Killed,
}

/// A time in which a process did not run.
#[derive(Debug)]
pub(crate) struct Pause {
    pub(crate) worker: WorkerId,
    pub(crate) lane: usize,
    pub(crate) from: RunNanos,
    pub(crate) to: RunNanos,
    /// It was not stopped: the machine was busy.
    pub(crate) is_stall: bool,
}

/// A request for a lock and its outcome, or the run of a tick.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) op: OpId,
    pub(crate) worker: WorkerId,
    pub(crate) lane: usize,
    pub(crate) row: usize,
    /// The index of the lock.
    pub(crate) lock: usize,
    pub(crate) kind: SpanKind,
    pub(crate) owner: Option<String>,
    pub(crate) requested_at: RunNanos,
    /// When it was seen in the queue.
    pub(crate) queued_at: Option<RunNanos>,
    /// When it learned of the grant.
    pub(crate) granted_at: Option<RunNanos>,
    pub(crate) token: Option<u64>,
    /// Until when it could rely on its hold.
    pub(crate) relied_on_until: RunNanos,
    /// Until when it had neither released it nor learned of the loss.
    pub(crate) held_until: RunNanos,
    /// When all of it was done: the same, or the end of the release.
    pub(crate) done_at: RunNanos,
    /// The last known deadline.
    pub(crate) deadline: RunNanos,
    pub(crate) outcome: SpanOutcome,
}

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpanKind {
    Lock(Mode),
    /// The run of a tick, with the tick and the attempt.
    Tick(i64, u32),
}

/// The outcome of a request for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SpanOutcome {
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

impl SpanOutcome {
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
    pub(crate) fn reason(&self) -> &str {
        match self {
            Self::Failed(why) | Self::Unknown(why) | Self::ReleaseFailed(why) | Self::Lost(why) => why,
            _ => "",
        }
    }

    /// A description in words.
    pub(crate) fn description(&self) -> &'static str {
        match self {
            Self::Open => "no end",
            Self::Killed => "its process was killed",
            Self::Busy => "held by another",
            Self::TimedOut => "not granted in time",
            Self::Failed(_) => "failed",
            Self::Unknown(_) => "unknown whether it was granted",
            Self::Released => "released",
            Self::ReleaseFailed(_) => "release failed",
            Self::Lost(_) => "lost",
            Self::Done => "done",
        }
    }
}

/// A write or a read of a register.
#[derive(Debug)]
pub(crate) struct RegisterMark {
    pub(crate) worker: WorkerId,
    pub(crate) lane: usize,
    pub(crate) row: usize,
    pub(crate) from: RunNanos,
    pub(crate) to: RunNanos,
    pub(crate) register: String,
    pub(crate) token: Option<u64>,
    /// The written value; `None`: a read.
    pub(crate) written: Option<u64>,
    /// `None`: it has no end.
    pub(crate) outcome: Option<Outcome>,
}

impl RegisterMark {
    /// Its appearance.
    pub(crate) fn style(&self) -> MarkStyle {
        match &self.outcome {
            Some(Outcome::Refused { .. }) => MarkStyle::Refused,
            Some(outcome) if outcome.class() == OutcomeClass::Ok && self.written.is_none() => MarkStyle::Read,
            Some(outcome) if outcome.class() == OutcomeClass::Ok => MarkStyle::Accepted,
            _ => MarkStyle::Unknown,
        }
    }
}

/// A mark's appearance; the numbers are the codes in the page's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkStyle {
    Accepted = 0,
    Refused = 1,
    Read = 2,
    /// Failed, or unknown.
    Unknown = 3,
}

/// A fault.
#[derive(Debug)]
pub(crate) struct FaultBand {
    pub(crate) fault: u32,
    pub(crate) kind: FaultKind,
    pub(crate) target: String,
    pub(crate) from: RunNanos,
    pub(crate) to: RunNanos,
    pub(crate) note: String,
    /// The lanes that it hits; empty: all lanes.
    pub(crate) lanes: Vec<usize>,
}

/// A longer target is truncated in a label.
const MAX_LABEL_CHARS: usize = 32;

impl FaultBand {
    /// The kind and the target, in short.
    pub(crate) fn label(&self) -> String {
        let cut = if self.target.chars().count() > MAX_LABEL_CHARS { "…" } else { "" };
        format!("{} {}{cut}", self.kind, self.target.chars().take(MAX_LABEL_CHARS).collect::<String>())
    }

    /// Its CSS class: its colour depends on its target.
    pub(crate) fn css_class(&self) -> &'static str {
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
pub(crate) struct ViolationMark {
    pub(crate) from: RunNanos,
    pub(crate) to: RunNanos,
    /// The lanes of the workers involved; empty: all lanes.
    pub(crate) lanes: Vec<usize>,
}
