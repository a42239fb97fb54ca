//! 100,000 leases held at once: the cost of their renewals for the server and the client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::meter::Meter;
use leasehold::{Guard, Locks};
use tokio::task::JoinSet;

use super::floor::Floor;
use super::server::Bench;
use super::{Oops, TTL};
use crate::floor::now;
use crate::held::cpu;
use crate::report::Report;

/// How many are acquired, or released, concurrently.
const AT_ONCE: usize = 64;

/// The CPU use of the server and of this process, in percent of a core, and the number of scripts.
struct Used {
    server: f64,
    ours: f64,
    scripts: u64,
    in_scripts: Duration,
}

/// Counts renewals.
#[derive(Default)]
struct Renewals(AtomicU64);

impl Meter for Renewals {
    fn count(&self, name: &'static str, label: Option<(&'static str, &'static str)>) {
        if name == "leasehold_renew_total" && label == Some(("result", "renewed")) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn gauge(&self, _: &'static str, _: f64) {}

    fn observe(&self, _: &'static str, _: f64) {}
}

async fn watch(bench: &mut Bench, time: Duration) -> Result<Used, Oops> {
    let (start, calls, server, ours) = (now(), bench.calls().await?, bench.cpu().await?, cpu());
    tokio::time::sleep(time).await;
    let (ours, server) = (cpu() - ours, bench.cpu().await? - server);
    let (taken, calls) = ((now() - start).as_secs_f64(), bench.calls().await?.since(&calls));
    let percent = |used: Duration| used.as_secs_f64() / taken * 100.0;
    Ok(Used { server: percent(server), ours: percent(ours), scripts: calls.scripts(), in_scripts: calls.in_scripts() })
}

async fn take(locks: &Locks, count: u32) -> Result<Vec<Guard>, Oops> {
    let (mut guards, mut tasks) = (Vec::with_capacity(count as usize), JoinSet::new());
    for index in 0..count {
        if tasks.len() == AT_ONCE
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

async fn give(guards: Vec<Guard>) -> Result<(), Oops> {
    let room = Arc::new(tokio::sync::Semaphore::new(AT_ONCE));
    let mut tasks = JoinSet::new();
    for guard in guards {
        let permit = Arc::clone(&room).acquire_owned().await?;
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
async fn bare_renewal(bench: &mut Bench, count: u32) -> Result<f64, Oops> {
    let mut floor = Floor::open(&bench.url()).await?;
    floor.make(count as usize).await?;
    let before = bench.calls().await?;
    floor.renew(count as usize).await?;
    let used = bench.calls().await?.since(&before).in_scripts();
    floor.remove(count as usize).await?;
    Ok(used.as_secs_f64() * 1e6 / f64::from(count))
}

/// With a TTL of 30 s. The first renewal of each lease, which adds it to a group, is a separate
/// figure. The target is for the time after that, over four renewals of each lease, one of which
/// also inspects it individually. The CPU use of an idle server and an idle client is subtracted.
pub(crate) async fn renewed(report: &mut Report, bench: &mut Bench) -> Result<(), Oops> {
    let count = 100_000 / bench.scale;
    let floor = bare_renewal(bench, count).await?;
    let renewals = Arc::new(Renewals::default());
    let locks = Locks::builder().ttl(TTL).meter(Arc::clone(&renewals) as _).open(&bench.url()).await?;
    let idle = watch(bench, Duration::from_secs(5)).await?;
    let guards = take(&locks, count).await?;
    let first: Vec<_> = guards.iter().map(Guard::deadline).collect();
    let start = watch(bench, TTL / 3).await?;
    let what = format!("redis: {count} leases held, their first renewal");
    report.figure(&what, start.server - idle.server, "% of its time", f64::INFINITY);
    let before = renewals.0.load(Ordering::Relaxed);
    let used = watch(bench, TTL * 4 / 3).await?;
    let answers = (renewals.0.load(Ordering::Relaxed) - before) as f64;
    let renewed = guards.iter().zip(&first).filter(|(guard, first)| guard.deadline() > **first).count();
    if renewed != guards.len() || !guards.iter().all(Guard::is_held) {
        return Err(format!("only {renewed} of {count} leases were renewed").into());
    }
    let what = |rest: &str| format!("redis: {count} leases held, {rest}");
    report.figure(&what("Redis"), used.server - idle.server, "% of its time", 1.0);
    report.figure(&what("we"), used.ours - idle.ours, "% of a core", 2.0);
    report.figure(&what("renewed"), answers / used.scripts as f64, "to a script", f64::INFINITY);
    let micros = used.in_scripts.as_secs_f64() * 1e6 / answers;
    report.figure("redis: a renewal in the script, each", micros, "µs of Redis", f64::INFINITY);
    report.figure("redis: GET and PEXPIRE in a script, each", floor, "µs of Redis", f64::INFINITY);
    give(guards).await?;
    locks.close().await?;
    Ok(())
}
