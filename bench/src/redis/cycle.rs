//! Tasks acquire and release uncontended locks.

use std::time::Duration;

use leasehold::{Locks, Mutex};
use tokio::task::JoinSet;

use super::baseline::{Baseline, p50};
use super::peers::Figures;
use super::server::BenchServer;
use super::{BoxError, ROUNDS, median_value, open_locks};
use crate::baseline::monotonic_now;
use crate::report::{Comparison, RateComparison, Report};

const TASKS: u32 = 64;
const BASELINE_NAME: &str = "SET NX PX, compare-and-delete";

async fn run_cycle(mutex: &Mutex) -> Result<(), BoxError> {
    let guard = mutex.lock().await?;
    let _ = std::hint::black_box(guard.release().await?);
    Ok(())
}

/// One task, one lock.
pub(crate) async fn bench_single_task(
    report: &mut Report,
    bench: &mut BenchServer,
    figures: &mut Figures,
    baselines: &mut Figures,
) -> Result<(), BoxError> {
    let locks = open_locks(bench).await?;
    let mutex = locks.mutex("one");
    let mut bare = Baseline::open(&bench.url()).await?;
    let cycles = 3_000 / bench.scale;
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    let (mut our_time, mut floor_time) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let before = bench.command_calls().await?;
        ours.push(p50(cycles, async || run_cycle(&mutex).await).await?);
        let between = bench.command_calls().await?;
        floor.push(p50(cycles, async || bare.run_cycle("one").await).await?);
        our_time.push(between.since(&before).sent_time() / cycles);
        floor_time.push(bench.command_calls().await?.since(&between).sent_time() / cycles);
    }
    (figures.single_task, baselines.single_task) = (Some(median_value(&mut ours)), Some(median_value(&mut floor)));
    let what = "redis: acquire and release, p50";
    report.add_comparison(Comparison {
        name: what,
        baseline_name: BASELINE_NAME,
        leasehold: &mut ours,
        baseline: &mut floor,
        max_ratio: 1.15,
    });
    let what = "redis: the server's time in them";
    report.add_comparison(Comparison {
        name: what,
        baseline_name: BASELINE_NAME,
        leasehold: &mut our_time,
        baseline: &mut floor_time,
        max_ratio: f64::INFINITY,
    });
    locks.close().await?;
    Ok(())
}

/// Runs `turns` cycles on each of 64 tasks and returns cycles per second.
async fn run_concurrently<F>(turns: u32, task: impl Fn(u32) -> F) -> Result<f64, BoxError>
where
    F: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    let start = monotonic_now();
    for index in 0..TASKS {
        tasks.spawn(task(index));
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(f64::from(TASKS * turns) / (monotonic_now() - start).as_secs_f64())
}

async fn leasehold_rate(locks: &Locks, turns: u32) -> Result<f64, BoxError> {
    run_concurrently(turns, |index| {
        let mutex = locks.mutex(format!("many-{index}"));
        async move {
            for _ in 0..turns {
                run_cycle(&mutex).await?;
            }
            Ok(())
        }
    })
    .await
}

async fn baseline_rate(baseline: &Baseline, turns: u32) -> Result<f64, BoxError> {
    run_concurrently(turns, |index| {
        let (mut bare, key) = (baseline.clone(), format!("many-{index}"));
        async move {
            for _ in 0..turns {
                bare.run_cycle(&key).await?;
            }
            Ok(())
        }
    })
    .await
}

/// 64 tasks with a lock each, over one connection.
pub(crate) async fn bench_many_tasks(
    report: &mut Report,
    bench: &mut BenchServer,
    figures: &mut Figures,
    baselines: &mut Figures,
) -> Result<(), BoxError> {
    let locks = open_locks(bench).await?;
    let bare = Baseline::open(&bench.url()).await?;
    let turns = 600 / bench.scale;
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    let (mut our_time, mut floor_time): (Vec<Duration>, Vec<Duration>) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let before = bench.command_calls().await?;
        ours.push(leasehold_rate(&locks, turns).await?);
        let between = bench.command_calls().await?;
        floor.push(baseline_rate(&bare, turns).await?);
        our_time.push(between.since(&before).sent_time() / (TASKS * turns));
        floor_time.push(bench.command_calls().await?.since(&between).sent_time() / (TASKS * turns));
    }
    (figures.many_tasks, baselines.many_tasks) = (Some(median_value(&mut ours)), Some(median_value(&mut floor)));
    let what = "redis: 64 tasks on 64 locks";
    report.add_rates(RateComparison {
        name: what,
        unit: "cycles/s",
        baseline_name: BASELINE_NAME,
        leasehold: &mut ours,
        baseline: &mut floor,
        min_ratio: 0.85,
    });
    let what = "redis: the server's time in one of them";
    report.add_comparison(Comparison {
        name: what,
        baseline_name: BASELINE_NAME,
        leasehold: &mut our_time,
        baseline: &mut floor_time,
        max_ratio: f64::INFINITY,
    });
    locks.close().await?;
    Ok(())
}
