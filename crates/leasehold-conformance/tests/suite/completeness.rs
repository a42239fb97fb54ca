//! Completeness checks: every engine has a suite, every case is listed, and some engine runs each
//! case.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "tests report failures by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use leasehold::registry::entries;
use leasehold_conformance::CASES;

/// The Rust files of a folder of this crate, with their names.
fn rust_sources(folder: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let files = fs::read_dir(&folder).expect("the folder").map(|file| file.expect("a file").path());
    let rust = files.filter(|path| path.extension().is_some_and(|ending| ending == "rs"));
    let read = |path: &Path| {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        (name, fs::read_to_string(path).expect("a source"))
    };
    rust.map(|path| read(&path)).collect()
}

#[test]
fn every_engine_of_this_build_has_its_suite() {
    let tests = [rust_sources("tests/suite"), rust_sources("tests/servers/redis_simple")].concat();
    let mut techniques = 0;
    for engine in entries().into_iter().filter(|engine| engine.capabilities.is_some()) {
        let mut names = vec![engine.scheme.to_owned()];
        // The first technique is the engine itself.
        names.extend(engine.techniques.iter().skip(1).map(|one| format!("{} {}", engine.scheme, one.name)));
        techniques += names.len() - 1;
        for name in names {
            // A scheme may contain a `+`, a module name may not.
            let line = format!("suite!({}, ", name.replace(['+', '-', ' '], "_"));
            let found = tests.iter().any(|(_, text)| text.lines().any(|code| code.starts_with(&line)));
            assert!(
                found,
                "no file in tests/suite or tests/servers/redis_simple has the line `{line}…);`: the engine `{name}` is not tested"
            );
        }
    }
    assert_eq!(techniques, 4, "two databases with two additional techniques each");
}

#[test]
fn every_case_is_listed_and_every_listed_case_exists() {
    let mut written = BTreeSet::new();
    for (module, text) in rust_sources("src/cases").into_iter().filter(|(module, _)| module != "mod") {
        let names = text.lines().filter_map(|line| line.strip_prefix("pub async fn ")?.split('(').next());
        written.extend(names.map(|name| format!("{module}::{name}")));
    }
    let listed: BTreeSet<String> = CASES.iter().map(|case| case.name.to_owned()).collect();
    assert_eq!(listed.len(), CASES.len(), "each case is listed once");
    let unlisted: Vec<_> = written.difference(&listed).collect();
    assert!(unlisted.is_empty(), "not listed in src/cases/mod.rs: {unlisted:?}");
    assert_eq!(written, listed);
}

#[test]
fn every_case_is_run_for_some_engine_of_this_build() {
    let engines: Vec<_> = entries().into_iter().filter_map(|engine| engine.capabilities).collect();
    for case in CASES {
        let run = engines.iter().any(|can| case.missing_requirements(can).is_empty());
        assert!(run, "no engine of this build meets the requirements of {}: {:?}", case.name, case.requirements);
    }
}
