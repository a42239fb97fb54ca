//! What a run has in hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::tick::Tick;
use crate::claim::Token;
use crate::guard::Guard;
use crate::logic::schedule::Running;

/// One run of a job. Whoever keeps it keeps the lock.
#[derive(Debug)]
pub struct Run {
    pub(super) job: Arc<str>,
    pub(super) entry: Running,
    pub(super) guard: Arc<Guard>,
    pub(super) interrupted: Arc<AtomicBool>,
}

impl Run {
    /// The job's name.
    pub fn job(&self) -> &str {
        &self.job
    }

    /// The nominal time that this run is for; of a run by hand the time at which it was asked for.
    pub fn tick(&self) -> Tick {
        Tick::from_unix(self.entry.tick)
    }

    /// The fencing token: higher with every run, also of the same tick.
    pub fn token(&self) -> Token {
        self.guard.token()
    }

    /// The how manyth begin of this tick, from 1; more only with `Crash::Retry`.
    pub fn attempt(&self) -> u32 {
        self.entry.attempt
    }

    /// Whether somebody asked for it by hand.
    pub fn is_manual(&self) -> bool {
        self.entry.manual
    }

    /// The work was stopped, for the lock's sake or because this node is to end, and is not done: that is no failure of its own. The crash policy
    /// decides about it, even if the lock was not lost: with [`Crash::Retry`](super::Crash::Retry) another node takes it over. What the work says is entered
    /// as the reason. For jobs that look after their lock themselves ([`Job::minds_loss`](super::Job::minds_loss)).
    pub fn interrupted(&self) {
        self.interrupted.store(true, Ordering::SeqCst);
    }

    /// The job's lock.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }
}
