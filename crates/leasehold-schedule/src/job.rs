//! A job: its name, its schedule, and its policies for missed, overlapping and crashed runs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::cron::Cron;
use super::event::JobEvent;
use crate::logic::{Crash, MAX_CONCURRENT_RUNS, MAX_TICKS, Missed, Overlap, Policy};
use leasehold::Locks;
use leasehold::{Error, ErrorKind, Result};
use leasehold::{LockName, MAX_NAME};

/// A job's lock and record are named by this prefix and the job's name.
pub const PREFIX: &str = "cron:";

/// The default of the time by which a tick may be late and still count as in time.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(60);

/// A listener for the events of a job.
pub(crate) type Listener = Arc<dyn Fn(&Job, &JobEvent) + Send + Sync>;

/// A scheduled job. All nodes of a fleet use the same name for it, and should agree on all other
/// settings.
///
/// ```
/// use std::time::Duration;
/// use leasehold_schedule::{Crash, Job, Missed, Overlap};
///
/// let job = Job::new("nightly", "0 3 * * *")?
///     .zone("Europe/Berlin")?
///     .crash(Crash::Retry { attempts: 3 })
///     .missed(Missed::Once)
///     .overlap(Overlap::Skip)
///     .max_hold(Duration::from_secs(3600));
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct Job {
    name: String,
    lock: LockName,
    pub(super) cron: Cron,
    pub(super) crash: Crash,
    pub(super) missed: Missed,
    pub(super) overlap: Overlap,
    pub(super) grace: Option<Duration>,
    pub(super) ttl: Option<Duration>,
    pub(super) max_hold: Option<Duration>,
    pub(super) min_hold: Duration,
    pub(super) describe: Option<String>,
    pub(super) handles_loss: bool,
    listener: Option<Listener>,
}

impl Job {
    /// A job with this name and this schedule ([`Cron`]) in UTC. By default it runs at most once a
    /// tick, does not run missed ticks later, and skips ticks that come due while it runs.
    ///
    /// # Errors
    /// `InvalidName`; `InvalidOption` if the schedule cannot be parsed.
    pub fn new(name: impl Into<String>, schedule: &str) -> Result<Self> {
        let name = name.into();
        Ok(Self {
            lock: lock_name(&name)?,
            name,
            cron: Cron::parse(schedule)?,
            crash: Crash::AtMostOnce,
            missed: Missed::Skip,
            overlap: Overlap::Skip,
            grace: None,
            ttl: None,
            max_hold: None,
            min_hold: Duration::ZERO,
            describe: None,
            handles_loss: false,
            listener: None,
        })
    }

    /// Sets the time zone of the schedule; UTC by default.
    ///
    /// # Errors
    /// `InvalidOption` if there is no such zone.
    pub fn zone(mut self, name: &str) -> Result<Self> {
        self.cron = self.cron.in_zone(name)?;
        Ok(self)
    }

    /// Sets what happens to a run whose node died; [`Crash::AtMostOnce`] by default.
    #[must_use]
    pub fn crash(mut self, crash: Crash) -> Self {
        self.crash = crash;
        self
    }

