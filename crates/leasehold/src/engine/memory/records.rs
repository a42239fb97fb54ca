//! Records in memory.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::engine::Record;
use crate::logic::record_version::next_version;
use crate::types::LockName;

#[derive(Debug, Default)]
pub(super) struct StoredRecords {
    records: BTreeMap<LockName, (u64, String)>,
    /// The highest version of any name.
    last_version: u64,
}

impl StoredRecords {
    pub(super) fn read(&self, name: &LockName, now: Duration) -> Record {
        match self.records.get(name) {
            Some((version, value)) => Record { version: *version, value: value.clone(), engine_time: now },
            None => Record::absent(now),
        }
    }

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

    pub(super) fn names(&self, prefix: &str) -> Vec<LockName> {
        self.records.keys().filter(|name| name.as_str().starts_with(prefix)).cloned().collect()
    }
}
