//! The record of a job: read, parsed, and written over the version that was read.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock::{Clock, Moment};
use crate::engine::ServerRun;
use crate::error::{Error, ErrorKind, Result};
use crate::locks::Locks;
use crate::logic::schedule::{Seen, State, VERSION};
use crate::name::LockName;
use crate::records::Records;

/// A record as it was read.
#[derive(Clone, Debug)]
pub(super) struct Loaded {
    pub(super) version: u64,
    /// `None`: there is no record.
    pub(super) state: Option<State>,
    /// The newest state of the record that we have ever seen.
    pub(super) seen: Option<Seen>,
    /// The server run, where the engine reports it.
    run: Option<ServerRun>,
    /// The engine's clock.
    pub(super) now: Duration,
    /// Our own clock when the record was read.
    pub(super) at: Moment,
}

impl Loaded {
    /// The engine's time, in seconds.
    pub(super) fn seconds(&self) -> i64 {
        i64::try_from(self.now.as_secs()).unwrap_or(i64::MAX)
    }

    /// The server run, and when it began, in seconds.
    pub(super) fn run(&self) -> Option<(&str, i64)> {
        let run = self.run.as_ref()?;
        Some((&run.id, i64::try_from(run.began.as_secs()).unwrap_or(i64::MAX)))
    }

    /// The engine's time, in milliseconds.
    pub(super) fn millis(&self) -> u64 {
        u64::try_from(self.now.as_millis()).unwrap_or(u64::MAX)
    }
}

/// The place of a job's record.
#[derive(Clone, Debug)]
pub(super) struct Store {
    records: Records,
    clock: Clock,
    name: LockName,
    /// What we remember if the engine loses the record.
    seen: Arc<Mutex<Option<Seen>>>,
}

impl Store {
    pub(super) fn new(locks: &Locks, name: LockName) -> Result<Self> {
        Ok(Self { records: locks.records()?, clock: locks.clock().clone(), name, seen: Arc::default() })
    }

    /// Reads the record. A record that cannot be parsed is an error: nothing fires on a guess.
    pub(super) async fn load(&self) -> Result<Loaded> {
        let (record, run) = self.records.get_in_run(&self.name).await?;
        let at = self.clock.now();
        let state = match record.value.as_str() {
            "" => None,
            value => Some(parse(value).map_err(|error| self.records.locate(error).about_record(&self.name))?),
        };
        let seen = self.see(state.as_ref());
        Ok(Loaded { version: record.version, state, seen, run, now: record.now, at })
    }

    /// Writes the record over the one that was read. `false`: another client was faster.
    pub(super) async fn save(&self, over: u64, state: &State) -> Result<bool> {
        self.write(over, state, None).await
    }

    /// The same for a decision: succeeds only if the servers have lost nothing since the read.
    pub(super) async fn save_decision(&self, read: &Loaded, state: &State) -> Result<bool> {
        self.write(read.version, state, read.run.clone()).await
    }

    async fn write(&self, over: u64, state: &State, run: Option<ServerRun>) -> Result<bool> {
        let value = serde_json::to_string(state)
            .map_err(|error| Error::new(ErrorKind::Corrupt, "cannot be written").caused_by(error))
            .map_err(|error| self.records.locate(error).about_record(&self.name))?;
        let written = self.records.compare_and_set_in_run(&self.name, over, value, run).await?.is_some();
        if written {
            self.see(Some(state));
        }
        Ok(written)
    }

    /// Remembers the newest state.
    fn see(&self, state: Option<&State>) -> Option<Seen> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        *seen = (*seen).max(state.map(Seen::of));
        *seen
    }

    /// Removes the record. `false`: another client was faster.
    pub(super) async fn remove(&self, over: u64) -> Result<bool> {
        Ok(self.records.compare_and_set(&self.name, over, "").await?.is_some())
    }
}

/// Parses a record. Checks the layout version first: another layout may look alike.
fn parse(value: &str) -> Result<State> {
    let corrupt = |what: String| Error::new(ErrorKind::Corrupt, what);
    let raw: serde_json::Value = serde_json::from_str(value)
        .map_err(|error| corrupt(format!("the job's record is no JSON, and nothing is run by it: {error}")))?;
    match raw.get("v").and_then(serde_json::Value::as_u64) {
        Some(v) if v == u64::from(VERSION) => {}
        Some(v) => {
            return Err(corrupt(format!(
                "the job's record has layout {v}, and this program knows {VERSION}: nothing is run by it; use the program that wrote it"
            )));
        }
        None => return Err(corrupt("the job's record does not say which layout it has: nothing is run by it".into())),
    }
    serde_json::from_value(raw)
        .map_err(|error| corrupt(format!("the job's record is damaged, and nothing is run by it: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logic::record::MAX_RECORD;
    use crate::logic::schedule::state::{HISTORY, MOST_WANTED};
    use crate::logic::schedule::{Entry, MOST_BESIDE, MOST_TICKS, Outcome, Running, Wanted};
    use crate::schedule::perform::MOST_TEXT;

    /// The maximum number of runs, and as many again whose nodes died during a pause. Names have
    /// the maximum length, and texts grow to six times their length in JSON.
    #[test]
    fn the_fullest_record_has_room() {
        let node = format!("{}:{}", "h".repeat(64), u32::MAX);
        let (tick, token, started) = (i64::from(u32::MAX), u64::MAX, u64::from(u32::MAX) * 1000);
        let run = Running { tick, token, node: node.clone(), started, attempt: u32::MAX, manual: true };
        let text = "\u{1}".repeat(MOST_TEXT);
        let entry = Entry { tick, outcome: Outcome::TimedOut, count: 1, run: Some(run.clone()), at: started, text };
        let wanted = Wanted { at: tick, by: node };
        let fullest = State {
            resets: u32::MAX,
            fence: u64::MAX,
            busy_until: started,
            paused: Some(wanted.clone()),
            queue: vec![tick; MOST_TICKS],
            wanted: vec![wanted; MOST_WANTED],
            running: vec![run; 2 * MOST_BESIDE as usize],
            history: vec![entry; HISTORY],
            ..State::new(&"*/5,".repeat(50), "America/Argentina/ComodRivadavia", tick)
        };
        let size = serde_json::to_string(&fullest).unwrap().len();
        assert!(size <= MAX_RECORD, "{size}");
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let good = serde_json::to_string(&State::new("@daily", "UTC", 5)).unwrap();
        assert_eq!(parse(&good).unwrap().watermark, 5);
        for (text, says) in [
            ("nonsense", "no JSON"),
            ("{}", "which layout"),
            (&*good.replace("\"v\":1", "\"v\":2"), "has layout 2, and this program knows 1"),
            (&*good.replace("\"watermark\":5", "\"watermark\":\"x\""), "is damaged"),
            (&*good.replace("\"watermark\":5,", ""), "is damaged"),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
