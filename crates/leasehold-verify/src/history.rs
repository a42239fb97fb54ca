//! The history of a test run: its calls, their workers, times and outcomes.
//!
//! A history is a text file with one JSON value per line, an [`Event`] each, in the order in which
//! they were written. Several processes write lines, so events are ordered by their times and not
//! by their lines. The file is written during the run, so a crash does not lose it.
//!
//! All times are nanoseconds since the run's start, on the machine's one clock that counts
//! suspended time and never jumps. It is the same for every process, so times of different workers
//! can be compared.
//!
//! A line records only what its writer knew for certain:
//! - A lock was held at the time of an [`Event::Held`]. The worker read the time *before* it called
//!   `is_held`, and a lock that is still held has been held without interruption since its grant.
//! - A call without an [`Event::End`], or with an [`Outcome::Unknown`], may have taken effect at
//!   any time after its beginning, or never.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fmt, io};

use serde::{Deserialize, Serialize};

use crate::verdict::Guarantee;

/// A time or a duration in nanoseconds; a time counts from the start of the test run.
pub type RunNanos = u64;

/// The number of a call, unique in its history: the upper 32 bits are the worker's number, the
/// lower 32 bits count that worker's calls.
pub type OpId = u64;

/// The number of a worker process. When a worker is killed, its replacement runs on the same lane
/// with a new number.
pub type WorkerId = u32;

/// The first line of a history: the parameters of the test run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The version of the history's file format; always 1.
    pub format: u32,
    /// The version of leasehold, as `leasehold --version` prints it.
    pub leasehold: String,
    /// The engine: `redis`, `zookeeper`, …
    pub engine: String,
    /// The engine's URL, without passwords.
    pub url: String,
    /// The servers' versions, such as `redis-server 7.0.15`; empty if they are not known.
    #[serde(default)]
    pub versions: Vec<String>,
    /// What the workers do.
    pub workload: Workload,
    /// The kinds of faults that the run may inject.
    #[serde(default)]
    pub faults: Vec<FaultKind>,
    /// Whether all safeguards are on. `false` only in a negative control: one safeguard is off, and
    /// the checker must find a violation.
    pub guard: bool,
    /// Describes the safeguard that is off in a negative control; `None` in any other run.
    #[serde(default)]
    pub control: Option<String>,
    /// The seed of all random choices.
    pub seed: u64,
    /// The TTL of all leases.
    pub ttl: RunNanos,
    /// The number of lanes, which is the number of workers that run at once; numbered from 0.
    pub lanes: u32,
    /// Whether the engine serves waiters in the order of their queue.
    pub fair: bool,
    /// Whether the engine guarantees rising tokens under this run's faults.
    pub fencing: bool,
    /// Whether the engine guarantees exclusion under this run's faults.
    #[serde(default = "default_true")]
    pub exclusion: bool,
    /// In a negative control, the guarantees of which at least one must be broken; empty: any
    /// broken guarantee counts.
    #[serde(default)]
    pub must_break: Vec<Guarantee>,
    /// The wall-clock time at the start of the run, as text; only shown in the report.
    pub started: String,
    /// Other facts to show in the report, by name; `command` is the command that repeats the run.
    #[serde(default)]
    pub notes: BTreeMap<String, String>,
}

/// The value of [`Header::exclusion`] in older histories, which lack that field.
fn default_true() -> bool {
    true
}

/// What every worker does repeatedly during a test run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Each worker acquires an exclusive lock, holds it, and releases it.
    Mutex,
    /// Each worker acquires a lock, acquires it again as the same owner, and releases it twice.
    Reentrant,
    /// Workers hold a lock shared as readers, or exclusively as writers.
    Rwlock,
    /// Each worker acquires one or two of a semaphore's permits.
    Semaphore,
    /// Each holder reads and writes a register that refuses old tokens.
    Fenced,
    /// Each holder reads and writes a register that ignores tokens and refuses nothing.
    Unfenced,
    /// Each holder reads a number from a register and writes the next one, with its token.
    Counter,
    /// Every worker waits in the lock's queue, and records when the engine lists it as a waiter.
    Queue,
    /// Workers campaign in an election; the holder is the leader.
    Election,
    /// Every worker runs the same scheduled job, which is due every second.
    Ticks,
}

