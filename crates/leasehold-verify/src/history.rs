//! What was done, by whom, when, and what came of it.
//!
//! A history is a text file with one JSON value per line, an [`Event`] each, in the order in which they were written down; the times in
//! them say the order in which things happened. It is written while it happens: whatever ends the run, what was seen is there.
//!
//! All times are nanoseconds since the run's start on the machine's one clock that counts sleep and never jumps, the same for every
//! process. So moments of different workers can be compared.
//!
//! What a line says is what its writer *knew*:
//! - a lock was surely held at the time of a [`Event::Held`]: the time was read *before* the guard was asked, and a guard that says yes has
//!   said yes at all times since its grant;
//! - a call that has a beginning and no end may have done what it asked for or not, now or later;
//! - an [`Outcome::Unknown`] likewise.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fmt, io};

use serde::{Deserialize, Serialize};

use crate::verdict::Promise;

/// Nanoseconds since the run's start.
pub type Nanos = u64;

/// A call; unique in its history. The upper half is the worker.
pub type OpId = u64;

/// The process that does something. One that was killed is followed by another with a new number on the same lane.
pub type Worker = u32;

/// The first line: what is run on what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The version of this format: 1.
    pub format: u32,
    /// Which leasehold, as `leasehold --version` says.
    pub leasehold: String,
    /// Which engine: `redis`, `zookeeper`, …
    pub engine: String,
    /// Where it is, without passwords.
    pub url: String,
    /// The servers' versions, as far as known.
    #[serde(default)]
    pub versions: Vec<String>,
    /// What the workers do.
    pub workload: Workload,
    /// What is done to them and to the servers.
    #[serde(default)]
    pub faults: Vec<FaultKind>,
    /// Whether what should guard is on; off in a negative control, which must be found out.
    pub guard: bool,
    /// What is off in a negative control, in words.
    #[serde(default)]
    pub control: Option<String>,
    /// Everything random comes from this.
    pub seed: u64,
    /// The TTL of all leases.
    pub ttl: Nanos,
    /// How many lanes there are; they are numbered from 0.
    pub lanes: u32,
    /// Whether the engine serves those who wait in their order.
    pub fair: bool,
    /// Whether every grant's token is higher than those before, also over the faults of this run.
    pub fencing: bool,
    /// Whether nobody is let in beside a holder, also over the faults of this run.
    #[serde(default = "promised")]
    pub exclusion: bool,
    /// In a negative control, the promises of which one must be seen broken; empty: any.
    #[serde(default)]
    pub must_break: Vec<Promise>,
    /// The wall clock at the start, as text, for people.
    pub started: String,
    /// Anything else worth knowing, for people.
    #[serde(default)]
    pub notes: BTreeMap<String, String>,
}

/// Older histories do not say so.
fn promised() -> bool {
    true
}

/// What the workers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Take, hold, give back.
    Mutex,
    /// Take, take again as the same owner, give back twice.
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
    /// All wait in line, known to be in line before the next one comes.
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
    /// A holder is stopped for longer than its TTL, and goes on.
    Stop,
    /// Connections are cut.
    Cut,
    /// A request arrives and its reply does not.
    LostReply,
    /// Everything takes long.
    Delay,
    /// Requests arrive twice.
    Duplicate,
    /// A server is killed and comes back with its data.
    Crash,
    /// A server is killed and comes back without its data.
    Wipe,
    /// The master dies after its replicas had fallen behind, and one of them takes its place.
    Failover,
    /// The leader is killed.
    Leader,
    /// A part of the servers, or the workers, cannot reach the others.
    Partition,
    /// A server's wall clock is set back.
    Clock,
    /// A server's wall clock jumps ahead.
    Ahead,
    /// The server runs out of memory and throws keys away.
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

/// How a lock is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// With others who share.
    Shared,
    /// So many permits.
    Permits {
        /// How many.
        n: u32,
        /// Of how many.
        limit: u32,
    },
}

