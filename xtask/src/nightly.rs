//! `cargo xtask nightly`: everything, in named parts of at most two hours each. A part that passed
//! on this version of the code does not run again, so an interrupted run can be resumed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::data_folder::ServerDataFolder;
use crate::part_runner::{self, PartRunner, Tier, report_failures};
use crate::programs::{self, Lint};
use crate::{TaskResult, cargo_command, gate, print_line, repeat, run_command, setup, versions};

/// The features that compile the long tests.
const NIGHTLY_FEATURES: &str = "leasehold/nightly,leasehold-cache/nightly,leasehold-schedule/nightly,leasehold-cli/nightly,leasehold-conformance/nightly,leasehold-testbed/nightly,leasehold-verify/nightly";

/// Each engine must build and pass the lints alone, and the library and the doctor must without
/// any.
const ENGINES: [&str; 7] = ["", "memory", "file", "mysql", "postgres", "redis", "zookeeper"];

/// A part: its name, its purpose, and the function that runs it.
struct NightlyPart {
    name: &'static str,
    purpose: &'static str,
    run: fn(&Path) -> TaskResult,
}

const PARTS: [NightlyPart; 8] = [
    NightlyPart {
        name: "lint",
        purpose: "every feature of the library builds and lints alone; the documentation has no warnings; packages build",
        run: run_lint,
    },
    NightlyPart {
        name: "features",
        purpose: "the library with the engines that need no server, with those features alone",
        run: run_features,
    },
    NightlyPart {
        name: "library",
        purpose: "models and simulations with their full bounds, the schedule, the command's fleet, document tests",
        run: run_library,
    },
    NightlyPart {
        name: "testbed",
        purpose: "the testbed starts, kills, pauses and partitions real servers",
        run: |root| run_tests(root, &["leasehold-testbed"]),
    },
    NightlyPart {
        name: "servers",
        purpose: "every suite, technique and deployment, Galera and ensembles, on real servers",
        run: run_servers,
    },
    NightlyPart {
        name: "histories",
        purpose: "every engine under every fault, including time bounds, and the controls",
        run: |root| run_tests(root, &["leasehold-verify"]),
    },
    NightlyPart {
        name: "soak",
        purpose: "ten histories of a thousand calls for every engine under every fault",
        run: run_soak,
    },
    NightlyPart {
        name: "versions",
        purpose: "the suites on other versions of the servers",
        run: versions::run_all_versions,
    },
];

pub(crate) const HELP: &str = "\
cargo xtask nightly             every part that has not passed on this version of the code
cargo xtask nightly NAME …      these parts, whether they have passed or not
cargo xtask nightly --list      the parts, their purposes, and when each passed";

/// Runs parts, and prints a summary.
pub(crate) fn run_nightly(root: &Path, arguments: &[String]) -> TaskResult {
    let mut state = PartResults::load(root)?;
    if arguments.iter().any(|word| word == "--list") {
        print_line(&state.summary());
        return Ok(());
    }
    if let Some(unknown) = arguments.iter().find(|word| PARTS.iter().all(|part| part.name != *word)) {
        let names: Vec<_> = PARTS.iter().map(|part| part.name).collect();
        return Err(format!("unknown part {unknown:?}; the parts are: {}", names.join(", ")).into());
    }
    setup::install_for_nightly()?;
    let mut failed = Vec::new();
    for part in &PARTS {
        let due = if arguments.is_empty() {
            !state.has_passed(part.name)
        } else {
            arguments.iter().any(|word| word == part.name)
        };
        if !due {
            continue;
        }
        print_line(&format!("==> nightly {}: {}", part.name, part.purpose));
        let began = part_runner::now();
        let result = (part.run)(root);
        state.record(part.name, result.is_ok(), began.elapsed().as_secs());
        state.save(root)?;
        if let Err(error) = result {
            print_line(&format!("xtask: nightly {} failed: {error}", part.name));
            failed.push(part.name);
        }
    }
    print_line(&state.summary());
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", ")).into()) }
}

/// Runs cargo within the time limit of a part. `cargo run` becomes the program it runs, so the limit
/// ends that program.
fn run_cargo(arguments: &[&str]) -> TaskResult {
    run_limited(arguments, |_| {})
}

/// As above; `prepare` sets the program's environment.
fn run_limited(arguments: &[&str], prepare: impl FnOnce(&mut Command)) -> TaskResult {
    let cargo = cargo_command();
    let mut limited = Command::new("timeout");
    limited.args(["--foreground", "--kill-after=10s", part_runner::NIGHTLY_LIMIT]).arg(cargo.get_program());
    for (name, value) in cargo.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    prepare(&mut limited);
    run_command(limited.args(arguments))
}

