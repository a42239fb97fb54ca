//! `leasehold cron` and `leasehold run --once-per`, on a folder: real processes, the real clock.
//!
//! Hosts notice a manual run within ten seconds, and at once when they start. So most tests request
//! one before they start hosts.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod files;
mod health;
mod hosts;
mod once_per;
mod steering;

use std::collections::BTreeMap;
use std::process::Stdio;

use crate::common::{LASTING, Place, Running, wait_for};
use rustix::process::Signal;
use serde_json::Value;

/// The jobs of these tests record their tick and their token.
const SAY: &str = "echo $LEASEHOLD_TICK $LEASEHOLD_TOKEN $LEASEHOLD_ATTEMPT >> log";

fn write(place: &Place, name: &str, text: &str) {
    std::fs::write(place.path(name), text).unwrap();
}

/// A host that runs the file.
fn host(place: &Place, options: &[&str]) -> Running {
    // In a folder a dead host's lock is free at once: a long TTL costs nothing, and a slow host
    // does not lose its lock.
    place.start([&["cron", "--json", "--ttl", LASTING], options, &["jobs.cron"]].concat())
}

/// The same, with its output in a file.
fn host_that_says(place: &Place, options: &[&str], file: &str) -> Running {
    let mut command = place.leasehold([&["cron", "--json", "--ttl", LASTING], options, &["jobs.cron"]].concat());
    command.stdout(Stdio::null()).stderr(std::fs::File::create(place.path(file)).unwrap());
    Running(Some(command.spawn().unwrap()))
}

/// Makes a host register the jobs, and requests a run of each of these from hosts that start later.
fn wanted(place: &Place, file: &str, jobs: &[&str]) {
    let first = place.start(["cron", "--ttl", LASTING, file]);
    for job in jobs {
        wait_for("the job to be known", || status(place, job));
    }
    first.signal(Signal::TERM);
    first.end().ok();
    place.run([&["cron", "run-now"], jobs].concat()).ok();
}

/// All events in a host's output file; every line must be one.
fn events(place: &Place, file: &str) -> Vec<Value> {
    place.read(file).lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// Waits until a host has logged this event.
fn wait_for_event(place: &Place, file: &str, event: &str) -> Value {
    // The last line may be incomplete.
    let lines =
        |text: String| text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::to_owned).collect();
    wait_for(event, || {
        let lines: Vec<String> = lines(place.read(file));
        lines.iter().map(|line| serde_json::from_str::<Value>(line).expect(line)).find(|said| said["event"] == event)
    })
}

/// Removes the host that runs this job now from `hosts`, and returns it.
fn who_runs(place: &Place, job: &str, hosts: &mut Vec<Running>) -> Running {
    let node = status(place, job).unwrap()["running"][0]["node"].as_str().unwrap().to_owned();
    let at = hosts.iter().position(|host| node.ends_with(&format!(":{}", host.pid().as_raw_nonzero()))).unwrap();
    hosts.remove(at)
}

/// Waits until a job's history has this length.
fn history(place: &Place, job: &str, length: usize) -> Vec<Value> {
    wait_for("the end of it", || {
        let history = place.run(["cron", "history", job, "--json"]).ok().out();
        let history: Vec<Value> = serde_json::from_str(&history).unwrap();
        (history.len() == length).then_some(history)
    })
}

/// The runs: tick -> (token, attempt).
fn log(place: &Place) -> BTreeMap<String, Vec<(u64, u32)>> {
    let mut ran: BTreeMap<String, Vec<(u64, u32)>> = BTreeMap::new();
    for line in place.read("log").lines() {
        let words: Vec<_> = line.split(' ').collect();
        ran.entry(words[0].to_owned()).or_default().push((words[1].parse().unwrap(), words[2].parse().unwrap()));
    }
    ran
}

fn status(place: &Place, job: &str) -> Option<Value> {
    let all: Value = serde_json::from_str(&place.run(["cron", "status", "--json"]).ok().out()).unwrap();
    all.as_array().unwrap().iter().find(|status| status["job"] == job).cloned()
}
