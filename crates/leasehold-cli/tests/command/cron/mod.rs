//! `leasehold cron` and `leasehold run --once-per`, on a folder: real processes, the real clock.
//!
//! Hosts notice a manual run within ten seconds, and at once when they start. So most tests request
//! one before they start hosts.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod files;
mod health;
mod hosts;
mod once_per;
mod operator_actions;

use std::collections::BTreeMap;
use std::process::Stdio;

use crate::common::{LONG_TTL, RunningCommand, TestFolder, wait_for};
use rustix::process::Signal;
use serde_json::Value;

/// A job's command that appends its tick, token and attempt to the file `log`.
const RECORD_TICK: &str = "echo $LEASEHOLD_TICK $LEASEHOLD_TOKEN $LEASEHOLD_ATTEMPT >> log";

fn write_file(place: &TestFolder, name: &str, text: &str) {
    std::fs::write(place.path(name), text).unwrap();
}

/// Starts a host that runs the jobs of `jobs.cron`.
fn start_host(place: &TestFolder, options: &[&str]) -> RunningCommand {
    // In a folder a dead host's lock is free at once: a long TTL has no cost, and a slow host
    // does not lose its lock.
    place.start([&["cron", "--json", "--ttl", LONG_TTL], options, &["jobs.cron"]].concat())
}

/// Starts a host that runs the jobs of `jobs.cron`, with its log in `file`.
fn start_host_with_log(place: &TestFolder, options: &[&str], file: &str) -> RunningCommand {
    let mut command = place.command([&["cron", "--json", "--ttl", LONG_TTL], options, &["jobs.cron"]].concat());
    command.stdout(Stdio::null()).stderr(std::fs::File::create(place.path(file)).unwrap());
    RunningCommand(Some(command.spawn().unwrap()))
}

/// Makes a host register the jobs, and requests a run of each of these from hosts that start later.
fn request_runs(place: &TestFolder, file: &str, jobs: &[&str]) {
    let first = place.start(["cron", "--ttl", LONG_TTL, file]);
    for job in jobs {
        wait_for("the job to be known", || job_status(place, job));
    }
    first.signal(Signal::TERM);
    first.wait().assert_ok();
    place.run([&["cron", "run-now"], jobs].concat()).assert_ok();
}

/// All events in a host's log; panics if a line is none.
fn read_events(place: &TestFolder, file: &str) -> Vec<Value> {
    place.read(file).lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// Waits until a host has logged this event.
fn wait_for_event(place: &TestFolder, file: &str, event: &str) -> Value {
    // The last line may be incomplete.
    let lines =
        |text: String| text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::to_owned).collect();
    wait_for(event, || {
        let lines: Vec<String> = lines(place.read(file));
        lines.iter().map(|line| serde_json::from_str::<Value>(line).expect(line)).find(|line| line["event"] == event)
    })
}

/// Removes the host that runs this job now from `hosts`, and returns it.
fn remove_running_host(place: &TestFolder, job: &str, hosts: &mut Vec<RunningCommand>) -> RunningCommand {
    let node = job_status(place, job).unwrap()["running"][0]["node"].as_str().unwrap().to_owned();
    let at = hosts.iter().position(|host| node.ends_with(&format!(":{}", host.pid().as_raw_nonzero()))).unwrap();
    hosts.remove(at)
}

/// Waits until a job's history has exactly this many entries; returns them.
fn wait_for_history(place: &TestFolder, job: &str, length: usize) -> Vec<Value> {
    wait_for("the end of it", || {
        let history = place.run(["cron", "history", job, "--json"]).assert_ok().stdout();
        let history: Vec<Value> = serde_json::from_str(&history).unwrap();
        (history.len() == length).then_some(history)
    })
}

/// The runs that jobs recorded in the file `log`: the tokens and attempts, by tick.
fn recorded_runs(place: &TestFolder) -> BTreeMap<String, Vec<(u64, u32)>> {
    let mut ran: BTreeMap<String, Vec<(u64, u32)>> = BTreeMap::new();
    for line in place.read("log").lines() {
        let words: Vec<_> = line.split(' ').collect();
        ran.entry(words[0].to_owned()).or_default().push((words[1].parse().unwrap(), words[2].parse().unwrap()));
    }
    ran
}

/// The entry of a job in `cron status --json`; `None` before a host has started it.
fn job_status(place: &TestFolder, job: &str) -> Option<Value> {
    let all: Value = serde_json::from_str(&place.run(["cron", "status", "--json"]).assert_ok().stdout()).unwrap();
    all.as_array().unwrap().iter().find(|status| status["job"] == job).cloned()
}
