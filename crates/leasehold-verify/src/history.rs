//! The history of a run: its calls, their workers, times and outcomes.
//!
//! A history is a text file with one JSON value per line, an [`Event`] each, in the order in which
//! they were written. The order of events is that of their times, not of the lines. The file is
//! written during the run, so a crash does not lose it.
//!
//! All times are nanoseconds since the run's start, on the machine's one clock that counts
//! suspended time and never jumps. It is the same for every process, so times of different workers
//! can be compared.
//!
//! A line records what its writer *knew*:
//! - A lock was certainly held at the time of an [`Event::Held`]. The worker read the time *before*
//!   it checked the guard. A guard that reports the lock as held has held it without interruption
//!   since its grant.
//! - A call with a beginning and no end may have had its effect or not, now or later.
//! - The same holds for an [`Outcome::Unknown`].

use std::collections::BTreeMap;
use std::path::Path;
use std::{fmt, io};

use serde::{Deserialize, Serialize};

use crate::verdict::Guarantee;

/// Nanoseconds since the run's start.
pub type RunNanos = u64;

/// A call; unique in its history. The upper half is the worker.
pub type OpId = u64;

/// A worker process. The successor of a killed process gets a new number on the same lane.
pub type WorkerId = u32;

/// The first line: the run's parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The version of this format: 1.
    pub format: u32,
    /// The version of leasehold, as `leasehold --version` prints it.
    pub leasehold: String,
    /// The engine: `redis`, `zookeeper`, …
    pub engine: String,
    /// The engine's URL, without passwords.
    pub url: String,
    /// The servers' versions, as far as known.
    #[serde(default)]
    pub versions: Vec<String>,
    /// What the workers do.
    pub workload: Workload,
    /// The faults injected into workers and servers.
    #[serde(default)]
    pub faults: Vec<FaultKind>,
    /// Whether the safeguards are on. In a negative control one is off, and the checker must detect
    /// that.
    pub guard: bool,
    /// The safeguard that a negative control turns off, in words.
    #[serde(default)]
    pub control: Option<String>,
    /// The seed of all random choices.
    pub seed: u64,
    /// The TTL of all leases.
    pub ttl: RunNanos,
    /// The number of lanes; they are numbered from 0.
    pub lanes: u32,
    /// Whether the engine serves waiters in the order of their queue.
    pub fair: bool,
    /// Whether every grant's token is higher than all earlier ones, also under this run's faults.
    pub fencing: bool,
    /// Whether exclusion is guaranteed, also under this run's faults.
    #[serde(default = "default_true")]
    pub exclusion: bool,
    /// In a negative control, the guarantees of which one must be broken; empty: any.
    #[serde(default)]
    pub must_break: Vec<Guarantee>,
    /// The wall-clock time at the start, as text, for people.
    pub started: String,
    /// Other facts for people.
    #[serde(default)]
    pub notes: BTreeMap<String, String>,
}

/// The default for older histories, which lack the field.
fn default_true() -> bool {
    true
}

/// What the workers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Acquire, hold, release.
    Mutex,
    /// Acquire, acquire again as the same owner, release twice.
    Reentrant,
    /// Readers and writers.
    Rwlock,
    /// Some of a number of permits.
    Semaphore,
    /// Each holder writes to a register that refuses old tokens, and reads it.
    Fenced,
    /// The same with a register that refuses nothing.
    Unfenced,
    /// Each holder reads a number and writes the next one, with its token.
    Counter,
    /// All wait in a queue; each is known to be queued before the next one joins.
    Queue,
    /// Candidates and a leader.
    Election,
    /// A scheduled job on every worker.
    Ticks,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// A holder is killed.
    Kill,
    /// A holder is stopped for longer than its TTL, then continued.
    Stop,
    /// Connections are cut.
    Cut,
    /// A request arrives and its reply does not.
    LostReply,
    /// Messages are delayed.
    Delay,
    /// Requests arrive twice.
    Duplicate,
    /// A server is killed and restarts with its data.
    Crash,
    /// A server is killed and restarts empty.
    Wipe,
    /// The master dies while its replicas lag, and one of them is promoted.
    Failover,
    /// The leader is killed.
    Leader,
    /// Some of the servers, or the workers, cannot reach the others.
    Partition,
    /// A server's wall clock is set back.
    Clock,
    /// A server's wall clock jumps ahead.
    Ahead,
    /// The server runs out of memory and evicts keys.
    Evict,
    /// The server's disk is full.
    DiskFull,
    /// A server refuses writes.
    ReadOnly,
    /// A server hangs.
    Hang,
    /// Slots move from one master to another.
    Reshard,
    /// A node joins, and gets slots.
    Grow,
}

