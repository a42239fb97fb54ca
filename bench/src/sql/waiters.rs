//! 500 tasks wait for one lock, with ten connections.

use std::time::Duration;

use tokio::task::JoinSet;

use super::server::Bench;
use crate::floor::now;
use crate::redis::Oops;
use crate::report::Report;

const NAME: &str = "waiters";
const CONNECTIONS: f64 = 10.0;
/// How often the connections are counted.
const LOOK: Duration = Duration::from_millis(20);
/// The time limit for serving all waiters.
const MOST: Duration = Duration::from_secs(120);

/// All wait; then the first holder releases, and each releases as soon as it has the lock.
pub(crate) async fn waiters(report: &mut Report, bench: &Bench) -> Result<(), Oops> {
    let count = 500 / bench.scale;
    bench.count_statements().await?;
    let locks = bench.open("connections=10").await?;
    let first = locks.mutex(NAME).lock().await?;
    let (before, start) = (bench.statements().await?, now());
    let mut tasks = JoinSet::new();
    for _ in 0..count {
        let mutex = locks.mutex(NAME);
        tasks.spawn(async move { mutex.lock().await?.release().await });
    }
    let mut most = 0;
    loop {
        most = most.max(bench.connections().await?);
        let waiting = locks.inspect(NAME).await?.waiters.len();
        if waiting == count as usize {
            break;
        }
        if now() - start > MOST {
            return Err(format!("only {waiting} of {count} wait after {MOST:?}").into());
        }
        tokio::time::sleep(LOOK).await;
    }
    let (joined, start) = (now() - start, now());
    let _ = first.release().await?;
    while !tasks.is_empty() {
        if let Ok(Some(done)) = tokio::time::timeout(LOOK, tasks.join_next()).await {
            let _ = done??;
            while let Some(done) = tasks.try_join_next() {
                let _ = done??;
            }
        }
        most = most.max(bench.connections().await?);
        if now() - start > MOST {
            return Err(format!("{} of {count} are not served after {MOST:?}", tasks.len()).into());
        }
    }
    let (served, statements) = (now() - start, bench.statements().await?.since(before));
    let what = |rest: &str| format!("{}: {count} waiters, {rest}", bench.label());
    report.figure(&what("all wait after"), joined.as_secs_f64(), "s", f64::INFINITY);
    report.figure(&what("all served after"), served.as_secs_f64(), "s", f64::INFINITY);
    report.figure(&what("statements for each"), statements / f64::from(count), "", f64::INFINITY);
    // One more connection receives notifications.
    report.figure(&what("connections"), most as f64, "at most", CONNECTIONS + 1.0);
    locks.close().await?;
    Ok(())
}
