//! `cargo xtask nightly`: everything, in named parts of at most two hours each. A part that passed
//! on this version of the code does not run again, so an interrupted run can be resumed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::programs::{self, Lint};
use crate::stage::{self, Stage, Tier, verdict};
use crate::{Done, cargo, gate, repeat, say, setup, versions};

/// The features that compile the long tests, and the cache, which no other feature of these crates enables.
const LONG: &str = "leasehold/nightly,leasehold/cache,leasehold-cli/nightly,leasehold-conformance/nightly,leasehold-testbed/nightly,leasehold-verify/nightly";

/// Each engine and module of the library must build and pass the lints alone, and the library must
/// without any.
const FEATURES: [&str; 9] = ["", "memory", "file", "cache", "mysql", "postgres", "redis", "schedule", "zookeeper"];

/// A part: its name, what it proves, and how it runs.
struct Part {
    name: &'static str,
    proves: &'static str,
    run: fn(&Path) -> Done,
}

const PARTS: [Part; 8] = [
    Part {
        name: "lint",
        proves: "every feature of the library builds and lints alone; the documentation has no warnings; packages build",
        run: lint,
    },
    Part {
        name: "features",
        proves: "the examples and the engines that need no server, with those features alone",
        run: features,
    },
    Part {
        name: "library",
        proves: "models and simulations with their full bounds, the schedule, the command's fleet, document tests",
        run: library,
    },
    Part {
        name: "testbed",
        proves: "the testbed starts, kills, pauses and cuts off real servers as asked",
        run: |root| tests(root, &["leasehold-testbed"]),
    },
    Part {
        name: "servers",
        proves: "every suite, technique and deployment, Galera and ensembles, on real servers",
        run: servers,
    },
    Part {
        name: "histories",
        proves: "every engine under every fault, judgements about time included, and the controls",
        run: |root| tests(root, &["leasehold-verify"]),
    },
    Part { name: "soak", proves: "ten histories of a thousand calls for every engine under every fault", run: soak },
    Part { name: "versions", proves: "the suites on other versions of the servers", run: versions::all },
];

pub(crate) const HELP: &str = "\
cargo xtask nightly             every part that has not passed on this version of the code
cargo xtask nightly NAME …      these parts, whether they have passed or not
cargo xtask nightly --list      the parts, what each proves, and when it passed";

/// Runs parts, and prints a summary.
pub(crate) fn nightly(root: &Path, arguments: &[String]) -> Done {
    let mut state = State::load(root)?;
    if arguments.iter().any(|word| word == "--list") {
        say(&state.summary());
        return Ok(());
    }
    if let Some(unknown) = arguments.iter().find(|word| PARTS.iter().all(|part| part.name != *word)) {
        let names: Vec<_> = PARTS.iter().map(|part| part.name).collect();
        return Err(format!("no part is called {unknown:?}; the parts are: {}", names.join(", ")).into());
    }
    setup::nightly()?;
    let mut failed = Vec::new();
    for part in &PARTS {
        let due = if arguments.is_empty() {
            !state.passed(part.name)
        } else {
            arguments.iter().any(|word| word == part.name)
        };
        if !due {
            continue;
        }
        say(&format!("==> nightly {}: {}", part.name, part.proves));
        let began = stage::now();
        let result = (part.run)(root);
        state.enter(part.name, result.is_ok(), began.elapsed().as_secs());
        state.save(root)?;
        if let Err(error) = result {
            say(&format!("xtask: nightly {} failed: {error}", part.name));
            failed.push(part.name);
        }
    }
    say(&state.summary());
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", ")).into()) }
}

fn lint(_: &Path) -> Done {
    let deny = ["--locked", "--", "--deny", "warnings"];
    cargo(&[&["clippy", "--workspace", "--all-targets", "--features", LONG], &deny[..]].concat())?;
    for feature in FEATURES {
        let alone = ["clippy", "--package", "leasehold", "--no-default-features", "--features", feature];
        cargo(&[&alone[..], &deny[..]].concat())?;
    }
    cargo(&[&["clippy", "--package", "leasehold", "--examples"], &deny[..]].concat())?;
    cargo(&["doc", "--workspace", "--no-deps", "--locked", "--config", "build.rustdocflags=['--deny', 'warnings']"])?;
    gate::package(&[])
}

