//! One run of a job, as the work sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::tick::Tick;
use crate::logic::ActiveRun;
use leasehold::Guard;
use leasehold::Token;

/// One run of a job, which the job's function receives. The job's lock is held until it is dropped.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use leasehold_schedule::{self as schedule, Job};
///
/// # let locks = leasehold::Locks::open("memory:").await?;
/// let job = Job::new("mail", "* * * * * *")?;
/// schedule::run_due(&locks, job, None, None, |run| async move {
///     println!("{} at {}: token {}", run.job(), run.tick(), run.token());
///     assert!(run.attempt() == 1 && run.guard().is_held());
///     Ok::<(), std::io::Error>(())
/// }).await?;
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct Run {
    pub(super) job: Arc<str>,
    pub(super) entry: ActiveRun,
    pub(super) guard: Arc<Guard>,
    pub(super) is_interrupted: Arc<AtomicBool>,
}

impl Run {
    /// The job's name.
    pub fn job(&self) -> &str {
        &self.job
    }

    /// The nominal time that this run is for; for a manual run, the time of the request.
    pub fn tick(&self) -> Tick {
        Tick::from_unix(self.entry.tick)
    }

    /// The fencing token: higher with every run, including retries of the same tick.
    pub fn token(&self) -> Token {
        self.guard.token()
    }

    /// The attempt number of this tick, from 1; above 1 only with `Crash::Retry`.
    pub fn attempt(&self) -> u32 {
        self.entry.attempt
    }

    /// Whether it was requested manually.
    pub fn is_manual(&self) -> bool {
        self.entry.manual
    }

    /// Reports that the work was stopped before it was done, because of the lock or because this
    /// node shuts down. That is not a failure of the work. The crash policy applies even if the
    /// lock was not lost: with [`Crash::Retry`](super::Crash::Retry) another node takes the run
    /// over. The error of the work is recorded as the reason. For jobs that watch their lock
    /// themselves ([`Job::handles_loss`](super::Job::handles_loss)).
    pub fn mark_interrupted(&self) {
        self.is_interrupted.store(true, Ordering::SeqCst);
    }

    /// The guard of the job's lock: it shows whether the lock was lost.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }
}
