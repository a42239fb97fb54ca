//! 100,000 leases held at once: the cost of their renewals for the server and the client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::metrics::Metrics;
use leasehold::{Guard, Locks};
use tokio::task::JoinSet;

use super::baseline::Baseline;
use super::server::BenchServer;
use super::{BoxError, TTL};
use crate::baseline::monotonic_now;
use crate::held_leases::cpu_time;
use crate::report::Report;

/// How many leases are acquired, or released, concurrently.
const MAX_CONCURRENT: usize = 64;

/// The CPU use of the server and of this process, in percent of a core, and the number of scripts.
struct Usage {
    server_percent: f64,
    client_percent: f64,
    script_count: u64,
    script_time: Duration,
}

/// Counts renewals.
#[derive(Default)]
struct RenewalCounter(AtomicU64);

impl Metrics for RenewalCounter {
    fn increment(&self, name: &'static str, label: Option<(&'static str, &'static str)>) {
        if name == "leasehold_renew_total" && label == Some(("result", "renewed")) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn set_gauge(&self, _: &'static str, _: f64) {}

    fn record_seconds(&self, _: &'static str, _: f64) {}
}

async fn measure_usage(bench: &mut BenchServer, duration: Duration) -> Result<Usage, BoxError> {
    let (start, calls, server, ours) =
        (monotonic_now(), bench.command_calls().await?, bench.cpu_time().await?, cpu_time());
    tokio::time::sleep(duration).await;
    let (ours, server) = (cpu_time() - ours, bench.cpu_time().await? - server);
    let (taken, calls) = ((monotonic_now() - start).as_secs_f64(), bench.command_calls().await?.since(&calls));
    let percent = |used: Duration| used.as_secs_f64() / taken * 100.0;
    Ok(Usage {
        server_percent: percent(server),
        client_percent: percent(ours),
        script_count: calls.script_count(),
        script_time: calls.script_time(),
    })
}

async fn acquire_all(locks: &Locks, count: u32) -> Result<Vec<Guard>, BoxError> {
    let (mut guards, mut tasks) = (Vec::with_capacity(count as usize), JoinSet::new());
    for index in 0..count {
        if tasks.len() == MAX_CONCURRENT
            && let Some(done) = tasks.join_next().await
        {
            guards.push(done??);
        }
        let mutex = locks.mutex(format!("held-{index}"));
        tasks.spawn(async move { mutex.lock().await });
    }
    while let Some(done) = tasks.join_next().await {
        guards.push(done??);
    }
    Ok(guards)
}

async fn release_all(guards: Vec<Guard>) -> Result<(), BoxError> {
    let permits = Arc::new(tokio::sync::Semaphore::new(MAX_CONCURRENT));
    let mut tasks = JoinSet::new();
    for guard in guards {
        let permit = Arc::clone(&permits).acquire_owned().await?;
        tasks.spawn(async move {
            let _permit = permit;
            guard.release().await
        });
    }
    while let Some(done) = tasks.join_next().await {
        let _ = done??;
    }
    Ok(())
}

/// The server's time to renew a bare key in chunks of 128, in microseconds.
async fn baseline_renewal_micros(bench: &mut BenchServer, count: u32) -> Result<f64, BoxError> {
    let mut floor = Baseline::open(&bench.url()).await?;
    floor.create_keys(count as usize).await?;
    let before = bench.command_calls().await?;
    floor.renew_keys(count as usize).await?;
    let used = bench.command_calls().await?.since(&before).script_time();
    floor.delete_keys(count as usize).await?;
    Ok(used.as_secs_f64() * 1e6 / f64::from(count))
}

/// Measures the renewals of 100,000 leases with a TTL of 30 s. The first renewal of each lease,
/// which adds it to a group, is a separate figure. The target is for the time after that, over four
/// renewals of each lease, one of which also checks the lease individually. The CPU use of an idle
/// server and an idle client is subtracted.
pub(crate) async fn bench_renewals(report: &mut Report, bench: &mut BenchServer) -> Result<(), BoxError> {
    let count = 100_000 / bench.scale;
    let floor = baseline_renewal_micros(bench, count).await?;
    let renewals = Arc::new(RenewalCounter::default());
    let locks = Locks::builder().ttl(TTL).metrics(Arc::clone(&renewals) as _).open(&bench.url()).await?;
    let idle = measure_usage(bench, Duration::from_secs(5)).await?;
    let guards = acquire_all(&locks, count).await?;
    let first: Vec<_> = guards.iter().map(Guard::deadline).collect();
    let start = measure_usage(bench, TTL / 3).await?;
    let what = format!("redis: {count} leases held, their first renewal");
    report.add_figure(&what, start.server_percent - idle.server_percent, "% of its time", f64::INFINITY);
    let before = renewals.0.load(Ordering::Relaxed);
    let used = measure_usage(bench, TTL * 4 / 3).await?;
    let answers = (renewals.0.load(Ordering::Relaxed) - before) as f64;
    let renewed = guards.iter().zip(&first).filter(|(guard, first)| guard.deadline() > **first).count();
    if renewed != guards.len() || !guards.iter().all(Guard::is_held) {
        return Err(format!("only {renewed} of {count} leases were renewed").into());
    }
    let what = |rest: &str| format!("redis: {count} leases held, {rest}");
    report.add_figure(&what("Redis"), used.server_percent - idle.server_percent, "% of its time", 1.0);
    report.add_figure(&what("we"), used.client_percent - idle.client_percent, "% of a core", 2.0);
    report.add_figure(&what("renewed"), answers / used.script_count as f64, "to a script", f64::INFINITY);
    let micros = used.script_time.as_secs_f64() * 1e6 / answers;
    report.add_figure("redis: a renewal in the script, each", micros, "µs of Redis", f64::INFINITY);
    report.add_figure("redis: GET and PEXPIRE in a script, each", floor, "µs of Redis", f64::INFINITY);
    release_all(guards).await?;
    locks.close().await?;
    Ok(())
}
