//! Runs parts of test programs concurrently, so that the load stays near the machine's capacity.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::data_folder::{self, ServerDataFolder};
use crate::print_line;
use crate::programs::TestPart;

/// How many tests run at once, over all parts. Most wait for servers and for leases to expire: two
/// cores serve a dozen.
const MAX_CONCURRENT_TESTS: usize = 12;

/// The time limit of a part, against hangs. Every part needs less than a tenth of it.
const GATE_LIMIT: &str = "20m";
pub(crate) const NIGHTLY_LIMIT: &str = "110m";

/// How many lines to show of a part that ended without listing its failed tests.
const LAST_LINES: usize = 40;

const NO_RESULT: &str = "no result";

/// How many tests of a part run at once, and about how long it takes: decides which part starts
/// next.
struct PartLoad {
    /// How many of its tests run at once.
    threads: usize,
    /// How many seconds the part takes, roughly: long parts start first.
    seconds: u32,
}

fn part_load(part: &TestPart) -> PartLoad {
    let words: Vec<&str> = part.name.split(' ').collect();
    let load = |threads, seconds| PartLoad { threads, seconds };
    match words[..] {
        [_, "unit", ..] | [_, _, "quorum" | "check" | "virtual" | "library" | "model"] => {
            // CPU-only tests: one core is enough, and tests that wait for servers use the other.
            load(1, 60)
        }
        // Histories limit themselves, and mostly wait.
        [_, "histories", ..] => load(MAX_CONCURRENT_TESTS, 3000),
        [_, _, "smoke"] => load(4, 90),
        [_, "suite", "zookeeper" | "redlock" | "mysql" | "postgres" | "redis_cluster"] => load(4, 60),
        [_, "suite", _] => load(3, 40),
        [_, _, "fleet"] => load(4, 60),
        [_, "servers", _] => load(3, 40),
        _ => load(3, 20),
    }
}

/// Which tests run, and how long each part may take.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    Gate,
    Nightly,
}

/// A part that failed.
pub(crate) struct PartFailure {
    summary: String,
    log: String,
}

/// How a part of the tests ended.
pub(crate) struct PartOutcome {
    pub(crate) name: String,
    pub(crate) duration: Duration,
    pub(crate) failure: Option<PartFailure>,
}

/// Prints the output of all failed parts, last, where readers look for it; an error if there are
/// any.
pub(crate) fn report_failures(failed: &[PartFailure]) -> crate::TaskResult {
    if failed.is_empty() {
        return Ok(());
    }
    let words: String =
        failed.iter().map(|failure| format!("\n\n{}\n{}", failure.summary, failed_output(&failure.log))).collect();
    Err(format!("{} parts of the tests failed:{words}", failed.len()).into())
}

/// The output of a part's failed tests; without a list of failures, the end of its log.
fn failed_output(log: &str) -> &str {
    let last = || log.rmatch_indices('\n').nth(LAST_LINES).map_or(0, |(at, _)| at);
    let from = log.find("\nfailures:\n").unwrap_or_else(last);
    log[from..].trim()
}

/// The environment in which parts run.
pub(crate) struct PartRunner {
    logs: PathBuf,
    data_folder: ServerDataFolder,
    tier: Tier,
    variables: Vec<(String, String)>,
}

impl PartRunner {
    pub(crate) fn new(root: &Path, tier: Tier) -> std::io::Result<Self> {
        let logs = root.join("target/test-logs");
        fs::create_dir_all(&logs)?;
        let data_folder = ServerDataFolder::new();
        print_line(&format!("==> the test servers store their data {}", data_folder.describe()));
        Ok(Self { logs, data_folder, tier, variables: Vec::new() })
    }

