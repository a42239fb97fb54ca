//! One task acquires and releases a free lock.

use std::time::Duration;

use leasehold::{Locks, Mutex};

use crate::baseline::{RawFile, monotonic_now};
use crate::report::{Comparison, Report};

type BenchResult = Result<(), Box<dyn std::error::Error>>;

async fn measure_leasehold(mutex: &Mutex, cycles: u32) -> leasehold::Result<Duration> {
    let start = monotonic_now();
    for _ in 0..cycles {
        let guard = mutex.lock().await?;
        let _ = std::hint::black_box(guard.release().await?);
    }
    Ok((monotonic_now() - start) / cycles)
}

/// One task acquires and releases a lock in memory, compared with tokio's own mutex.
pub(crate) async fn bench_memory(report: &mut Report, scale: u32) -> BenchResult {
    let locks = Locks::open("memory:").await?;
    let mutex = locks.mutex("bench");
    let floor = tokio::sync::Mutex::new(0_u64);
    let cycles = 200_000 / scale;
    let (mut mine, mut tokios) = (Vec::new(), Vec::new());
    for _ in 0..21 {
        mine.push(measure_leasehold(&mutex, cycles).await?);
        let start = monotonic_now();
        for _ in 0..cycles {
            *std::hint::black_box(floor.lock().await) += 1;
        }
        tokios.push((monotonic_now() - start) / cycles);
    }
    let (ours, floor) = (&mut mine[..], &mut tokios[..]);
    report.add_comparison(Comparison {
        name: "memory: acquire and release",
        baseline_name: "tokio::sync::Mutex",
        leasehold: ours,
        baseline: floor,
        max_ratio: 10.0,
    });
    Ok(())
}

/// One task acquires and releases a lock in a folder, compared with the raw system calls.
pub(crate) async fn bench_file(report: &mut Report, scale: u32) -> BenchResult {
    let dir = tempfile::tempdir()?;
    let locks = Locks::open(&format!("file://{}", dir.path().join("locks").display())).await?;
    let mutex = locks.mutex("bench");
    let raw = RawFile::new(dir.path())?;
    let cycles = 20_000 / scale;
    let (mut mine, mut calls, mut flocks) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..21 {
        mine.push(measure_leasehold(&mutex, cycles).await?);
        let start = monotonic_now();
        for _ in 0..cycles {
            raw.acquire_and_release()?;
        }
        calls.push((monotonic_now() - start) / cycles);
        let start = monotonic_now();
        for _ in 0..cycles {
            raw.bare_flock()?;
        }
        flocks.push((monotonic_now() - start) / cycles);
    }
    let floor = &mut calls[..];
    report.add_comparison(Comparison {
        name: "file: acquire and release",
        baseline_name: "the system calls that it needs",
        leasehold: &mut mine,
        baseline: floor,
        max_ratio: 2.0,
    });
    let floor = &mut flocks[..];
    report.add_comparison(Comparison {
        name: "file: acquire and release",
        baseline_name: "two flock calls (no token, no queue)",
        leasehold: &mut mine,
        baseline: floor,
        max_ratio: f64::INFINITY,
    });
    Ok(())
}
