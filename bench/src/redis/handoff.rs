//! Contended locks.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::Locks;
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinSet;

use super::baseline::{Baseline, PubSubClient, message_time, p50, ping_pong};
use super::peers::Figures;
use super::server::BenchServer;
use super::{BoxError, ROUNDS, TTL, median_value, open_locks};
use crate::baseline::monotonic_now;
use crate::report::{Comparison, RateComparison, Report};

/// How often each task was served.
struct TurnCounts {
    /// The number of turns still to count.
    remaining: u32,
    turns_by_task: Vec<u32>,
    /// When the lock was granted for the last counted turn.
    last_grant_at: Duration,
    /// All grants, including the uncounted ones at the end.
    grants: u32,
}

impl TurnCounts {
    /// Counts a turn; returns whether there are more.
    fn count_turn(&mut self, index: usize) -> bool {
        self.grants += 1;
        if self.remaining > 0 {
            self.remaining -= 1;
            self.turns_by_task[index] += 1;
            self.last_grant_at = monotonic_now();
        }
        self.remaining > 0
    }
}

/// The results of one round of turns.
struct TurnsResult {
    per_second: f64,
    scripts_per_turn: f64,
    /// The server's time in the scripts of one turn.
    server_time_per_turn: Duration,
    max_turns: u32,
    min_turns: u32,
}

