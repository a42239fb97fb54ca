//! 100,000 leases held at once: the memory of each, and the cost of renewing them all.

use std::time::Duration;

use leasehold::Locks;
use rustix::time::{ClockId, clock_gettime};

use crate::report::Report;

type BenchResult = Result<(), Box<dyn std::error::Error>>;

/// The CPU time that this process has used.
pub(crate) fn cpu_time() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

/// This process's resident memory, in bytes.
fn resident_memory() -> Result<f64, Box<dyn std::error::Error>> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: f64 = statm.split_whitespace().nth(1).ok_or("no resident size")?.parse()?;
    Ok(pages * rustix::param::page_size() as f64)
}

/// Measures the memory of 100,000 leases in memory, and the CPU time of their renewals with a TTL
/// of 30 s, while each is renewed twice.
pub(crate) async fn bench_memory(report: &mut Report, scale: u32) -> BenchResult {
    let count = 100_000 / scale;
    let locks = Locks::open("memory:").await?;
    let before = resident_memory()?;
    let mut guards = Vec::with_capacity(count as usize);
    for index in 0..count {
        guards.push(locks.mutex(format!("lock-{index}")).lock().await?);
    }
    let per_lease = (resident_memory()? - before) / f64::from(count);
    report.add_figure(&format!("memory: {count} leases held, each"), per_lease, "bytes", 1024.0);

    let first: Vec<_> = guards.iter().map(leasehold::Guard::deadline).collect();
    let (watched, used) = (Duration::from_secs(21), cpu_time());
    tokio::time::sleep(watched).await;
    let share = (cpu_time() - used).as_secs_f64() / watched.as_secs_f64() * 100.0;
    let renewed = guards.iter().zip(&first).filter(|(guard, first)| guard.deadline() > **first).count();
    if renewed != guards.len() || !guards.iter().all(leasehold::Guard::is_held) {
        return Err(format!("only {renewed} of {count} leases were renewed").into());
    }
    report.add_figure(&format!("memory: {count} leases renewed at a 30 s TTL"), share, "% of a core", 5.0);
    Ok(())
}
