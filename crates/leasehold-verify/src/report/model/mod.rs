//! A history prepared for drawing: lanes, process lifetimes, spans of calls, register accesses,
//! faults and violations.

mod builder;
mod span_layout;
mod thinning;

pub(crate) use builder::build;
pub(crate) use thinning::MAX_SPANS;

use crate::history::{FaultKind, Mode, OpId, Outcome, OutcomeClass, RunNanos, WorkerId};

/// The maximum of rows per lane. Further concurrent calls are drawn over others on the last row.
pub(crate) const MAX_ROWS: usize = 6;

/// Everything that the timeline shows, with times and without pixel positions.
#[derive(Debug, Default)]
pub(crate) struct TimelineModel {
    /// The time of the last event.
    pub(crate) end: RunNanos,
    pub(crate) lanes: Vec<Lane>,
    /// The names of the locks, in the order of their first requests.
    pub(crate) locks: Vec<String>,
    pub(crate) lifetimes: Vec<ProcessLifetime>,
    pub(crate) pauses: Vec<Pause>,
    /// Requests for locks and runs of ticks; ordered by lane, row and beginning.
    pub(crate) spans: Vec<Span>,
    /// Accesses to registers; ordered by lane, row and time.
    pub(crate) marks: Vec<RegisterMark>,
    /// Faults, ordered by their beginning.
    pub(crate) bands: Vec<FaultBand>,
    /// Violations, in the order of the verdict.
    pub(crate) flags: Vec<ViolationMark>,
    /// How many calls are left out because there are more than [`MAX_SPANS`].
    pub(crate) omitted_calls: u64,
}

/// A horizontal lane of the timeline: the processes of one worker slot, one after the other.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) name: String,
    /// How many rows its concurrent calls need.
    pub(crate) rows: usize,
}

/// The lifetime of a worker process.
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
    /// Whether the machine was busy; `false`: the conductor stopped the process.
    pub(crate) is_stall: bool,
}

/// A request for a lock with its hold, or the run of a scheduled job's tick.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) op: OpId,
    pub(crate) worker: WorkerId,
    pub(crate) lane: usize,
    pub(crate) row: usize,
    /// The index of the lock, or of the job, in [`TimelineModel::locks`].
    pub(crate) lock: usize,
    pub(crate) kind: SpanKind,
    pub(crate) owner: Option<String>,
    pub(crate) requested_at: RunNanos,
    /// When the engine first listed the request in the lock's queue.
    pub(crate) queued_at: Option<RunNanos>,
    /// When the worker was granted the lock; `None`: never.
    pub(crate) granted_at: Option<RunNanos>,
    pub(crate) token: Option<u64>,
    /// Until when the worker could rely on the lock.
    pub(crate) relied_on_until: RunNanos,
    /// When the worker began to release the lock, or learned of its loss.
    pub(crate) held_until: RunNanos,
    /// When the release had ended; equal to `held_until` if there was none.
    pub(crate) done_at: RunNanos,
    /// The last known end of the lease; 0: never granted.
    pub(crate) deadline: RunNanos,
    pub(crate) outcome: SpanOutcome,
}

/// What a span shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpanKind {
    /// A request for a lock in this mode, and its hold.
    Lock(Mode),
    /// The run of a tick: its due time in seconds since 1970, and the number of the attempt.
    Tick(i64, u32),
}

/// How a request for a lock, or its hold, ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SpanOutcome {
    /// The history ends before it does.
    Open,
    /// Its process was killed.
    Killed,
    /// Not granted: another holder had it.
    Busy,
    /// Not granted within the timeout.
    TimedOut,
    /// Not granted because of this error.
    Failed(String),
    /// The request failed with this error, and may have been granted.
    Unknown(String),
    /// Released.
    Released,
    /// The release failed with this error.
    ReleaseFailed(String),
    /// Lost for this reason, of which the holder was notified.
    Lost(String),
    /// A tick's work was done.
    Done,
}

impl SpanOutcome {
    /// The number that stands for it in the page's data; `base.js` has the same numbers.
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

    /// The error message, or why the lock was lost; empty: there is none.
    pub(crate) fn reason(&self) -> &str {
        match self {
            Self::Failed(why) | Self::Unknown(why) | Self::ReleaseFailed(why) | Self::Lost(why) => why,
            _ => "",
        }
    }

    /// The outcome in words, without its error.
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
    /// `None`: the history has no end of the call.
    pub(crate) outcome: Option<Outcome>,
}

impl RegisterMark {
    /// How the access is drawn.
    pub(crate) fn style(&self) -> MarkStyle {
        match &self.outcome {
            Some(Outcome::Refused { .. }) => MarkStyle::Refused,
            Some(outcome) if outcome.class() == OutcomeClass::Ok && self.written.is_none() => MarkStyle::Read,
            Some(outcome) if outcome.class() == OutcomeClass::Ok => MarkStyle::Accepted,
            _ => MarkStyle::Unknown,
        }
    }
}

/// How an access to a register is drawn; the numbers are those in the page's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkStyle {
    Accepted = 0,
    Refused = 1,
    Read = 2,
    /// It failed, or its effect is unknown.
    Unknown = 3,
}

/// A fault, drawn as a band over the lanes that it hits.
#[derive(Debug)]
pub(crate) struct FaultBand {
    pub(crate) fault: u32,
    pub(crate) kind: FaultKind,
    pub(crate) target: String,
    pub(crate) from: RunNanos,
    pub(crate) to: RunNanos,
    pub(crate) note: String,
    /// The indices of the lanes that it hits; empty: it hits servers or connections, and spans all
    /// lanes.
    pub(crate) lanes: Vec<usize>,
}

/// A fault's target is truncated to this many characters in its label.
const MAX_LABEL_CHARS: usize = 32;

impl FaultBand {
    /// The label above the lanes: the kind and the target.
    pub(crate) fn label(&self) -> String {
        let cut = if self.target.chars().count() > MAX_LABEL_CHARS { "…" } else { "" };
        format!("{} {}{cut}", self.kind, self.target.chars().take(MAX_LABEL_CHARS).collect::<String>())
    }

    /// The CSS class for its colour: `proc`, `net` or `srv`, by what the fault hits.
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

/// Where a violation is drawn.
#[derive(Debug)]
pub(crate) struct ViolationMark {
    pub(crate) from: RunNanos,
    pub(crate) to: RunNanos,
    /// The lanes of the workers involved; empty: all lanes.
    pub(crate) lanes: Vec<usize>,
}
