//! One task acquires and releases a free lock.

use std::time::Duration;

use leasehold::{Locks, Mutex};

use crate::floor::{RawFile, now};
use crate::report::{Line, Report};

type Done = Result<(), Box<dyn std::error::Error>>;

async fn ours(mutex: &Mutex, cycles: u32) -> leasehold::Result<Duration> {
    let start = now();
    for _ in 0..cycles {
        let guard = mutex.lock().await?;
        let _ = std::hint::black_box(guard.release().await?);
    }
    Ok((now() - start) / cycles)
}

/// Compared with tokio's own mutex.
pub(crate) async fn memory(report: &mut Report, scale: u32) -> Done {
    let locks = Locks::open("memory:").await?;
    let mutex = locks.mutex("bench");
    let floor = tokio::sync::Mutex::new(0_u64);
    let cycles = 200_000 / scale;
    let (mut mine, mut tokios) = (Vec::new(), Vec::new());
    for _ in 0..21 {
        mine.push(ours(&mutex, cycles).await?);
        let start = now();
        for _ in 0..cycles {
            *std::hint::black_box(floor.lock().await) += 1;
        }
        tokios.push((now() - start) / cycles);
    }
    let (ours, floor) = (&mut mine[..], &mut tokios[..]);
    report.compare(Line {
        what: "memory: take and give back",
        floor_is: "tokio::sync::Mutex",
        ours,
        floor,
        most: 10.0,
    });
    Ok(())
}

/// Compared with the raw system calls.
pub(crate) async fn file(report: &mut Report, scale: u32) -> Done {
    let dir = tempfile::tempdir()?;
    let locks = Locks::open(&format!("file://{}", dir.path().join("locks").display())).await?;
    let mutex = locks.mutex("bench");
    let raw = RawFile::new(dir.path())?;
    let cycles = 20_000 / scale;
    let (mut mine, mut calls, mut flocks) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..21 {
        mine.push(ours(&mutex, cycles).await?);
        let start = now();
        for _ in 0..cycles {
            raw.cycle()?;
        }
        calls.push((now() - start) / cycles);
        let start = now();
        for _ in 0..cycles {
            raw.bare_flock()?;
        }
        flocks.push((now() - start) / cycles);
    }
    let floor = &mut calls[..];
    report.compare(Line {
        what: "file: take and give back",
        floor_is: "the system calls that it needs",
        ours: &mut mine,
        floor,
        most: 2.0,
    });
    let floor = &mut flocks[..];
    report.compare(Line {
        what: "file: take and give back",
        floor_is: "two flock calls (no token, no queue)",
        ours: &mut mine,
        floor,
        most: f64::INFINITY,
    });
    Ok(())
}
