//! The controls: every host has the same schedule, and waits until its own clock shows the tick, as
//! cron does.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use leasehold_testbed::WallClock;

use crate::common::{LEASEHOLD, TestFolder};

/// The clock skews, in seconds: small enough that all hosts soon reach the same tick.
const SKEWS: [i64; 8] = [-2, -2, -1, 0, 0, 1, 1, 2];

/// A run of a tick, as its host recorded it.
#[derive(Debug)]
struct RecordedRun {
    /// How far the host's clock is ahead, in seconds.
    skew: i64,
    /// The true time of the run, in seconds since 1970.
    ran_at: i64,
    /// The token of its lock; 0 without a lock.
    token: u64,
}

/// Makes each host run `command` at each of three ticks. Returns the recorded runs by tick.
fn run_naive_fleet(place: &TestFolder, command: &str) -> BTreeMap<i64, Vec<RecordedRun>> {
    let first = jiff::Timestamp::now().as_second() + 3;
    // The child processes have the right time, and record it.
    let wait = "until [ $(date +%s) -ge $tick ]; do LD_PRELOAD= sleep 0.2; done";
    let ticks = format!("{first} {} {}", first + 1, first + 2);
    let script = format!("export tick; for tick in {ticks}; do {wait}; (LD_PRELOAD=; {command}) || exit 1; done");
    let hosts: Vec<_> = SKEWS
        .iter()
        .map(|skew| {
            let clock = WallClock::new().unwrap();
            clock.set_offset(*skew).unwrap();
            let mut host = Command::new("sh");
            host.args(["-c", &script]).envs(clock.environment()).current_dir(place.dir.path()).stdin(Stdio::null());
            host.env("LEASEHOLD_ENGINE", place.engine()).env("L", LEASEHOLD).env("skew", skew.to_string());
            (host.spawn().unwrap(), clock)
        })
        .collect();
    for (mut host, _clock) in hosts {
        assert!(host.wait().unwrap().success());
    }
    let mut ran: BTreeMap<i64, Vec<RecordedRun>> = BTreeMap::new();
    for line in place.read("naive.log").lines() {
        let [tick, skew, at, token] = line.split(' ').map(|word| word.parse().unwrap()).collect::<Vec<i64>>()[..]
        else {
            panic!("{line}")
        };
        ran.entry(tick).or_default().push(RecordedRun { skew, ran_at: at, token: token.unsigned_abs() });
    }
    assert_eq!(ran.keys().copied().collect::<Vec<_>>(), [first, first + 1, first + 2]);
    // By its own clock, no host was early: those whose clock is slow were late.
    for (tick, runs) in &ran {
        assert!(runs.iter().all(|run| run.ran_at + run.skew >= *tick), "{tick}: {runs:?}");
    }
    ran
}

/// Hosts that do not coordinate: each of the eight runs every tick.
#[test]
fn without_leasehold_every_tick_runs_eight_times() {
    let ran = run_naive_fleet(&TestFolder::new(), "echo $tick $skew $(date +%s) 0 >> naive.log");
    for (tick, runs) in &ran {
        let skews: Vec<i64> = sorted(runs.iter().map(|run| run.skew));
        assert_eq!(skews, SKEWS, "{tick}: {runs:?}");
    }
}

/// With a lock around each run, but no record of ticks: the runs do not overlap, but all of them
/// run.
#[test]
fn with_a_lock_alone_every_tick_runs_eight_times_too() {
    let place = TestFolder::new();
    let work = "mkdir busy || exit 1; echo $tick $skew $(date +%s) $LEASEHOLD_TOKEN >> naive.log; rmdir busy";
    let ran = run_naive_fleet(&place, &format!("\"$L\" run message -c '{work}'"));
    for (tick, runs) in &ran {
        let skews: Vec<i64> = sorted(runs.iter().map(|run| run.skew));
        assert_eq!(skews, SKEWS, "{tick}: {runs:?}");
    }
    let tokens: Vec<u64> = sorted(ran.values().flatten().map(|run| run.token));
    assert!(tokens.is_sorted_by(|a, b| a < b), "each had the lock for itself: {tokens:?}");
}

fn sorted<T: Ord>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = all.collect();
    all.sort();
    all
}
