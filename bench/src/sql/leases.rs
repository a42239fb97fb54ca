//! 2,000 leases held at once: the cost of their renewals for the server and the client.

use std::time::Duration;

use leasehold::{Guard, Locks};
use tokio::task::JoinSet;

use super::server::BenchServer;
use crate::baseline::monotonic_now;
use crate::held_leases::cpu_time;
use crate::redis::{BoxError, TTL};
use crate::report::Report;

/// How many leases are acquired, or released, concurrently.
const MAX_CONCURRENT: usize = 10;

/// The CPU use of the server and of this process, in percent of a core, and the number of
/// statements per second.
struct Usage {
    server_percent: f64,
    client_percent: f64,
    statements_per_second: f64,
}

async fn measure_usage(bench: &BenchServer, duration: Duration) -> Result<Usage, BoxError> {
    let (statements, start, server, ours) =
        (bench.statement_count().await?, monotonic_now(), bench.cpu_time()?, cpu_time());
    tokio::time::sleep(duration).await;
    let (ours, server, taken) =
        (cpu_time() - ours, bench.cpu_time()?.saturating_sub(server), (monotonic_now() - start).as_secs_f64());
    let percent = |used: Duration| used.as_secs_f64() / taken * 100.0;
    let statements = bench.statement_count().await?.since(statements) / taken;
    Ok(Usage { server_percent: percent(server), client_percent: percent(ours), statements_per_second: statements })
}

async fn acquire_all(locks: &Locks, count: u32) -> Result<Vec<Guard>, BoxError> {
    let (mut guards, mut tasks) = (Vec::with_capacity(count as usize), JoinSet::new());
    for index in 0..count {
        if tasks.len() == MAX_CONCURRENT
            && let Some(done) = tasks.join_next().await
        {
            guards.push(done??);
        }
        let mutex = locks.mutex(format!("lease-{index}"));
        tasks.spawn(async move { mutex.lock().await });
    }
    while let Some(done) = tasks.join_next().await {
        guards.push(done??);
    }
    Ok(guards)
}

/// Holds 2,000 leases for the time of two renewals. Reports how fast they were acquired, the
/// statements per second, and the CPU use of server and client less that of idle ones. Fails if a
/// lease was not renewed.
pub(crate) async fn bench_leases(report: &mut Report, bench: &BenchServer) -> Result<(), BoxError> {
    let count = 2_000 / bench.scale;
    bench.start_counting_statements().await?;
    let locks = bench.open_locks("").await?;
    let idle = measure_usage(bench, Duration::from_secs(3)).await?;
    let start = monotonic_now();
    let guards = acquire_all(&locks, count).await?;
    let taken = f64::from(count) / (monotonic_now() - start).as_secs_f64();
    let first: Vec<_> = guards.iter().map(Guard::deadline).collect();
    let used = measure_usage(bench, TTL * 2 / 3).await?;
    let renewed = guards.iter().zip(&first).filter(|(guard, first)| guard.deadline() > **first).count();
    if renewed != guards.len() || !guards.iter().all(Guard::is_held) {
        return Err(format!("only {renewed} of {count} leases were renewed").into());
    }
    let what = |rest: &str| format!("{}: {count} leases, {rest}", bench.label());
    report.add_figure(&what("acquired"), taken, "in a second", f64::INFINITY);
    report.add_figure(
        &what("renewed by"),
        used.statements_per_second - idle.statements_per_second,
        "statements/s",
        f64::INFINITY,
    );
    report.add_figure(&what("the server"), used.server_percent - idle.server_percent, "% of a core", f64::INFINITY);
    report.add_figure(&what("we"), used.client_percent - idle.client_percent, "% of a core", f64::INFINITY);
    for guard in guards {
        let _ = guard.release().await?;
    }
    locks.close().await?;
    Ok(())
}