/// A kind of fault that a test run injects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The process of a lock holder is killed.
    Kill,
    /// The process of a lock holder is stopped for longer than its TTL, then resumed.
    Stop,
    /// Connections between workers and servers are cut.
    Cut,
    /// A request reaches the server, and its reply does not reach the worker.
    LostReply,
    /// Messages between workers and servers are delayed.
    Delay,
    /// The server receives a request twice.
    Duplicate,
    /// A server is killed and restarts with its data.
    Crash,
    /// A server is killed and restarts empty.
    Wipe,
    /// The master dies while its replicas lag, and one of them is promoted.
    Failover,
    /// The leader of a ZooKeeper ensemble is killed.
    Leader,
    /// The workers cannot reach some or all servers, or one server cannot reach the others.
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
    /// A master is stopped (SIGSTOP) and resumed before another one replaces it.
    Hang,
    /// Slots of a Redis Cluster move from one master to another.
    Reshard,
    /// A node joins a Redis Cluster and gets slots.
    Grow,
}

/// The mode in which a lock is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// No other holder is allowed.
    Exclusive,
    /// Other shared holders are allowed, exclusive ones are not.
    Shared,
    /// Permits of a semaphore.
    Permits {
        /// How many permits are requested.
        n: u32,
        /// How many permits the semaphore has in all.
        limit: u32,
    },
}

/// A call that a worker makes: to the engine, to a register, or the work of a scheduled job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Call {
    /// Requests a lock.
    Lock {
        /// The lock's name.
        lock: String,
        /// The requested mode.
        mode: Mode,
        /// The owner: an owner that already holds the lock re-enters it. `None`: a new owner for
        /// this call alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        owner: Option<String>,
        /// Whether the call waits if the lock is held; otherwise it returns at once.
        waits: bool,
    },
    /// Releases a lock.
    Release {
        /// The number of the `Lock` call that acquired it.
        hold: OpId,
    },
    /// Writes a value to a register of the resource.
    Write {
        /// The number of the `Lock` call whose hold the worker relies on.
        hold: OpId,
        /// The register's name.
        register: String,
        /// The presented fencing token; `None`: none, so the register refuses nothing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<u64>,
        /// The written value; unique in the history, except in the workload `counter`.
        value: u64,
    },
    /// Reads a register of the resource, and presents the token if it has one: from then on the
    /// register refuses older ones.
    Read {
        /// The number of the `Lock` call whose hold the worker relies on; after a force release,
        /// the number of the `Evict` call.
        hold: OpId,
        /// The register's name.
        register: String,
        /// The presented fencing token; `None`: none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<u64>,
    },
    /// Force-releases a holder or a waiter, or only asks a holder to release; a success ends with
    /// [`Outcome::Evicted`].
    Evict {
        /// The lock's name.
        lock: String,
        /// The number of the `Lock` call of the holder or waiter; `None`: unknown, as for a
        /// scheduled job's run, which only its token identifies.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hold: Option<OpId>,
        /// The holder's token; 0: the target was a waiter when the caller listed it.
        token: u64,
        /// Whether the holder is only asked to release: it keeps the lock until it releases, or
        /// until its deadline. `false`: it loses the lock at once.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        graceful: bool,
    },
    /// Runs a scheduled job once for one tick; ends with [`Outcome::Done`].
    Tick {
        /// The job's name.
        job: String,
        /// The due time of the tick, in seconds since 1970.
        tick: i64,
        /// The number of this attempt at the tick, from 1.
        attempt: u32,
        /// The fencing token of this attempt.
        token: u64,
        /// Whether the job starts each tick at most once; `false`: a lost attempt is repeated.
        #[serde(default)]
        once: bool,
    },
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Outcome {
    /// Ok: the lock was granted.
    Granted {
        /// The fencing token.
        token: u64,
        /// When the lease ends unless it is renewed.
        deadline: RunNanos,
    },
    /// Ok: another holder has the lock, and the call does not wait.
    Busy,
    /// Ok: the lock was not granted within the call's timeout.
    TimedOut,
    /// Ok: the lock was released, and the caller had held it until then.
    Released,
    /// Ok: nothing was released, because the caller had already lost the lock.
    WasLost {
        /// Why it was lost.
        reason: String,
    },
    /// Ok: the register accepted the write.
    Accepted,
    /// Ok: the register refused the write or read: it has seen a higher token, or the same token
    /// from another owner.
    Refused {
        /// The highest token that the register has seen.
        seen: u64,
    },
    /// Ok: the register was read.
    Value {
        /// The value read; `None`: nothing has been written yet.
        value: Option<u64>,
    },
    /// Ok: the holder or waiter was force-released or asked to release, or had no claim any more.
    Evicted {
        /// The token to present to the resource, which then refuses the force-released holder.
        /// `None`: no token is needed, or the engine gave none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<u64>,
        /// Whether the holder or waiter had no claim any more, so that nothing changed.
        #[serde(default)]
        gone: bool,
    },
    /// Ok: the scheduled job's work is done.
    Done,
    /// Failed: an error, and the call has not taken effect and never will.
    Failed {
        /// The error message.
        error: String,
    },
    /// Unknown: an error, and the call may have taken effect, or may still do so later.
    Unknown {
        /// The error message.
        error: String,
    },
}

