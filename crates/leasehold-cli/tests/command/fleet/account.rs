//! Accounts for the ticks: from the jobs' own records, and from the outcomes of those that did not
//! run.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::common::Place;
use crate::fleet::host;

/// Tick -> token and attempt of each run.
pub(crate) type Runs = BTreeMap<String, Vec<(u64, u32)>>;

/// The records that a job wrote at the start of its runs.
pub(crate) fn ran(place: &Place, file: &str) -> Runs {
    let mut ran = Runs::new();
    for line in place.read(file).lines().filter(|line| !line.starts_with("end ")) {
        let words: Vec<_> = line.split(' ').collect();
        ran.entry(words[0].to_owned()).or_default().push((words[1].parse().unwrap(), words[2].parse().unwrap()));
    }
    ran
}

/// The maximum of concurrent runs, among those that completed: the end of a killed run is unknown.
pub(crate) fn most_at_once(place: &Place, file: &str) -> usize {
    let text = place.read(file);
    let ended: BTreeSet<&str> = text.lines().filter_map(|line| line.strip_prefix("end ")).collect();
    let (mut inside, mut most) = (BTreeSet::new(), 0);
    for line in text.lines() {
        match line.strip_prefix("end ") {
            Some(token) => assert!(inside.remove(token), "it ended twice, or before it began: {line}"),
            None => {
                let token = line.split(' ').nth(1).unwrap();
                if ended.contains(token) {
                    assert!(inside.insert(token), "two runs with one token: {line}");
                }
                most = most.max(inside.len());
            }
        }
    }
    most
}

fn seconds(tick: &str) -> i64 {
    tick.parse::<jiff::Timestamp>().unwrap().as_second()
}

/// Every tick from the first that ran to the last.
fn all(runs: &Runs) -> impl Iterator<Item = i64> {
    let (first, last) = (runs.keys().next().unwrap(), runs.keys().next_back().unwrap());
    seconds(first)..=seconds(last)
}

/// The ticks, one per second, that a job skipped.
pub(crate) fn left_out(runs: &Runs) -> BTreeSet<i64> {
    let ran: BTreeSet<i64> = runs.keys().map(|tick| seconds(tick)).collect();
    all(runs).filter(|tick| !ran.contains(tick)).collect()
}

/// The known outcomes of a job's ticks that did not run, or did not complete: from the job's
/// record, as far as it goes back, and from the hosts' logs.
#[derive(Default)]
pub(crate) struct Ledger {
    /// Their host died, or lost its lock.
    cut_off: BTreeSet<i64>,
    /// All others: no host ran them in time, they failed, or any other outcome that this test
    /// cannot cause.
    uncalled_for: BTreeSet<i64>,
}

/// The limits for the ticks of a job that starts each at most once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// The maximum of runs in progress when hosts were killed and the engine was restarted.
    pub(crate) cut_off: usize,
    /// Whether the engine was unreachable for longer than the grace.
    pub(crate) late: bool,
}

impl Ledger {
    fn enter(&mut self, what: &Value) {
        let (Some(tick), outcome) = (what["tick"].as_str(), what["outcome"].as_str()) else { return };
        let outcome = if what["event"] == "crashed" { Some("crashed") } else { outcome };
        let list = match outcome {
            None | Some("done") => return,
            Some("crashed" | "lost") => &mut self.cut_off,
            Some(_) => &mut self.uncalled_for,
        };
        // For ticks that no host ran in time, the event has the newest one and their number.
        let count = what["count"].as_i64().unwrap_or(1);
        list.extend(seconds(tick) - count + 1..=seconds(tick));
    }

    /// Adds the record's current contents; nothing while the engine does not respond.
    pub(crate) fn look(&mut self, place: &Place, url: &str, job: &str) {
        let asked = place.run(["cron", "history", "--engine", url, "--json", job]);
        if let Ok(Value::Array(entries)) = serde_json::from_str(&asked.out()) {
            entries.iter().for_each(|entry| self.enter(entry));
        }
    }

