//! 64 tasks take turns on one lock.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Locks;
use tokio::task::JoinSet;

use crate::baseline::{RawFile, monotonic_now};
use crate::report::{Comparison, Report};

const TASKS: u32 = 64;
type BenchResult = Result<(), Box<dyn std::error::Error>>;

async fn measure_leasehold(locks: &Locks, turns: u32) -> Result<Duration, Box<dyn std::error::Error>> {
    let start = monotonic_now();
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let mutex = locks.mutex("turns");
        tasks.spawn(async move {
            for _ in 0..turns {
                let guard = mutex.lock().await?;
                // All other tasks join the queue meanwhile: each release is a hand-off.
                tokio::task::yield_now().await;
                let _ = guard.release().await?;
            }
            Ok::<(), leasehold::Error>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok((monotonic_now() - start) / (TASKS * turns))
}

async fn measure_tokio(turns: u32) -> Result<Duration, Box<dyn std::error::Error>> {
    let mutex = Arc::new(tokio::sync::Mutex::new(0_u64));
    let start = monotonic_now();
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let mutex = Arc::clone(&mutex);
        tasks.spawn(async move {
            for _ in 0..turns {
                let mut guard = mutex.lock().await;
                tokio::task::yield_now().await;
                *guard += 1;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done?;
    }
    Ok((monotonic_now() - start) / (TASKS * turns))
}

async fn compare_with_tokio(report: &mut Report, locks: &Locks, name: &str, turns: u32, max_ratio: f64) -> BenchResult {
    let (mut mine, mut floor) = (Vec::new(), Vec::new());
    for _ in 0..11 {
        mine.push(measure_leasehold(locks, turns).await?);
        floor.push(measure_tokio(turns).await?);
    }
    report.add_comparison(Comparison {
        name,
        baseline_name: "tokio::sync::Mutex",
        leasehold: &mut mine,
        baseline: &mut floor,
        max_ratio,
    });
    Ok(())
}

/// 64 tasks take turns on a lock in memory, compared with tokio's own mutex.
pub(crate) async fn bench_memory(report: &mut Report, scale: u32) -> BenchResult {
    let locks = Locks::open("memory:").await?;
    compare_with_tokio(report, &locks, "memory: hand-off among 64 tasks", 500 / scale, 10.0).await
}

/// 64 tasks take turns on a lock in a folder, compared with tokio's own mutex and with the raw
/// system calls.
pub(crate) async fn bench_file(report: &mut Report, scale: u32) -> BenchResult {
    let dir = tempfile::tempdir()?;
    let locks = Locks::open(&format!("file://{}", dir.path().join("locks").display())).await?;
    let raw = RawFile::new(dir.path())?;
    let turns = 100 / scale;
    let (mut mine, mut floor, mut careless) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..11 {
        mine.push(measure_leasehold(&locks, turns).await?);
        let start = monotonic_now();
        for _ in 0..TASKS * turns {
            raw.hand_off()?;
        }
        floor.push((monotonic_now() - start) / (TASKS * turns));
        let start = monotonic_now();
        for _ in 0..TASKS * turns {
            raw.unchecked_hand_off()?;
        }
        careless.push((monotonic_now() - start) / (TASKS * turns));
    }
    let (ours, floor) = (&mut mine[..], &mut floor[..]);
    let what = "file: hand-off among 64 tasks";
    report.add_comparison(Comparison {
        name: what,
        baseline_name: "the system calls that it needs",
        leasehold: ours,
        baseline: floor,
        max_ratio: 2.0,
    });
    let (ours, floor) = (&mut mine[..], &mut careless[..]);
    report.add_comparison(Comparison {
        name: what,
        baseline_name: "one write per step, no checks",
        leasehold: ours,
        baseline: floor,
        max_ratio: f64::INFINITY,
    });
    Ok(())
}
