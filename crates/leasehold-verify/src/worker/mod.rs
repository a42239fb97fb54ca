//! A worker: a process that acquires locks, holds them, uses the resource, and records its calls.
//!
//! The conductor starts it with an [`Assignment`] as the first line of its standard input. It
//! prints a history's events to its standard output, and stops at the next input line or at the end
//! of the input. As a separate process it can be killed and stopped like a real holder.

mod acquired_lock;
mod naive;
mod recorder;
mod tasks;
mod tick_job;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leasehold::Locks;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::JoinSet;

use self::acquired_lock::LockBackend;
use self::recorder::Recorder;
use self::tasks::WorkerTask;
use crate::history::{Event, RunNanos, WorkerId, WorkerState, Workload};

/// The first command-line argument of a worker.
pub const WORKER_ARGUMENT: &str = "--leasehold-verify-worker";

/// How workers acquire locks: with leasehold or, in a negative control, with plain Redis commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LockImplementation {
    /// Locks are acquired with leasehold.
    #[default]
    Leasehold,
    /// Locks are `SET NX PX` keys, and tokens come from a counter, on the current Redis master.
    PlainSet,
    /// Like `PlainSet`, and the holder decides by the wall clock whether it still holds the lock.
    WallClock,
}

/// The parameters of a worker process, which the conductor sends it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Assignment {
    /// The engine's URL.
    pub url: String,
    /// The TTL of all leases.
    pub ttl: Duration,
    /// When the run began, on the machine's clock; the history's times count from then.
    pub origin: RunNanos,
    /// The numbers and lanes of the workers in this process: one, or all of them if the engine is
    /// `memory:`.
    pub workers: Vec<(WorkerId, u32)>,
    /// What the workers do.
    pub workload: Workload,
    /// The names of the locks, or of the scheduled job.
    pub locks: Vec<String>,
    /// For each lane, its anchor locks, one on every server that keeps locks. The lane holds them
    /// during the whole run, which shows whether a fault of one server loses locks on the others.
    pub anchors: Vec<Vec<String>>,
    /// The longest time for which a lock is usually held; a few holds are longer than the TTL.
    pub max_hold: Duration,
    /// Whether every lock is held for exactly `max_hold`.
    pub has_constant_hold: bool,
    /// The path of the resource's Unix socket.
    pub resource: PathBuf,
    /// Whether the workers present fencing tokens to the resource.
    pub presents_tokens: bool,
    /// How the workers acquire locks.
    pub lock_implementation: LockImplementation,
    /// Whether workers sometimes force-release each other's locks.
    pub force_releases: bool,
    /// The seed of all random choices.
    pub seed: u64,
    /// The file to append all events to, one line each; `None`: only the conductor receives them.
    pub history: Option<PathBuf>,
}

/// Runs this process as a worker until the conductor ends it.
///
/// # Errors
/// A message, if the worker cannot start. Later errors are recorded in the history.
pub fn main() -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the runtime: {error}"))?;
    let done = runtime.block_on(run_workers());
    runtime.shutdown_timeout(Duration::from_millis(100));
    done
}