/// How a lock is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Exclusively.
    Exclusive,
    /// Shared with others.
    Shared,
    /// A number of permits.
    Permits {
        /// The requested number.
        n: u32,
        /// The limit.
        limit: u32,
    },
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Call {
    /// Requests a lock.
    Lock {
        /// The lock's name.
        lock: String,
        /// The mode.
        mode: Mode,
        /// The owner: a request of an owner that holds the lock re-enters. `None`: a fresh owner.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        owner: Option<String>,
        /// Whether it waits.
        waits: bool,
    },
    /// Releases a lock.
    Release {
        /// The call that acquired it.
        hold: OpId,
    },
    /// Writes to a register of the resource.
    Write {
        /// The hold under which it writes.
        hold: OpId,
        /// The register.
        register: String,
        /// The token; `None`: the register checks none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<u64>,
        /// The value; unique in the history, except in the workload `counter`.
        value: u64,
    },
    /// Reads a register of the resource, and presents the token if it has one: from then on the
    /// register refuses older ones.
    Read {
        /// The hold under which it reads.
        hold: OpId,
        /// The register.
        register: String,
        /// The token.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<u64>,
    },
    /// Force-releases a holder's claim, or requests its release; ended by [`Outcome::Evicted`].
    Evict {
        /// The lock's name.
        lock: String,
        /// The call that holds it or waits for it, if known: a tick's run is known by its token.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hold: Option<OpId>,
        /// The holder's token when it was seen; 0: it was a waiter.
        token: u64,
        /// Whether the holder is only requested to release. It keeps the lock until it does, or
        /// until its deadline.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        graceful: bool,
    },
    /// Runs the work of a schedule's tick; ended by [`Outcome::Done`].
    Tick {
        /// The job.
        job: String,
        /// The tick: seconds since 1970.
        tick: i64,
        /// The attempt at this tick, from 1.
        attempt: u32,
        /// The token of the run.
        token: u64,
        /// Whether the job starts each tick at most once; otherwise a lost run is started again.
        #[serde(default)]
        once: bool,
    },
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Outcome {
    /// Ok: the lock is held.
    Granted {
        /// The fencing token.
        token: u64,
        /// The deadline, unless the lease is renewed.
        deadline: RunNanos,
    },
    /// Ok: another holder has the lock, and the call does not wait.
    Busy,
    /// Ok: not granted within the call's timeout.
    TimedOut,
    /// Ok: released, and held until then.
    Released,
    /// Ok: the lock was already lost.
    WasLost {
        /// The reason.
        reason: String,
    },
    /// Ok: written.
    Accepted,
    /// Ok: not written: the register has seen a higher token, or the same token from another owner.
    Refused {
        /// The highest token seen.
        seen: u64,
    },
    /// Ok: read; `None`: no value was written yet.
    Value {
        /// The value.
        value: Option<u64>,
    },
    /// Ok: the claim is gone.
    Evicted {
        /// The fence token: once the resource has it, it refuses the evicted holder.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<u64>,
        /// Whether the claim was gone already.
        #[serde(default)]
        gone: bool,
    },
    /// Ok: the work is done.
    Done,
    /// Failed: an error, and the call has no effect, now or later.
    Failed {
        /// The error message.
        error: String,
    },
    /// Unknown: an error, and the call may have had its effect, or may have it later.
    Unknown {
        /// The error message.
        error: String,
    },
}

/// The class of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeClass {
    /// The call succeeded.
    Ok,
    /// The call had no effect.
    Failed,
    /// Its effect is unknown.
    Unknown,
}

impl Outcome {
    /// The outcome's class.
    pub fn class(&self) -> OutcomeClass {
        match self {
            Self::Failed { .. } => OutcomeClass::Failed,
            Self::Unknown { .. } => OutcomeClass::Unknown,
            _ => OutcomeClass::Ok,
        }
    }
}

/// A change of a worker's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum WorkerState {
    /// It starts, on this lane.
    Started {
        /// The lane, from 0.
        lane: u32,
        /// Its process id.
        pid: u32,
    },
    /// It was stopped: it does not run until it is resumed.
    Stopped,
    /// It runs again. Calls that span the pause are not judged by time.
    Resumed,
    /// It was killed.
    Killed,
    /// It noticed that it had not run between that time and now: the machine was busy.
    Stalled {
        /// The beginning of the pause.
        from: RunNanos,
    },
    /// It ended normally.
    Ended,
}