fn features(_: &Path) -> Done {
    // The examples built as a README command builds them: without the engines that need a server.
    cargo(&["test", "--package", "leasehold", "--locked"])?;
    // The error for a scheme whose feature is off must name the feature.
    let memory = ["test", "--package", "leasehold", "--no-default-features", "--features", "memory", "--locked"];
    cargo(&[&memory[..], &["--test", "integration", "open"]].concat())
}

fn library(root: &Path) -> Done {
    tests(root, &["leasehold", "leasehold-cli", "leasehold-command", "leasehold-zookeeper", "xtask"])?;
    programs::document_tests(&["--workspace"], Lint::No)
}

/// The examples run on real servers, too. They need every engine, and another part may have built
/// them without.
fn servers(root: &Path) -> Done {
    const ALL: &str = "cache,mysql,postgres,redis,schedule,zookeeper";
    cargo(&["build", "--locked", "--package", "leasehold", "--features", ALL, "--examples"])?;
    tests(root, &["leasehold-conformance"])
}

/// All tests of some packages, including the long ones.
fn tests(root: &Path, packages: &[&str]) -> Done {
    let chosen: Vec<&str> = packages.iter().flat_map(|package| ["--package", package]).collect();
    let long: Vec<&str> =
        LONG.split(',').filter(|one| packages.iter().any(|name| one.split('/').next() == Some(name))).collect();
    let parts = programs::build(root, &[&chosen[..], &["--features", &long.join(",")]].concat(), Lint::No)?;
    let outcomes = Stage::new(root, Tier::Nightly)?.run(parts, |_| {});
    let failed: Vec<_> = outcomes.into_iter().filter_map(|outcome| outcome.failure).collect();
    verdict(&failed)
}

fn soak(_: &Path) -> Done {
    let soak = ["run", "--release", "--locked", "--package", "leasehold-verify", "--bin", "leasehold-soak"];
    // Histories mostly wait: sixteen at once fill two cores.
    cargo(&[&soak[..], &["--", "--histories", "10", "--at-once", "16"]].concat())
}

/// Which parts passed on which version of the code.
#[derive(Default)]
struct State {
    version: String,
    parts: BTreeMap<String, Value>,
}

impl State {
    fn load(root: &Path) -> Result<Self, Box<dyn std::error::Error>> {
        let kept = fs::read_to_string(path(root)).ok().and_then(|text| serde_json::from_str(&text).ok());
        Ok(Self { version: repeat::version(root)?, parts: kept.unwrap_or_default() })
    }

    fn save(&self, root: &Path) -> std::io::Result<()> {
        fs::create_dir_all(root.join("target"))?;
        fs::write(path(root), json!(self.parts).to_string())
    }

    fn enter(&mut self, name: &str, passed: bool, seconds: u64) {
        let row = json!({ "passed": passed, "seconds": seconds, "version": self.version });
        self.parts.insert(name.to_owned(), row);
    }

    fn passed(&self, name: &str) -> bool {
        self.parts.get(name).is_some_and(|row| row["passed"] == true && row["version"] == self.version.as_str())
    }

    fn summary(&self) -> String {
        let mut lines = vec!["==> nightly".to_owned()];
        for part in &PARTS {
            let row = self.parts.get(part.name);
            let how = match row {
                None => "not run".to_owned(),
                Some(row) => {
                    let word = if row["passed"] == true { "passed" } else { "FAILED" };
                    let old = if row["version"] == self.version.as_str() { "" } else { ", on other code" };
                    format!("{word} in {} s{old}", row["seconds"])
                }
            };
            lines.push(format!("    {:<10} {how:<28} {}", part.name, part.proves));
        }
        lines.join("\n")
    }
}

fn path(root: &Path) -> PathBuf {
    root.join("target/nightly.json")
}
