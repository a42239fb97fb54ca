//! The conductor's state during a run, and the history that it writes.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold::clock::Clock;

use crate::history::{self, Call, Event, Nanos, OpId, Outcome, State, Worker};

/// How many lines of a hanging worker to show.
const LAST_WORDS: usize = 6;

/// The progress of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The time since its start.
    pub elapsed: Nanos,
    /// Calls started.
    pub calls: u64,
    /// Locks granted.
    pub grants: u64,
    /// Ticks started.
    pub ticks: u64,
    /// Locks lost.
    pub losses: u64,
    /// Faults that are over.
    pub faults: usize,
    /// The current activity.
    pub now: String,
}

#[derive(Debug, Default)]
struct Inside {
    progress: Progress,
    /// Locks that were granted, and neither released nor lost.
    held: HashMap<OpId, Worker>,
    /// Calls for locks that are held all the time: a worker that holds only those is not in the
    /// middle of anything.
    anchors: HashSet<OpId>,
    /// The last tick of each worker. A lost tick has no end event, and is over when the next one
    /// begins.
    ticks: HashMap<Worker, OpId>,
    working: Vec<Worker>,
    events: Vec<Event>,
    broken: Option<String>,
}

/// The history so far.
#[derive(Debug)]
pub(super) struct Live {
    clock: Clock,
    pub(super) origin: Nanos,
    file: Option<Mutex<File>>,
    inside: Mutex<Inside>,
}

impl Live {
    pub(super) fn new(file: Option<File>) -> Self {
        let clock = Clock::system();
        let origin = clock.now().as_nanos();
        Self { clock, origin, file: file.map(Mutex::new), inside: Mutex::default() }
    }

    pub(super) fn now(&self) -> Nanos {
        self.clock.now().as_nanos().saturating_sub(self.origin)
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes an event. It is in the file when this returns.
    pub(super) fn put(&self, event: Event) {
        if let Some(file) = &self.file {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(error) = file.write_all(history::line(&event).as_bytes()) {
                self.inside().broken.get_or_insert_with(|| format!("the history cannot be written: {error}"));
            }
        }
        self.hear(event);
    }

    /// Records an event that a worker has written.
    pub(super) fn hear(&self, event: Event) {
        let mut inside = self.inside();
        inside.follow(&event);
        inside.events.push(event);
    }

    /// Whether all writes have succeeded so far.
    pub(super) fn is_written(&self) -> Result<(), io::Error> {
        self.inside().broken.clone().map_or(Ok(()), |problem| Err(io::Error::other(problem)))
    }

    /// The current progress.
    pub(super) fn progress(&self) -> Progress {
        let now = self.now();
        Progress { elapsed: now, ..self.inside().progress.clone() }
    }

    /// Sets the current activity.
    pub(super) fn say(&self, what: &str) {
        what.clone_into(&mut self.inside().progress.now);
    }

    /// Counts a fault that is over.
    pub(super) fn fault_over(&self) {
        self.inside().progress.faults += 1;
    }

    /// The workers that hold a lock.
    pub(super) fn holders(&self) -> Vec<Worker> {
        let mut holders: Vec<Worker> = self.inside().held.values().copied().collect();
        holders.sort_unstable();
        holders.dedup();
        holders
    }

    /// The last lines of a worker.
    pub(super) fn last_words(&self, worker: Worker) -> String {
        let inside = self.inside();
        let of = |event: &&Event| match event {
            Event::Begin { op, .. } | Event::End { op, .. } | Event::Held { op, .. } => (*op >> 32) as Worker == worker,
            Event::Unheld { op, .. } | Event::Requested { op, .. } | Event::Lost { op, .. } => {
                (*op >> 32) as Worker == worker
            }
            Event::Worker { worker: other, .. } => *other == worker,
            _ => false,
        };
        let last: Vec<String> = inside.events.iter().rev().filter(of).take(LAST_WORDS).map(history::line).collect();
        last.into_iter().rev().collect::<String>().trim_end().to_owned()
    }

    /// A worker has ended without a last event.
    pub(super) fn gone(&self, worker: Worker) {
        let mut inside = self.inside();
        inside.working.retain(|other| *other != worker);
        inside.held.retain(|_, holder| *holder != worker);
    }

    /// All running workers.
    pub(super) fn workers(&self) -> Vec<Worker> {
        self.inside().working.clone()
    }

    /// All events, or the error that occurred while they were written.
    pub(super) fn finish(&self) -> Result<Vec<Event>, io::Error> {
        if let Some(file) = &self.file {
            file.lock().unwrap_or_else(PoisonError::into_inner).sync_all()?;
        }
        let mut inside = self.inside();
        match inside.broken.take() {
            Some(problem) => Err(io::Error::other(problem)),
            None => Ok(std::mem::take(&mut inside.events)),
        }
    }
}

impl Inside {
    fn follow(&mut self, event: &Event) {
        match event {
            Event::Begin { worker, op, call, .. } => {
                self.progress.calls += 1;
                match call {
                    Call::Release { hold } => drop(self.held.remove(hold)),
                    Call::Lock { lock, .. } if lock.starts_with(super::ANCHOR) => drop(self.anchors.insert(*op)),
                    Call::Tick { .. } => {
                        self.progress.ticks += 1;
                        if let Some(older) = self.ticks.insert(*worker, *op) {
                            self.held.remove(&older);
                        }
                        self.held.insert(*op, *worker);
                    }
                    _ => {}
                }
            }
            Event::End { op, outcome: Outcome::Granted { .. }, .. } => {
                self.progress.grants += 1;
                let worker = (*op >> 32) as Worker;
                // The last events of a killed worker arrive after its end.
                if self.working.contains(&worker) && !self.anchors.contains(op) {
                    self.held.insert(*op, worker);
                }
            }
            Event::End { op, outcome: Outcome::Done, .. } => drop(self.held.remove(op)),
            Event::Lost { op, .. } => {
                self.progress.losses += 1;
                self.held.remove(op);
            }
            Event::Worker { worker, state: State::Started { .. }, .. } => self.working.push(*worker),
            Event::Worker { worker, state: State::Killed | State::Ended, .. } => {
                self.working.retain(|other| other != worker);
                self.held.retain(|_, holder| holder != worker);
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
        let live = Live::new(None);
        let op = |worker: Worker, number: u64| u64::from(worker) << 32 | number;
        let tick = |worker, number| {
            let call = Call::Tick { job: "a".to_owned(), tick: 1, attempt: 1, token: number, once: false };
            live.hear(Event::Begin { t: number, worker, op: op(worker, number), due: None, call });
        };
        let done = |worker, number| live.hear(Event::End { t: number, op: op(worker, number), outcome: Outcome::Done });
        tick(1, 1);
        tick(2, 1);
        tick(1, 2);
        assert_eq!(live.holders(), [1, 2]);
        done(1, 2);
        assert_eq!(live.holders(), [2], "the first was dropped");
        done(2, 1);
        assert!(live.holders().is_empty());
    }
}
