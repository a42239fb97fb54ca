//! Runs one short history for each class of faults, spread over the engines, and a negative control
//! that the checker must detect. Exceeded time bounds are only reported.
//!
//! `histories.rs` runs every engine under every fault, many times.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "tests report failures by panicking")]

use std::path::PathBuf;
use std::sync::Arc;

use leasehold_verify::checker::{CheckOptions, TimeBounds, check_with};
use leasehold_verify::deployment::LocalEngine;
use leasehold_verify::history::{Event, FaultKind, Workload};
use leasehold_verify::matrix::{self, MatrixOptions};
use leasehold_verify::runner::{
    Conductor, ConductorOptions, EngineTarget, NegativeControl, RunError, RunLength, RunOptions,
};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// How many calls a history has.
const CALLS_PER_HISTORY: u64 = 60;
/// How many ticks a history of a scheduled job has.
const TICKS_PER_HISTORY: u64 = 5;
/// How many histories run concurrently.
const MAX_CONCURRENT: usize = 2;
/// The seed of all histories. It is even, so a scheduled job starts each tick at most once.
const SEED: u64 = 4;
const CHECK_OPTIONS: CheckOptions = CheckOptions { time_bounds: TimeBounds::Report };

/// How many seeds of the negative control are tried. In a history in which no other worker writes
/// while a holder is stopped, there is nothing to detect.
const CONTROL_SEEDS: u64 = 8;

/// The engine, fault and workload of each history; the slowest come first.
const HISTORIES: [(LocalEngine, Option<FaultKind>, Workload); 17] = [
    (LocalEngine::RedisSentinel, Some(FaultKind::Failover), Workload::Ticks),
    (LocalEngine::Zookeeper, Some(FaultKind::Cut), Workload::Election),
    (LocalEngine::RedisCluster, Some(FaultKind::Reshard), Workload::Mutex),
    (LocalEngine::Mysql, Some(FaultKind::LostReply), Workload::Fenced),
    (LocalEngine::Redis, Some(FaultKind::Wipe), Workload::Ticks),
    (LocalEngine::Postgres, Some(FaultKind::Kill), Workload::Counter),
    (LocalEngine::Redlock, Some(FaultKind::Duplicate), Workload::Mutex),
    (LocalEngine::Redis, Some(FaultKind::Clock), Workload::Queue),
    (LocalEngine::Redis, Some(FaultKind::Ahead), Workload::Fenced),
    (LocalEngine::Redis, Some(FaultKind::Crash), Workload::Counter),
    (LocalEngine::Redis, Some(FaultKind::Partition), Workload::Mutex),
    (LocalEngine::Redis, Some(FaultKind::Evict), Workload::Semaphore),
    (LocalEngine::Redis, Some(FaultKind::ReadOnly), Workload::Fenced),
    (LocalEngine::Redis, Some(FaultKind::Delay), Workload::Rwlock),
    (LocalEngine::File, Some(FaultKind::Stop), Workload::Fenced),
    (LocalEngine::File, Some(FaultKind::DiskFull), Workload::Mutex),
    (LocalEngine::Memory, None, Workload::Reentrant),
];

fn worker_program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_leasehold-soak"))
}

/// Starts the engine and runs one history with one fault.
async fn run_history(local: LocalEngine, fault: Option<FaultKind>, workload: Workload) -> Result<Vec<Event>, RunError> {
    let faults = Vec::from_iter(fault);
    let conductor_options = ConductorOptions {
        target: EngineTarget::Local(local),
        faults: faults.clone(),
        control: None,
        ttl: None,
        option: None,
        worker: worker_program(),
    };
    let mut conductor = Conductor::open(conductor_options).await?;
    let length = RunLength::Calls(if workload == Workload::Ticks { TICKS_PER_HISTORY } else { CALLS_PER_HISTORY });
    let run =
        RunOptions { workload, fault_count: Some(faults.len()), faults, workers: 3, length, seed: SEED, history: None };
    conductor.run(&run, |_| ()).await
}

/// Runs a history and checks it; returns an error message if it does not pass.
async fn check_history(local: LocalEngine, fault: Option<FaultKind>, workload: Workload) -> Result<(), String> {
    let name = format!("{local} under {}, {workload}", fault.map_or("nothing", FaultKind::as_str));
    let events = run_history(local, fault, workload).await.map_err(|error| format!("{name}: {error}"))?;
    let verdict = tokio::task::block_in_place(|| check_with(&events, CHECK_OPTIONS));
    for late in &verdict.late {
        println!("{name}: late, only reported: {}", late.title);
    }
    println!("{name}: {} calls, {} grants", verdict.counts.calls, verdict.counts.grants);
    let fault_happened = verdict.counts.faults == u64::from(fault.is_some());
    if verdict.is_as_expected() && fault_happened {
        return Ok(());
    }
    let kept = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("smoke-{local}-{workload}.jsonl"));
    let lines: String = events.iter().map(leasehold_verify::history::to_json_line).collect();
    std::fs::write(&kept, lines).map_err(|error| error.to_string())?;
    Err(format!("{name}: see {}: {:#?} {:?}", kept.display(), verdict.violations, verdict.findings))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_history_of_each_fault_keeps_every_guarantee() {
    let (permits, mut running) = (Arc::new(Semaphore::new(MAX_CONCURRENT)), JoinSet::new());
    // Only root can fill up a separate disk.
    let can = |local: LocalEngine, fault: Option<FaultKind>| fault.is_none_or(|fault| local.check_fault(fault).is_ok());
    for (local, fault, workload) in HISTORIES.into_iter().filter(|(local, fault, _)| can(*local, *fault)) {
        let permits = Arc::clone(&permits);
        running.spawn(async move {
            let _permit = permits.acquire_owned().await.expect("it is not closed");
            check_history(local, fault, workload).await
        });
    }
    let results = running.join_all().await;
    let broken: Vec<String> = results.into_iter().filter_map(Result::err).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_register_without_fencing_is_detected() {
    for seed in 1..=CONTROL_SEEDS {
        let options = MatrixOptions {
            histories: 1,
            calls: 0,
            ticks: 0,
            faults: 0,
            workers: 5,
            concurrency: 1,
            seed,
            worker: worker_program(),
            violations_dir: PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("smoke-control"),
            check_options: CHECK_OPTIONS,
        };
        let found = matrix::run_control(NegativeControl::NoFencing, &options, |line| panic!("{line}")).await;
        if found.expect("a run") == (1, 1) {
            return;
        }
        println!("seed {seed}: no other worker wrote while a holder was stopped");
    }
    panic!("no violation was detected with {CONTROL_SEEDS} seeds");
}

/// The histories cover every kind of fault except `leader`, which needs an ensemble, and `hang` and
/// `grow`, which take long on a cluster.
#[test]
fn every_class_of_faults_is_covered() {
    let missing = |fault: &&FaultKind| !HISTORIES.iter().any(|(_, other, _)| *other == Some(**fault));
    let missing: Vec<&FaultKind> = FaultKind::ALL.iter().filter(missing).collect();
    assert_eq!(missing, [&FaultKind::Leader, &FaultKind::Hang, &FaultKind::Grow]);
}
