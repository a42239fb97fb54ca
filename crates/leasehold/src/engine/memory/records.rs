//! The records of a memory engine.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::engine::Record;
use crate::logic::record_version::next_version;
use crate::types::LockName;

/// All records of one engine.
#[derive(Debug, Default)]
pub(super) struct StoredRecords {
    /// Version and value of each record.
    records: BTreeMap<LockName, (u64, String)>,
    /// The highest version of any record so far, removed ones included.
    last_version: u64,
}

impl StoredRecords {
    /// The record with this name; `now` is the engine's time.
    pub(super) fn read(&self, name: &LockName, now: Duration) -> Record {
        match self.records.get(name) {
            Some((version, value)) => Record { version: *version, value: value.clone(), engine_time: now },
            None => Record::absent(now),
        }
    }

    /// Replaces the record if it has `expected_version` (0: if it does not exist); an empty value
    /// removes it. `None`: it has another version, and is unchanged.
    pub(super) fn write(
        &mut self,
        name: LockName,
        expected_version: u64,
        value: String,
        now: Duration,
    ) -> Option<Record> {
        if self.records.get(&name).map_or(0, |(version, _)| *version) != expected_version {
            return None;
        }
        if value.is_empty() {
            self.records.remove(&name);
            return Some(Record::absent(now));
        }
        self.last_version = next_version(self.last_version, now);
        self.records.insert(name, (self.last_version, value.clone()));
        Some(Record { version: self.last_version, value, engine_time: now })
    }

    /// The names that start with `prefix`, in order.
    pub(super) fn names(&self, prefix: &str) -> Vec<LockName> {
        self.records.keys().filter(|name| name.as_str().starts_with(prefix)).cloned().collect()
    }
}