/// Whether a call succeeded, failed, or has an unknown effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeClass {
    /// The call succeeded.
    Ok,
    /// The call failed without any effect.
    Failed,
    /// The call failed, and may have taken effect.
    Unknown,
}

impl Outcome {
    /// Classifies the outcome: every variant except `Failed` and `Unknown` is `Ok`.
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
    /// The worker has started.
    Started {
        /// The lane that it runs on, from 0.
        lane: u32,
        /// The worker's process id.
        pid: u32,
    },
    /// The conductor stopped the worker (SIGSTOP): it does not run until it is resumed.
    Stopped,
    /// The conductor resumed the stopped worker (SIGCONT).
    Resumed,
    /// The conductor killed the worker (SIGKILL).
    Killed,
    /// The worker noticed that it got no processor time between `from` and the event's time.
    Stalled {
        /// When the worker last ran before the stall.
        from: RunNanos,
    },
    /// The worker ended normally.
    Ended,
}

/// One line of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The first line: the parameters of the run.
    Run(Box<Header>),
    /// A call begins.
    Begin {
        /// When it happened, since the start of the run.
        t: RunNanos,
        /// The worker that makes the call.
        worker: WorkerId,
        /// The call's number.
        op: OpId,
        /// When the call should have ended; the checker allows one more second. `None`: no limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        due: Option<RunNanos>,
        /// What is called, with its arguments.
        call: Call,
    },
    /// A call ends.
    End {
        /// When it happened, since the start of the run.
        t: RunNanos,
        /// The call's number.
        op: OpId,
        /// The call's outcome.
        outcome: Outcome,
    },
    /// The engine listed the worker's waiting call in the lock's queue.
    Queued {
        /// When it was seen in the queue; it may have joined earlier.
        t: RunNanos,
        /// The number of the waiting call.
        op: OpId,
    },
    /// The holder checked its lock, and it is certainly held at this time.
    Held {
        /// When it happened, since the start of the run.
        t: RunNanos,
        /// The number of the call that acquired the lock.
        op: OpId,
        /// When the lease ends unless it is renewed.
        deadline: RunNanos,
    },
    /// The holder checked its lock, and it is no longer held. The engine's own notification of the
    /// loss is the event `Lost`.
    Unheld {
        /// When it happened, since the start of the run.
        t: RunNanos,
        /// The number of the call that acquired the lock.
        op: OpId,
    },
    /// A holder is notified that it is asked to release its lock.
    Requested {
        /// When it happened, since the start of the run.
        t: RunNanos,
        /// The number of the call that acquired the lock.
        op: OpId,
    },
    /// A holder is notified that its lock is lost: its wait for `lost()` ended.
    Lost {
        /// When it happened, since the start of the run.
        t: RunNanos,
        /// The number of the call that acquired the lock.
        op: OpId,
        /// The end of the lease, as the guard last reported it.
        deadline: RunNanos,
        /// Why the lock was lost, as the guard reports it.
        reason: String,
    },
    /// A worker's state changes.
    Worker {
        /// When it happened, since the start of the run.
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
        /// When it happened, since the start of the run.
        t: RunNanos,
        /// The fault's number, from 1.
        fault: u32,
        /// The kind of the fault.
        kind: FaultKind,
        /// What is hit: `worker 3`, `node 1 of 5`, `the server`. Empty until it is known.
        target: String,
        /// The workers that are hit; empty if the fault hits servers or connections.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        workers: Vec<WorkerId>,
        /// When the servers that are not hit could serve again during the fault: a majority of the
        /// voters, or a promoted replica. `None`: they could not, or it is not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        served: Option<RunNanos>,
        /// The locks on servers that are not hit: the fault must not lose any of them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        spares: Vec<String>,
    },
    /// A fault ends: killed processes run again, partitioned ones are reachable, …
    FaultEnd {
        /// When it happened, since the start of the run.
        t: RunNanos,
        /// The fault's number.
        fault: u32,
        /// The result, shown in the report: `node 2 is the master now`. Empty: nothing to say.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        note: String,
        /// How many connections the servers accepted during the fault; `None`: not counted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        connections: Option<u64>,
    },
    /// A leak: a lock is still held or awaited some TTLs after all workers ended.
    Leftover {
        /// When it happened, since the start of the run.
        t: RunNanos,
        /// The lock's name, or another place where the leak was found.
        lock: String,
        /// What was left, in words: `held by worker 3, token 17`.
        what: String,
    },
    /// After all workers ended, no checked lock was held or awaited.
    Clean {
        /// When it happened, since the start of the run.
        t: RunNanos,
        /// How many locks were checked.
        locks: u64,
    },
    /// The last line of a run that completed.
    Done {
        /// When it happened, since the start of the run.
        t: RunNanos,
    },
}

