//! All tests: built once, then several programs at a time. Most of them wait for servers most of the time, so that two cores serve four.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::again::{self, out_of_time};
use crate::scratch::{self, Scratch};
use crate::{Done, say};

/// How many run at once.
const AT_ONCE: usize = 4;

/// Keeps the machine busy by itself.
const ALONE: &str = " histories";

/// These only compute. They get what time the others leave: those wait for servers, and servers for nobody.
const PURE: [&str; 3] = ["leasehold leasehold", "leasehold quorum", "leasehold-verify check"];

/// Longer than any takes.
const LIMIT: &str = "20m";

/// So many lines are shown of a program that did not come to its end.
const LAST: usize = 40;

/// What is said of a program that says nothing.
const NO_RESULT: &str = "no result";

/// One test program.
#[derive(Debug)]
struct Program {
    /// Package and target: `leasehold-cli fleet`.
    name: String,
    executable: PathBuf,
    folder: PathBuf,
}

impl Program {
    fn is_pure(&self) -> bool {
        PURE.contains(&self.name.as_str())
    }
}

/// A program that failed.
struct Failure<'a> {
    program: &'a Program,
    line: String,
    log: String,
}

/// Builds and runs every test program; all of them, also when one fails. Tests that did nothing worse than run out of time beside the
/// others are run again alone, and decide there.
pub(crate) fn run_all(root: &Path) -> Done {
    let programs = build(root)?;
    let stage = Stage::new(root)?;
    let mut failed = stage.run_all(&programs);
    failed.retain(|failure| !stage.passes_alone(failure));
    verdict(&failed)
}

/// Runs those programs several times of which a word stands in their names: what fails now and then shows itself.
pub(crate) fn repeat(root: &Path, times: u32, words: &[String]) -> Done {
    let named = |program: &Program| match words {
        [] => !program.name.ends_with(ALONE),
        words => words.iter().any(|word| program.name.contains(word)),
    };
    let programs: Vec<_> = build(root)?.into_iter().filter(named).collect();
    let stage = Stage::new(root)?;
    let mut failed = Vec::new();
    for time in 1..=times {
        say(&format!("==> time {time} of {times}"));
        failed.extend(stage.run_all(&programs));
    }
    verdict(&failed)
}

