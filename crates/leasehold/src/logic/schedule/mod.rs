//! Which tick of a job is run, skipped, queued or tried again. Pure: a record and the engine's time in, a record and an action
//! out. The protocol around it is in `schedule`.
//!
//! Every tick is judged once: the watermark is the newest that was, and whatever was chosen to run and has not begun stands in
//! the record's queue. So a tick cannot fire again, whoever looks, however late, however often.
//!
//! - [`state`]: what the record of a job says.
//! - [`mod@look`]: whether there is something to do, before the lock is asked for.
//! - [`mod@decide`]: what to do, with the lock in hand.
//! - [`seen`]: what a node remembers of the record, in case the engine does not.
//! - [`state`] also has the run of the servers in which the record was decided: in another one, what it does not mention may have been forgotten.
//! - [`ticks`]: the nominal times.

pub mod decide;
pub mod look;
pub mod seen;
pub mod state;
pub mod ticks;

#[cfg(test)]
mod decide_tests;
#[cfg(test)]
mod forget_tests;
#[cfg(test)]
mod simulation;

pub use self::decide::{Action, Decision, Note, Scene, decide};
pub use self::look::{Work, look};
pub use self::seen::Seen;
pub use self::state::{Entry, Outcome, Running, State, VERSION, Wanted};
pub use self::ticks::{Due, Ticks, due};

/// What becomes of a run whose holder died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// It is not run again: a tick begins at most once.
    AtMostOnce,
    /// It is run again, with a higher token, until it has begun this often.
    Retry {
        /// How often it may begin in all.
        attempts: u32,
    },
}

/// What becomes of ticks that nobody ran in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// They are not run.
    Skip,
    /// One run makes up for all of them: the newest missed tick, unless one that is in time runs anyway.
    Once,
    /// Each is run, in order, but only the newest of them.
    All {
        /// How many at most.
        limit: u32,
    },
}

/// What becomes of ticks that come due while a run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// They are not run.
    Skip,
    /// They are run afterwards, one after the other.
    Queue,
    /// They run beside it.
    Allow {
        /// How many runs there are at most at the same time; at most [`MOST_BESIDE`].
        max: u32,
    },
}

/// The policies of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// See [`Crash`].
    pub crash: Crash,
    /// See [`Missed`].
    pub missed: Missed,
    /// See [`Overlap`].
    pub overlap: Overlap,
    /// How many seconds late a tick may be and still be run as if in time.
    pub grace: i64,
}

/// How many ticks are looked back at, and wait, at most.
pub const MOST_TICKS: usize = 1000;

/// How many runs there may be at the same time: each stands in the record, which has at most 64 KiB.
pub const MOST_BESIDE: u32 = 64;

/// How many seconds a watermark may be ahead of the engine's clock before somebody should be told.
pub const AHEAD: i64 = 60;