impl Event {
    /// When the event happened; 0 for the header.
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

/// Gives an enum without fields a name and a description for each variant: defines `ALL`, `as_str`,
/// `description`, and the conversions to and from text.
macro_rules! name_variants {
    ($type:ident: $($variant:ident $name:literal $description:literal),+ $(,)?) => {
        impl $type {
            /// Every variant, in the order of their definition.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Its name on the command line.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// One line that describes it, for the help and the reports.
            pub fn description(self) -> &'static str {
                match self { $(Self::$variant => $description),+ }
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
                    format!("{name:?} is unknown; choose one of {all}")
                })
            }
        }
    };
}

pub(crate) use name_variants;

name_variants!(Workload:
    Mutex "mutex" "acquire, hold, release",
    Reentrant "reentrant" "acquire twice as one owner, release twice",
    Rwlock "rwlock" "readers and writers",
    Semaphore "semaphore" "some of a number of permits",
    Fenced "fenced" "holders write to a register that refuses old tokens",
    Unfenced "unfenced" "holders write to a register that refuses nothing: shows what fencing prevents",
    Counter "counter" "holders read a number and write the next one, with their tokens",
    Queue "queue" "all workers wait in the queue of one lock: first come, first served",
    Election "election" "candidates and one leader",
    Ticks "ticks" "a scheduled job on every worker",
);

impl FaultKind {
    /// Whether this fault hits a worker's process, and not the engine's servers or the connections
    /// to them.
    pub fn targets_workers(self) -> bool {
        matches!(self, Self::Kill | Self::Stop)
    }

    /// Whether this fault hits servers: it needs servers that the test run itself started.
    pub fn targets_servers(self) -> bool {
        let network = [Self::Cut, Self::LostReply, Self::Delay, Self::Duplicate, Self::Partition];
        !self.targets_workers() && !network.contains(&self)
    }
}

name_variants!(FaultKind:
    Kill "kill" "a holder is killed (SIGKILL)",
    Stop "stop" "a holder is stopped (SIGSTOP) for longer than its TTL, then resumed",
    Cut "cut" "connections are cut",
    LostReply "lost-reply" "a request arrives and its reply does not",
    Delay "delay" "messages are delayed",
    Duplicate "duplicate" "requests arrive twice",
    Crash "crash" "a server is killed and restarts with its data",
    Wipe "wipe" "a server is killed and restarts empty",
    Failover "failover" "the master is killed while its replicas lag, and one of them is promoted",
    Leader "leader" "the leader is killed",
    Partition "partition" "the workers cannot reach some or all servers, or one server cannot reach the others",
    Clock "clock" "a server's wall clock is set back",
    Ahead "ahead" "a server's wall clock jumps ahead: leases end early, and only tokens are guaranteed",
    Evict "evict" "the server runs out of memory",
    DiskFull "disk-full" "the server's disk is full",
    ReadOnly "read-only" "a server refuses writes",
    Hang "hang" "a master hangs (SIGSTOP)",
    Reshard "reshard" "slots move from one master to another",
    Grow "grow" "a node joins the cluster and gets slots",
);

/// Why a history file cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The number of the line, from 1; 0 if the problem concerns the whole file.
    pub line: usize,
    /// What is wrong, in words.
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

/// Every event's JSON begins with this text. It cannot occur inside a string of the JSON, where its
/// quotes would be escaped.
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

/// Reads a history file as text. If a crash truncated a UTF-8 sequence, that sequence is replaced
/// and the rest stays readable.
///
/// # Errors
/// If the file cannot be read.
pub fn load(file: &Path) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(file)?).into_owned())
}

/// Converts an event to one line of JSON, with its newline.
pub fn to_json_line(event: &Event) -> String {
    // Map keys are text and numbers are finite, so this cannot fail.
    let mut line = serde_json::to_string(event).unwrap_or_default();
    line.push('\n');
    line
}