/// What went wrong comes last, where it is looked for.
fn verdict(failed: &[Failure<'_>]) -> Done {
    if failed.is_empty() {
        return Ok(());
    }
    let words: String =
        failed.iter().map(|failure| format!("\n\n{}\n{}", failure.line, failures(&failure.log))).collect();
    Err(format!("{} test programs failed:{words}", failed.len()).into())
}

/// What the failed tests of a program printed; the end of it if that cannot be told.
fn failures(log: &str) -> &str {
    let last = || log.rmatch_indices('\n').nth(LAST).map_or(0, |(at, _)| at);
    let from = log.find("\nfailures:\n").unwrap_or_else(last);
    log[from..].trim()
}

/// Where programs are run.
struct Stage {
    logs: PathBuf,
    scratch: Scratch,
}

impl Stage {
    fn new(root: &Path) -> std::io::Result<Self> {
        let logs = root.join("target/test-logs");
        fs::create_dir_all(&logs)?;
        let scratch = Scratch::new();
        say(&format!("==> what their servers keep is {}", scratch.words()));
        Ok(Self { logs, scratch })
    }

    /// Whether tests that ran out of time beside others have the time alone, each time that they are run. What they said first is shown anyway.
    fn passes_alone(&self, failure: &Failure<'_>) -> bool {
        let Some(tests) = out_of_time(&failure.log) else { return false };
        say(&format!("==> out of time beside the others:\n\n{}\n{}\n", failure.line, failures(&failure.log)));
        (1..=again::TIMES).all(|time| {
            let (line, log) = self.run(failure.program, &tests);
            say(&format!("{line}\n        alone, time {time} of {}: {}", again::TIMES, tests.join(", ")));
            log.is_none()
        })
    }

    /// Runs all; gives back those that failed.
    fn run_all<'a>(&self, programs: &'a [Program]) -> Vec<Failure<'a>> {
        say(&format!("==> {} test programs, {AT_ONCE} at a time", programs.len()));
        let (alone, others): (Vec<_>, Vec<_>) = programs.iter().partition(|program| program.name.ends_with(ALONE));
        let (pure, beside): (Vec<_>, Vec<_>) = others.into_iter().partition(|program| program.is_pure());
        let mut failed = thread::scope(|scope| {
            let pure = scope.spawn(|| self.run_some(pure, 1));
            let mut failed = self.run_some(beside, AT_ONCE);
            failed.extend(pure.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            failed
        });
        failed.extend(self.run_some(alone, 1));
        failed
    }

    fn run_some<'a>(&self, programs: Vec<&'a Program>, at_once: usize) -> Vec<Failure<'a>> {
        let queue = Mutex::new(VecDeque::from(programs));
        let failed = Mutex::new(Vec::new());
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let work = || {
            while let Some(program) = next() {
                let (line, log) = self.run(program, &[]);
                match log {
                    None => say(&line),
                    Some(log) => {
                        say(&format!("{line}\n        its output is in {}", self.logs.display()));
                        failed.lock().unwrap_or_else(PoisonError::into_inner).push(Failure { program, line, log });
                    }
                }
            }
        };
        thread::scope(|scope| (0..at_once).for_each(|_| drop(scope.spawn(work))));
        failed.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one, or some tests of it; the line says how it went, and what it printed is given back if that was not well.
    fn run(&self, program: &Program, tests: &[&str]) -> (String, Option<String>) {
        let name = &program.name;
        scratch::clear_clocks();
        let path = self.logs.join(format!("{}.log", name.replace([' ', '/'], "-")));
        let status = File::create(&path).and_then(|log| {
            // One that hangs must not take the others with it.
            let mut command = Command::new("timeout");
            command.args(["--kill-after=10s", LIMIT]);
            if program.is_pure() {
                command.args(["nice", "-n", "19"]);
            }
            command.arg(&program.executable).args(tests);
            if !tests.is_empty() {
                command.args(["--exact", "--test-threads", "1"]);
            }
            command.current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder).stdin(Stdio::null());
            // What was expected is in the message; a hundred lines of stack would hide it.
            command.env("RUST_BACKTRACE", "0");
            self.scratch.lend(&mut command);
            command.stdout(log.try_clone()?).stderr(log).status()
        });
        let log = fs::read(&path).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default();
        let summary = log.lines().rev().find(|line| line.starts_with("test result:")).unwrap_or(NO_RESULT);
        match status {
            Ok(status) if status.success() && summary != NO_RESULT => (format!("    {name}: {summary}"), None),
            Ok(status) => (format!("    {name}: {status}, {summary}"), Some(log)),
            Err(error) => (format!("    {name}: {error}"), Some(log)),
        }
    }
}

/// Builds the test programs, those that take longest first.
fn build(root: &Path) -> Result<Vec<Program>, Box<dyn std::error::Error>> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--workspace", "--locked", "--no-run", "--message-format", "json-render-diagnostics"]);
    say("==> cargo test --workspace --locked --no-run");
    let mut building = cargo.current_dir(root).stdout(Stdio::piped()).spawn()?;
    let mut programs = Vec::new();
    let lines = building.stdout.take().map(BufReader::new).ok_or("no output")?.lines();
    for line in lines {
        let message: serde_json::Value = serde_json::from_str(&line?)?;
        if message["reason"] == "compiler-artifact"
            && message["profile"]["test"] == true
            && let (Some(executable), Some(manifest)) =
                (message["executable"].as_str(), message["manifest_path"].as_str())
            && let Some(folder) = Path::new(manifest).parent()
        {
            let package = folder.file_name().unwrap_or_default().to_string_lossy();
            let target = message["target"]["name"].as_str().unwrap_or_default();
            let name = format!("{package} {target}");
            programs.push(Program { name, executable: executable.into(), folder: folder.to_owned() });
        }
    }
    let status = building.wait()?;
    if !status.success() {
        return Err(format!("cargo test --no-run: {status}").into());
    }
    if programs.is_empty() {
        return Err("cargo built no test program".into());
    }
    programs.sort_by_cached_key(|program| (std::cmp::Reverse(expected(&program.name)), program.name.clone()));
    Ok(programs)
}

/// About how long a program takes, so that none of the long ones is begun last.
fn expected(name: &str) -> Duration {
    let seconds = match name.split(' ').next_back().unwrap_or_default() {
        "fleet" | "redlock_faults" | "zookeeper_faults" | "sql_faults" | "redis_deployments" | "quorum" => 90,
        "sql_held_faults" | "redis_faults" | "doctor_zookeeper" | "deploy" => 60,
        "zookeeper" | "mariadb" | "mysql" | "postgres" | "redis_bundles" | "cron" | "doctor_sql" | "verify" => 40,
        name if name.starts_with("redis") || name.contains("mysql") || name.contains("postgres") => 20,
        _ => 10,
    };
    Duration::from_secs(seconds)
}