    /// Sets what happens to ticks that no node ran in time; [`Missed::Skip`] by default.
    #[must_use]
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// Sets what happens to ticks that come due while the job runs; [`Overlap::Skip`] by default.
    #[must_use]
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// How late a tick may be and still run as if in time; one minute by default. Set it above the
    /// TTL, or the ticks that come due before a dead node's lease expires are missed.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// The TTL of the job's lock, which limits how long the lock outlives a dead node; by default
    /// that of the `Locks`.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Stops a run after this time and records it as timed out. By default a run may take any time.
    #[must_use]
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.max_hold = Some(limit);
        self
    }

    /// Keeps the job's lock at least this long, even if the run ends sooner: for other programs
    /// that exclude each other by the lock alone, without the job's record. Zero by default.
    #[must_use]
    pub fn min_hold(mut self, duration: Duration) -> Self {
        self.min_hold = duration;
        self
    }

    /// Sets the description that other clients see of the holder of the job's lock.
    #[must_use]
    pub fn describe(mut self, text: impl Into<String>) -> Self {
        self.describe = Some(text.into());
        self
    }

    /// Leaves it to the run to notice that it lost the lock, through
    /// [`Run::guard`](super::Run::guard): its future is not dropped then. For runs that need time
    /// to stop their work, and start stopping before the lease ends.
    #[must_use]
    pub fn handles_loss(mut self) -> Self {
        self.handles_loss = true;
        self
    }

    /// Calls `listener` for each event of the job on this node; replaces an earlier listener.
    #[must_use]
    pub fn on_event(mut self, listener: impl Fn(&Self, &JobEvent) + Send + Sync + 'static) -> Self {
        self.listener = Some(Arc::new(listener));
        self
    }

    /// The job's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The job's schedule.
    pub fn cron(&self) -> &Cron {
        &self.cron
    }

    /// The name of the job's lock and of its record.
    pub fn lock_name(&self) -> &LockName {
        &self.lock
    }

    pub(super) fn policy(&self) -> Policy {
        let grace = i64::try_from(self.grace.unwrap_or(DEFAULT_GRACE).as_secs()).unwrap_or(i64::MAX);
        Policy { crash: self.crash, missed: self.missed, overlap: self.overlap, grace }
    }

    pub(super) fn emit(&self, event: &JobEvent) {
        tracing::debug!(job = self.name, ?event, "schedule");
        if let Some(listener) = &self.listener {
            listener(self, event);
        }
    }

    /// `InvalidOption` if options contradict each other, `Unsupported` if the engine lacks what
    /// they need.
    pub(super) fn check_options(&self, locks: &Locks) -> Result<()> {
        let wrong = |what: &str| Err(Error::new(ErrorKind::InvalidOption, format!("job {:?}: {what}", self.name)));
        match (self.crash, self.missed, self.overlap) {
            (Crash::Retry { attempts: 0 }, ..) => return wrong("Crash::Retry needs at least one attempt"),
            (_, Missed::All { limit: 0 }, _) => {
                return wrong("Missed::All with a limit of 0 runs no tick: use Missed::Skip");
            }
            (_, Missed::All { limit }, _) if usize::try_from(limit).is_ok_and(|limit| limit > MAX_TICKS) => {
                return wrong("with Missed::All, at most 1000 missed ticks can run later");
            }
            (.., Overlap::Allow { max: 0 }) => return wrong("Overlap::Allow must allow at least one run"),
            (.., Overlap::Allow { max }) if max > MAX_CONCURRENT_RUNS => {
                return wrong(&format!(
                    "at most {MAX_CONCURRENT_RUNS} concurrent runs fit into a job's record, not {max}"
                ));
            }
            _ => {}
        }
        if self.max_hold.is_some_and(|most| most <= self.min_hold) {
            return wrong("max_hold must be longer than min_hold");
        }
        let can = locks.capabilities();
        let require =
            |is_supported, capability| can.require(is_supported, capability).map_err(|error| locks.add_location(error));
        require(can.records, "records, which schedules need")?;
        if matches!(self.overlap, Overlap::Allow { .. }) {
            require(can.permits, "semaphores, which concurrent runs need")?;
            require(can.inspection, "inspection, which concurrent runs need")?;
        }
        Ok(())
    }
}

/// The common name of a job's lock and record; `InvalidName` if `job` is empty or too long.
pub(super) fn lock_name(job: &str) -> Result<LockName> {
    if job.is_empty() || job.len() + PREFIX.len() > MAX_NAME {
        let most = MAX_NAME - PREFIX.len();
        return Err(Error::new(ErrorKind::InvalidName, format!("a job's name has 1 to {most} bytes")));
    }
    LockName::new(format!("{PREFIX}{job}"))
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("name", &self.name).field("cron", &self.cron).finish_non_exhaustive()
    }
}