    /// Sets these variables for all parts.
    pub(crate) fn with_variables(mut self, variables: &[(&str, String)]) -> Self {
        self.variables.extend(variables.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
        self
    }

    /// Runs all parts, even after a failure.
    pub(crate) fn run(&self, mut parts: Vec<TestPart>, on_outcome: impl Fn(&PartOutcome) + Sync) -> Vec<PartOutcome> {
        parts.sort_by_cached_key(|part| (std::cmp::Reverse(part_load(part).seconds), part.name.clone()));
        print_line(&format!("==> {} parts, up to {MAX_CONCURRENT_TESTS} tests at a time", parts.len()));
        let queue = Mutex::new(VecDeque::from(parts));
        let (capacity, freed) = (Mutex::new(MAX_CONCURRENT_TESTS), Condvar::new());
        let outcomes = Mutex::new(Vec::new());
        let work = || {
            while let Some((part, load)) = take_next_part(&queue, &capacity, &freed) {
                let outcome = self.run_part(&part, &load);
                on_outcome(&outcome);
                lock(&outcomes).push(outcome);
                *lock(&capacity) += load.threads.min(MAX_CONCURRENT_TESTS);
                freed.notify_all();
            }
        };
        thread::scope(|scope| (0..MAX_CONCURRENT_TESTS).for_each(|_| drop(scope.spawn(work))));
        outcomes.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one part to its end.
    fn run_part(&self, part: &TestPart, load: &PartLoad) -> PartOutcome {
        let name = &part.name;
        data_folder::remove_stale_clock_files();
        let path = self.logs.join(format!("{}.log", name.replace([' ', '/'], "-")));
        let began = now();
        let status = File::create(&path).and_then(|log| {
            // Default signal actions as on a terminal, even in a shell's background; and a time
            // limit for a part that hangs.
            let mut command = Command::new("env");
            let limit = if self.tier == Tier::Gate { GATE_LIMIT } else { NIGHTLY_LIMIT };
            command.args(["--default-signal=INT,QUIT", "timeout", "--kill-after=10s", limit]);
            command.arg(&part.executable).args(["--test-threads", &load.threads.to_string()]);
            if !part.tests.is_empty() {
                command.arg("--exact").args(&part.tests);
            }
            command.current_dir(&part.folder).env("CARGO_MANIFEST_DIR", &part.folder).stdin(Stdio::null());
            // The message names the expected result; a hundred lines of backtrace would hide it.
            command.env("RUST_BACKTRACE", "0");
            command.envs(self.variables.iter().map(|(key, value)| (key, value)));
            self.data_folder.set_tmpdir(&mut command);
            command.stdout(log.try_clone()?).stderr(log).status()
        });
        let took = began.elapsed();
        let mut path = path;
        if !status.as_ref().is_ok_and(ExitStatus::success) {
            // A separate file, because the next run of this part overwrites its log.
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
        print_line(&line);
        let failure = (!passed).then_some(PartFailure { summary: line, log });
        PartOutcome { name: name.clone(), duration: took, failure }
    }
}

/// Removes the next part from the queue as soon as there is capacity for it.
fn take_next_part(
    queue: &Mutex<VecDeque<TestPart>>,
    free_slots: &Mutex<usize>,
    slot_freed: &Condvar,
) -> Option<(TestPart, PartLoad)> {
    let mut free = lock(free_slots);
    loop {
        let mut queue = lock(queue);
        if queue.is_empty() {
            return None;
        }
        // The longest part that fits. A larger part that does not fit yet stays first in the queue.
        let fits = |part: &TestPart| part_load(part).threads.min(MAX_CONCURRENT_TESTS) <= *free;
        if let Some(at) = queue.iter().position(fits)
            && let Some(part) = queue.remove(at)
        {
            let load = part_load(&part);
            *free -= load.threads.min(MAX_CONCURRENT_TESTS);
            return Some((part, load));
        }
        drop(queue);
        free = slot_freed.wait(free).unwrap_or_else(PoisonError::into_inner);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[allow(clippy::disallowed_methods, reason = "how long a part took is shown to a person")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
