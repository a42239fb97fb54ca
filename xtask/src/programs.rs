//! Builds the test programs and splits each into parts that run independently.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{TaskResult, cargo_command, print_line};

/// Makes warnings errors, in the form in which `cargo clippy -- --deny warnings` passes its
/// arguments to the linting compiler.
const DENY_WARNINGS: &str = "--deny__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__";

/// Whether the workspace is linted while it is built.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lint {
    Yes,
    No,
}

impl Lint {
    /// Makes clippy compile our own crates: one pass lints and builds, and the dependencies are
    /// compiled once.
    pub(crate) fn apply(self, cargo: &mut Command) {
        if self == Self::Yes {
            cargo.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver").env("CLIPPY_ARGS", DENY_WARNINGS);
        }
    }
}

/// A test program.
#[derive(Debug)]
struct TestProgram {
    package: String,
    target: String,
    is_integration: bool,
    executable: PathBuf,
    folder: PathBuf,
}

/// A part of the tests: some tests of one program, run in one process. The tests of a module share
/// their servers.
#[derive(Clone, Debug)]
pub(crate) struct TestPart {
    /// Crate, test program and module, such as `leasehold-conformance suite redis`.
    pub(crate) name: String,
    pub(crate) executable: PathBuf,
    pub(crate) folder: PathBuf,
    /// Exactly these tests; all if empty.
    pub(crate) tests: Vec<String>,
}

/// Builds the test programs and splits them into parts.
pub(crate) fn build_parts(
    root: &Path,
    arguments: &[&str],
    lint: Lint,
) -> Result<Vec<TestPart>, Box<dyn std::error::Error>> {
    let mut parts = Vec::new();
    for program in compile(root, arguments, lint)? {
        parts.extend(split_into_parts(&program)?);
    }
    if parts.is_empty() {
        return Err("cargo built no test program".into());
    }
    Ok(parts)
}

fn compile(root: &Path, arguments: &[&str], lint: Lint) -> Result<Vec<TestProgram>, Box<dyn std::error::Error>> {
    let mut cargo = cargo_command();
    cargo.args(["test", "--locked", "--no-run"]).args(arguments).args(["--message-format", "json-render-diagnostics"]);
    lint.apply(&mut cargo);
    print_line(&format!("==> cargo test --locked --no-run {}", arguments.join(" ")));
    let mut building = cargo.current_dir(root).stdout(Stdio::piped()).spawn()?;
    let mut programs = Vec::new();
    for line in building.stdout.take().map(BufReader::new).ok_or("no output")?.lines() {
        let message: serde_json::Value = serde_json::from_str(&line?)?;
        if message["reason"] == "compiler-artifact"
            && message["profile"]["test"] == true
            && let (Some(executable), Some(manifest)) =
                (message["executable"].as_str(), message["manifest_path"].as_str())
            && let Some(folder) = Path::new(manifest).parent()
        {
            programs.push(TestProgram {
                package: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                target: message["target"]["name"].as_str().unwrap_or_default().to_owned(),
                is_integration: message["target"]["kind"][0] == "test",
                executable: executable.into(),
                folder: folder.to_owned(),
            });
        }
    }
    let status = building.wait()?;
    if status.success() { Ok(programs) } else { Err(format!("cargo test --no-run: {status}").into()) }
}

/// One part per top-level module of an integration test program; unit tests stay together.
fn split_into_parts(program: &TestProgram) -> Result<Vec<TestPart>, Box<dyn std::error::Error>> {
    let TestProgram { package, target, executable, folder, .. } = program;
    let part = |name, tests| TestPart { name, executable: executable.clone(), folder: folder.clone(), tests };
    if !program.is_integration {
        return Ok(vec![part(format!("{package} unit {target}"), Vec::new())]);
    }
    let listed = Command::new(executable).args(["--list", "--format", "terse"]).current_dir(folder).output()?;
    if !listed.status.success() {
        return Err(format!("{package} {target} cannot list its tests: {}", listed.status).into());
    }
    let mut modules: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for test in String::from_utf8_lossy(&listed.stdout).lines().filter_map(|line| line.strip_suffix(": test")) {
        let module = test.split_once("::").map_or("", |(module, _)| module);
        modules.entry(module.to_owned()).or_default().push(test.to_owned());
    }
    let name = |module: &str| format!("{package} {target} {module}").trim_end().to_owned();
    Ok(modules.into_iter().map(|(module, tests)| part(name(&module), tests)).collect())
}

/// Runs the document tests, with the crates as built above.
pub(crate) fn run_doc_tests(arguments: &[&str], lint: Lint) -> TaskResult {
    let mut cargo = cargo_command();
    cargo.args(["test", "--locked", "--doc"]).args(arguments);
    lint.apply(&mut cargo);
    crate::run_command(&mut cargo)
}
