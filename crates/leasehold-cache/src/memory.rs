//! The store inside one process: the specification behind a mutex.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::wakeups::Wakeups;
use crate::logic::{CacheEntry, Operation, OperationReply};
use leasehold::clock::Clock;

/// Expired entries are removed after this many operations.
const SWEEP_AFTER: u32 = 1024;

/// The keys of one process.
#[derive(Debug)]
pub(crate) struct MemoryStore {
    clock: Clock,
    pub(crate) wakeups: Arc<Wakeups>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<String, CacheEntry>,
    /// The values of the textbook strategies, and when they expire.
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

    fn now(&self) -> u64 {
        self.clock.now().as_nanos() / 1000 + 1
    }

    pub(crate) fn apply(&self, key: &str, step: Operation) -> OperationReply {
        let mut state = self.state();
        // Read under the mutex, so that time never runs backwards between two operations.
        let now = self.now();
        state.sweep(now);
        let entry = state.entries.entry(key.to_owned()).or_default();
        if entry.keep_until <= now {
            *entry = CacheEntry::default();
        }
        let had = entry.lease;
        let failure = if let Operation::GiveUp(_, why) = &step { why.clone() } else { String::new() };
        let reply = entry.apply(now, step);
        let ended = had.filter(|_| entry.lease.is_none());
        if *entry == CacheEntry::default() {
            state.entries.remove(key);
        }
        drop(state);
        if let Some(lease) = ended {
            self.wakeups.notify(key, lease.id, Some(failure.as_str()).filter(|why| !why.is_empty()));
        }
        reply
    }

    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        let now = self.now();
        self.state().plain.get(key).filter(|(_, until)| now < *until).map(|(data, _)| data.clone())
    }

    pub(crate) fn put(&self, key: &str, data: Vec<u8>, ttl: Duration) {
        let until = self.now() + ttl.as_micros() as u64;
        self.state().plain.insert(key.to_owned(), (data, until));
    }

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
    fn sweep(&mut self, now: u64) {
        self.operations_since_sweep += 1;
        if self.operations_since_sweep >= SWEEP_AFTER {
            self.operations_since_sweep = 0;
            self.entries.retain(|_, entry| entry.keep_until > now);
            self.plain.retain(|_, (_, until)| *until > now);
        }
    }
}
