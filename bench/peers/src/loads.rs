//! The loads. Each is bounded by time, because some peers take a hundred times longer than others; only `cycles` is told how many.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{Oops, peer::Peer};

const TASKS: usize = 64;

fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// The CPU time of this process.
fn cpu() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

fn middle(mut values: Vec<Duration>) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).map(|value| value.as_nanos() as u64)
}

/// One task takes and gives back one lock.
pub(crate) async fn one<P: Peer>(url: &str, seconds: f64) -> Result<Value, Oops> {
    let peer = P::open(url).await?;
    let lock = peer.lock("peer-one");
    P::give(P::take(&lock).await?).await?;
    let end = now() + Duration::from_secs_f64(seconds);
    let mut cycles = Vec::new();
    while now() < end {
        let start = now();
        P::give(P::take(&lock).await?).await?;
        cycles.push(now() - start);
    }
    Ok(json!({ "p50_ns": middle(cycles) }))
}

/// One task takes and gives back one lock, as often as each line on stdin says.
pub(crate) async fn cycles<P: Peer>(url: &str) -> Result<(), Oops> {
    let peer = P::open(url).await?;
    let lock = peer.lock("peer-cycles");
    for line in std::io::stdin().lines() {
        let count: usize = line?.trim().parse()?;
        let mut times = Vec::with_capacity(count);
        let (used, start) = (cpu(), now());
        for _ in 0..count {
            let before = now();
            P::give(P::take(&lock).await?).await?;
            times.push(now() - before);
        }
        let (total, used) = ((now() - start).as_nanos() as u64, (cpu() - used).as_nanos() as u64);
        println!("{}", json!({ "p50_ns": middle(times), "total_ns": total, "cpu_ns": used }));
    }
    Ok(())
}

/// 64 tasks, each with a lock of its own.
pub(crate) async fn many<P: Peer>(url: &str, seconds: f64) -> Result<Value, Oops> {
    let peer = P::open(url).await?;
    let mut tasks = JoinSet::new();
    let start = now();
    let end = start + Duration::from_secs_f64(seconds);
    for index in 0..TASKS {
        let lock = peer.lock(&format!("peer-many-{index}"));
        tasks.spawn(async move {
            let mut cycles = 0_u64;
            while now() < end {
                P::give(P::take(&lock).await?).await?;
                cycles += 1;
            }
            Ok::<u64, Oops>(cycles)
        });
    }
    let mut cycles = 0;
    while let Some(done) = tasks.join_next().await {
        cycles += done??;
    }
    Ok(json!({ "per_second": cycles as f64 / (now() - start).as_secs_f64() }))
}

/// Who was served how often, and how often it was somebody else than before.
struct Tally {
    served: Vec<u64>,
    last: usize,
    hand_offs: u64,
}

/// 64 tasks on one lock. Who gives it back asks for it again at once; a turn counts as a hand-off if another had the one before.
pub(crate) async fn turns<P: Peer>(url: &str, seconds: f64) -> Result<Value, Oops> {
    let peer = P::open(url).await?;
    let tally = Arc::new(Mutex::new(Tally { served: vec![0; TASKS], last: TASKS, hand_offs: 0 }));
    let mut tasks = JoinSet::new();
    let start = now();
    let end = start + Duration::from_secs_f64(seconds);
    for index in 0..TASKS {
        let (lock, tally) = (peer.lock("peer-turns"), Arc::clone(&tally));
        tasks.spawn(async move {
            while now() < end {
                let guard = P::take(&lock).await?;
                {
                    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
                    tally.served[index] += 1;
                    tally.hand_offs += u64::from(tally.last != index);
                    tally.last = index;
                }
                P::give(guard).await?;
            }
            Ok::<(), Oops>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let taken = (now() - start).as_secs_f64();
    let tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(json!({
        "per_second": tally.hand_offs as f64 / taken, "hand_offs": tally.hand_offs, "turns": tally.served.iter().sum::<u64>(),
        "most": tally.served.iter().max(), "least": tally.served.iter().min(),
    }))
}

/// Whether somebody who asks for a held lock is sent away instead of waiting.
pub(crate) async fn cannot_wait<P: Peer>(url: &str) -> Result<Option<Value>, Oops> {
    let peer = P::open(url).await?;
    let (first, second) = (peer.lock("peer-wait"), peer.lock("peer-wait"));
    let guard = P::take(&first).await?;
    let asked = tokio::time::timeout(Duration::from_secs(1), P::take(&second)).await;
    P::give(guard).await?;
    Ok(match asked {
        Ok(Err(refusal)) => Some(json!({ "no": format!("does not wait: {refusal}") })),
        Ok(Ok(_)) => return Err("two hold one lock".into()),
        Err(_) => None,
    })
}

/// One holds, one waits, each with its own connection: from the call that gives it back to the other's having it.
pub(crate) async fn handover<P: Peer>(url: &str, seconds: f64) -> Result<Value, Oops> {
    let (mine, other) = (P::open(url).await?, P::open(url).await?);
    let (mine, other) = (mine.lock("peer-handover"), Arc::new(other.lock("peer-handover")));
    let end = now() + Duration::from_secs_f64(seconds);
    let mut waits = Vec::new();
    while now() < end || waits.is_empty() {
        let guard = P::take(&mine).await?;
        let waiter = Arc::clone(&other);
        let waiting = tokio::spawn(async move {
            let guard = P::take(&waiter).await?;
            let taken = now();
            P::give(guard).await?;
            Ok::<Duration, Oops>(taken)
        });
        // Those who ask again and again are met at all points of their pause.
        tokio::time::sleep(Duration::from_millis(20 + waits.len() as u64 * 37 % 100)).await;
        let start = now();
        P::give(guard).await?;
        waits.push(waiting.await??.saturating_sub(start));
    }
    Ok(json!({ "p50_ns": middle(waits) }))
}
