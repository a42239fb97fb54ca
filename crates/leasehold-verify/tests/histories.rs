//! Tests every engine under every fault: ten histories of two hundred calls each, with fixed seeds,
//! through all workloads, and two of a scheduled job. None may have a violation. Also runs the
//! negative controls, in which the checker must find one.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "tests report failures by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold_verify::checker::{CheckOptions, TimeBounds};
use leasehold_verify::deployment::LocalEngine;
use leasehold_verify::guarantees;
use leasehold_verify::history::FaultKind;
use leasehold_verify::matrix::{self, MatrixOptions};
use leasehold_verify::runner::NegativeControl;

fn matrix_options() -> MatrixOptions {
    MatrixOptions {
        histories: 10,
        calls: 200,
        ticks: 8,
        faults: 1,
        workers: 4,
        concurrency: 16,
        seed: 1,
        worker: PathBuf::from(env!("CARGO_BIN_EXE_leasehold-soak")),
        violations_dir: PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("broken-histories"),
        check_options: CheckOptions { time_bounds: TimeBounds::Fail },
    }
}

/// Held by each test, because the negative controls need the machine's full speed.
static SERIAL: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_engine_keeps_its_guarantees_under_every_fault() {
    let _serial = SERIAL.lock().await;
    let cells = matrix::cells();
    let total = cells.len();
    let outcomes =
        matrix::run_cells(cells, &matrix_options(), |cell, outcome| println!("{cell}: {}", outcome.summary_line()))
            .await;
    assert_eq!(outcomes.len(), total, "every cell completed");
    // The tables of guarantees, as a soak writes them.
    let cell_outcomes: Vec<_> = outcomes.iter().map(|(_, outcome)| outcome.clone()).collect();
    let table = matrix::guarantee_tables(&cell_outcomes, &jiff::Timestamp::now().strftime("%Y-%m-%d").to_string());
    std::fs::write(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("guarantees.md"), table).expect("written");
    let broken: Vec<String> = outcomes
        .iter()
        .filter(|(_, outcome)| !outcome.has_no_violations())
        .map(|(cell, outcome)| format!("{cell}: {}", outcome.summary_line()))
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    for (cell, outcome) in &outcomes {
        assert!(outcome.histories >= 10 && outcome.calls >= 2000, "{cell}: {}", outcome.summary_line());
        assert_eq!(outcome.unconfirmed, 0, "{cell}: registers on which porcupine did not agree");
        if cell.fault == Some(FaultKind::Ahead) && cell.engine != LocalEngine::Redlock {
            assert!(outcome.overlaps + outcome.losses > 0, "{cell}: no lease ended early: {}", outcome.summary_line());
        }
        if cell.fault.is_some() {
            assert!(outcome.faults >= outcome.histories, "{cell}: {}", outcome.summary_line());
        }
        let required = guarantees::required_guarantees(*cell);
        let missing: Vec<_> = required.iter().filter(|guarantee| !outcome.tested.contains(guarantee)).collect();
        assert!(missing.is_empty(), "{cell}: {missing:?} were not tested");
    }
    // On every engine with a server, the time of at least one notification of a loss was checked.
    for local in
        LocalEngine::ALL.iter().copied().filter(|local| ![LocalEngine::Memory, LocalEngine::File].contains(local))
    {
        let notified: u64 = outcomes
            .iter()
            .filter(|(cell, _)| cell.engine == local)
            .map(|(_, outcome)| outcome.losses_while_running)
            .sum();
        println!("{local}: {notified} losses with a checked notification time");
        assert!(notified > 0, "{local}: no notification of a loss was tested");
    }
    // Root can also fill up a separate disk, which is a fault of four engines.
    let all = if rustix::process::geteuid().is_root() { 106 } else { 102 };
    assert_eq!(total, all, "engines and faults");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_control_is_detected() {
    let _serial = SERIAL.lock().await;
    let all = NegativeControl::ALL.map(|control| {
        [1, 2].map(|seed| {
            let options = MatrixOptions { histories: 1, seed, ..matrix_options() };
            tokio::spawn(async move { matrix::run_control(control, &options, |line| println!("{line}")).await })
        })
    });
    for (control, running) in NegativeControl::ALL.iter().zip(all) {
        for (seed, run) in (1..).zip(running) {
            let found = run.await.expect("no panic").expect("a run");
            println!("{}, seed {seed}: detected in {} of {}", control.description(), found.0, found.1);
            assert_eq!(found, (1, 1), "{}, seed {seed}", control.description());
        }
    }
}

/// Runs `leasehold-soak` with its results in `out`; returns whether it succeeded, and what it
/// printed.
fn run_soak(out: &Path, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold-soak"));
    let ran = command.arg("--out").arg(out).args(arguments).output().expect("it runs");
    let words = [ran.stdout, ran.stderr].concat();
    (ran.status.success(), String::from_utf8_lossy(&words).into_owned())
}

/// Cells that did not run are marked in the tables, and histories that ran are not run again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partial_soak_is_marked_as_partial_and_resumes_where_it_ended() {
    let _serial = SERIAL.lock().await;
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let (_, help) = run_soak(&out, &["--help"]);
    assert!(help.contains("--histories N") && !out.exists(), "{help}");
    let page = folder.path().join("guarantees.md");
    let document = "before\n<!-- guarantees -->\nold\n<!-- /guarantees -->\nafter\n";
    std::fs::write(&page, document).expect("written");
    let (done, words) = run_soak(&out, &["--only", "memory/none", "--tables", &page.display().to_string()]);
    assert!(!done && words.contains("do not use it with --only"), "{words}");
    assert_eq!(std::fs::read_to_string(&page).expect("it is there"), document, "a partial soak writes no table");
    let part = |histories| run_soak(&out, &["--only", "memory/none", "--ops", "60", "--histories", histories]);
    let (done, words) = part("1");
    assert!(done && words.contains("memory under nothing: 3 histories"), "{words}");
    let table = || std::fs::read_to_string(out.join("guarantees.md")).expect("a table");
    assert!(table().contains("| none | 0 of 3 | not run | not run |"), "{}", table());
    let (done, words) = part("2");
    assert!(done && words.contains("resuming after 1 histories of each cell"), "{words}");
    assert!(table().contains("| none | 0 of 6 | not run | not run |"), "{}", table());
}
