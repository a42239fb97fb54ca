//! The state of jobs, and an operator's requests to them.

use super::job::{PREFIX, lock_name};
use super::job_store::{JobStore, LoadedRecord};
use super::tick::Tick;
use crate::logic::{ActiveRun, HistoryEntry, JobRecord, OperatorRequest, Ticks};
use leasehold::Locks;
use leasehold::{Error, ErrorKind, Result};

/// The jobs of an engine, for inspection and control. Requests take effect on all nodes: a pause at
/// once, a resumption or a manual run within ten seconds.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use leasehold_schedule::Jobs;
///
/// # let locks = leasehold::Locks::open("memory:").await?;
/// # let work = |_| async { Ok::<(), std::io::Error>(()) };
/// # let job = leasehold_schedule::Job::new("report", "* * * * * *")?;
/// # leasehold_schedule::run_due(&locks, job, None, None, work).await?;
/// let jobs = Jobs::new(&locks)?;
/// assert_eq!(jobs.names().await?, ["report"]);
/// jobs.pause("report").await?;
/// jobs.run_now("report").await?;                 // once, on any node, although it is paused
/// jobs.resume("report").await?;
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Jobs {
    locks: Locks,
}

/// The state of a job when it was read.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use leasehold_schedule::Jobs;
///
/// # let locks = leasehold::Locks::open("memory:").await?;
/// # let work = |_| async { Ok::<(), std::io::Error>(()) };
/// # let job = leasehold_schedule::Job::new("report", "* * * * * *")?;
/// # leasehold_schedule::run_due(&locks, job, None, None, work).await?;
/// if let Some(status) = Jobs::new(&locks)?.status("report").await? {
///     println!("{} ({}): {} running", status.name, status.schedule, status.running.len());
///     if let Some(tick) = status.undecided {
///         println!("no node runs the job: the tick {tick} was due");
///     }
/// }
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobStatus {
    /// The job's name.
    pub name: String,
    /// The cron expression of the node that decided last.
    pub schedule: String,
    /// The time zone of the cron expression.
    pub zone: String,
    /// When the first node joined the job.
    pub since: Tick,
    /// The newest tick about which a node has decided whether it runs.
    pub decided: Tick,
    /// The next tick after the present time; `None` if the schedule cannot be parsed or has ended.
    pub next: Option<Tick>,
    /// Since when the job is paused, and by which client; `None` if it is not paused.
    pub paused: Option<OperatorRequest>,
    /// Ticks that will run and have not begun.
    pub queue: Vec<Tick>,
    /// The number of manual runs in the queue.
    pub pending_manual_runs: usize,
    /// Runs that have begun and not ended. The run of a dead node stays listed until another node
    /// finds it.
    pub running: Vec<ActiveRun>,
    /// The last twenty outcomes of ticks, newest last.
    pub history: Vec<HistoryEntry>,
    /// The engine's time when the state was read.
    pub now: Tick,
    /// By how many seconds the last decided tick is ahead of the engine's clock, if by more than a
    /// minute; otherwise `None`. No tick is due until the clock has caught up.
    pub clock_behind_by: Option<i64>,
    /// The first tick that no node has decided, if it was due more than a minute ago and the job is
    /// neither paused nor running: probably no node runs the job.
    pub undecided: Option<Tick>,
}

/// A tick that no node has decided this many seconds after it came due is reported as undecided:
/// probably no node runs the job.
const UNDECIDED_AFTER_SECONDS: i64 = 60;

impl Jobs {
    /// Gives access to the jobs that are stored on the engine of `locks`.
    ///
    /// # Errors
    /// `Unsupported` if the engine keeps no records.
    pub fn new(locks: &Locks) -> Result<Self> {
        locks.records()?;
        Ok(Self { locks: locks.clone() })
    }

    /// The names of all jobs that the engine knows of.
    ///
    /// # Errors
    /// The errors of the engine.
    pub async fn names(&self) -> Result<Vec<String>> {
        let names = self.locks.records()?.list(PREFIX).await?;
        Ok(names.iter().filter_map(|name| Some(name.as_str().strip_prefix(PREFIX)?.to_owned())).collect())
    }

    /// The state of a job; `None` if the job is not known: no node has joined it yet.
    ///
    /// # Errors
    /// `InvalidName`; `Corrupt` if its record cannot be parsed; the errors of the engine.
    pub async fn status(&self, job: &str) -> Result<Option<JobStatus>> {
        let loaded = self.job_store(job)?.load().await?;
        let now = loaded.seconds();
        Ok(loaded.state.map(|state| job_status(job, state, now)))
    }

    /// Pauses the job: none of its runs begins from now on. `false` if it was already paused.
    ///
    /// # Errors
    /// `InvalidOption` if the job is not known; as [`status`](Self::status).
    pub async fn pause(&self, job: &str) -> Result<bool> {
        let by = self.operator_name();
        self.update_record(job, |state, now| Ok(state.pause(&by, now))).await
    }

