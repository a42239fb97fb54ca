//! One short history per class of faults, spread over the engines, and a control that the checker
//! must detect. Time bounds are only reported here.
//!
//! Every engine under every fault, many times, is in `histories.rs`.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a test: what fails here is the finding")]

use std::path::PathBuf;
use std::sync::Arc;

use leasehold_verify::check::{Judge, Time, check_as};
use leasehold_verify::conduct::{Control, Length, Run, Scene, Stage, Target, Trouble};
use leasehold_verify::deploy::Local;
use leasehold_verify::history::{Event, FaultKind, Workload};
use leasehold_verify::matrix::{self, Extent};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Calls in a history, and ticks in one of a schedule.
const CALLS: u64 = 60;
const TICKS: u64 = 5;
/// Histories that run concurrently.
const AT_ONCE: usize = 2;
/// With an even seed, a scheduled job starts each tick at most once.
const SEED: u64 = 4;
const JUDGE: Judge = Judge { time: Time::Report };

/// The slowest come first.
const HISTORIES: [(Local, Option<FaultKind>, Workload); 17] = [
    (Local::RedisSentinel, Some(FaultKind::Failover), Workload::Ticks),
    (Local::Zookeeper, Some(FaultKind::Cut), Workload::Election),
    (Local::RedisCluster, Some(FaultKind::Reshard), Workload::Mutex),
    (Local::Mysql, Some(FaultKind::LostReply), Workload::Fenced),
    (Local::Redis, Some(FaultKind::Wipe), Workload::Ticks),
    (Local::Postgres, Some(FaultKind::Kill), Workload::Counter),
    (Local::Redlock, Some(FaultKind::Duplicate), Workload::Mutex),
    (Local::Redis, Some(FaultKind::Clock), Workload::Queue),
    (Local::Redis, Some(FaultKind::Ahead), Workload::Fenced),
    (Local::Redis, Some(FaultKind::Crash), Workload::Counter),
    (Local::Redis, Some(FaultKind::Partition), Workload::Mutex),
    (Local::Redis, Some(FaultKind::Evict), Workload::Semaphore),
    (Local::Redis, Some(FaultKind::ReadOnly), Workload::Fenced),
    (Local::Redis, Some(FaultKind::Delay), Workload::Rwlock),
    (Local::File, Some(FaultKind::Stop), Workload::Fenced),
    (Local::File, Some(FaultKind::DiskFull), Workload::Mutex),
    (Local::Memory, None, Workload::Reentrant),
];

fn worker() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_leasehold-soak"))
}

async fn perform(local: Local, fault: Option<FaultKind>, workload: Workload) -> Result<Vec<Event>, Trouble> {
    let faults = Vec::from_iter(fault);
    let scene = Scene {
        target: Target::Local(local),
        faults: faults.clone(),
        control: None,
        ttl: None,
        option: None,
        worker: worker(),
    };
    let mut stage = Stage::open(scene).await?;
    let length = Length::Calls(if workload == Workload::Ticks { TICKS } else { CALLS });
    let run = Run { workload, times: Some(faults.len()), faults, workers: 3, length, seed: SEED, history: None };
    stage.perform(&run, |_| ()).await
}

/// A history that could not be run proves nothing, and is retried once on fresh servers; one that
/// ran never is.
async fn history(local: Local, fault: Option<FaultKind>, workload: Workload) -> Result<(), String> {
    let name = format!("{local} under {}, {workload}", fault.map_or("nothing", FaultKind::as_str));
    let events = match perform(local, fault, workload).await {
        Err(trouble) if trouble.is_passing() => {
            println!("{name}: run once more: {trouble}");
            perform(local, fault, workload).await
        }
        performed => performed,
    };
    let events = events.map_err(|trouble| format!("{name}: {trouble}"))?;
    let verdict = tokio::task::block_in_place(|| check_as(&events, JUDGE));
    for late in &verdict.late {
        println!("{name}: late, only reported: {}", late.title);
    }
    println!("{name}: {} calls, {} grants", verdict.counts.calls, verdict.counts.grants);
    let came = verdict.counts.faults == u64::from(fault.is_some());
    if verdict.as_expected() && came {
        return Ok(());
    }
    let kept = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("smoke-{local}-{workload}.jsonl"));
    let lines: String = events.iter().map(leasehold_verify::history::line).collect();
    std::fs::write(&kept, lines).map_err(|error| error.to_string())?;
    Err(format!("{name}: see {}: {:#?} {:?}", kept.display(), verdict.violations, verdict.findings))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_history_of_each_fault_keeps_every_promise() {
    let (turns, mut running) = (Arc::new(Semaphore::new(AT_ONCE)), JoinSet::new());
    // Only root can fill up a separate disk.
    let can = |local: Local, fault: Option<FaultKind>| fault.is_none_or(|fault| local.can(fault).is_ok());
    for (local, fault, workload) in HISTORIES.into_iter().filter(|(local, fault, _)| can(*local, *fault)) {
        let turns = Arc::clone(&turns);
        running.spawn(async move {
            let _turn = turns.acquire_owned().await.expect("it is not closed");
            history(local, fault, workload).await
        });
    }
    let results = running.join_all().await;
    let broken: Vec<String> = results.into_iter().filter_map(Result::err).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_register_without_fencing_is_found_out() {
    let kept = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("smoke-control");
    let (worker, judge, seed) = (worker(), JUDGE, 1);
    let extent =
        Extent { histories: 1, calls: 0, ticks: 0, faults: 0, workers: 5, at_once: 1, seed, worker, kept, judge };
    let found = matrix::run_control(Control::NoFencing, &extent, |words| println!("{words}")).await;
    assert_eq!(found.expect("a run"), (1, 1));
}

/// Covers every class of faults except the leader's, which needs an ensemble, and those of a
/// cluster that take longer than a moving slot.
#[test]
fn no_class_of_faults_is_left_out() {
    let missing = |fault: &&FaultKind| !HISTORIES.iter().any(|(_, other, _)| *other == Some(**fault));
    let missing: Vec<&FaultKind> = FaultKind::ALL.iter().filter(missing).collect();
    assert_eq!(missing, [&FaultKind::Leader, &FaultKind::Hang, &FaultKind::Grow]);
}