/// Reads the assignment, runs the tasks of all workers in this process, and ends at the next input
/// line.
async fn run_workers() -> Result<(), String> {
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    let first = input.next_line().await.map_err(|error| error.to_string())?;
    let assignment: Assignment =
        serde_json::from_str(&first.unwrap_or_default()).map_err(|error| format!("invalid assignment: {error}"))?;
    let recorder = Recorder::new(assignment.origin, assignment.history.as_deref());
    let recorder = Arc::new(recorder.map_err(|error| format!("the history cannot be opened: {error}"))?);
    let backend = open_backend(&assignment).await?;
    for (worker, lane) in &assignment.workers {
        recorder.worker_state(*worker, WorkerState::Started { lane: *lane, pid: std::process::id() });
    }
    let stop = leasehold_schedule::StopHandle::new();
    let mut tasks = JoinSet::new();
    for (worker, _) in assignment.workers.clone() {
        let task = WorkerTask::new(worker, &assignment, &backend, &recorder, stop.clone()).await?;
        tasks.spawn(task.run());
    }
    for (worker, lane) in &assignment.workers {
        for lock in assignment.anchors.get(*lane as usize).into_iter().flatten() {
            // Anchor locks are mutexes in every workload.
            let plain = Assignment { workload: Workload::Mutex, ..assignment.clone() };
            let task = WorkerTask::new(*worker, &plain, &backend, &recorder, stop.clone()).await?;
            tasks.spawn(task.hold_anchor(lock.clone()));
        }
    }
    let stalls = tokio::spawn(recorder::watch_stalls(Arc::clone(&recorder), assignment.workers.clone()));
    // The next line, or the end of the input, means that the run ends.
    let _ = input.next_line().await;
    stop.stop();
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|error| error.to_string())?;
    }
    stalls.abort();
    if let LockBackend::Leasehold(locks) = backend {
        if locks.capabilities().reach == leasehold::engine::Reach::Process {
            record_leftovers(&locks, &lock_names(assignment.workload, &assignment.locks), &recorder).await?;
        }
        // A lock that could not be released expires at its TTL.
        let _ = locks.close().await;
    }
    for (worker, _) in &assignment.workers {
        recorder.worker_state(*worker, WorkerState::Ended);
    }
    Ok(())
}

/// What the engine's name of a lock has before its name in the assignment: the prefix of scheduled
/// jobs' locks, otherwise nothing.
pub(crate) fn lock_prefix(workload: Workload) -> &'static str {
    if workload == Workload::Ticks { leasehold_schedule::PREFIX } else { "" }
}

/// The engine's names of these locks, or of these scheduled jobs' locks.
pub(crate) fn lock_names(workload: Workload, names: &[String]) -> Vec<String> {
    let prefix = lock_prefix(workload);
    names.iter().map(|name| format!("{prefix}{name}")).collect()
}

/// Records which locks are still held or awaited, for an engine that other processes cannot
/// inspect.
async fn record_leftovers(locks: &Locks, names: &[String], recorder: &Recorder) -> Result<(), String> {
    // Releases that continue in the background must complete before the inspection.
    let _ = locks.flush().await;
    let mut left = 0;
    for name in names {
        let view = locks.inspect(name).await.map_err(|error| error.to_string())?;
        for contender in view.holders.iter().chain(&view.waiters) {
            left += 1;
            let what = format!("{} is still there", contender.holder.description);
            recorder.write(&Event::Leftover { t: recorder.now(), lock: name.clone(), what });
        }
    }
    if left == 0 {
        recorder.write(&Event::Clean { t: recorder.now(), locks: names.len() as u64 });
    }
    Ok(())
}

/// Opens the engine, and retries while it is unreachable.
async fn open_backend(assignment: &Assignment) -> Result<LockBackend, String> {
    match assignment.lock_implementation {
        LockImplementation::Leasehold => {
            // The server may be unreachable for a moment.
            let mut tries = 0;
            loop {
                match Locks::builder().ttl(assignment.ttl).open(&assignment.url).await {
                    Ok(locks) => return Ok(LockBackend::Leasehold(locks)),
                    Err(error) if error.is_retryable() && tries < 300 => tries += 1,
                    Err(error) => return Err(error.to_string()),
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        implementation => Ok(LockBackend::Naive(Arc::new(naive::PlainLocks::new(
            assignment,
            implementation == LockImplementation::WallClock,
        )?))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_leftover_job_lock_is_recorded() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let recorder = Recorder::new(0, Some(file.path())).unwrap();
        let locks = Locks::open("memory:").await.unwrap();
        let held = locks.mutex(format!("{}a", leasehold_schedule::PREFIX)).lock().await.unwrap();
        let names = lock_names(Workload::Ticks, &["a".to_owned()]);
        record_leftovers(&locks, &names, &recorder).await.unwrap();
        assert!(held.release().await.is_ok());
        record_leftovers(&locks, &names, &recorder).await.unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() == 2 && lines[0].contains("leftover") && lines[0].contains("cron:a"), "{text}");
        assert!(lines[1].contains("clean"), "{text}");
    }
}
