//! The loads. Each runs for a given time, because some peers take a hundred times longer than
//! others; only `cycles` runs a given number of cycles.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{BoxError, peer::Peer};

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

/// The median in nanoseconds; `None` if there are no values.
fn median_nanos(mut values: Vec<Duration>) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).map(|value| value.as_nanos() as u64)
}

/// One task acquires and releases one lock repeatedly. Returns the median time of a cycle.
pub(crate) async fn one<P: Peer>(url: &str, seconds: f64) -> Result<Value, BoxError> {
    let peer = P::open(url).await?;
    let lock = peer.lock("peer-one");
    P::release(P::acquire(&lock).await?).await?;
    let end = now() + Duration::from_secs_f64(seconds);
    let mut cycles = Vec::new();
    while now() < end {
        let start = now();
        P::release(P::acquire(&lock).await?).await?;
        cycles.push(now() - start);
    }
    Ok(json!({ "p50_ns": median_nanos(cycles) }))
}

/// For each line on standard input, a number, one task acquires and releases one lock that many
/// times. Prints the times as one line of JSON.
pub(crate) async fn cycles<P: Peer>(url: &str) -> Result<(), BoxError> {
    let peer = P::open(url).await?;
    let lock = peer.lock("peer-cycles");
    for line in std::io::stdin().lines() {
        let count: usize = line?.trim().parse()?;
        let mut times = Vec::with_capacity(count);
        let (used, start) = (cpu(), now());
        for _ in 0..count {
            let before = now();
            P::release(P::acquire(&lock).await?).await?;
            times.push(now() - before);
        }
        let (total, used) = ((now() - start).as_nanos() as u64, (cpu() - used).as_nanos() as u64);
        println!("{}", json!({ "p50_ns": median_nanos(times), "total_ns": total, "cpu_ns": used }));
    }
    Ok(())
}

/// 64 tasks each acquire and release their own lock repeatedly. Returns the cycles per second.
pub(crate) async fn many<P: Peer>(url: &str, seconds: f64) -> Result<Value, BoxError> {
    let peer = P::open(url).await?;
    let mut tasks = JoinSet::new();
    let start = now();
    let end = start + Duration::from_secs_f64(seconds);
    for index in 0..TASKS {
        let lock = peer.lock(&format!("peer-many-{index}"));
        tasks.spawn(async move {
            let mut cycles = 0_u64;
            while now() < end {
                P::release(P::acquire(&lock).await?).await?;
                cycles += 1;
            }
            Ok::<u64, BoxError>(cycles)
        });
    }
    let mut cycles = 0;
    while let Some(done) = tasks.join_next().await {
        cycles += done??;
    }
    Ok(json!({ "per_second": cycles as f64 / (now() - start).as_secs_f64() }))
}

/// How often each task acquired the lock.
struct Tally {
    /// The number of grants of each task.
    grants: Vec<u64>,
    /// The task that acquired the lock last; `TASKS` before the first grant.
    last: usize,
    /// How often the lock was acquired by another task than before.
    hand_offs: u64,
}

/// 64 tasks acquire and release one lock repeatedly. Returns the hand-offs per second: grants to
/// another task than the one before.
pub(crate) async fn turns<P: Peer>(url: &str, seconds: f64) -> Result<Value, BoxError> {
    let peer = P::open(url).await?;
    let tally = Arc::new(Mutex::new(Tally { grants: vec![0; TASKS], last: TASKS, hand_offs: 0 }));
    let mut tasks = JoinSet::new();
    let start = now();
    let end = start + Duration::from_secs_f64(seconds);
    for index in 0..TASKS {
        let (lock, tally) = (peer.lock("peer-turns"), Arc::clone(&tally));
        tasks.spawn(async move {
            while now() < end {
                let guard = P::acquire(&lock).await?;
                {
                    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
                    tally.grants[index] += 1;
                    tally.hand_offs += u64::from(tally.last != index);
                    tally.last = index;
                }
                P::release(guard).await?;
            }
            Ok::<(), BoxError>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let elapsed = (now() - start).as_secs_f64();
    let tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(json!({
        "per_second": tally.hand_offs as f64 / elapsed, "hand_offs": tally.hand_offs, "turns": tally.grants.iter().sum::<u64>(),
        "most": tally.grants.iter().max(), "least": tally.grants.iter().min(),
    }))
}

/// Returns an explanation if the peer refuses a request for a held lock at once; `None` if the
/// request waits.
pub(crate) async fn refusal_to_wait<P: Peer>(url: &str) -> Result<Option<Value>, BoxError> {
    let peer = P::open(url).await?;
    let (first, second) = (peer.lock("peer-wait"), peer.lock("peer-wait"));
    let guard = P::acquire(&first).await?;
    let second_acquire = tokio::time::timeout(Duration::from_secs(1), P::acquire(&second)).await;
    P::release(guard).await?;
    Ok(match second_acquire {
        Ok(Err(refusal)) => Some(json!({ "no": format!("does not wait: {refusal}") })),
        Ok(Ok(_)) => return Err("the peer granted one lock to two holders".into()),
        Err(_) => None,
    })
}

/// One task holds a lock and another waits for it, each with its own connection. Returns the median
/// time from the call that releases the lock until the waiter has it.
pub(crate) async fn handover<P: Peer>(url: &str, seconds: f64) -> Result<Value, BoxError> {
    let (mine, other) = (P::open(url).await?, P::open(url).await?);
    let (mine, other) = (mine.lock("peer-handover"), Arc::new(other.lock("peer-handover")));
    let end = now() + Duration::from_secs_f64(seconds);
    let mut waits = Vec::new();
    while now() < end || waits.is_empty() {
        let guard = P::acquire(&mine).await?;
        let waiter = Arc::clone(&other);
        let waiting = tokio::spawn(async move {
            let guard = P::acquire(&waiter).await?;
            let granted_at = now();
            P::release(guard).await?;
            Ok::<Duration, BoxError>(granted_at)
        });
        // The delays vary, so that a waiter that polls is met at all points of its pause.
        tokio::time::sleep(Duration::from_millis(20 + waits.len() as u64 * 37 % 100)).await;
        let start = now();
        P::release(guard).await?;
        waits.push(waiting.await??.saturating_sub(start));
    }
    Ok(json!({ "p50_ns": median_nanos(waits) }))
}