    /// Adds the hosts' log events.
    pub(crate) fn hear(&mut self, place: &Place, job: &str) {
        let events = host::events(&host::said(place));
        events.iter().filter(|event| event["job"] == job).for_each(|event| self.enter(event));
    }

    /// The skipped ticks without an explanation.
    fn unknown(&self, runs: &Runs) -> Vec<i64> {
        let told: BTreeSet<i64> = self.cut_off.union(&self.uncalled_for).copied().collect();
        left_out(runs).difference(&told).copied().collect()
    }

    /// Whether the outcomes are within what the kills and the restart can cause.
    fn is_within(&self, bound: Bound) -> bool {
        self.cut_off.len() <= bound.cut_off && (bound.late || self.uncalled_for.is_empty())
    }

    /// Asserts that each skipped tick is accounted for: it crashed, or its lock was lost; and that
    /// there are no more of these than possible.
    #[track_caller]
    pub(crate) fn explains(&self, job: &str, runs: &Runs, bound: Bound, place: &Place) {
        assert!(
            self.is_within(bound),
            "{job}: {bound:?}, but cut off: {:?}, and for no reason: {:?}; {}",
            self.cut_off,
            self.uncalled_for,
            host::said(place)
        );
        let unknown = self.unknown(runs);
        assert!(
            unknown.is_empty(),
            "{job}: nobody has said why {unknown:?} did not run: {runs:?}; {}",
            host::said(place)
        );
    }
}

#[test]
fn a_tick_that_is_left_out_without_a_reason_is_found() {
    let tick = |second: u32| format!("2026-11-17T05:00:0{second}Z");
    let runs: Runs = [0, 6].map(|second| (tick(second), vec![(1, 1)])).into();
    let mut ledger = Ledger::default();
    ledger.enter(&json!({ "event": "crashed", "tick": tick(1) }));
    ledger.enter(&json!({ "event": "skipped", "tick": tick(3), "outcome": "missed", "count": 2 }));
    ledger.enter(&json!({ "event": "ended", "tick": tick(4), "outcome": "lost" }));
    ledger.enter(&json!({ "event": "ended", "tick": tick(5), "outcome": "done" }));
    assert_eq!(ledger.unknown(&runs), [seconds(&tick(5))]);
    assert!(ledger.is_within(Bound { cut_off: 2, late: true }));
    assert!(!ledger.is_within(Bound { cut_off: 2, late: false }), "two were missed");
    assert!(!ledger.is_within(Bound { cut_off: 1, late: true }), "one crashed, and one was lost");
}

/// A run in progress, and the process that runs it.
#[derive(Clone, Debug)]
pub(crate) struct Going {
    pub(crate) tick: String,
    pub(crate) token: u64,
    pub(crate) attempt: u32,
    pub(crate) pid: i32,
}

/// A job's current run; also `None` while the engine does not respond.
pub(crate) fn going(place: &Place, url: &str, job: &str) -> Option<Going> {
    let asked = place.run(["cron", "status", "--engine", url, "--json"]);
    let jobs: Value = serde_json::from_str(&asked.out()).ok()?;
    let run = &jobs.as_array()?.iter().find(|status| status["job"] == job)?["running"][0];
    Some(Going {
        tick: run["tick"].as_str()?.to_owned(),
        token: run["token"].as_u64()?,
        attempt: run["attempt"].as_u64()?.try_into().ok()?,
        pid: run["node"].as_str()?.rsplit_once(':')?.1.parse().ok()?,
    })
}

/// Whether the record contains the end of a run, other than by its host's death.
pub(crate) fn has_ended(place: &Place, url: &str, job: &str, token: u64) -> bool {
    let history = place.run(["cron", "history", "--engine", url, "--json", job]).ok().out();
    let history: Value = serde_json::from_str(&history).unwrap();
    history.as_array().unwrap().iter().any(|entry| entry["token"] == token && entry["outcome"] != "crashed")
}
