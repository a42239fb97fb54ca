//! What the conductor knows during a run: the history so far, the holders, and the progress.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold::clock::Clock;

use crate::history::{self, Call, Event, OpId, Outcome, RunNanos, WorkerId, WorkerState};

/// How many of the last events of a hanging worker its error message shows.
const MAX_LAST_LINES: usize = 6;

/// How far a run is, for a progress line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The time since the run's start.
    pub elapsed: RunNanos,
    /// How many calls have begun.
    pub calls: u64,
    /// How many locks were granted.
    pub grants: u64,
    /// How many runs of a scheduled job have begun.
    pub ticks: u64,
    /// How many losses holders were notified of.
    pub losses: u64,
    /// How many faults have ended.
    pub finished_faults: usize,
    /// What the conductor does now, in words: `fault 2 of 5: kill`.
    pub activity: String,
}

/// What follows from the events so far: the progress to show, who holds a lock or runs a tick, and
/// which workers run.
#[derive(Debug, Default)]
struct RunStateInner {
    progress: Progress,
    /// The calls that hold a lock now, or run a tick, with their workers.
    held_locks: HashMap<OpId, WorkerId>,
    /// The requests for anchor locks, which a lane holds during the whole run. A worker that holds
    /// only those does not count as a holder.
    anchor_calls: HashSet<OpId>,
    /// The last tick's run of each worker. A lost run has no end event, and is over when the next
    /// one begins.
    last_ticks: HashMap<WorkerId, OpId>,
    running_workers: Vec<WorkerId>,
    events: Vec<Event>,
    write_error: Option<String>,
}

/// The history of a run so far, and what follows from it.
#[derive(Debug)]
pub(super) struct RunState {
    clock: Clock,
    /// When the run started, on the machine's clock.
    pub(super) origin: RunNanos,
    file: Option<Mutex<File>>,
    inner: Mutex<RunStateInner>,
}

impl RunState {
    /// Starts the run's clock. `None`: the history is not written to a file.
    pub(super) fn new(file: Option<File>) -> Self {
        let clock = Clock::system();
        let origin = clock.now().as_nanos();
        Self { clock, origin, file: file.map(Mutex::new), inner: Mutex::default() }
    }

    /// The time since the start of the run.
    pub(super) fn now(&self) -> RunNanos {
        self.clock.now().as_nanos().saturating_sub(self.origin)
    }

    fn inner(&self) -> MutexGuard<'_, RunStateInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an event of the conductor. It is in the file when this returns.
    pub(super) fn record(&self, event: Event) {
        if let Some(file) = &self.file {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(error) = file.write_all(history::to_json_line(&event).as_bytes()) {
                self.inner().write_error.get_or_insert_with(|| format!("the history cannot be written: {error}"));
            }
        }
        self.observe(event);
    }

    /// Takes note of an event that a worker has already written to the file.
    pub(super) fn observe(&self, event: Event) {
        let mut inside = self.inner();
        inside.apply(&event);
        inside.events.push(event);
    }

    /// Fails with the first error that occurred while the history was written.
    pub(super) fn check_written(&self) -> Result<(), io::Error> {
        self.inner().write_error.clone().map_or(Ok(()), |problem| Err(io::Error::other(problem)))
    }

    /// The current progress.
    pub(super) fn progress(&self) -> Progress {
        let now = self.now();
        Progress { elapsed: now, ..self.inner().progress.clone() }
    }

    /// Sets the current activity.
    pub(super) fn set_activity(&self, activity: &str) {
        activity.clone_into(&mut self.inner().progress.activity);
    }

    /// Counts a fault that is over.
    pub(super) fn count_finished_fault(&self) {
        self.inner().progress.finished_faults += 1;
    }

    /// The workers that hold a lock now, or run a tick.
    pub(super) fn holders(&self) -> Vec<WorkerId> {
        let mut holders: Vec<WorkerId> = self.inner().held_locks.values().copied().collect();
        holders.sort_unstable();
        holders.dedup();
        holders
    }

