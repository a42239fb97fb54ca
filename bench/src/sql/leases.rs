//! 2,000 leases held at once: the cost of their renewals for the server and the client.

use std::time::Duration;

use leasehold::{Guard, Locks};
use tokio::task::JoinSet;

use super::server::Bench;
use crate::floor::now;
use crate::held::cpu;
use crate::redis::{Oops, TTL};
use crate::report::Report;

/// How many are acquired, or released, concurrently.
const AT_ONCE: usize = 10;

/// The CPU use of the server and of this process, in percent of a core, and the number of
/// statements per second.
struct Used {
    server: f64,
    ours: f64,
    statements: f64,
}

async fn watch(bench: &Bench, time: Duration) -> Result<Used, Oops> {
    let (statements, start, server, ours) = (bench.statements().await?, now(), bench.cpu()?, cpu());
    tokio::time::sleep(time).await;
    let (ours, server, taken) = (cpu() - ours, bench.cpu()?.saturating_sub(server), (now() - start).as_secs_f64());
    let percent = |used: Duration| used.as_secs_f64() / taken * 100.0;
    let statements = bench.statements().await?.since(statements) / taken;
    Ok(Used { server: percent(server), ours: percent(ours), statements })
}

async fn take(locks: &Locks, count: u32) -> Result<Vec<Guard>, Oops> {
    let (mut guards, mut tasks) = (Vec::with_capacity(count as usize), JoinSet::new());
    for index in 0..count {
        if tasks.len() == AT_ONCE
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

/// For the time in which each is renewed twice. The CPU use of an idle server and an idle client is
/// subtracted.
pub(crate) async fn leases(report: &mut Report, bench: &Bench) -> Result<(), Oops> {
    let count = 2_000 / bench.scale;
    bench.count_statements().await?;
    let locks = bench.open("").await?;
    let idle = watch(bench, Duration::from_secs(3)).await?;
    let start = now();
    let guards = take(&locks, count).await?;
    let taken = f64::from(count) / (now() - start).as_secs_f64();
    let first: Vec<_> = guards.iter().map(Guard::deadline).collect();
    let used = watch(bench, TTL * 2 / 3).await?;
    let renewed = guards.iter().zip(&first).filter(|(guard, first)| guard.deadline() > **first).count();
    if renewed != guards.len() || !guards.iter().all(Guard::is_held) {
        return Err(format!("only {renewed} of {count} leases were renewed").into());
    }
    let what = |rest: &str| format!("{}: {count} leases, {rest}", bench.label());
    report.figure(&what("taken"), taken, "in a second", f64::INFINITY);
    report.figure(&what("renewed by"), used.statements - idle.statements, "statements/s", f64::INFINITY);
    report.figure(&what("the server"), used.server - idle.server, "% of a core", f64::INFINITY);
    report.figure(&what("we"), used.ours - idle.ours, "% of a core", f64::INFINITY);
    for guard in guards {
        let _ = guard.release().await?;
    }
    locks.close().await?;
    Ok(())
}
