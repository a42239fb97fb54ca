//! The record of a job: read, parsed, and written over the version that was read.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::logic::{JobRecord, RECORD_FORMAT, SeenState};
use leasehold::LockName;
use leasehold::Locks;
use leasehold::Records;
use leasehold::clock::{Clock, Instant};
use leasehold::engine::ServerRun;
use leasehold::{Error, ErrorKind, Result};

/// A job's record as it was read.
#[derive(Clone, Debug)]
pub(super) struct LoadedRecord {
    /// The version to write over; 0 if there is no record.
    pub(super) version: u64,
    /// `None`: there is no record.
    pub(super) state: Option<JobRecord>,
    /// The newest state of the record that this node has ever seen; `None` if it has seen none.
    pub(super) seen: Option<SeenState>,
    /// The server run in which it was read; `None` if the engine does not report it.
    server_run: Option<ServerRun>,
    /// The engine's time when it was read, since 1970.
    pub(super) engine_time: Duration,
    /// This node's monotonic clock when it was read.
    pub(super) read_at: Instant,
}

impl LoadedRecord {
    /// The engine's time when it was read, in seconds since 1970.
    pub(super) fn seconds(&self) -> i64 {
        i64::try_from(self.engine_time.as_secs()).unwrap_or(i64::MAX)
    }

    /// The server run in which it was read, and when that began, in seconds since 1970. `None` if
    /// the engine does not report it.
    pub(super) fn server_run(&self) -> Option<(&str, i64)> {
        let run = self.server_run.as_ref()?;
        Some((&run.id, i64::try_from(run.began_at.as_secs()).unwrap_or(i64::MAX)))
    }