    /// The last events of a worker, as lines of JSON.
    pub(super) fn last_lines(&self, worker: WorkerId) -> String {
        let inside = self.inner();
        let of = |event: &&Event| match event {
            Event::Begin { op, .. } | Event::End { op, .. } | Event::Held { op, .. } => {
                (*op >> 32) as WorkerId == worker
            }
            Event::Unheld { op, .. } | Event::Requested { op, .. } | Event::Lost { op, .. } => {
                (*op >> 32) as WorkerId == worker
            }
            Event::Worker { worker: other, .. } => *other == worker,
            _ => false,
        };
        let last: Vec<String> =
            inside.events.iter().rev().filter(of).take(MAX_LAST_LINES).map(history::to_json_line).collect();
        last.into_iter().rev().collect::<String>().trim_end().to_owned()
    }

    /// Forgets a worker that ended without a last event.
    pub(super) fn remove_worker(&self, worker: WorkerId) {
        let mut inside = self.inner();
        inside.running_workers.retain(|other| *other != worker);
        inside.held_locks.retain(|_, holder| *holder != worker);
    }

    /// The workers that run now.
    pub(super) fn workers(&self) -> Vec<WorkerId> {
        self.inner().running_workers.clone()
    }

    /// Takes all events out of the state, or fails with the error that occurred while they were
    /// written.
    pub(super) fn finish(&self) -> Result<Vec<Event>, io::Error> {
        if let Some(file) = &self.file {
            file.lock().unwrap_or_else(PoisonError::into_inner).sync_all()?;
        }
        let mut inside = self.inner();
        match inside.write_error.take() {
            Some(problem) => Err(io::Error::other(problem)),
            None => Ok(std::mem::take(&mut inside.events)),
        }
    }
}

impl RunStateInner {
    /// Updates the progress and the holders by an event.
    fn apply(&mut self, event: &Event) {
        match event {
            Event::Begin { worker, op, call, .. } => {
                self.progress.calls += 1;
                match call {
                    Call::Release { hold } => drop(self.held_locks.remove(hold)),
                    Call::Lock { lock, .. } if lock.starts_with(super::ANCHOR_PREFIX) => {
                        self.anchor_calls.insert(*op);
                    }
                    Call::Tick { .. } => {
                        self.progress.ticks += 1;
                        if let Some(older) = self.last_ticks.insert(*worker, *op) {
                            self.held_locks.remove(&older);
                        }
                        self.held_locks.insert(*op, *worker);
                    }
                    _ => {}
                }
            }
            Event::End { op, outcome: Outcome::Granted { .. }, .. } => {
                self.progress.grants += 1;
                let worker = (*op >> 32) as WorkerId;
                // The last events of a killed worker arrive after its end.
                if self.running_workers.contains(&worker) && !self.anchor_calls.contains(op) {
                    self.held_locks.insert(*op, worker);
                }
            }
            Event::End { op, outcome: Outcome::Done, .. } => drop(self.held_locks.remove(op)),
            Event::Lost { op, .. } => {
                self.progress.losses += 1;
                self.held_locks.remove(op);
            }
            Event::Worker { worker, state: WorkerState::Started { .. }, .. } => self.running_workers.push(*worker),
            Event::Worker { worker, state: WorkerState::Killed | WorkerState::Ended, .. } => {
                self.running_workers.retain(|other| other != worker);
                self.held_locks.retain(|_, holder| holder != worker);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_without_an_end_is_over_when_the_next_begins() {
        let run_state = RunState::new(None);
        let op = |worker: WorkerId, number: u64| u64::from(worker) << 32 | number;
        let tick = |worker, number| {
            let call = Call::Tick { job: "a".to_owned(), tick: 1, attempt: 1, token: number, once: false };
            run_state.observe(Event::Begin { t: number, worker, op: op(worker, number), due: None, call });
        };
        let done = |worker, number| {
            run_state.observe(Event::End { t: number, op: op(worker, number), outcome: Outcome::Done })
        };
        tick(1, 1);
        tick(2, 1);
        tick(1, 2);
        assert_eq!(run_state.holders(), [1, 2]);
        done(1, 2);
        assert_eq!(run_state.holders(), [2], "the first was dropped");
        done(2, 1);
        assert!(run_state.holders().is_empty());
    }
}
