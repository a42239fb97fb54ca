//! Tasks that contend for one lock.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::{Guard, Locks};
use tokio::task::JoinSet;

use super::baseline::Baseline;
use super::server::{BenchServer, StatementCount};
use crate::baseline::monotonic_now;
use crate::redis::BoxError;

/// How many tasks contend.
pub(crate) const WAITERS: usize = 64;
/// How long the tasks contend before the measurement.
const WARM_UP: Duration = Duration::from_millis(500);
/// The pause of tasks that poll.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const LOCK_NAME: &str = "contest";
/// What a polling task stores in the row: as long as the engine's state with one holder, because a
/// task that polls has no queue to store.
const ROW_STATE: &str =
    "{\"holders\":[{\"id\":\"00000000000000000000000000000000\",\"host\":\"localhost\",\"pid\":12345}]}";

/// A task that contends for the lock.
enum ContendingTask {
    Leasehold(leasehold::Mutex),
    /// Polls over its own connection.
    Polling {
        baseline: Box<Baseline>,
        /// Whether it also pauses after its release, so that others acquire the lock.
        pauses_after_release: bool,
    },
}

/// A lock that a task holds.
enum AcquiredLock {
    Leasehold(Guard),
    Polled(i64),
}

impl ContendingTask {
    async fn acquire(&mut self) -> Result<AcquiredLock, BoxError> {
        match self {
            Self::Leasehold(mutex) => Ok(AcquiredLock::Leasehold(mutex.lock().await?)),
            Self::Polling { baseline: bare, .. } => loop {
                if let Some(token) = bare.try_acquire(LOCK_NAME, ROW_STATE).await? {
                    return Ok(AcquiredLock::Polled(token));
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            },
        }
    }

    async fn release(&mut self, held: AcquiredLock) -> Result<(), BoxError> {
        match (self, held) {
            (Self::Polling { baseline: bare, pauses_after_release: rests }, AcquiredLock::Polled(token)) => {
                bare.release(LOCK_NAME, token, "{}").await?;
                if *rests {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                Ok(())
            }
            (_, AcquiredLock::Leasehold(guard)) => {
                let _ = guard.release().await?;
                Ok(())
            }
            (Self::Leasehold(_), AcquiredLock::Polled(_)) => Err("a client has another client's lock".into()),
        }
    }
}

/// How often the lock was acquired, and how often by another task than before.
#[derive(Clone, Copy, Debug, Default)]
struct HandOffCount {
    hand_offs: u64,
    last_task: Option<usize>,
}

impl HandOffCount {
    fn count_turn(&mut self, index: usize) {
        self.hand_offs += u64::from(self.last_task.replace(index) != Some(index));
    }
}

/// The results of a period in which all tasks contend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContentionResult {
    pub(crate) hand_offs_per_second: f64,
    pub(crate) statements_per_hand_off: f64,
}

/// The counts at one time while the tasks contend.
struct Snapshot {
    at: Duration,
    tally: HandOffCount,
    statements: StatementCount,
}

impl Snapshot {
    fn result_since(&self, earlier: &Self) -> ContentionResult {
        let statements = self.statements.since(earlier.statements);
        let seconds = (self.at - earlier.at).as_secs_f64();
        let hand_offs = (self.tally.hand_offs - earlier.tally.hand_offs) as f64;
        ContentionResult { hand_offs_per_second: hand_offs / seconds, statements_per_hand_off: statements / hand_offs }
    }
}

async fn contend_forever(
    index: usize,
    mut task: ContendingTask,
    tally: Arc<Mutex<HandOffCount>>,
) -> Result<Infallible, BoxError> {
    loop {
        let held = task.acquire().await?;
        tally.lock().unwrap_or_else(PoisonError::into_inner).count_turn(index);
        task.release(held).await?;
    }
}

async fn measure_contention(
    bench: &BenchServer,
    contenders: Vec<ContendingTask>,
    duration: Duration,
) -> Result<ContentionResult, BoxError> {
    let tally = Arc::new(Mutex::new(HandOffCount::default()));
    let mut tasks = JoinSet::new();
    for (index, one) in contenders.into_iter().enumerate() {
        tasks.spawn(contend_forever(index, one, Arc::clone(&tally)));
    }
    let moment = async || -> Result<Snapshot, BoxError> {
        let statements = bench.statement_count().await?;
        let tally = *tally.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Snapshot { at: monotonic_now(), tally, statements })
    };
    tokio::time::sleep(WARM_UP).await;
    let before = moment().await?;
    tokio::time::sleep(duration).await;
    let after = moment().await?;
    if let Some(ended) = tasks.try_join_next() {
        match ended? {
            Ok(never) => match never {},
            Err(error) => return Err(error),
        }
    }
    tasks.shutdown().await;
    Ok(after.result_since(&before))
}

/// Measures leasehold's tasks, spread evenly over this many new clients, for `duration`.
pub(crate) async fn measure_leasehold(
    bench: &BenchServer,
    clients: usize,
    options: &str,
    duration: Duration,
) -> Result<ContentionResult, BoxError> {
    let mut locks: Vec<Locks> = Vec::new();
    for _ in 0..clients {
        locks.push(bench.open_locks(options).await?);
    }
    let all = (0..WAITERS).map(|index| ContendingTask::Leasehold(locks[index % clients].mutex(LOCK_NAME))).collect();
    let period = measure_contention(bench, all, duration).await?;
    for locks in locks {
        locks.close().await?;
    }
    // A task that was stopped half-way left its claim.
    bench.query_as_admin(&format!("DELETE FROM leasehold WHERE name = '{LOCK_NAME}'")).await?;
    Ok(period)
}

/// Measures tasks that poll a row, for `duration`; with `pauses_after_release` each also pauses
/// after it has released the lock.
pub(crate) async fn measure_polling(
    bench: &BenchServer,
    pauses_after_release: bool,
    duration: Duration,
) -> Result<ContentionResult, BoxError> {
    let mut all = Vec::new();
    for _ in 0..WAITERS {
        all.push(ContendingTask::Polling { baseline: Box::new(Baseline::open(bench).await?), pauses_after_release });
    }
    let period = measure_contention(bench, all, duration).await?;
    bench.query_as_admin(&format!("DELETE FROM floor WHERE name = '{LOCK_NAME}'")).await?;
    Ok(period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acquiring_twice_in_a_row_is_no_hand_off() {
        let mut tally = HandOffCount::default();
        [1, 1, 2, 2, 1].into_iter().for_each(|index| tally.count_turn(index));
        assert_eq!(tally.hand_offs, 3);
    }
}