    /// The engine's time when it was read, in milliseconds since 1970.
    pub(super) fn millis(&self) -> u64 {
        u64::try_from(self.engine_time.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Reads and writes the record of one job.
#[derive(Clone, Debug)]
pub(super) struct JobStore {
    records: Records,
    clock: Clock,
    name: LockName,
    /// The newest state of the record that was seen, in case the engine loses it; `None` before the
    /// first.
    seen: Arc<Mutex<Option<SeenState>>>,
}

impl JobStore {
    pub(super) fn new(locks: &Locks, name: LockName) -> Result<Self> {
        Ok(Self { records: locks.records()?, clock: locks.clock().clone(), name, seen: Arc::default() })
    }

    /// Reads the record. A record that cannot be parsed is an error, and no tick fires.
    pub(super) async fn load(&self) -> Result<LoadedRecord> {
        let (record, run) = self.records.get_in_run(&self.name).await?;
        let at = self.clock.now();
        let state = match record.value.as_str() {
            "" => None,
            value => Some(parse(value).map_err(|error| self.records.add_location(error).about_record(&self.name))?),
        };
        let seen = self.remember_newest(state.as_ref());
        Ok(LoadedRecord {
            version: record.version,
            state,
            seen,
            server_run: run,
            engine_time: record.engine_time,
            read_at: at,
        })
    }

    /// The version of the record, whether it can be parsed or not; 0 if there is none.
    pub(super) async fn version(&self) -> Result<u64> {
        Ok(self.records.get(&self.name).await?.version)
    }

    /// Writes the record if it still has `expected_version`; 0 to create it. `false`: another
    /// client wrote first.
    pub(super) async fn save(&self, expected_version: u64, state: &JobRecord) -> Result<bool> {
        self.write(expected_version, state, None).await
    }

    /// Writes a decision over the record that was read. `false`: another client wrote first, or the
    /// servers may have lost writes since the read.
    pub(super) async fn save_decision(&self, read: &LoadedRecord, state: &JobRecord) -> Result<bool> {
        self.write(read.version, state, read.server_run.clone()).await
    }

    /// `run`: the server run in which alone the write may succeed; `None` for any.
    async fn write(&self, expected_version: u64, state: &JobRecord, run: Option<ServerRun>) -> Result<bool> {
        let value = serde_json::to_string(state)
            .map_err(|error| Error::new(ErrorKind::Corrupt, "cannot be written").caused_by(error))
            .map_err(|error| self.records.add_location(error).about_record(&self.name))?;
        let written = self.records.compare_and_set_in_run(&self.name, expected_version, value, run).await?.is_some();
        if written {
            self.remember_newest(Some(state));
        }
        Ok(written)
    }

    /// Remembers `state` if it is newer than all before, and returns the newest.
    fn remember_newest(&self, state: Option<&JobRecord>) -> Option<SeenState> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        *seen = (*seen).max(state.map(SeenState::from_record));
        *seen
    }

    /// Removes the record if it still has `expected_version`. `false`: another client wrote first.
    pub(super) async fn remove(&self, expected_version: u64) -> Result<bool> {
        Ok(self.records.compare_and_set(&self.name, expected_version, "").await?.is_some())
    }
}

/// Parses a record. Checks the format number first: another format may look alike.
fn parse(value: &str) -> Result<JobRecord> {
    let corrupt = |what: String| {
        let advice = "restore it, or remove the record so that the job starts over (`leasehold cron forget`)";
        Error::new(ErrorKind::Corrupt, format!("{what}, so no tick runs; {advice}"))
    };
    let raw: serde_json::Value =
        serde_json::from_str(value).map_err(|error| corrupt(format!("the job's record is not JSON ({error})")))?;
    match raw.get("v").and_then(serde_json::Value::as_u64) {
        Some(v) if v == u64::from(RECORD_FORMAT) => {}
        Some(v) => return Err(Error::unknown_format(v, RECORD_FORMAT)),
        None => return Err(corrupt("the job's record has no format number".into())),
    }
    serde_json::from_value(raw).map_err(|error| corrupt(format!("the job's record is damaged ({error})")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execution::MAX_ERROR_TEXT;
    use crate::logic::job_record::{MAX_HISTORY, MAX_MANUAL_RUNS};
    use crate::logic::{ActiveRun, HistoryEntry, MAX_CONCURRENT_RUNS, MAX_TICKS, OperatorRequest, TickOutcome};
    use leasehold_internals::logic::record_version::MAX_RECORD;

    /// The maximum number of runs, and as many again whose nodes died during a pause. Names have
    /// the maximum length, and texts grow to six times their length in JSON.
    #[test]
    fn the_largest_record_fits() {
        let node = format!("{}:{}", "h".repeat(64), u32::MAX);
        let (tick, token, started) = (i64::from(u32::MAX), u64::MAX, u64::from(u32::MAX) * 1000);
        let run = ActiveRun { tick, token, node: node.clone(), started, attempt: u32::MAX, manual: true };
        let text = "\u{1}".repeat(MAX_ERROR_TEXT);
        let entry =
            HistoryEntry { tick, outcome: TickOutcome::TimedOut, count: 1, run: Some(run.clone()), at: started, text };
        let wanted = OperatorRequest { at: tick, by: node };
        let fullest = JobRecord {
            resets: u32::MAX,
            fence: u64::MAX,
            busy_until: started,
            paused: Some(wanted.clone()),
            queue: vec![tick; MAX_TICKS],
            wanted: vec![wanted; MAX_MANUAL_RUNS],
            running: vec![run; 2 * MAX_CONCURRENT_RUNS as usize],
            history: vec![entry; MAX_HISTORY],
            ..JobRecord::new(&"*/5,".repeat(50), "America/Argentina/ComodRivadavia", tick)
        };
        let size = serde_json::to_string(&fullest).unwrap().len();
        assert!(size <= MAX_RECORD, "{size}");
    }

    #[test]
    fn an_unknown_format_is_refused() {
        let good = serde_json::to_string(&JobRecord::new("@daily", "UTC", 5)).unwrap();
        assert_eq!(parse(&good).unwrap().watermark, 5);
        for (text, expected) in [
            ("nonsense", "not JSON"),
            ("{}", "has no format number"),
            (&*good.replace("\"v\":1", "\"v\":2"), "in format 2, and this version of leasehold reads format 1"),
            (&*good.replace("\"watermark\":5", "\"watermark\":\"x\""), "is damaged"),
            (&*good.replace("\"watermark\":5,", ""), "is damaged"),
        ] {
            let error = parse(text).unwrap_err();
            let kind = if expected.contains("format 2") { ErrorKind::UnknownFormat } else { ErrorKind::Corrupt };
            assert_eq!(error.kind(), kind);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
