//! The events of a job.

use std::time::Duration;

use super::tick::Tick;
use crate::logic::{ActiveRun, HistoryEntry, TickOutcome};

/// An event of a job on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobEvent {
    /// This node has joined the job.
    Joined {
        /// The next tick, if there is one.
        next: Option<Tick>,
    },
    /// A run begins.
    RunStarted {
        /// The run.
        run: ActiveRun,
        /// The delay after its nominal time.
        delay: Duration,
    },
    /// A run has ended.
    RunEnded {
        /// The run.
        run: ActiveRun,
        /// The outcome.
        outcome: TickOutcome,
        /// The error text.
        text: String,
        /// The duration.
        duration: Duration,
        /// Whether the record has this outcome. If not, another node has recorded the run as
        /// crashed, or will.
        is_recorded: bool,
    },
    /// Ticks that will not run.
    TicksSkipped(HistoryEntry),
    /// A run was found whose node died.
    RunCrashed {
        /// The run.
        run: ActiveRun,
        /// Whether this node runs it again.
        will_retry: bool,
    },
    /// A run is in progress elsewhere. This node runs one tick only and does not wait for the end.
    RunInProgress {
        /// The run.
        run: ActiveRun,
    },
    /// The schedule differs from the one of the node that decided last.
    ScheduleChanged {
        /// The schedule of that node.
        previous: String,
    },
    /// Another node with a higher token decided meanwhile; this node starts no run.
    Superseded {
        /// This node's token.
        token: u64,
        /// The higher token.
        newer_token: u64,
    },
    /// The engine's clock shows an earlier time than the last decided tick: no tick is due until it
    /// catches up.
    ClockBehind {
        /// The difference.
        by: Duration,
    },
    /// The engine failed; this node tries again.
    EngineFailed {
        /// The error message.
        error: String,
        /// The pause before the retry.
        retry_in: Duration,
    },
}
