//! The store inside one process: the specification behind a mutex.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::wakeups::Wakeups;
use crate::logic::{CacheEntry, Operation, OperationReply};
use leasehold::clock::Clock;

/// Expired entries are removed once in this many operations.
const SWEEP_AFTER: u32 = 1024;

/// The store of a `memory:` cache: its keys exist in this process only.
#[derive(Debug)]
pub(crate) struct MemoryStore {
    clock: Clock,
    pub(crate) wakeups: Arc<Wakeups>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<String, CacheEntry>,
    /// The values of the textbook strategies, and when they expire, in microseconds.
    plain: HashMap<String, (Vec<u8>, u64)>,
    operations_since_sweep: u32,
}

impl MemoryStore {
    pub(crate) fn new(clock: &Clock) -> Self {
        Self { clock: clock.clone(), wakeups: Arc::default(), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time in microseconds, never 0.
    fn now(&self) -> u64 {
        self.clock.now().as_nanos() / 1000 + 1
    }

    /// Performs one operation, and wakes the readers that wait for a lease that ends with it.
    pub(crate) fn apply(&self, key: &str, operation: Operation) -> OperationReply {
        let mut state = self.state();
        // Read under the mutex, so that time never runs backwards between two operations.
        let now = self.now();
        state.sweep(now);
        let entry = state.entries.entry(key.to_owned()).or_default();
        if entry.keep_until <= now {
            *entry = CacheEntry::default();
        }
        let lease_before = entry.lease;
        let failure = if let Operation::GiveUp(_, error) = &operation { error.clone() } else { String::new() };
        let reply = entry.apply(now, operation);
        let ended = lease_before.filter(|_| entry.lease.is_none());
        if *entry == CacheEntry::default() {
            state.entries.remove(key);
        }
        drop(state);
        if let Some(lease) = ended {
            self.wakeups.notify(key, lease.id, Some(failure.as_str()).filter(|why| !why.is_empty()));
        }
        reply
    }

    /// The value of a textbook strategy; `None` if there is none or it has expired.
    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        let now = self.now();
        self.state().plain.get(key).filter(|(_, until)| now < *until).map(|(data, _)| data.clone())
    }

    /// Stores a value of a textbook strategy.
    pub(crate) fn put(&self, key: &str, data: Vec<u8>, ttl: Duration) {
        let until = self.now() + ttl.as_micros() as u64;
        self.state().plain.insert(key.to_owned(), (data, until));
    }

    /// Removes a value of a textbook strategy.
    pub(crate) fn delete(&self, key: &str) {
        self.state().plain.remove(key);
    }

    /// Evicts a key, as a server does that runs out of memory.
    #[cfg(test)]
    pub(crate) fn evict(&self, key: &str) {
        self.state().entries.remove(key);
    }
}

impl State {
    /// Removes expired entries, once in [`SWEEP_AFTER`] calls.
    fn sweep(&mut self, now: u64) {
        self.operations_since_sweep += 1;
        if self.operations_since_sweep >= SWEEP_AFTER {
            self.operations_since_sweep = 0;
            self.entries.retain(|_, entry| entry.keep_until > now);
            self.plain.retain(|_, (_, until)| *until > now);
        }
    }
}
