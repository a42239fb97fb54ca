//! `cargo xtask repeat`: runs every part of the gate many times, with a busy loop on each core. The
//! results are stored, so a later run can continue.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde_json::{Value, json};

use crate::part_runner::{PartFailure, PartRunner, Tier, report_failures};
use crate::programs::TestPart;
use crate::{TaskResult, gate, print_line, setup};

/// The runs and failures of each part, on one version of the code.
#[derive(Default)]
struct RunCounts {
    /// The version of the code; for another version the tally starts at zero.
    code_version: String,
    parts: BTreeMap<String, (u32, u32)>,
}

/// Runs the parts with one of `words` in their names until each has run `times` times.
pub(crate) fn run_repeatedly(root: &Path, times: u32, words: &[String]) -> TaskResult {
    setup::install_for_gate()?;
    let is_selected = |part: &TestPart| words.is_empty() || words.iter().any(|word| part.name.contains(word));
    let parts: Vec<TestPart> = gate::build_parts(root)?.into_iter().filter(is_selected).collect();
    let tally = Mutex::new(RunCounts::load(root)?);
    let runner = PartRunner::new(root, Tier::Gate)?;
    let done = AtomicBool::new(false);
    let failed = thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let failed = run_rounds(root, &runner, &parts, times, &tally);
        done.store(true, Ordering::Relaxed);
        failed
    });
    let tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    print_line(&tally.summary(times));
    report_failures(&failed)?;
    match tally.failure_count() {
        0 => Ok(()),
        earlier => {
            Err(format!("{earlier} failures of earlier runs on this code; the summary names their parts").into())
        }
    }
}

fn run_rounds(
    root: &Path,
    runner: &PartRunner,
    parts: &[TestPart],
    times: u32,
    tally: &Mutex<RunCounts>,
) -> Vec<PartFailure> {
    let mut failed = Vec::new();
    loop {
        let locked = || tally.lock().unwrap_or_else(PoisonError::into_inner);
        let due: Vec<TestPart> = parts.iter().filter(|part| locked().run_count(&part.name) < times).cloned().collect();
        if due.is_empty() {
            return failed;
        }
        print_line(&format!("==> {} parts have run fewer than {times} times", due.len()));
        let outcomes = runner.run(due, |outcome| {
            let mut tally = locked();
            tally.record_run(&outcome.name, outcome.failure.is_some());
            if let Err(error) = tally.save(root) {
                print_line(&format!("xtask: cannot save the run counts: {error}"));
            }
        });
        failed.extend(outcomes.into_iter().filter_map(|outcome| outcome.failure));
    }
}

impl RunCounts {
    fn load(root: &Path) -> Result<Self, Box<dyn std::error::Error>> {
        let of = code_version(root)?;
        let kept =
            fs::read_to_string(counts_path(root)).ok().and_then(|text| serde_json::from_str::<Value>(&text).ok());
        let kept = kept.filter(|kept| kept["of"] == of.as_str()).unwrap_or_default();
        let number = |value: &Value| u32::try_from(value.as_u64().unwrap_or_default()).unwrap_or_default();
        let parts = kept["parts"].as_object().map(|parts| {
            parts.iter().map(|(name, row)| (name.clone(), (number(&row["runs"]), number(&row["failures"])))).collect()
        });
        Ok(Self { code_version: of, parts: parts.unwrap_or_default() })
    }

    fn save(&self, root: &Path) -> std::io::Result<()> {
        let parts: BTreeMap<_, _> = self
            .parts
            .iter()
            .map(|(name, (runs, failures))| (name, json!({ "runs": runs, "failures": failures })))
            .collect();
        fs::write(counts_path(root), json!({ "of": self.code_version, "parts": parts }).to_string())
    }

    fn run_count(&self, name: &str) -> u32 {
        self.parts.get(name).map_or(0, |(runs, _)| *runs)
    }

    fn record_run(&mut self, name: &str, has_failed: bool) {
        let row = self.parts.entry(name.to_owned()).or_default();
        row.0 += 1;
        row.1 += u32::from(has_failed);
    }

    fn failure_count(&self) -> u32 {
        self.parts.values().map(|(_, failures)| failures).sum()
    }

    fn summary(&self, times: u32) -> String {
        let full = self.parts.values().filter(|(runs, _)| *runs >= times).count();
        let runs: u32 = self.parts.values().map(|(runs, _)| runs).sum();
        let failures = self.failure_count();
        let bad = self.parts.iter().filter(|(_, (_, failures))| *failures > 0);
        let bad: String =
            bad.map(|(name, (runs, failures))| format!("\n    {name}: {failures} of {runs} failed")).collect();
        let all = self.parts.len();
        format!("==> {full} of {all} parts have run {times} times: {runs} runs, {failures} failures{bad}")
    }
}

fn counts_path(root: &Path) -> std::path::PathBuf {
    root.join("target/repeat.json")
}

/// Identifies the tested code: a hash of every file that it is built from or that its tests read,
/// committed or not.
pub(crate) fn code_version(root: &Path) -> Result<String, Box<dyn std::error::Error>> {
    fs::create_dir_all(root.join("target"))?;
    let index = root.join("target/version.index");
    let git = |arguments: &[&str]| -> Result<String, Box<dyn std::error::Error>> {
        let output = Command::new("git").args(arguments).current_dir(root).env("GIT_INDEX_FILE", &index).output()?;
        if output.status.success() {
            return Ok(String::from_utf8(output.stdout)?.trim().to_owned());
        }
        Err(format!("git {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()).into())
    };
    git(&["read-tree", "--empty"])?;
    let sources = ["crates", "examples", "bench", "xtask", "docs", ".cargo", "clippy.toml", "Cargo.toml", "Cargo.lock"];
    git(&[&["add", "--all", "--"], &sources[..]].concat())?;
    git(&["write-tree"])
}
