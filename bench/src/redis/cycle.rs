//! Tasks acquire and release uncontended locks.

use std::time::Duration;

use leasehold::{Locks, Mutex};
use tokio::task::JoinSet;

use super::floor::{Floor, p50};
use super::peers::Figures;
use super::server::Bench;
use super::{Oops, ROUNDS, middle, open};
use crate::floor::now;
use crate::report::{Line, Rates, Report};

const TASKS: u32 = 64;
const FLOOR: &str = "SET NX PX, compare-and-delete";

async fn cycle(mutex: &Mutex) -> Result<(), Oops> {
    let guard = mutex.lock().await?;
    let _ = std::hint::black_box(guard.release().await?);
    Ok(())
}

/// One task, one lock.
pub(crate) async fn one(
    report: &mut Report,
    bench: &mut Bench,
    figures: &mut Figures,
    floors: &mut Figures,
) -> Result<(), Oops> {
    let locks = open(bench).await?;
    let mutex = locks.mutex("one");
    let mut bare = Floor::open(&bench.url()).await?;
    let cycles = 3_000 / bench.scale;
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    let (mut our_time, mut floor_time) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let before = bench.calls().await?;
        ours.push(p50(cycles, async || cycle(&mutex).await).await?);
        let between = bench.calls().await?;
        floor.push(p50(cycles, async || bare.cycle("one").await).await?);
        our_time.push(between.since(&before).in_sent() / cycles);
        floor_time.push(bench.calls().await?.since(&between).in_sent() / cycles);
    }
    (figures.one, floors.one) = (Some(middle(&mut ours)), Some(middle(&mut floor)));
    let what = "redis: take and give back, p50";
    report.compare(Line { what, floor_is: FLOOR, ours: &mut ours, floor: &mut floor, most: 1.15 });
    let what = "redis: the server's time in them";
    report.compare(Line { what, floor_is: FLOOR, ours: &mut our_time, floor: &mut floor_time, most: f64::INFINITY });
    locks.close().await?;
    Ok(())
}

/// Runs `turns` cycles on each of 64 tasks and returns cycles per second.
async fn at_once<F>(turns: u32, task: impl Fn(u32) -> F) -> Result<f64, Oops>
where
    F: Future<Output = Result<(), Oops>> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    let start = now();
    for index in 0..TASKS {
        tasks.spawn(task(index));
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(f64::from(TASKS * turns) / (now() - start).as_secs_f64())
}

async fn ours_at_once(locks: &Locks, turns: u32) -> Result<f64, Oops> {
    at_once(turns, |index| {
        let mutex = locks.mutex(format!("many-{index}"));
        async move {
            for _ in 0..turns {
                cycle(&mutex).await?;
            }
            Ok(())
        }
    })
    .await
}

async fn floor_at_once(bare: &Floor, turns: u32) -> Result<f64, Oops> {
    at_once(turns, |index| {
        let (mut bare, key) = (bare.clone(), format!("many-{index}"));
        async move {
            for _ in 0..turns {
                bare.cycle(&key).await?;
            }
            Ok(())
        }
    })
    .await
}

/// 64 tasks with a lock each, over one connection.
pub(crate) async fn many(
    report: &mut Report,
    bench: &mut Bench,
    figures: &mut Figures,
    floors: &mut Figures,
) -> Result<(), Oops> {
    let locks = open(bench).await?;
    let bare = Floor::open(&bench.url()).await?;
    let turns = 600 / bench.scale;
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    let (mut our_time, mut floor_time): (Vec<Duration>, Vec<Duration>) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let before = bench.calls().await?;
        ours.push(ours_at_once(&locks, turns).await?);
        let between = bench.calls().await?;
        floor.push(floor_at_once(&bare, turns).await?);
        our_time.push(between.since(&before).in_sent() / (TASKS * turns));
        floor_time.push(bench.calls().await?.since(&between).in_sent() / (TASKS * turns));
    }
    (figures.many, floors.many) = (Some(middle(&mut ours)), Some(middle(&mut floor)));
    let what = "redis: 64 tasks on 64 locks";
    report.rates(Rates { what, unit: "cycles/s", floor_is: FLOOR, ours: &mut ours, floor: &mut floor, least: 0.85 });
    let what = "redis: the server's time in one of them";
    report.compare(Line { what, floor_is: FLOOR, ours: &mut our_time, floor: &mut floor_time, most: f64::INFINITY });
    locks.close().await?;
    Ok(())
}