/// What was called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Call {
    /// Asks for a lock.
    Lock {
        /// Which.
        lock: String,
        /// How.
        mode: Mode,
        /// By whom: who asks again as the same owner while it holds re-enters. `None`: an owner of its own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        owner: Option<String>,
        /// Whether it waits.
        waits: bool,
    },
    /// Gives a lock back.
    Release {
        /// The call that took it.
        hold: OpId,
    },
    /// Writes to a register of the resource.
    Write {
        /// Under which hold.
        hold: OpId,
        /// Which register.
        register: String,
        /// With which token; `None`: the register does not ask for one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<u64>,
        /// What; unique in the history, but in the workload `counter`.
        value: u64,
    },
    /// Reads a register of the resource, and shows the token there if it has one: from then on older ones are refused.
    Read {
        /// Under which hold.
        hold: OpId,
        /// Which register.
        register: String,
        /// With which token.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<u64>,
    },
    /// Force-releases a holder's claim, or asks the holder to release it; ended by [`Outcome::Evicted`].
    Evict {
        /// Which lock.
        lock: String,
        /// The call by which it is held, as far as that is known: a tick's run is known by its token.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hold: Option<OpId>,
        /// The holder's token, as it was seen.
        token: u64,
        /// Whether the holder is only asked to release it: it keeps the lock until it does, or until its deadline.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        graceful: bool,
    },
    /// Does the work of a tick of a schedule; ended by [`Outcome::Done`].
    Tick {
        /// Which job.
        job: String,
        /// Which tick: seconds since 1970.
        tick: i64,
        /// Which try of this tick, from 1.
        attempt: u32,
        /// The token of the run.
        token: u64,
        /// Whether the job asks for at most one begin of each tick; otherwise for another after a run that was lost.
        #[serde(default)]
        once: bool,
    },
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Outcome {
    /// Ok: the lock is held.
    Granted {
        /// The fencing token.
        token: u64,
        /// Until when it may be relied on, as things stand.
        deadline: Nanos,
    },
    /// Ok: somebody else has the lock, and the call does not wait.
    Busy,
    /// Ok: not granted within the time that it would wait.
    TimedOut,
    /// Ok: given back, and it was held to the end.
    Released,
    /// Ok: it had been lost before.
    WasLost {
        /// Why.
        reason: String,
    },
    /// Ok: written.
    Accepted,
    /// Ok: not written: a higher token was there before, or the same of somebody else.
    Refused {
        /// The highest token there.
        seen: u64,
    },
    /// Ok: what was read; `None`: nothing was written yet.
    Value {
        /// What.
        value: Option<u64>,
    },
    /// Ok: the claim is gone.
    Evicted {
        /// What is to be written to the resource, so that the evicted holder is refused there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<u64>,
        /// Whether it had gone before.
        #[serde(default)]
        gone: bool,
    },
    /// Ok: the work is done.
    Done,
    /// Failed: an error, and nothing was done, nor will be.
    Failed {
        /// In words.
        error: String,
    },
    /// Unknown: an error, and what was asked for may have been done, or may be yet.
    Unknown {
        /// In words.
        error: String,
    },
}

/// How a call came out, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// It did what it says.
    Ok,
    /// It did nothing.
    Failed,
    /// Nobody knows.
    Unknown,
}

impl Outcome {
    /// How it came out.
    pub fn class(&self) -> Class {
        match self {
            Self::Failed { .. } => Class::Failed,
            Self::Unknown { .. } => Class::Unknown,
            _ => Class::Ok,
        }
    }
}

/// What becomes of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum State {
    /// It begins, on this lane.
    Started {
        /// Which lane, from 0.
        lane: u32,
        /// Its process.
        pid: u32,
    },
    /// It was stopped: it does not run from here on.
    Stopped,
    /// It goes on. What it does in between two such lines it did not do on time.
    Resumed,
    /// It was killed: it does nothing any more.
    Killed,
    /// It noticed that it had not run, from that time until now: the machine was busy.
    Stalled {
        /// Since when.
        from: Nanos,
    },
    /// It ended by itself.
    Ended,
}

/// One line of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The first line.
    Run(Box<Header>),
    /// A call begins.
    Begin {
        /// When.
        t: Nanos,
        /// Who.
        worker: Worker,
        /// Its number.
        op: OpId,
        /// By when it must have ended, as it was asked; a second more is allowed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        due: Option<Nanos>,
        /// What.
        call: Call,
    },
    /// A call ends.
    End {
        /// When.
        t: Nanos,
        /// Which.
        op: OpId,
        /// How.
        outcome: Outcome,
    },
    /// Who asked for a lock was seen in its line.
    Queued {
        /// When, at the latest.
        t: Nanos,
        /// Which call.
        op: OpId,
    },
    /// A lock is surely held at this time.
    Held {
        /// When.
        t: Nanos,
        /// The call that took it.
        op: OpId,
        /// Until when it may be relied on, as things stand.
        deadline: Nanos,
    },
    /// A look shows that a lock is not held any more, whether or not its holder was told.
    Unheld {
        /// When.
        t: Nanos,
        /// The call that took it.
        op: OpId,
    },
    /// A holder learns that an operator asks for the release of its lock.
    Requested {
        /// When.
        t: Nanos,
        /// The call that took it.
        op: OpId,
    },
    /// A holder is told that its lock is lost, without having asked.
    Lost {
        /// When.
        t: Nanos,
        /// The call that took it.
        op: OpId,
        /// Until when it might have been relied on, as the guard said last.
        deadline: Nanos,
        /// Why, as the guard says.
        reason: String,
    },
    /// A worker's life.
    Worker {
        /// When.
        t: Nanos,
        /// Who.
        worker: Worker,
        /// What.
        #[serde(flatten)]
        state: State,
    },
    /// A fault begins. Its effects may last longer than until its end. The line is written before anything is done, and again with what it hits when
    /// that is known: lines with the same number are one fault.
    FaultBegin {
        /// When.
        t: Nanos,
        /// Its number, from 1.
        fault: u32,
        /// Which.
        kind: FaultKind,
        /// What it hits: `worker 3`, `node 1 of 5`, `the server`.
        target: String,
        /// The workers that it hits, if it hits workers.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        workers: Vec<Worker>,
        /// From when on servers that it does not hit could serve meanwhile: a majority of those who vote, or one that took another's place.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        served: Option<Nanos>,
        /// The locks on servers that it does not hit: none of them may be lost by it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        spares: Vec<String>,
    },
    /// A fault is over: what was killed runs again, what was cut off is reachable, …
    FaultEnd {
        /// When.
        t: Nanos,
        /// Its number.
        fault: u32,
        /// What came of it, for people: `node 2 is the master now`.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        note: String,
        /// How many connections the servers accepted meanwhile, if that was counted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        connections: Option<u64>,
    },
    /// What was left at the very end, some TTLs after all had ended: must be nothing.
    Leftover {
        /// When.
        t: Nanos,
        /// Which lock.
        lock: String,
        /// What, in words: `held by worker 3, token 17`.
        what: String,
    },
    /// Nothing was left: this many locks were looked at.
    Clean {
        /// When.
        t: Nanos,
        /// How many.
        locks: u64,
    },
    /// The last line of a run that was not cut short.
    Done {
        /// When.
        t: Nanos,
    },
}

