//! 64 tasks take turns on one lock.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Locks;
use tokio::task::JoinSet;

use crate::floor::{RawFile, now};
use crate::report::{Line, Report};

const TASKS: u32 = 64;
type Done = Result<(), Box<dyn std::error::Error>>;

async fn ours(locks: &Locks, turns: u32) -> Result<Duration, Box<dyn std::error::Error>> {
    let start = now();
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
    Ok((now() - start) / (TASKS * turns))
}

async fn tokios(turns: u32) -> Result<Duration, Box<dyn std::error::Error>> {
    let mutex = Arc::new(tokio::sync::Mutex::new(0_u64));
    let start = now();
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
    Ok((now() - start) / (TASKS * turns))
}

async fn compare(report: &mut Report, locks: &Locks, what: &str, turns: u32, most: f64) -> Done {
    let (mut mine, mut floor) = (Vec::new(), Vec::new());
    for _ in 0..11 {
        mine.push(ours(locks, turns).await?);
        floor.push(tokios(turns).await?);
    }
    report.compare(Line { what, floor_is: "tokio::sync::Mutex", ours: &mut mine, floor: &mut floor, most });
    Ok(())
}

/// In memory.
pub(crate) async fn memory(report: &mut Report, scale: u32) -> Done {
    let locks = Locks::open("memory:").await?;
    compare(report, &locks, "memory: hand-off among 64 tasks", 500 / scale, 10.0).await
}

/// In a folder, compared with the raw system calls.
pub(crate) async fn file(report: &mut Report, scale: u32) -> Done {
    let dir = tempfile::tempdir()?;
    let locks = Locks::open(&format!("file://{}", dir.path().join("locks").display())).await?;
    let raw = RawFile::new(dir.path())?;
    let turns = 100 / scale;
    let (mut mine, mut floor, mut careless) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..11 {
        mine.push(ours(&locks, turns).await?);
        let start = now();
        for _ in 0..TASKS * turns {
            raw.hand_off()?;
        }
        floor.push((now() - start) / (TASKS * turns));
        let start = now();
        for _ in 0..TASKS * turns {
            raw.careless_hand_off()?;
        }
        careless.push((now() - start) / (TASKS * turns));
    }
    let (ours, floor) = (&mut mine[..], &mut floor[..]);
    let what = "file: hand-off among 64 tasks";
    report.compare(Line { what, floor_is: "the system calls that it needs", ours, floor, most: 2.0 });
    let (ours, floor) = (&mut mine[..], &mut careless[..]);
    report.compare(Line { what, floor_is: "one write a step, no looks", ours, floor, most: f64::INFINITY });
    Ok(())
}
