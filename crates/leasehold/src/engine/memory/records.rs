//! Records in memory.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::engine::Record;
use crate::logic::record::next_version;
use crate::name::LockName;

#[derive(Debug, Default)]
pub(super) struct Shelf {
    kept: BTreeMap<LockName, (u64, String)>,
    /// The highest version of any name.
    last: u64,
}

impl Shelf {
    pub(super) fn read(&self, name: &LockName, now: Duration) -> Record {
        match self.kept.get(name) {
            Some((version, value)) => Record { version: *version, value: value.clone(), now },
            None => Record::absent(now),
        }
    }

    pub(super) fn write(&mut self, name: LockName, over: u64, value: String, now: Duration) -> Option<Record> {
        if self.kept.get(&name).map_or(0, |(version, _)| *version) != over {
            return None;
        }
        if value.is_empty() {
            self.kept.remove(&name);
            return Some(Record::absent(now));
        }
        self.last = next_version(self.last, now);
        self.kept.insert(name, (self.last, value.clone()));
        Some(Record { version: self.last, value, now })
    }

    pub(super) fn names(&self, prefix: &str) -> Vec<LockName> {
        self.kept.keys().filter(|name| name.as_str().starts_with(prefix)).cloned().collect()
    }
}