/// A line of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The first line.
    Run(Box<Header>),
    /// A call begins.
    Begin {
        /// The time.
        t: RunNanos,
        /// The worker.
        worker: WorkerId,
        /// The call's number.
        op: OpId,
        /// The call's deadline, as requested; one more second is allowed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        due: Option<RunNanos>,
        /// The call.
        call: Call,
    },
    /// A call ends.
    End {
        /// The time.
        t: RunNanos,
        /// The call.
        op: OpId,
        /// The outcome.
        outcome: Outcome,
    },
    /// A waiter was seen in the queue.
    Queued {
        /// The time by which it was queued.
        t: RunNanos,
        /// The call.
        op: OpId,
    },
    /// A lock is certainly held at this time.
    Held {
        /// The time.
        t: RunNanos,
        /// The call that acquired it.
        op: OpId,
        /// The deadline, unless the lease is renewed.
        deadline: RunNanos,
    },
    /// A check shows that a lock is not held any more, whether or not its holder was notified.
    Unheld {
        /// The time.
        t: RunNanos,
        /// The call that acquired it.
        op: OpId,
    },
    /// A holder learns that an operator requested the release of its lock.
    Requested {
        /// The time.
        t: RunNanos,
        /// The call that acquired it.
        op: OpId,
    },
    /// A holder is notified that its lock is lost, without a call of its own.
    Lost {
        /// The time.
        t: RunNanos,
        /// The call that acquired it.
        op: OpId,
        /// The last deadline that the guard reported.
        deadline: RunNanos,
        /// The reason that the guard reports.
        reason: String,
    },
    /// A worker's state changes.
    Worker {
        /// The time.
        t: RunNanos,
        /// The worker.
        worker: WorkerId,
        /// Its new state.
        #[serde(flatten)]
        state: WorkerState,
    },
    /// A fault begins. Its effects may last beyond its end. The line is written before the fault is
    /// injected, and again once the target is known. Lines with the same number are one fault.
    FaultBegin {
        /// The time.
        t: RunNanos,
        /// The fault's number, from 1.
        fault: u32,
        /// Its kind.
        kind: FaultKind,
        /// Its target: `worker 3`, `node 1 of 5`, `the server`.
        target: String,
        /// The workers that it hits, if any.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        workers: Vec<WorkerId>,
        /// When servers that it does not hit could serve in the meantime: a majority of the voters,
        /// or a promoted server.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        served: Option<RunNanos>,
        /// The locks on servers that it does not hit: it must not lose any of them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        spares: Vec<String>,
    },
    /// A fault ends: killed processes run again, partitioned ones are reachable, …
    FaultEnd {
        /// The time.
        t: RunNanos,
        /// The fault's number.
        fault: u32,
        /// Its result, for people: `node 2 is the master now`.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        note: String,
        /// How many connections the servers accepted during the fault, if counted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        connections: Option<u64>,
    },
    /// A leak: a lock or waiter is left some TTLs after all workers ended.
    Leftover {
        /// The time.
        t: RunNanos,
        /// The lock.
        lock: String,
        /// The leak, in words: `held by worker 3, token 17`.
        what: String,
    },
    /// This many locks were checked, and none was left.
    Clean {
        /// The time.
        t: RunNanos,
        /// How many locks were checked.
        locks: u64,
    },
    /// The last line of a run that was not cut short.
    Done {
        /// The time.
        t: RunNanos,
    },
}

impl Event {
    /// When it happened; 0 for the header.
    pub fn time(&self) -> RunNanos {
        match self {
            Self::Run(_) => 0,
            Self::Begin { t, .. }
            | Self::End { t, .. }
            | Self::Queued { t, .. }
            | Self::Held { t, .. }
            | Self::Unheld { t, .. }
            | Self::Requested { t, .. }
            | Self::Lost { t, .. }
            | Self::Worker { t, .. }
            | Self::FaultBegin { t, .. }
            | Self::FaultEnd { t, .. }
            | Self::Leftover { t, .. }
            | Self::Clean { t, .. }
            | Self::Done { t } => *t,
        }
    }
}

/// Names for the variants of an enum without fields: the list of variants, and the conversions to
/// and from text.
macro_rules! named {
    ($type:ident: $($variant:ident $name:literal $about:literal),+ $(,)?) => {
        impl $type {
            /// All variants.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name, as on the command line.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// A short description.
            pub fn about(self) -> &'static str {
                match self { $(Self::$variant => $about),+ }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(name: &str) -> Result<Self, String> {
                let found = Self::ALL.iter().find(|one| one.as_str() == name);
                found.copied().ok_or_else(|| {
                    let all = Self::ALL.iter().map(|one| one.as_str()).collect::<Vec<_>>().join(", ");
                    format!("{name:?} is none of {all}")
                })
            }
        }
    };
}

pub(crate) use named;

