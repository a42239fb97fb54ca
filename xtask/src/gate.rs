//! `cargo xtask test`: the checks that every change must pass.

use std::path::Path;
use std::thread;

use crate::programs::{self, Lint, Part};
use crate::stage::{self, Stage, Tier};
use crate::{Done, cargo, links, rules, say, setup};

/// Builds and runs the gate.
pub(crate) fn test(root: &Path) -> Done {
    let began = stage::now();
    cargo(&["fmt", "--all", "--check"])?;
    rules::no_time_in_assertions(root)?;
    links::lead_somewhere(root)?;
    package(&["--no-verify"])?;
    // Packages are installed while the programs are built.
    let parts = thread::scope(|scope| {
        let installing = scope.spawn(|| setup::gate().map_err(|error| error.to_string()));
        let parts = build(root);
        installing.join().map_err(|_| "installing packages panicked".to_owned())??;
        parts
    })?;
    say(&format!("==> built and linted after {} s", began.elapsed().as_secs()));
    let stage = Stage::new(root, Tier::Gate)?;
    let mut outcomes = stage.run(parts, |_| {});
    outcomes.sort_by_key(|outcome| std::cmp::Reverse(outcome.took));
    let slow: Vec<String> =
        outcomes.iter().take(10).map(|one| format!("{} {} s", one.name, one.took.as_secs())).collect();
    say(&format!("==> the slowest parts: {}", slow.join(", ")));
    let failed: Vec<_> = outcomes.into_iter().filter_map(|outcome| outcome.failure).collect();
    stage::verdict(&failed)?;
    programs::document_tests(&["--workspace"], Lint::Yes)?;
    say(&format!("==> green after {} s", began.elapsed().as_secs()));
    Ok(())
}

/// The parts of the gate, linted while they are built.
pub(crate) fn build(root: &Path) -> Result<Vec<Part>, Box<dyn std::error::Error>> {
    programs::build(root, &["--workspace"], Lint::Yes)
}

/// The crates that are published, in the order of their dependencies.
const PUBLISHED: [&str; 4] = ["leasehold-zookeeper", "leasehold", "leasehold-command", "leasehold-cli"];

/// Makes the package of each published crate.
pub(crate) fn package(options: &[&str]) -> Done {
    let crates: Vec<&str> = PUBLISHED.iter().flat_map(|name| ["--package", name]).collect();
    cargo(&[&["package", "--quiet", "--locked", "--allow-dirty"], options, &crates].concat())
}

/// The checks that run no test.
pub(crate) fn check(root: &Path) -> Done {
    cargo(&["fmt", "--all", "--check"])?;
    rules::no_time_in_assertions(root)?;
    links::lead_somewhere(root)?;
    package(&["--no-verify"])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "--deny", "warnings"])
}
