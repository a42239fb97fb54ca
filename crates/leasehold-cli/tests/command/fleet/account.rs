//! What has become of the ticks: from what the jobs themselves wrote, and from what was said of those that did not run.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::common::Place;
use crate::fleet::host;

/// Tick -> token and attempt of each run.
pub(crate) type Runs = BTreeMap<String, Vec<(u64, u32)>>;

/// What a job wrote at the begin of its runs.
pub(crate) fn ran(place: &Place, file: &str) -> Runs {
    let mut ran = Runs::new();
    for line in place.read(file).lines().filter(|line| !line.starts_with("end ")) {
        let words: Vec<_> = line.split(' ').collect();
        ran.entry(words[0].to_owned()).or_default().push((words[1].parse().unwrap(), words[2].parse().unwrap()));
    }
    ran
}

/// How many runs there were at once at most, of those that came to their end: nobody knows when the others were killed.
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

/// The ticks, one a second, that a job has left out.
pub(crate) fn left_out(runs: &Runs) -> BTreeSet<i64> {
    let ran: BTreeSet<i64> = runs.keys().map(|tick| seconds(tick)).collect();
    all(runs).filter(|tick| !ran.contains(tick)).collect()
}

/// What is known of the ticks of a job that did not run, or not to their end: by the record, as long as it remembers, and by the hosts.
#[derive(Default)]
pub(crate) struct Ledger {
    /// Their host died, or lost its lock.
    cut_off: BTreeSet<i64>,
    /// Everything else: nobody ran them in time, they failed, and what else nothing here can bring about.
    uncalled_for: BTreeSet<i64>,
}

/// What may become of the ticks of a job that is begun at most once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// How many runs there were at most when hosts were killed and the engine was restarted.
    pub(crate) cut_off: usize,
    /// Whether the engine was away for longer than the grace.
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
        // Of ticks that nobody ran in time the newest is named, and how many there are.
        let count = what["count"].as_i64().unwrap_or(1);
        list.extend(seconds(tick) - count + 1..=seconds(tick));
    }

    /// What the record has now; nothing while the engine does not answer.
    pub(crate) fn look(&mut self, place: &Place, url: &str, job: &str) {
        let asked = place.run(["cron", "history", "--engine", url, "--json", job]);
        if let Ok(Value::Array(entries)) = serde_json::from_str(&asked.out()) {
            entries.iter().for_each(|entry| self.enter(entry));
        }
    }

    /// What the hosts have said.
    pub(crate) fn hear(&mut self, place: &Place, job: &str) {
        let events = host::events(&host::said(place));
        events.iter().filter(|event| event["job"] == job).for_each(|event| self.enter(event));
    }

    /// The ticks that were left out, and of which nobody has said why.
    fn unknown(&self, runs: &Runs) -> Vec<i64> {
        let told: BTreeSet<i64> = self.cut_off.union(&self.uncalled_for).copied().collect();
        left_out(runs).difference(&told).copied().collect()
    }

    /// Whether no more became of the ticks than what was done to the hosts and the engine brings about.
    fn is_within(&self, bound: Bound) -> bool {
        self.cut_off.len() <= bound.cut_off && (bound.late || self.uncalled_for.is_empty())
    }

    /// Each tick that was left out is accounted for: it crashed, or its lock was lost; and there are no more of these than there may be.
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

/// A run that goes on, and the process that runs it.
#[derive(Clone, Debug)]
pub(crate) struct Going {
    pub(crate) tick: String,
    pub(crate) token: u64,
    pub(crate) attempt: u32,
    pub(crate) pid: i32,
}

/// Which run of a job goes on now; `None` also while the engine does not answer.
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

/// Whether the end of a run stands in the record, other than by its death.
pub(crate) fn has_ended(place: &Place, url: &str, job: &str, token: u64) -> bool {
    let history = place.run(["cron", "history", "--engine", url, "--json", job]).ok().out();
    let history: Value = serde_json::from_str(&history).unwrap();
    history.as_array().unwrap().iter().any(|entry| entry["token"] == token && entry["outcome"] != "crashed")
}
