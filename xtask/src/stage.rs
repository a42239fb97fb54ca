//! Runs parts of test programs concurrently, so that the load stays near the machine's capacity.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::programs::Part;
use crate::say;
use crate::scratch::{self, Scratch};

/// How many tests run at once, over all parts. Most wait for servers and for leases to expire: two
/// cores serve a dozen.
const AT_ONCE: usize = 12;

/// The time limit of a part, against hangs. No part takes a tenth of it.
const GATE_LIMIT: &str = "20m";
const NIGHTLY_LIMIT: &str = "110m";

/// How many lines to show of a part that ended without listing its failed tests.
const LAST: usize = 40;

const NO_RESULT: &str = "no result";

/// The load of a part.
struct Weight {
    /// How many of its tests run at once.
    threads: usize,
    /// Its approximate duration in seconds: long parts start first.
    seconds: u32,
}

fn weight(part: &Part) -> Weight {
    let words: Vec<&str> = part.name.split(' ').collect();
    let weight = |threads, seconds| Weight { threads, seconds };
    match words[..] {
        [_, "unit", ..] | [_, _, "quorum" | "check" | "virtual" | "library" | "model"] => {
            // CPU-only tests: one core is enough, and tests that wait for servers use the other.
            weight(1, 60)
        }
        // Histories limit themselves to two at a time, each with five processes.
        [_, "histories", ..] => weight(AT_ONCE, 3000),
        [_, _, "smoke"] => weight(4, 90),
        [_, "suite", "zookeeper" | "redlock" | "mysql" | "postgres" | "redis_cluster"] => weight(4, 60),
        [_, "suite", _] => weight(3, 40),
        [_, _, "fleet"] => weight(4, 60),
        [_, "servers", _] => weight(3, 40),
        _ => weight(3, 20),
    }
}

/// The time limit of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    Gate,
    Nightly,
}

/// A part that failed.
pub(crate) struct Failure {
    line: String,
    log: String,
}

/// The result of a part.
pub(crate) struct Outcome {
    pub(crate) name: String,
    pub(crate) took: Duration,
    pub(crate) failure: Option<Failure>,
}

/// Prints the failures last, where readers look for them.
pub(crate) fn verdict(failed: &[Failure]) -> crate::Done {
    if failed.is_empty() {
        return Ok(());
    }
    let words: String =
        failed.iter().map(|failure| format!("\n\n{}\n{}", failure.line, failures(&failure.log))).collect();
    Err(format!("{} parts of the tests failed:{words}", failed.len()).into())
}

/// The output of a part's failed tests; without a list of failures, the end of its log.
fn failures(log: &str) -> &str {
    let last = || log.rmatch_indices('\n').nth(LAST).map_or(0, |(at, _)| at);
    let from = log.find("\nfailures:\n").unwrap_or_else(last);
    log[from..].trim()
}

/// The environment in which parts run.
pub(crate) struct Stage {
    logs: PathBuf,
    scratch: Scratch,
    tier: Tier,
    variables: Vec<(String, String)>,
}

impl Stage {
    pub(crate) fn new(root: &Path, tier: Tier) -> std::io::Result<Self> {
        let logs = root.join("target/test-logs");
        fs::create_dir_all(&logs)?;
        let scratch = Scratch::new();
        say(&format!("==> the servers of the tests keep their data {}", scratch.words()));
        Ok(Self { logs, scratch, tier, variables: Vec::new() })
    }

    /// Sets these variables for all parts.
    pub(crate) fn with(mut self, variables: &[(&str, String)]) -> Self {
        self.variables.extend(variables.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
        self
    }

    /// Runs all parts, even after a failure.
    pub(crate) fn run(&self, mut parts: Vec<Part>, each: impl Fn(&Outcome) + Sync) -> Vec<Outcome> {
        parts.sort_by_cached_key(|part| (std::cmp::Reverse(weight(part).seconds), part.name.clone()));
        say(&format!("==> {} parts, up to {AT_ONCE} tests at a time", parts.len()));
        let queue = Mutex::new(VecDeque::from(parts));
        let (room, freed) = (Mutex::new(AT_ONCE), Condvar::new());
        let outcomes = Mutex::new(Vec::new());
        let work = || {
            while let Some((part, weight)) = next(&queue, &room, &freed) {
                let outcome = self.run_one(&part, &weight);
                each(&outcome);
                locked(&outcomes).push(outcome);
                *locked(&room) += weight.threads.min(AT_ONCE);
                freed.notify_all();
            }
        };
        thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
        outcomes.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one part to its end.
    fn run_one(&self, part: &Part, weight: &Weight) -> Outcome {
        let name = &part.name;
        scratch::clear_clocks();
        let path = self.logs.join(format!("{}.log", name.replace([' ', '/'], "-")));
        let began = now();
        let status = File::create(&path).and_then(|log| {
            // Default signal actions as on a terminal, even in a shell's background; and a time
            // limit for a part that hangs.
            let mut command = Command::new("env");
            let limit = if self.tier == Tier::Gate { GATE_LIMIT } else { NIGHTLY_LIMIT };
            command.args(["--default-signal=INT,QUIT", "timeout", "--kill-after=10s", limit]);
            command.arg(&part.executable).args(["--test-threads", &weight.threads.to_string()]);
            if !part.tests.is_empty() {
                command.arg("--exact").args(&part.tests);
            }
            command.current_dir(&part.folder).env("CARGO_MANIFEST_DIR", &part.folder).stdin(Stdio::null());
            // The message names what was expected; a hundred lines of backtrace would hide it.
            command.env("RUST_BACKTRACE", "0");
            command.envs(self.variables.iter().map(|(key, value)| (key, value)));
            self.scratch.lend(&mut command);
            command.stdout(log.try_clone()?).stderr(log).status()
        });
        let took = began.elapsed();
        let mut path = path;
        if !status.as_ref().is_ok_and(ExitStatus::success) {
            // Kept apart, because the next run of this part overwrites its log.
            let failed = path.with_extension("failed.log");
            path = fs::rename(&path, &failed).map_or(path, |()| failed);
        }
        let log = fs::read(&path).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default();
        let summary = log.lines().rev().find(|line| line.starts_with("test result:")).unwrap_or(NO_RESULT);
        let (passed, line) = match status {
            Ok(status) if status.success() && summary != NO_RESULT => (true, format!("    {name}: {summary}")),
            Ok(status) => (false, format!("    {name}: {status}, {summary}; its output is in {}", path.display())),
            Err(error) => (false, format!("    {name}: {error}")),
        };
        say(&line);
        let failure = (!passed).then_some(Failure { line, log });
        Outcome { name: name.clone(), took, failure }
    }
}

/// Takes the next part as soon as there is capacity for it.
fn next(queue: &Mutex<VecDeque<Part>>, room: &Mutex<usize>, freed: &Condvar) -> Option<(Part, Weight)> {
    let mut free = locked(room);
    loop {
        let mut queue = locked(queue);
        if queue.is_empty() {
            return None;
        }
        // The longest part that fits. A larger part that does not fit yet stays first in the queue.
        let fits = |part: &Part| weight(part).threads.min(AT_ONCE) <= *free;
        if let Some(at) = queue.iter().position(fits)
            && let Some(part) = queue.remove(at)
        {
            let weight = weight(&part);
            *free -= weight.threads.min(AT_ONCE);
            return Some((part, weight));
        }
        drop(queue);
        free = freed.wait(free).unwrap_or_else(PoisonError::into_inner);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[allow(clippy::disallowed_methods, reason = "how long a part took is shown to a person")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