fn run_lint(_: &Path) -> TaskResult {
    let deny = ["--locked", "--", "--deny", "warnings"];
    run_cargo(&[&["clippy", "--workspace", "--all-targets", "--features", NIGHTLY_FEATURES], &deny[..]].concat())?;
    for package in ["leasehold", "leasehold-doctor"] {
        for engine in ENGINES {
            let alone = ["clippy", "--package", package, "--no-default-features", "--features", engine];
            run_cargo(&[&alone[..], &deny[..]].concat())?;
        }
    }
    run_cargo(&[
        "doc",
        "--workspace",
        "--no-deps",
        "--locked",
        "--config",
        "build.rustdocflags=['--deny', 'warnings']",
    ])?;
    gate::package(&[])
}

fn run_features(_: &Path) -> TaskResult {
    run_cargo(&["test", "--package", "leasehold", "--locked"])?;
    // The error for a scheme whose feature is off must name the feature.
    let memory = ["test", "--package", "leasehold", "--no-default-features", "--features", "memory", "--locked"];
    run_cargo(&[&memory[..], &["--test", "integration", "open"]].concat())
}

fn run_library(root: &Path) -> TaskResult {
    run_tests(
        root,
        &[
            "leasehold",
            "leasehold-cache",
            "leasehold-cli",
            "leasehold-command",
            "leasehold-doctor",
            "leasehold-examples",
            "leasehold-schedule",
            "leasehold-zookeeper",
            "xtask",
        ],
    )?;
    programs::run_doc_tests(&["--workspace"], Lint::No)
}

/// The examples run on real servers, too.
fn run_servers(root: &Path) -> TaskResult {
    run_cargo(&["build", "--locked", "--package", "leasehold-examples"])?;
    run_tests(root, &["leasehold-conformance"])
}

/// All tests of some packages, including the long ones.
fn run_tests(root: &Path, packages: &[&str]) -> TaskResult {
    let chosen: Vec<&str> = packages.iter().flat_map(|package| ["--package", package]).collect();
    let long: Vec<&str> = NIGHTLY_FEATURES
        .split(',')
        .filter(|one| packages.iter().any(|name| one.split('/').next() == Some(name)))
        .collect();
    let parts = programs::build_parts(root, &[&chosen[..], &["--features", &long.join(",")]].concat(), Lint::No)?;
    let outcomes = PartRunner::new(root, Tier::Nightly)?.run(parts, |_| {});
    let failed: Vec<_> = outcomes.into_iter().filter_map(|outcome| outcome.failure).collect();
    report_failures(&failed)
}

/// Runs the soak; its options follow.
pub(crate) const SOAK_COMMAND: [&str; 8] =
    ["run", "--release", "--locked", "--package", "leasehold-verify", "--bin", "leasehold-soak", "--"];

fn run_soak(_: &Path) -> TaskResult {
    // Histories mostly wait: twelve at once use two cores, and leave time to judge time bounds. A
    // disk that other programs use would stop all servers of a history for seconds.
    let data_folder = ServerDataFolder::new();
    print_line(&format!("==> the servers store their data {}", data_folder.describe()));
    run_limited(&[&SOAK_COMMAND[..], &["--histories", "10", "--at-once", "12"]].concat(), |limited| {
        data_folder.set_tmpdir(limited);
    })
}

/// Which parts passed on which version of the code.
#[derive(Default)]
struct PartResults {
    code_version: String,
    parts: BTreeMap<String, Value>,
}

impl PartResults {
    fn load(root: &Path) -> Result<Self, Box<dyn std::error::Error>> {
        let kept = fs::read_to_string(results_path(root)).ok().and_then(|text| serde_json::from_str(&text).ok());
        Ok(Self { code_version: repeat::code_version(root)?, parts: kept.unwrap_or_default() })
    }

    fn save(&self, root: &Path) -> std::io::Result<()> {
        fs::create_dir_all(root.join("target"))?;
        fs::write(results_path(root), json!(self.parts).to_string())
    }

    fn record(&mut self, name: &str, has_passed: bool, seconds: u64) {
        let row = json!({ "passed": has_passed, "seconds": seconds, "version": self.code_version });
        self.parts.insert(name.to_owned(), row);
    }

    fn has_passed(&self, name: &str) -> bool {
        self.parts.get(name).is_some_and(|row| row["passed"] == true && row["version"] == self.code_version.as_str())
    }

    fn summary(&self) -> String {
        let mut lines = vec!["==> nightly".to_owned()];
        for part in &PARTS {
            let row = self.parts.get(part.name);
            let how = match row {
                None => "not run".to_owned(),
                Some(row) => {
                    let word = if row["passed"] == true { "passed" } else { "FAILED" };
                    let old = if row["version"] == self.code_version.as_str() { "" } else { ", on other code" };
                    format!("{word} in {} s{old}", row["seconds"])
                }
            };
            lines.push(format!("    {:<10} {how:<28} {}", part.name, part.purpose));
        }
        lines.join("\n")
    }
}

fn results_path(root: &Path) -> PathBuf {
    root.join("target/nightly.json")
}
