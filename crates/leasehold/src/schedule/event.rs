//! What happens to a job, for whoever listens.

use std::time::Duration;

use super::tick::Tick;
use crate::logic::schedule::{Entry, Outcome, Running};

/// What happened to a job on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// This node takes part.
    Joined {
        /// The next tick, if there is any.
        next: Option<Tick>,
    },
    /// A run begins.
    Began {
        /// The run.
        run: Running,
        /// How long after its nominal time.
        late: Duration,
    },
    /// A run has ended.
    Ended {
        /// The run.
        run: Running,
        /// How.
        outcome: Outcome,
        /// What it said of its failure.
        text: String,
        /// How long it took.
        took: Duration,
        /// Whether that stands in the record. If not, another node has taken the run for dead, or will.
        entered: bool,
    },
    /// Ticks will not be run.
    Skipped(Entry),
    /// A run whose node died was found.
    Crashed {
        /// The run.
        run: Running,
        /// Whether this node runs it again.
        again: bool,
    },
    /// A run goes on elsewhere, and this node, which takes part for one tick only, does not wait for its end.
    GoesOn {
        /// The run.
        run: Running,
    },
    /// The timetable is not that of whoever decided last.
    Rescheduled {
        /// That one.
        from: String,
    },
    /// Another node with a higher token has decided meanwhile; this one does nothing.
    Stale {
        /// Our token.
        token: u64,
        /// The higher one.
        fence: u64,
    },
    /// The engine's clock shows an earlier time than the last tick that was decided: nothing is due until it has caught up.
    ClockBehind {
        /// By how much.
        by: Duration,
    },
    /// The engine failed; this node tries again.
    Trouble {
        /// What it said.
        error: String,
        /// When.
        again_in: Duration,
    },
}
