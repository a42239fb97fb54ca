//! A manual clock, nodes that run a job on it, and a list of what they ran.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::clock::ManualClock;
use leasehold::{Locks, Result};
use leasehold_schedule::{self as schedule, Job, JobEvent, JobStatus, Jobs, StopHandle, Tick};
use tokio::task::JoinHandle;

pub(crate) const TTL: Duration = Duration::from_secs(30);

/// A run that a node has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StartedRun {
    /// The run's nominal time, in seconds since 1970.
    pub(crate) tick: i64,
    pub(crate) token: u64,
    pub(crate) attempt: u32,
}

/// The runs that all nodes have started, in this order.
pub(crate) type RunLog = Arc<Mutex<Vec<StartedRun>>>;

pub(crate) struct World {
    pub(crate) clock: ManualClock,
    pub(crate) locks: Locks,
    pub(crate) runs: RunLog,
    pub(crate) events: Arc<Mutex<Vec<JobEvent>>>,
}

impl World {
    pub(crate) async fn new() -> Self {
        let clock = ManualClock::new();
        let locks = Locks::builder().clock(clock.clock()).ttl(TTL).open("memory:").await.unwrap();
        Self { clock, locks, runs: RunLog::default(), events: Arc::default() }
    }

    /// A job every minute, whose events are stored.
    pub(crate) fn job(&self) -> Job {
        let events = Arc::clone(&self.events);
        let job = Job::new("job", "* * * * *").unwrap();
        job.on_event(move |_, event| events.lock().unwrap().push(event.clone()))
    }

    /// The engine's time, in seconds since 1970.
    pub(crate) async fn now(&self) -> i64 {
        i64::try_from(self.locks.records().unwrap().get("clock").await.unwrap().engine_time.as_secs()).unwrap()
    }

    /// A node that runs `job`; each run lasts `time` on the clock.
    pub(crate) fn start_node(&self, job: Job, time: Duration) -> Node {
        let (locks, runs, stop) = (self.locks.clone(), Arc::clone(&self.runs), StopHandle::new());
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let clock = locks.clock().clone();
            schedule::run_until(&locks, job, &stopped, |run| {
                runs.lock().unwrap().push(StartedRun {
                    tick: run.tick().unix(),
                    token: run.token().0,
                    attempt: run.attempt(),
                });
                let clock = clock.clone();
                async move {
                    clock.sleep_until(clock.now().saturating_add(time)).await;
                    Ok::<(), String>(())
                }
            })
            .await
        });
        Node { task, stop }
    }

    /// Advances the manual clock in steps of one second, and lets all nodes act after each.
    pub(crate) async fn advance(&self, seconds: u64) {
        for _ in 0..seconds {
            run_until_idle().await;
            self.clock.advance(Duration::from_secs(1));
        }
        run_until_idle().await;
    }

    /// Advances time until just after the next full minute of the engine's clock, and returns that
    /// minute.
    pub(crate) async fn advance_to_next_minute(&self) -> i64 {
        let now = self.now().await;
        let next = (now / 60 + 1) * 60;
        self.advance(u64::try_from(next - now).unwrap() + 1).await;
        next
    }

    pub(crate) fn started_runs(&self) -> Vec<StartedRun> {
        self.runs.lock().unwrap().clone()
    }

    pub(crate) fn started_ticks(&self) -> Vec<i64> {
        self.started_runs().iter().map(|ran| ran.tick).collect()
    }

    pub(crate) async fn status(&self) -> JobStatus {
        Jobs::new(&self.locks).unwrap().status("job").await.unwrap().unwrap()
    }

    /// The outcomes in the history.
    pub(crate) async fn outcomes(&self) -> Vec<&'static str> {
        self.status().await.history.iter().map(|entry| entry.outcome.as_str()).collect()
    }
}

pub(crate) struct Node {
    task: JoinHandle<Result<()>>,
    stop: StopHandle,
}

impl Node {
    /// Ends the node as a kill would, except that `memory:` releases the lock at once.
    pub(crate) async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
        run_until_idle().await;
    }

    /// Stops the node after its present work.
    pub(crate) async fn stop(self) {
        self.stop.stop();
        self.task.await.unwrap().unwrap();
    }
}

/// Runs every task of this (current-thread) runtime until all are idle.
pub(crate) async fn run_until_idle() {
    for _ in 0..80 {
        tokio::task::yield_now().await;
    }
}

pub(crate) fn minute(tick: i64) -> Tick {
    Tick::from_unix(tick)
}
