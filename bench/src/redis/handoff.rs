//! Contended locks.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::Locks;
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinSet;

use super::floor::{Floor, Player, message, p50, ping_pong};
use super::peers::Figures;
use super::server::Bench;
use super::{Oops, ROUNDS, TTL, middle, open};
use crate::floor::now;
use crate::report::{Line, Rates, Report};

/// How often each task was served.
struct Tally {
    /// How many turns are still to be counted.
    left: u32,
    served: Vec<u32>,
    /// When the last counted turn was granted.
    end: Duration,
    /// All grants, including the uncounted ones at the end.
    grants: u32,
}

impl Tally {
    /// Counts a turn; returns whether there are more.
    fn count(&mut self, index: usize) -> bool {
        self.grants += 1;
        if self.left > 0 {
            self.left -= 1;
            self.served[index] += 1;
            self.end = now();
        }
        self.left > 0
    }
}

/// The results of one round of turns.
struct Turns {
    per_second: f64,
    scripts: f64,
    /// The server's time in the scripts of one turn.
    server: Duration,
    most: u32,
    least: u32,
}

/// Waits until `count` waiters are in the lock's queue.
async fn queued(locks: &Locks, name: &str, count: usize) -> Result<(), Oops> {
    let end = now() + Duration::from_secs(30);
    while locks.inspect(name).await?.waiters.len() < count {
        if now() > end {
            return Err(format!("after 30 s there are still less than {count} waiters").into());
        }
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// `waiters` tasks, spread over `clients`, repeatedly acquire one lock, `turns` times each on
/// average.
async fn take_turns(bench: &mut Bench, clients: &[Locks], waiters: usize, turns: u32) -> Result<Turns, Oops> {
    const NAME: &str = "turns";
    let left = turns * waiters as u32;
    let tally = Tally { left, served: vec![0; waiters], end: Duration::ZERO, grants: 0 };
    let tally = Arc::new(Mutex::new(tally));
    let first = clients[0].mutex(NAME).lock().await?;
    let mut tasks = JoinSet::new();
    for index in 0..waiters {
        let (mutex, tally) = (clients[index % clients.len()].mutex(NAME), Arc::clone(&tally));
        tasks.spawn(async move {
            loop {
                let guard = mutex.lock().await?;
                let more = tally.lock().unwrap_or_else(PoisonError::into_inner).count(index);
                let _ = guard.release().await?;
                if !more {
                    return Ok::<(), leasehold::Error>(());
                }
            }
        });
    }
    queued(&clients[0], NAME, waiters).await?;
    let before = bench.calls().await?;
    let start = now();
    let _ = first.release().await?;
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    // The first release is not part of a turn, and all tasks had joined the queue once before the
    // count began.
    let calls = bench.calls().await?.since(&before);
    let scripts = calls.scripts() as f64 - 1.0 + waiters as f64;
    let tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(Turns {
        per_second: f64::from(left) / (tally.end - start).as_secs_f64(),
        scripts: scripts / f64::from(tally.grants),
        server: calls.in_scripts() / left,
        most: tally.served.iter().copied().max().unwrap_or_default(),
        least: tally.served.iter().copied().min().unwrap_or_default(),
    })
}

/// 64 tasks take turns on one lock, compared with two players that send a message back and forth;
/// and the same with 8 and 512 tasks.
pub(crate) async fn turns(
    report: &mut Report,
    bench: &mut Bench,
    figures: &mut Figures,
    floors: &mut Figures,
) -> Result<(), Oops> {
    let mut players = Player::pair(&bench.url()).await?;
    let one = [open(bench).await?];
    let mut eight = Vec::new();
    for _ in 0..8 {
        eight.push(open(bench).await?);
    }
    // With fewer turns, one more or less would exceed the target's tolerance.
    let (rounds, turns) = (6_000 / bench.scale, (300 / bench.scale).max(60));
    let (mut ours, mut spread, mut floor) = (Vec::new(), Vec::new(), Vec::new());
    let (mut scripts, mut server, mut ratio) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mine = take_turns(bench, &one, 64, turns).await?;
        floor.push(ping_pong(&mut players, rounds).await?);
        spread.push(take_turns(bench, &eight, 64, turns).await?.per_second);
        ours.push(mine.per_second);
        scripts.push(mine.scripts);
        server.push(mine.server.as_secs_f64() * 1e6);
        ratio.push(f64::from(mine.most) / f64::from(mine.least));
    }
    (figures.turns, floors.turns) = (Some(middle(&mut ours)), Some(middle(&mut floor)));
    (figures.sent, figures.spread) = (Some(middle(&mut scripts)), Some(middle(&mut ratio)));
    let (unit, floor_is) = ("hand-offs/s", "two bare messages, to and fro");
    let what = "redis: 64 waiters on one lock";
    report.rates(Rates { what, unit, floor_is, ours: &mut ours, floor: &mut floor, least: 0.7 });
    let what = "redis: the same from 8 connections";
    report.rates(Rates { what, unit, floor_is, ours: &mut spread, floor: &mut floor, least: 0.0 });
    report.figure("redis: most served / least served of 64", middle(&mut ratio), "", 1.05);
    report.figure("redis: 64 waiters, a hand-off takes", middle(&mut scripts), "scripts", MOST_SCRIPTS);
    report.figure("redis: 64 waiters, a hand-off's scripts", middle(&mut server), "µs of Redis", f64::INFINITY);
    for waiters in [8, 512] {
        let turns = take_turns(bench, &one, waiters, 40).await?;
        let what = format!("redis: {waiters} waiters, a hand-off takes");
        report.figure(&what, turns.scripts, "scripts", MOST_SCRIPTS);
        report.figure(&format!("redis: {waiters} waiters"), turns.per_second, "hand-offs/s", f64::INFINITY);
    }
    for locks in one.into_iter().chain(eight) {
        locks.close().await?;
    }
    Ok(())
}

/// One script to join the queue and one to release; an occasional renewal is not part of a
/// hand-off.
const MOST_SCRIPTS: f64 = 2.005;

/// The time from the call that releases a lock until a waiter on another connection has acquired
/// it. The waiter runs on `thread`, which may be another thread.
async fn handed_over(holder: &Locks, waiter: &Locks, thread: &Handle) -> Result<Duration, Oops> {
    const NAME: &str = "handover";
    let guard = holder.mutex(NAME).lock().await?;
    let mutex = waiter.mutex(NAME);
    let waiting = thread.spawn(async move {
        let guard = mutex.lock().await?;
        let taken = now();
        let _ = guard.release().await?;
        Ok::<Duration, leasehold::Error>(taken)
    });
    queued(holder, NAME, 1).await?;
    let start = now();
    let _ = guard.release().await?;
    Ok(waiting.await??.saturating_sub(start))
}

/// The median of `count` measurements.
async fn median_of(count: u32, mut call: impl AsyncFnMut() -> Result<Duration, Oops>) -> Result<Duration, Oops> {
    let mut times = Vec::with_capacity(count as usize);
    for _ in 0..count {
        times.push(call().await?);
    }
    Ok(middle(&mut times))
}

/// One holder and one waiter, compared with one round trip.
pub(crate) async fn handover(
    report: &mut Report,
    bench: &mut Bench,
    figures: &mut Figures,
    floors: &mut Figures,
) -> Result<(), Oops> {
    let thread = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (holder, waiter, url) = (open(bench).await?, open(bench).await?, bench.url());
    let distant = thread.spawn(async move { Locks::builder().ttl(TTL).open(&url).await }).await??;
    let mut bare = Floor::open(&bench.url()).await?;
    let mut players = Player::pair(&bench.url()).await?;
    let count = 600 / bench.scale;
    let [mut ours, mut near, mut apart, mut pings, mut scripts, mut messages] = [const { Vec::new() }; 6];
    for _ in 0..ROUNDS {
        ours.push(median_of(count, async || handed_over(&holder, &waiter, &Handle::current()).await).await?);
        pings.push(p50(count, async || bare.ping().await).await?);
        near.push(median_of(count, async || handed_over(&holder, &holder, &Handle::current()).await).await?);
        apart.push(median_of(count, async || handed_over(&holder, &distant, thread.handle()).await).await?);
        scripts.push(p50(count, async || bare.script().await).await?);
        messages.push(median_of(count, async || message(&mut players).await).await?);
    }
    (figures.handover, floors.handover) = (Some(middle(&mut ours)), Some(middle(&mut pings)));
    let what = "redis: given back to taken, p50";
    report.compare(Line { what, floor_is: "one PING", ours: &mut ours, floor: &mut pings, most: 1.5 });
    let mut aside = |what, floor_is, ours: &mut [Duration], floor: &mut [Duration]| {
        report.compare(Line { what, floor_is, ours, floor, most: f64::INFINITY });
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
