//! Accounts for every tick of a job: by the runs that the job recorded itself, or by a recorded
//! reason why it did not run.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::common::TestFolder;
use crate::fleet::host;

/// The runs of each tick: token and attempt.
pub(crate) type RunsByTick = BTreeMap<String, Vec<(u64, u32)>>;

/// The runs that a job recorded in `file` when they started.
pub(crate) fn recorded_runs(place: &TestFolder, file: &str) -> RunsByTick {
    let mut ran = RunsByTick::new();
    for line in place.read(file).lines().filter(|line| !line.starts_with("end ")) {
        let words: Vec<_> = line.split(' ').collect();
        ran.entry(words[0].to_owned()).or_default().push((words[1].parse().unwrap(), words[2].parse().unwrap()));
    }
    ran
}

/// The maximum of concurrent runs, among those that completed: the end of a killed run is unknown.
pub(crate) fn max_concurrent_runs(place: &TestFolder, file: &str) -> usize {
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

/// The time of a tick, in seconds since 1970.
fn unix_seconds(tick: &str) -> i64 {
    tick.parse::<jiff::Timestamp>().unwrap().as_second()
}

/// Every tick from the first that ran to the last.
fn all_ticks(runs: &RunsByTick) -> impl Iterator<Item = i64> {
    let (first, last) = (runs.keys().next().unwrap(), runs.keys().next_back().unwrap());
    unix_seconds(first)..=unix_seconds(last)
}

/// The ticks, one per second, that a job skipped.
pub(crate) fn skipped_ticks(runs: &RunsByTick) -> BTreeSet<i64> {
    let ran: BTreeSet<i64> = runs.keys().map(|tick| unix_seconds(tick)).collect();
    all_ticks(runs).filter(|tick| !ran.contains(tick)).collect()
}

/// The known outcomes of a job's ticks that did not run, or did not complete: from the job's
/// record, as far as it goes back, and from the hosts' logs.
#[derive(Default)]
pub(crate) struct TickLedger {
    /// Ticks whose run's host died, or lost its lock.
    crashed_or_lost: BTreeSet<i64>,
    /// Ticks with any other outcome except `done`: no host ran them in time, or their run failed.
    unexpected: BTreeSet<i64>,
}

/// The limits for the ticks of a job that starts each at most once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutcomeLimits {
    /// The maximum of runs in progress when hosts were killed and the engine was restarted.
    pub(crate) max_crashed_or_lost: usize,
    /// Whether the engine was unreachable for longer than the grace.
    pub(crate) may_be_late: bool,
}

impl TickLedger {
    /// Adds the outcome of an event, or of an entry of the history, if it has one.
    fn record(&mut self, event: &Value) {
        let (Some(tick), outcome) = (event["tick"].as_str(), event["outcome"].as_str()) else { return };
        let outcome = if event["event"] == "crashed" { Some("crashed") } else { outcome };
        let list = match outcome {
            None | Some("done") => return,
            Some("crashed" | "lost") => &mut self.crashed_or_lost,
            Some(_) => &mut self.unexpected,
        };
        // For ticks that no host ran in time, the event has the newest one and their number.
        let count = event["count"].as_i64().unwrap_or(1);
        list.extend(unix_seconds(tick) - count + 1..=unix_seconds(tick));
    }

    /// Adds the job's current history; nothing while the engine does not respond.
    pub(crate) fn record_history(&mut self, place: &TestFolder, url: &str, job: &str) {
        let history = place.run(["cron", "history", "--engine", url, "--json", job]);
        if let Ok(Value::Array(entries)) = serde_json::from_str(&history.stdout()) {
            entries.iter().for_each(|entry| self.record(entry));
        }
    }

    /// Adds the events about the job in the logs of all hosts.
    pub(crate) fn record_events(&mut self, place: &TestFolder, job: &str) {
        let events = host::parse_events(&host::all_logs(place));
        events.iter().filter(|event| event["job"] == job).for_each(|event| self.record(event));
    }

