//! The events of a job.

use std::time::Duration;

use super::tick::Tick;
use crate::logic::schedule::{Entry, Outcome, Running};

/// An event of a job on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// This node has joined the job.
    Joined {
        /// The next tick, if there is one.
        next: Option<Tick>,
    },
    /// A run begins.
    Began {
        /// The run.
        run: Running,
        /// The delay after its nominal time.
        late: Duration,
    },
    /// A run has ended.
    Ended {
        /// The run.
        run: Running,
        /// The outcome.
        outcome: Outcome,
        /// The error text.
        text: String,
        /// The duration.
        took: Duration,
        /// Whether the record has this outcome. If not, another node has taken the run for dead, or
        /// will.
        entered: bool,
    },
    /// Ticks that will not run.
    Skipped(Entry),
    /// A run was found whose node died.
    Crashed {
        /// The run.
        run: Running,
        /// Whether this node runs it again.
        again: bool,
    },
    /// A run is in progress elsewhere. This node takes part for one tick only and does not wait for
    /// the end.
    GoesOn {
        /// The run.
        run: Running,
    },
    /// The schedule differs from the one of the node that decided last.
    Rescheduled {
        /// The schedule of that node.
        from: String,
    },
    /// Another node with a higher token decided meanwhile; this node does nothing.
    Stale {
        /// This node's token.
        token: u64,
        /// The higher token.
        fence: u64,
    },
    /// The engine's clock shows an earlier time than the last decided tick: nothing is due until it
    /// catches up.
    ClockBehind {
        /// The difference.
        by: Duration,
    },
    /// The engine failed; this node tries again.
    Trouble {
        /// The error message.
        error: String,
        /// The pause before the retry.
        again_in: Duration,
    },
}
