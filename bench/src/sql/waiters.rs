//! 500 tasks wait for one lock, with ten connections.

use std::time::Duration;

use tokio::task::JoinSet;

use super::server::BenchServer;
use crate::baseline::monotonic_now;
use crate::redis::BoxError;
use crate::report::Report;

const LOCK_NAME: &str = "waiters";
const MAX_CONNECTIONS: f64 = 10.0;
/// How often the connections are counted.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The time limit for serving all waiters.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Measures how long 500 waiters take until all had the lock: the first holder releases it when all
/// wait, and each next holder releases it at once.
pub(crate) async fn bench_waiters(report: &mut Report, bench: &BenchServer) -> Result<(), BoxError> {
    let count = 500 / bench.scale;
    bench.start_counting_statements().await?;
    let locks = bench.open_locks("connections=10").await?;
    let first = locks.mutex(LOCK_NAME).lock().await?;
    let (before, start) = (bench.statement_count().await?, monotonic_now());
    let mut tasks = JoinSet::new();
    for _ in 0..count {
        let mutex = locks.mutex(LOCK_NAME);
        tasks.spawn(async move { mutex.lock().await?.release().await });
    }
    let mut most = 0;
    loop {
        most = most.max(bench.connection_count().await?);
        let waiting = locks.inspect(LOCK_NAME).await?.waiters.len();
        if waiting == count as usize {
            break;
        }
        if monotonic_now() - start > TIME_LIMIT {
            return Err(format!("only {waiting} of {count} wait after {TIME_LIMIT:?}").into());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let (joined, start) = (monotonic_now() - start, monotonic_now());
    let _ = first.release().await?;
    while !tasks.is_empty() {
        if let Ok(Some(done)) = tokio::time::timeout(POLL_INTERVAL, tasks.join_next()).await {
            let _ = done??;
            while let Some(done) = tasks.try_join_next() {
                let _ = done??;
            }
        }
        most = most.max(bench.connection_count().await?);
        if monotonic_now() - start > TIME_LIMIT {
            return Err(format!("{} of {count} are not served after {TIME_LIMIT:?}", tasks.len()).into());
        }
    }
    let (served, statements) = (monotonic_now() - start, bench.statement_count().await?.since(before));
    let what = |rest: &str| format!("{}: {count} waiters, {rest}", bench.label());
    report.add_figure(&what("all wait after"), joined.as_secs_f64(), "s", f64::INFINITY);
    report.add_figure(&what("all served after"), served.as_secs_f64(), "s", f64::INFINITY);
    report.add_figure(&what("statements for each"), statements / f64::from(count), "", f64::INFINITY);
    // A client has one more connection than it may use for statements, to receive notifications.
    report.add_figure(&what("connections"), most as f64, "at most", MAX_CONNECTIONS + 1.0);
    locks.close().await?;
    Ok(())
}
