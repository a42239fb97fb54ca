//! `cargo xtask test`: the checks that every change must pass.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use crate::part_runner::{self, PartRunner, Tier};
use crate::programs::{self, Lint, TestPart};
use crate::{TaskResult, layers, links, print_line, rules, run_cargo, setup, test_filters, wrap};

/// Builds and runs the gate.
pub(crate) fn run_gate(root: &Path) -> TaskResult {
    let began = part_runner::now();
    run_cargo(&["fmt", "--all", "--check"])?;
    rules::check_time_assertions(root)?;
    layers::check_layers(root)?;
    links::check_links(root)?;
    wrap::check_wrap(root)?;
    test_filters::check_test_filters(root)?;
    package(&["--no-verify"])?;
    lint_default_library()?;
    // Packages are installed while the programs are built.
    let parts = thread::scope(|scope| {
        let installing = scope.spawn(|| setup::install_for_gate().map_err(|error| error.to_string()));
        let parts = build_parts(root);
        installing.join().map_err(|_| "installing packages panicked".to_owned())??;
        parts
    })?;
    print_line(&format!("==> built and linted after {} s", began.elapsed().as_secs()));
    let stage = PartRunner::new(root, Tier::Gate)?;
    let mut outcomes = stage.run(parts, |_| {});
    outcomes.sort_by_key(|outcome| std::cmp::Reverse(outcome.duration));
    let slow: Vec<String> =
        outcomes.iter().take(10).map(|one| format!("{} {} s", one.name, one.duration.as_secs())).collect();
    print_line(&format!("==> the slowest parts: {}", slow.join(", ")));
    let failed: Vec<_> = outcomes.into_iter().filter_map(|outcome| outcome.failure).collect();
    part_runner::report_failures(&failed)?;
    print_line(&format!("==> all parts passed after {} s", began.elapsed().as_secs()));
    programs::run_doc_tests(&["--workspace"], Lint::Yes)?;
    print_line(&format!("==> green after {} s", began.elapsed().as_secs()));
    Ok(())
}

/// The parts of the gate, linted while they are built.
pub(crate) fn build_parts(root: &Path) -> Result<Vec<TestPart>, Box<dyn std::error::Error>> {
    programs::build_parts(root, &["--workspace"], Lint::Yes)
}

/// The crates that are published, in the order of their dependencies.
const PUBLISHED: [&str; 8] = [
    "leasehold-zookeeper",
    "leasehold",
    "leasehold-internals",
    "leasehold-schedule",
    "leasehold-cache",
    "leasehold-doctor",
    "leasehold-command",
    "leasehold-cli",
];

/// Where packages are built.
const PACKAGE_TARGET: &str = "target/packages";

/// Makes the package of each published crate, and builds it unless `options` has `--no-verify`.
pub(crate) fn package(options: &[&str]) -> TaskResult {
    let mut target = Vec::new();
    if !options.contains(&"--no-verify") {
        remove_unpacked_packages()?;
        // Nor does cargo compile a package of the same version again.
        if Path::new(PACKAGE_TARGET).exists() {
            fs::remove_dir_all(PACKAGE_TARGET)?;
        }
        target = vec!["--target-dir", PACKAGE_TARGET];
    }
    let crates: Vec<&str> = PUBLISHED.iter().flat_map(|name| ["--package", name]).collect();
    run_cargo(&[&["package", "--quiet", "--locked", "--allow-dirty"], options, &target[..], &crates].concat())
}

/// Removes our packages of an earlier run. cargo unpacks them beside the sources of other crates, by
/// name and version, and would build the old code again: the version of ours stays the same.
fn remove_unpacked_packages() -> TaskResult {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo"))).ok_or("no home folder")?;
    let Ok(registries) = fs::read_dir(home.join("registry/src")) else { return Ok(()) };
    for registry in registries {
        // The registry of the packages themselves has no host in its name.
        let registry = registry?;
        if !registry.file_name().to_string_lossy().starts_with('-') {
            continue;
        }
        for package in fs::read_dir(registry.path())? {
            let package = package?;
            if package.file_name().to_string_lossy().starts_with("leasehold") {
                fs::remove_dir_all(package.path())?;
            }
        }
    }
    Ok(())
}

/// The library as a new user adds it: the build of the whole workspace has every feature.
fn lint_default_library() -> TaskResult {
    run_cargo(&["clippy", "--package", "leasehold", "--locked", "--", "--deny", "warnings"])
}

/// The checks that run no test.
pub(crate) fn run_checks(root: &Path) -> TaskResult {
    run_cargo(&["fmt", "--all", "--check"])?;
    rules::check_time_assertions(root)?;
    layers::check_layers(root)?;
    links::check_links(root)?;
    wrap::check_wrap(root)?;
    test_filters::check_test_filters(root)?;
    package(&["--no-verify"])?;
    lint_default_library()?;
    run_cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "--deny", "warnings"])
}
