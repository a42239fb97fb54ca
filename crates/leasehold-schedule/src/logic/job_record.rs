//! The content of a job's record.

use serde::{Deserialize, Serialize};

/// The format that this code reads and writes. The record states it in the field `v`.
pub const RECORD_FORMAT: u32 = 1;

/// The maximum number of entries in a job's history. A record has at most 64 KiB, of which queued
/// ticks use up to 12 KiB.
pub const MAX_HISTORY: usize = 20;

/// The maximum number of queued manual runs.
pub const MAX_MANUAL_RUNS: usize = 20;

/// The state of a job, shared by all nodes. All times are the engine's: ticks in seconds, other
/// times in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct JobRecord {
    /// The version of the record's layout.
    pub v: u32,
    /// The cron expression of the node that decided last.
    pub schedule: String,
    /// The time zone of the cron expression.
    pub zone: String,
    /// When the first node joined the job, in seconds: older ticks do not belong to it.
    pub since: i64,
    /// The newest tick that was judged, in seconds.
    pub watermark: i64,
    /// How many times an operator reset the watermark: it falls for no other reason.
    #[serde(default, skip_serializing_if = "is_zero_u32")]
    pub resets: u32,
    /// The server run in which the record was last decided, if the engine reports it; empty: not
    /// known. In another server run, the latest writes to the record may be lost.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub run: String,
    /// When the server run of the last decision began, in seconds; 0 if not known. Ticks up to this
    /// time may have begun in an earlier server run, with their entries lost.
    #[serde(rename = "doubt", default, skip_serializing_if = "is_zero_i64")]
    pub uncertain_until: i64,
    /// The highest lock token under which a node has decided.
    pub fence: u64,
    /// When the last run ended, in milliseconds; 0 if none has. A tick up to this time came due
    /// during a run.
    #[serde(default)]
    pub busy_until: u64,
    /// Since when the job is paused, and by which client; `None` if it is not paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<OperatorRequest>,
    /// Ticks that were chosen to run and have not begun.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queue: Vec<i64>,
    /// Manual runs that were requested and have not begun, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wanted: Vec<OperatorRequest>,
    /// Runs that have begun and not ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub running: Vec<ActiveRun>,
    /// The outcomes of ticks, newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<HistoryEntry>,
}

/// An operator's request to pause a job or to run it now.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use leasehold_schedule::{Jobs, Tick};
///
/// # let locks = leasehold::Locks::open("memory:").await?;
/// # let work = |_| async { Ok::<(), std::io::Error>(()) };
/// # let job = leasehold_schedule::Job::new("report", "* * * * * *")?;
/// # leasehold_schedule::run_due(&locks, job, None, None, work).await?;
/// let jobs = Jobs::new(&locks)?;
/// jobs.pause("report").await?;
/// let request = jobs.status("report").await?.unwrap().paused.unwrap();
/// println!("paused by {} at {}", request.by, Tick::from_unix(request.at));
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OperatorRequest {
    /// When it was made, in seconds since 1970.
    pub at: i64,
    /// The client that made it, `host:pid`.
    pub by: String,
}

/// A run that has begun.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use leasehold_schedule::{Jobs, Tick};
///
/// # let locks = leasehold::Locks::open("memory:").await?;
/// # let work = |_| async { Ok::<(), std::io::Error>(()) };
/// # let job = leasehold_schedule::Job::new("report", "* * * * * *")?;
/// # leasehold_schedule::run_due(&locks, job, None, None, work).await?;
/// for run in Jobs::new(&locks)?.status("report").await?.unwrap().running {
///     println!("the tick {} on {}, token {}", Tick::from_unix(run.tick), run.node, run.token);
/// }
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ActiveRun {
    /// The tick that it is for, in seconds since 1970; for a manual run, the time of the request.
    pub tick: i64,
    /// The token with which its node holds the job's lock.
    pub token: u64,
    /// The node that runs it, `host:pid`.
    pub node: String,
    /// When it began, in milliseconds since 1970.
    pub started: u64,
    /// The attempt number of this tick, from 1.
    pub attempt: u32,
    /// Whether it was requested manually; it then does not belong to the schedule.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub manual: bool,
}

/// The outcome of a tick.
///
/// ```
/// use leasehold_schedule::TickOutcome;
///
/// assert_eq!(TickOutcome::TimedOut.as_str(), "timed-out");
/// assert!(TickOutcome::Failed.has_run() && !TickOutcome::Missed.has_run());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TickOutcome {
    /// The tick ran and succeeded.
    Done,
    /// The tick ran, and its work returned an error.
    Failed,
    /// The node that ran the tick died during the run.
    Crashed,
    /// The node lost the job's lock during the run, or had to shut down, and stopped the run.
    Lost,
    /// The run exceeded the job's maximum time and was stopped.
    TimedOut,
    /// The tick did not run, because another run was in progress.
    Overlapped,
    /// The tick did not run, because no node was there in time.
    Missed,
    /// The engine may have lost the record of the tick: it may have run or not, and is not run
    /// (again).
    Unknown,
}

impl TickOutcome {
    /// The outcome in one word, which no release changes: `done`, `timed-out`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Crashed => "crashed",
            Self::Lost => "lost",
            Self::TimedOut => "timed-out",
            Self::Overlapped => "overlapped",
            Self::Missed => "missed",
            Self::Unknown => "unknown",
        }
    }

    /// Whether there certainly was a run.
    pub fn has_run(self) -> bool {
        !matches!(self, Self::Overlapped | Self::Missed | Self::Unknown)
    }
}