    /// The skipped ticks without an explanation.
    fn unexplained(&self, runs: &RunsByTick) -> Vec<i64> {
        let explained: BTreeSet<i64> = self.crashed_or_lost.union(&self.unexpected).copied().collect();
        skipped_ticks(runs).difference(&explained).copied().collect()
    }

    /// Whether the outcomes are within what the kills and the restart can cause.
    fn is_within_limits(&self, bound: OutcomeLimits) -> bool {
        self.crashed_or_lost.len() <= bound.max_crashed_or_lost && (bound.may_be_late || self.unexpected.is_empty())
    }

    /// Asserts that each skipped tick is accounted for: it crashed, or its lock was lost; and that
    /// there are no more of these than possible.
    #[track_caller]
    pub(crate) fn assert_explains(&self, job: &str, runs: &RunsByTick, bound: OutcomeLimits, place: &TestFolder) {
        assert!(
            self.is_within_limits(bound),
            "{job}: {bound:?}, but crashed or lost: {:?}, and unexpected: {:?}; {}",
            self.crashed_or_lost,
            self.unexpected,
            host::all_logs(place)
        );
        let unknown = self.unexplained(runs);
        assert!(
            unknown.is_empty(),
            "{job}: no record explains why {unknown:?} did not run: {runs:?}; {}",
            host::all_logs(place)
        );
    }
}

#[test]
fn a_tick_skipped_without_a_reason_is_found() {
    let tick = |second: u32| format!("2026-11-17T05:00:0{second}Z");
    let runs: RunsByTick = [0, 6].map(|second| (tick(second), vec![(1, 1)])).into();
    let mut ledger = TickLedger::default();
    ledger.record(&json!({ "event": "crashed", "tick": tick(1) }));
    ledger.record(&json!({ "event": "skipped", "tick": tick(3), "outcome": "missed", "count": 2 }));
    ledger.record(&json!({ "event": "ended", "tick": tick(4), "outcome": "lost" }));
    ledger.record(&json!({ "event": "ended", "tick": tick(5), "outcome": "done" }));
    assert_eq!(ledger.unexplained(&runs), [unix_seconds(&tick(5))]);
    assert!(ledger.is_within_limits(OutcomeLimits { max_crashed_or_lost: 2, may_be_late: true }));
    assert!(!ledger.is_within_limits(OutcomeLimits { max_crashed_or_lost: 2, may_be_late: false }), "two were missed");
    assert!(
        !ledger.is_within_limits(OutcomeLimits { max_crashed_or_lost: 1, may_be_late: true }),
        "one crashed, and one was lost"
    );
}

/// A run in progress, and the process that runs it.
#[derive(Clone, Debug)]
pub(crate) struct ActiveRun {
    pub(crate) tick: String,
    pub(crate) token: u64,
    pub(crate) attempt: u32,
    pub(crate) pid: i32,
}

/// A job's current run; also `None` while the engine does not respond.
pub(crate) fn active_run(place: &TestFolder, url: &str, job: &str) -> Option<ActiveRun> {
    let status = place.run(["cron", "status", "--engine", url, "--json"]);
    let jobs: Value = serde_json::from_str(&status.stdout()).ok()?;
    let run = &jobs.as_array()?.iter().find(|status| status["job"] == job)?["running"][0];
    Some(ActiveRun {
        tick: run["tick"].as_str()?.to_owned(),
        token: run["token"].as_u64()?,
        attempt: run["attempt"].as_u64()?.try_into().ok()?,
        pid: run["node"].as_str()?.rsplit_once(':')?.1.parse().ok()?,
    })
}

/// Whether the record contains the end of a run, other than by its host's death.
pub(crate) fn has_ended(place: &TestFolder, url: &str, job: &str, token: u64) -> bool {
    let history = place.run(["cron", "history", "--engine", url, "--json", job]).assert_ok().stdout();
    let history: Value = serde_json::from_str(&history).unwrap();
    history.as_array().unwrap().iter().any(|entry| entry["token"] == token && entry["outcome"] != "crashed")
}