named!(Workload:
    Mutex "mutex" "acquire, hold, release",
    Reentrant "reentrant" "acquire twice as one owner, release twice",
    Rwlock "rwlock" "readers and writers",
    Semaphore "semaphore" "some of a number of permits",
    Fenced "fenced" "holders write to a register that refuses old tokens",
    Unfenced "unfenced" "holders write to a register that refuses nothing: what fencing is for",
    Counter "counter" "holders read a number and write the next one, with their tokens",
    Queue "queue" "all wait in the queue: first come, first served",
    Election "election" "candidates and one leader",
    Ticks "ticks" "a scheduled job on every worker",
);

impl FaultKind {
    /// Whether it hits a worker, and not the engine or its connections.
    pub fn targets_workers(self) -> bool {
        matches!(self, Self::Kill | Self::Stop)
    }

    /// Whether it hits servers, which must then be our own.
    pub fn targets_servers(self) -> bool {
        let lines = [Self::Cut, Self::LostReply, Self::Delay, Self::Duplicate, Self::Partition];
        !self.targets_workers() && !lines.contains(&self)
    }
}

named!(FaultKind:
    Kill "kill" "a holder is killed (SIGKILL)",
    Stop "stop" "a holder is stopped (SIGSTOP) for longer than its TTL, and goes on",
    Cut "cut" "connections are cut",
    LostReply "lost-reply" "a request arrives and its reply does not",
    Delay "delay" "everything takes long",
    Duplicate "duplicate" "requests arrive twice",
    Crash "crash" "a server is killed and comes back with its data",
    Wipe "wipe" "a server is killed and comes back without its data",
    Failover "failover" "the master dies, its replicas behind, and one of them takes its place",
    Leader "leader" "the leader is killed",
    Partition "partition" "the workers cannot reach the servers, or some of them; or a server not the others",
    Clock "clock" "a server's wall clock is set back",
    Ahead "ahead" "a server's wall clock jumps ahead: leases end early, and only tokens are promised",
    Evict "evict" "the server runs out of memory",
    DiskFull "disk-full" "the server's disk is full",
    ReadOnly "read-only" "a server refuses writes",
    Hang "hang" "a master hangs (SIGSTOP)",
    Reshard "reshard" "slots move from one master to another",
    Grow "grow" "a node joins the cluster and gets slots",
);

/// A history that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The line, from 1; 0 for the whole history.
    pub line: usize,
    /// The problem.
    pub problem: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.problem),
            line => write!(f, "line {line}: {}", self.problem),
        }
    }
}

impl std::error::Error for ParseError {}

/// The beginning of each line. Inside a JSON string, its quotes would be escaped.
const EVENT_PREFIX: &str = r#"{"event":"#;

/// Parses a history. An event that a crash truncated is skipped, both at the end of the file and
/// before another writer's event on the same line.
///
/// # Errors
/// If the header is missing or has an unknown format, or if a line is not an event.
pub fn parse(text: &str) -> Result<Vec<Event>, ParseError> {
    let mut events = Vec::new();
    let complete = text.ends_with('\n');
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        match serde_json::from_str::<Event>(line) {
            Ok(event) => events.push(event),
            Err(_) if at + 1 == lines.len() && !complete => {}
            // A worker was killed while it wrote; another writer's event follows on the same line.
            Err(error) => {
                let begins: Vec<usize> = line.match_indices(EVENT_PREFIX).map(|(at, _)| at).collect();
                let ends = begins.iter().copied().skip(1).chain([line.len()]);
                let pieces: Vec<Option<Event>> =
                    begins.iter().zip(ends).map(|(from, to)| serde_json::from_str(&line[*from..to]).ok()).collect();
                match pieces.last() {
                    Some(Some(_)) => events.extend(pieces.into_iter().flatten()),
                    _ => return Err(ParseError { line: at + 1, problem: format!("not an event: {error}") }),
                }
            }
        }
    }
    match events.first() {
        Some(Event::Run(header)) if header.format == 1 => Ok(events),
        Some(Event::Run(header)) => {
            let problem = format!("unknown format {}; this leasehold reads format 1", header.format);
            Err(ParseError { line: 1, problem })
        }
        _ => Err(ParseError { line: 0, problem: "not a history of leasehold verify: it has no header".to_owned() }),
    }
}

/// Loads a history file. A crash may truncate a UTF-8 sequence; the text around it is still
/// readable.
///
/// # Errors
/// If the file cannot be read.
pub fn load(file: &Path) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(file)?).into_owned())
}

/// An event as a line, with its newline.
pub fn to_json_line(event: &Event) -> String {
    // Map keys are text and numbers are finite, so this cannot fail.
    let mut line = serde_json::to_string(event).unwrap_or_default();
    line.push('\n');
    line
}