/// The outcome of one tick, or of several successive ticks that were not run.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use leasehold_schedule::{Jobs, Tick, TickOutcome};
///
/// # let locks = leasehold::Locks::open("memory:").await?;
/// # let work = |_| async { Ok::<(), std::io::Error>(()) };
/// # let job = leasehold_schedule::Job::new("report", "* * * * * *")?;
/// # leasehold_schedule::run_due(&locks, job, None, None, work).await?;
/// let status = Jobs::new(&locks)?.status("report").await?.unwrap();
/// for entry in status.history.iter().filter(|entry| entry.outcome != TickOutcome::Done) {
///     println!("{}: {} {}", Tick::from_unix(entry.tick), entry.outcome.as_str(), entry.text);
/// }
/// # assert!(!status.history.is_empty());
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// The tick, in seconds since 1970; if several ticks were not run, the newest of them.
    pub tick: i64,
    /// Whether the tick ran, and how its run ended.
    pub outcome: TickOutcome,
    /// How many ticks the entry covers; more than one only for ticks that were not run.
    pub count: u32,
    /// The run, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<ActiveRun>,
    /// When this entry was written, in milliseconds since 1970.
    pub at: u64,
    /// The error message of the run; empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands it over like this")]
fn is_zero_u32(number: &u32) -> bool {
    *number == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands it over like this")]
fn is_zero_i64(number: &i64) -> bool {
    *number == 0
}

impl JobRecord {
    /// A job that is new at `since`: it has no ticks before that.
    pub fn new(schedule: &str, zone: &str, since: i64) -> Self {
        Self {
            v: RECORD_FORMAT,
            schedule: schedule.to_owned(),
            zone: zone.to_owned(),
            since,
            watermark: since,
            resets: 0,
            run: String::new(),
            uncertain_until: 0,
            fence: 0,
            busy_until: 0,
            paused: None,
            queue: Vec::new(),
            wanted: Vec::new(),
            running: Vec::new(),
            history: Vec::new(),
        }
    }

    /// The run in progress that has this token.
    pub fn run_of(&self, token: u64) -> Option<&ActiveRun> {
        self.running.iter().find(|run| run.token == token)
    }

    /// Adds an entry to the history, and drops the oldest above [`MAX_HISTORY`].
    pub(super) fn push_history(&mut self, entry: HistoryEntry) {
        self.history.push(entry);
        let surplus = self.history.len().saturating_sub(MAX_HISTORY);
        self.history.drain(..surplus);
    }

    /// The record after the run with this token has ended; `now` is in milliseconds. `None` if the
    /// run is no longer listed: another node recorded it as crashed, and its outcome is too late.
    #[must_use]
    pub fn with_run_ended(&self, token: u64, outcome: TickOutcome, text: &str, now: u64) -> Option<Self> {
        let at = self.running.iter().position(|run| run.token == token)?;
        let mut state = self.clone();
        let run = state.running.remove(at);
        state.busy_until = state.busy_until.max(now);
        state.push_history(HistoryEntry {
            tick: run.tick,
            outcome,
            count: 1,
            run: Some(run),
            at: now,
            text: text.to_owned(),
        });
        Some(state)
    }

    /// Pauses the job: no run begins from now on. `None` if it is already paused.
    #[must_use]
    pub fn pause(&self, by: &str, now: i64) -> Option<Self> {
        if self.paused.is_some() {
            return None;
        }
        Some(Self { paused: Some(OperatorRequest { at: now, by: by.to_owned() }), ..self.clone() })
    }

    /// Resumes with the next tick; ticks of the pause do not run later. `None` if it was not
    /// paused.
    #[must_use]
    pub fn resume(&self, now: i64) -> Option<Self> {
        self.paused.as_ref()?;
        Some(Self { paused: None, watermark: self.watermark.max(now), ..self.clone() })
    }

    /// Requests one more run, as soon as possible. `None` if the queue is full.
    #[must_use]
    pub fn run_now(&self, by: &str, now: i64) -> Option<Self> {
        if self.wanted.len() >= MAX_MANUAL_RUNS {
            return None;
        }
        let mut state = self.clone();
        state.wanted.push(OperatorRequest { at: now, by: by.to_owned() });
        Some(state)
    }

    /// Restarts the schedule at `now`, for a watermark that a wrong clock left in the future. It
    /// drops the queue. An end of a run in the future is reduced to `now`, or every tick until then
    /// would count as overlapped. An `uncertain_until` in the future is reduced, too.
    #[must_use]
    pub fn reset(&self, now: i64) -> Self {
        let resets = self.resets.saturating_add(1);
        let busy_until = self.busy_until.min(u64::try_from(now).unwrap_or(0).saturating_mul(1000));
        let (queue, wanted) = (Vec::new(), Vec::new());
        let uncertain_until = self.uncertain_until.min(now);
        Self { watermark: now, resets, since: now, uncertain_until, busy_until, queue, wanted, ..self.clone() }
    }

    /// By how many seconds the watermark is ahead of the engine's clock, if by more than
    /// [`MAX_WATERMARK_AHEAD`](super::MAX_WATERMARK_AHEAD); otherwise `None`.
    pub fn seconds_ahead(&self, now: i64) -> Option<i64> {
        Some(self.watermark.saturating_sub(now)).filter(|by| *by > super::MAX_WATERMARK_AHEAD)
    }
}