    /// Resumes the job with its next tick. `false` if it was not paused.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn resume(&self, job: &str) -> Result<bool> {
        self.update_record(job, |state, now| Ok(state.resume(now))).await
    }

    /// Requests one more run, on any node; works during a pause, too.
    ///
    /// # Errors
    /// `Full` if the queue is full; as [`pause`](Self::pause).
    ///
    /// # Ambiguity
    /// After an error whose effect is unknown, the run may have been requested.
    pub async fn run_now(&self, job: &str) -> Result<()> {
        let by = self.operator_name();
        let full = || {
            let message =
                format!("the manual-run queue of the job {job:?} is full; wait until some of its runs are done");
            self.locks.add_location(Error::new(ErrorKind::Full, message))
        };
        self.update_record(job, |state, now| state.run_now(&by, now).ok_or_else(full).map(Some)).await.map(|_| ())
    }

    /// Restarts the job's schedule at the engine's present time, after a wrong clock left its last
    /// tick in the future. Ticks in between that may have run will run again.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn reset(&self, job: &str) -> Result<()> {
        self.update_record(job, |state, now| Ok(Some(state.reset(now)))).await.map(|_| ())
    }

    /// Removes the record of a job that no node runs any more, also a record that cannot be parsed.
    /// `false` if the job was not known.
    ///
    /// # Errors
    /// An error of the engine; `Conflict` while the job runs; `UnknownFormat` if another version of
    /// leasehold wrote the record: it may be running the job.
    pub async fn remove(&self, job: &str) -> Result<bool> {
        let store = self.job_store(job)?;
        loop {
            let LoadedRecord { version, state, .. } = match store.load().await {
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    if store.remove(store.version().await?).await? {
                        return Ok(true);
                    }
                    continue;
                }
                loaded => loaded?,
            };
            match state {
                None => return Ok(false),
                Some(state) if !state.running.is_empty() => {
                    let message = format!("the job {job:?} is running; remove it once the run has ended");
                    return Err(self.locks.add_location(Error::new(ErrorKind::Conflict, message)));
                }
                Some(_) if store.remove(version).await? => return Ok(true),
                Some(_) => {}
            }
        }
    }

    fn job_store(&self, job: &str) -> Result<JobStore> {
        JobStore::new(&self.locks, lock_name(job)?)
    }

    /// This client's `host:pid`, under which its requests are recorded.
    fn operator_name(&self) -> String {
        let holder = self.locks.holder();
        format!("{}:{}", holder.host, holder.pid)
    }

    /// Applies `change` to the job's record and the engine's time in seconds, again if another
    /// client wrote meanwhile. `false` if `change` returned `None`: no change was needed.
    async fn update_record(
        &self,
        job: &str,
        change: impl Fn(&JobRecord, i64) -> Result<Option<JobRecord>>,
    ) -> Result<bool> {
        let store = self.job_store(job)?;
        loop {
            let loaded = store.load().await?;
            let now = loaded.seconds();
            let Some(state) = loaded.state else {
                let message = format!("there is no job {job:?} here: it is known once a node has begun to run it");
                return Err(self.locks.add_location(Error::new(ErrorKind::InvalidOption, message)));
            };
            let Some(after) = change(&state, now)? else { return Ok(false) };
            if store.save(loaded.version, &after).await? {
                return Ok(true);
            }
        }
    }
}

fn job_status(job: &str, state: JobRecord, now: i64) -> JobStatus {
    let cron = super::Cron::parse(&state.schedule).and_then(|cron| cron.in_zone(&state.zone)).ok();
    let after = |time| cron.as_ref().and_then(|cron| cron.next(time));
    let next = after(state.watermark.max(now));
    let idle = state.paused.is_none() && state.running.is_empty();
    let undecided = after(state.watermark).filter(|tick| idle && *tick < now.saturating_sub(UNDECIDED_AFTER_SECONDS));
    JobStatus {
        name: job.to_owned(),
        since: Tick::from_unix(state.since),
        decided: Tick::from_unix(state.watermark),
        next: next.map(Tick::from_unix),
        queue: state.queue.iter().map(|tick| Tick::from_unix(*tick)).collect(),
        pending_manual_runs: state.wanted.len(),
        now: Tick::from_unix(now),
        clock_behind_by: state.seconds_ahead(now),
        undecided: undecided.map(Tick::from_unix),
        schedule: state.schedule,
        zone: state.zone,
        paused: state.paused,
        running: state.running,
        history: state.history,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job that no node runs does not look like one that waits for its next tick.
    #[test]
    fn undecided_ticks_are_reported() {
        let state = JobRecord::new("*/5 * * * *", "UTC", 0);
        assert_eq!(job_status("a", state.clone(), 299).undecided, None);
        assert_eq!(job_status("a", state.clone(), 360).undecided, None, "a node may be running it");
        let late = job_status("a", state.clone(), 361);
        assert_eq!((late.undecided, late.next), (Some(Tick::from_unix(300)), Some(Tick::from_unix(600))));
        let paused = JobRecord { paused: Some(OperatorRequest { by: "me".to_owned(), at: 0 }), ..state };
        assert_eq!(job_status("a", paused, 1000).undecided, None);
    }
}