impl Event {
    /// When it happened; the header at the start.
    pub fn at(&self) -> Nanos {
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

/// Names for the variants of an enum without fields: all of them, to text and back.
macro_rules! named {
    ($type:ident: $($variant:ident $name:literal $about:literal),+ $(,)?) => {
        impl $type {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Its name, as on the command line.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// What it is, in a few words.
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
    Mutex "mutex" "take, hold, give back",
    Reentrant "reentrant" "take twice as one owner, give back twice",
    Rwlock "rwlock" "readers and writers",
    Semaphore "semaphore" "some of a number of permits",
    Fenced "fenced" "holders write to a register that refuses old tokens",
    Unfenced "unfenced" "holders write to a register that refuses nothing: what fencing is for",
    Counter "counter" "holders read a number and write the next one, with their tokens",
    Queue "queue" "all wait in line: who was there first is served first",
    Election "election" "candidates and one leader",
    Ticks "ticks" "a scheduled job on every worker",
);

impl FaultKind {
    /// Whether a holder is hit, and not the engine or the lines to it.
    pub fn hits_workers(self) -> bool {
        matches!(self, Self::Kill | Self::Stop)
    }

    /// Whether servers are hit, which must be our own then.
    pub fn hits_servers(self) -> bool {
        let lines = [Self::Cut, Self::LostReply, Self::Delay, Self::Duplicate, Self::Partition];
        !self.hits_workers() && !lines.contains(&self)
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

/// A history that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Which line, from 1; 0: the whole.
    pub line: usize,
    /// What is wrong.
    pub problem: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.problem),
            line => write!(f, "line {line}: {}", self.problem),
        }
    }
}

impl std::error::Error for Unreadable {}

/// How each line begins. In a text that stands in one, the quotes would be escaped.
const BEGINNING: &str = r#"{"event":"#;

/// Reads a history. A line that was cut off in the middle, as a crash leaves it, is left out, at the end and before another writer's line.
///
/// # Errors
/// If it does not begin with a header that we understand, or if a line is no event.
pub fn read(text: &str) -> Result<Vec<Event>, Unreadable> {
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
            // What a worker wrote that was killed in the middle of it, and then another's.
            Err(error) => {
                let begins: Vec<usize> = line.match_indices(BEGINNING).map(|(at, _)| at).collect();
                let ends = begins.iter().copied().skip(1).chain([line.len()]);
                let pieces: Vec<Option<Event>> =
                    begins.iter().zip(ends).map(|(from, to)| serde_json::from_str(&line[*from..to]).ok()).collect();
                match pieces.last() {
                    Some(Some(_)) => events.extend(pieces.into_iter().flatten()),
                    _ => return Err(Unreadable { line: at + 1, problem: format!("no event: {error}") }),
                }
            }
        }
    }
    match events.first() {
        Some(Event::Run(header)) if header.format == 1 => Ok(events),
        Some(Event::Run(header)) => {
            let problem = format!("format {} is not known; this leasehold reads format 1", header.format);
            Err(Unreadable { line: 1, problem })
        }
        _ => Err(Unreadable { line: 0, problem: "no history of leasehold verify: it has no header".to_owned() }),
    }
}

/// What is written in a file. A crash may leave half a letter: what surrounds it can be read.
///
/// # Errors
/// If the file cannot be read.
pub fn load(file: &Path) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(file)?).into_owned())
}

/// An event as a line, with its end.
pub fn line(event: &Event) -> String {
    // Maps have text as keys, and numbers are finite: this cannot fail.
    let mut line = serde_json::to_string(event).unwrap_or_default();
    line.push('\n');
    line
}
