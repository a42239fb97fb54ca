//! The events of a job.

use std::time::Duration;

use super::tick::Tick;
use crate::logic::{ActiveRun, HistoryEntry, TickOutcome};

/// An event of a job on this node.
///
/// ```
/// use leasehold_schedule::{Job, JobEvent};
///
/// let job = Job::new("nightly", "0 3 * * *")?.on_event(|job, event| match event {
///     JobEvent::RunEnded { outcome, duration, .. } => {
///         println!("{}: {} after {duration:?}", job.name(), outcome.as_str());
///     }
///     JobEvent::EngineFailed { error, .. } => eprintln!("{}: {error}", job.name()),
///     _ => {}
/// });
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobEvent {
    /// This node has joined the job.
    Joined {
        /// The next tick, if there is one.
        next: Option<Tick>,
    },
    /// A run begins on this node.
    RunStarted {
        /// The run that begins.
        run: ActiveRun,
        /// How long after its tick the run begins.
        delay: Duration,
    },
    /// A run on this node has ended.
    RunEnded {
        /// The run that has ended.
        run: ActiveRun,
        /// Whether the run succeeded, or why not.
        outcome: TickOutcome,
        /// The error message of the run, shortened to 160 bytes; empty if there is none.
        text: String,
        /// How long the run took.
        duration: Duration,
        /// Whether the record has this outcome. If not, another node has recorded the run as
        /// crashed, or will.
        is_recorded: bool,
    },
    /// This node decided that ticks do not run; the entry shows the newest of them, their number
    /// and the reason.
    TicksSkipped(HistoryEntry),
    /// This node found a run whose node died.
    RunCrashed {
        /// The run that the dead node had begun.
        run: ActiveRun,
        /// Whether this node runs it again.
        will_retry: bool,
    },
    /// A run is in progress elsewhere. This node runs one tick only and does not wait for the end.
    RunInProgress {
        /// The run of the other node.
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
        /// The higher token of the node that decided meanwhile.
        newer_token: u64,
    },
    /// The engine's clock shows an earlier time than the last decided tick: no tick is due until it
    /// catches up.
    ClockBehind {
        /// How far the engine's clock is behind the last decided tick.
        by: Duration,
    },
    /// The engine failed; this node tries again.
    EngineFailed {
        /// The engine's error message.
        error: String,
        /// The pause before the retry.
        retry_in: Duration,
    },
}