/// Waits until `count` waiters are in the lock's queue.
async fn wait_for_waiters(locks: &Locks, name: &str, count: usize) -> Result<(), BoxError> {
    let end = monotonic_now() + Duration::from_secs(30);
    while locks.inspect(name).await?.waiters.len() < count {
        if monotonic_now() > end {
            return Err(format!("fewer than {count} waiters after 30 s").into());
        }
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// `waiters` tasks, spread over `clients`, repeatedly acquire one lock, `turns` times each on
/// average.
async fn run_turns(
    bench: &mut BenchServer,
    clients: &[Locks],
    waiters: usize,
    turns: u32,
) -> Result<TurnsResult, BoxError> {
    const NAME: &str = "turns";
    let left = turns * waiters as u32;
    let tally =
        TurnCounts { remaining: left, turns_by_task: vec![0; waiters], last_grant_at: Duration::ZERO, grants: 0 };
    let tally = Arc::new(Mutex::new(tally));
    let first = clients[0].mutex(NAME).lock().await?;
    let mut tasks = JoinSet::new();
    for index in 0..waiters {
        let (mutex, tally) = (clients[index % clients.len()].mutex(NAME), Arc::clone(&tally));
        tasks.spawn(async move {
            loop {
                let guard = mutex.lock().await?;
                let more = tally.lock().unwrap_or_else(PoisonError::into_inner).count_turn(index);
                let _ = guard.release().await?;
                if !more {
                    return Ok::<(), leasehold::Error>(());
                }
            }
        });
    }
    wait_for_waiters(&clients[0], NAME, waiters).await?;
    let before = bench.command_calls().await?;
    let start = monotonic_now();
    let _ = first.release().await?;
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    // The first release is not part of a turn, and all tasks had joined the queue once before the
    // count began.
    let calls = bench.command_calls().await?.since(&before);
    let scripts = calls.script_count() as f64 - 1.0 + waiters as f64;
    let tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(TurnsResult {
        per_second: f64::from(left) / (tally.last_grant_at - start).as_secs_f64(),
        scripts_per_turn: scripts / f64::from(tally.grants),
        server_time_per_turn: calls.script_time() / left,
        max_turns: tally.turns_by_task.iter().copied().max().unwrap_or_default(),
        min_turns: tally.turns_by_task.iter().copied().min().unwrap_or_default(),
    })
}

/// 64 tasks take turns on one lock, compared with two clients that send a message back and forth;
/// and the same with 8 and 512 tasks.
pub(crate) async fn bench_turns(
    report: &mut Report,
    bench: &mut BenchServer,
    figures: &mut Figures,
    baselines: &mut Figures,
) -> Result<(), BoxError> {
    let mut clients = PubSubClient::open_pair(&bench.url()).await?;
    let one = [open_locks(bench).await?];
    let mut eight = Vec::new();
    for _ in 0..8 {
        eight.push(open_locks(bench).await?);
    }
    // With fewer turns, one more or less would exceed the target's tolerance.
    let (rounds, turns) = (6_000 / bench.scale, (300 / bench.scale).max(60));
    let (mut ours, mut spread, mut floor) = (Vec::new(), Vec::new(), Vec::new());
    let (mut scripts, mut server, mut ratio) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mine = run_turns(bench, &one, 64, turns).await?;
        floor.push(ping_pong(&mut clients, rounds).await?);
        spread.push(run_turns(bench, &eight, 64, turns).await?.per_second);
        ours.push(mine.per_second);
        scripts.push(mine.scripts_per_turn);
        server.push(mine.server_time_per_turn.as_secs_f64() * 1e6);
        ratio.push(f64::from(mine.max_turns) / f64::from(mine.min_turns));
    }
    (figures.hand_offs_per_second, baselines.hand_offs_per_second) =
        (Some(median_value(&mut ours)), Some(median_value(&mut floor)));
    (figures.commands_per_hand_off, figures.max_min_ratio) =
        (Some(median_value(&mut scripts)), Some(median_value(&mut ratio)));
    let (unit, floor_is) = ("hand-offs/s", "two bare messages, to and fro");
    let what = "redis: 64 waiters on one lock";
    report.add_rates(RateComparison {
        name: what,
        unit,
        baseline_name: floor_is,
        leasehold: &mut ours,
        baseline: &mut floor,
        min_ratio: 0.7,
    });
    let what = "redis: the same from 8 connections";
    report.add_rates(RateComparison {
        name: what,
        unit,
        baseline_name: floor_is,
        leasehold: &mut spread,
        baseline: &mut floor,
        min_ratio: 0.0,
    });
    report.add_figure("redis: most served / least served of 64", median_value(&mut ratio), "", 1.05);
    report.add_figure(
        "redis: 64 waiters, time of a hand-off",
        median_value(&mut scripts),
        "scripts",
        MAX_SCRIPTS_PER_HAND_OFF,
    );
    report.add_figure(
        "redis: 64 waiters, a hand-off's scripts",
        median_value(&mut server),
        "µs of Redis",
        f64::INFINITY,
    );
    for waiters in [8, 512] {
        let turns = run_turns(bench, &one, waiters, 40).await?;
        let what = format!("redis: {waiters} waiters, time of a hand-off");
        report.add_figure(&what, turns.scripts_per_turn, "scripts", MAX_SCRIPTS_PER_HAND_OFF);
        report.add_figure(&format!("redis: {waiters} waiters"), turns.per_second, "hand-offs/s", f64::INFINITY);
    }
    for locks in one.into_iter().chain(eight) {
        locks.close().await?;
    }
    Ok(())
}

/// One script to join the queue and one to release; an occasional renewal is not part of a
/// hand-off.
const MAX_SCRIPTS_PER_HAND_OFF: f64 = 2.005;

/// The time from the call that releases a lock until a waiter on another connection has acquired
/// it. The waiter runs on `thread`, which may be another thread.
async fn measure_hand_off(holder: &Locks, waiter: &Locks, thread: &Handle) -> Result<Duration, BoxError> {
    const NAME: &str = "handover";
    let guard = holder.mutex(NAME).lock().await?;
    let mutex = waiter.mutex(NAME);
    let waiting = thread.spawn(async move {
        let guard = mutex.lock().await?;
        let taken = monotonic_now();
        let _ = guard.release().await?;
        Ok::<Duration, leasehold::Error>(taken)
    });
    wait_for_waiters(holder, NAME, 1).await?;
    let start = monotonic_now();
    let _ = guard.release().await?;
    Ok(waiting.await??.saturating_sub(start))
}

/// The median of `count` measurements.
async fn median_of(
    count: u32,
    mut call: impl AsyncFnMut() -> Result<Duration, BoxError>,
) -> Result<Duration, BoxError> {
    let mut times = Vec::with_capacity(count as usize);
    for _ in 0..count {
        times.push(call().await?);
    }
    Ok(median_value(&mut times))
}

/// One holder and one waiter, compared with one round trip.
pub(crate) async fn bench_hand_off(
    report: &mut Report,
    bench: &mut BenchServer,
    figures: &mut Figures,
    baselines: &mut Figures,
) -> Result<(), BoxError> {
    let thread = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (holder, waiter, url) = (open_locks(bench).await?, open_locks(bench).await?, bench.url());
    let distant = thread.spawn(async move { Locks::builder().ttl(TTL).open(&url).await }).await??;
    let mut bare = Baseline::open(&bench.url()).await?;
    let mut clients = PubSubClient::open_pair(&bench.url()).await?;
    let count = 600 / bench.scale;
    let [mut ours, mut near, mut apart, mut pings, mut scripts, mut messages] = [const { Vec::new() }; 6];
    for _ in 0..ROUNDS {
        ours.push(median_of(count, async || measure_hand_off(&holder, &waiter, &Handle::current()).await).await?);
        pings.push(p50(count, async || bare.ping().await).await?);
        near.push(median_of(count, async || measure_hand_off(&holder, &holder, &Handle::current()).await).await?);
        apart.push(median_of(count, async || measure_hand_off(&holder, &distant, thread.handle()).await).await?);
        scripts.push(p50(count, async || bare.call_noop_script().await).await?);
        messages.push(median_of(count, async || message_time(&mut clients).await).await?);
    }
    (figures.hand_off_time, baselines.hand_off_time) = (Some(median_value(&mut ours)), Some(median_value(&mut pings)));
    let what = "redis: release to grant, p50";
    report.add_comparison(Comparison {
        name: what,
        baseline_name: "one PING",
        leasehold: &mut ours,
        baseline: &mut pings,
        max_ratio: 1.5,
    });
    let mut aside = |what, floor_is, ours: &mut [Duration], floor: &mut [Duration]| {
        report.add_comparison(Comparison {
            name: what,
            baseline_name: floor_is,
            leasehold: ours,
            baseline: floor,
            max_ratio: f64::INFINITY,
        });
    };
    aside(what, "one EVALSHA of `return 1`", &mut ours, &mut scripts);
    aside(what, "a bare message to another connection", &mut ours, &mut messages);
    aside("redis: the same within one connection", "one PING", &mut near, &mut pings);
    aside("redis: the same from thread to thread", "one PING", &mut apart, &mut pings);
    aside("redis: a bare message to another connection", "one PING", &mut messages, &mut pings);
    for locks in [holder, waiter, distant] {
        locks.close().await?;
    }
    thread.shutdown_background();
    Ok(())
}
