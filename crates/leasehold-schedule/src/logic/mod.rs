//! Which ticks of a job run, are skipped, are queued or are retried. Pure: a record and the
//! engine's time in, a record and an action out. The `schedule` module has the protocol around it.
//!
//! Every tick is judged once. The watermark is the newest tick that was judged; ticks that were
//! chosen to run and have not begun are in the record's queue. So a tick cannot fire twice: it does
//! not matter which node reads the record, when, and how often.
//!
//! - [`job_record`]: the content of a job's record, including the server run in which it was
//!   decided. A read in another server run may miss entries that were lost.
//! - [`mod@pending_work`]: whether there is work, before a node requests the lock.
//! - [`mod@decide`]: the decision under the lock.
//! - [`seen_state`]: the newest state of the record that a node has seen, in case the engine loses
//!   it.
//! - [`ticks`]: the nominal times.

pub mod decide;
pub mod job_record;
pub mod pending_work;
pub mod seen_state;
pub mod ticks;

#[cfg(test)]
mod data_loss_tests;
#[cfg(test)]
mod decide_tests;
#[cfg(test)]
mod simulation;

pub use self::decide::{Action, Decision, DecisionEvent, DecisionInput, decide};
pub use self::job_record::{ActiveRun, HistoryEntry, JobRecord, OperatorRequest, RECORD_FORMAT, TickOutcome};
pub use self::pending_work::{PendingWork, pending_work};
pub use self::seen_state::SeenState;
pub use self::ticks::{DueTicks, Ticks, due_ticks};

/// What happens to a run whose holder died.
///
/// ```
/// use leasehold_schedule::{Crash, Job};
///
/// // If the node dies, another one runs the tick again, up to three times in total.
/// let job = Job::new("report", "0 3 * * *")?.crash(Crash::Retry { attempts: 3 });
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The run is not repeated: a tick begins at most once.
    AtMostOnce,
    /// Another node runs the tick again with a higher token, until it has begun this many times.
    Retry {
        /// How many times a tick may begin in total, at least 1.
        attempts: u32,
    },
}

/// What happens to ticks that no node ran in time.
///
/// ```
/// use leasehold_schedule::{Job, Missed};
///
/// // After an outage, one run for all ticks that were missed.
/// let job = Job::new("report", "0 * * * *")?.missed(Missed::Once);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// Missed ticks are not run.
    Skip,
    /// One run replaces all of them: the newest missed tick, unless a tick that is in time runs
    /// anyway.
    Once,
    /// Each missed tick is run, in order, but only the newest ones.
    All {
        /// How many missed ticks are run at most, 1 to 1000.
        limit: u32,
    },
}

/// What happens to ticks that come due during a run.
///
/// ```
/// use leasehold_schedule::{Job, Overlap};
///
/// // At most two runs at a time, on any nodes.
/// let job = Job::new("import", "*/5 * * * *")?.overlap(Overlap::Allow { max: 2 });
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// Ticks that come due during a run are not run.
    Skip,
    /// Ticks that come due during a run are run after it, one after the other.
    Queue,
    /// Ticks that come due during a run are run concurrently.
    Allow {
        /// The maximum number of concurrent runs; at most [`MAX_CONCURRENT_RUNS`].
        max: u32,
    },
}

/// The policies of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What happens to a run whose holder died.
    pub crash: Crash,
    /// What happens to ticks that no node ran in time.
    pub missed: Missed,
    /// What happens to ticks that come due during a run.
    pub overlap: Overlap,
    /// How many seconds late a tick may be and still count as in time.
    pub grace: i64,
}

/// The maximum number of past ticks that one decision judges, and of queued ticks in a record.
pub const MAX_TICKS: usize = 1000;

/// The maximum number of concurrent runs: the record lists each of them and has at most 64 KiB.
pub const MAX_CONCURRENT_RUNS: u32 = 64;

/// By how many seconds a watermark may be ahead of the engine's clock before this is reported.
pub const MAX_WATERMARK_AHEAD: i64 = 60;
