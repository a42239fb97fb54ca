//! What a test and the program `leasehold-actor` say to each other: one JSON value per line.

use std::path::PathBuf;

use leasehold::Mode;
use serde::{Deserialize, Serialize};

/// How a lock is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestMode {
    /// Exclusively.
    Exclusive,
    /// Shared with others.
    Shared,
    /// So many permits of a limit.
    Permits(u32, u32),
}

impl From<RequestMode> for Mode {
    fn from(how: RequestMode) -> Self {
        match how {
            RequestMode::Exclusive => Self::Exclusive,
            RequestMode::Shared => Self::Shared,
            RequestMode::Permits(n, limit) => Self::Permits { n, limit },
        }
    }
}

/// A request for a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRequest {
    /// What the guard is called from here on.
    pub guard: String,
    /// Which lock.
    pub name: String,
    /// How.
    pub mode: RequestMode,
    /// By whom, as text.
    pub owner: Option<String>,
    /// For how long it is waited; 0: not at all; `None`: for ever.
    pub wait_ms: Option<u64>,
    /// What others see.
    pub describe: String,
    /// Whether it asks again as long as the engine does not answer in time: for a TTL that is short for a slow machine.
    pub retries_unavailable: bool,
}

impl LockRequest {
    /// Asks for a lock exclusively and waits for it. The guard is called as the lock is.
    pub fn exclusive(name: &str) -> Self {
        Self {
            guard: name.to_owned(),
            name: name.to_owned(),
            mode: RequestMode::Exclusive,
            owner: None,
            wait_ms: None,
            describe: String::new(),
            retries_unavailable: false,
        }
    }

    /// The same, asking again as long as the engine does not answer in time.
    pub fn exclusive_with_retries(name: &str) -> Self {
        Self { retries_unavailable: true, ..Self::exclusive(name) }
    }
}

/// What an actor is told to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the fields are named as in the reports")]
pub enum ActorCommand {
    /// Opens the engine, with this TTL for all requests.
    Open { url: String, ttl_ms: u64 },
    /// Asks for a lock; goes on meanwhile.
    Lock(LockRequest),
    /// Says whether a guard is held.
    Held { guard: String },
    /// Gives a guard back.
    Release { guard: String },
    /// Writes to a resource that checks tokens, or (`fenced: false`) to one that does not.
    Write { guard: String, register: PathBuf, value: u64, fenced: bool },
    /// Takes and gives back a lock again and again, and looks for others inside; without the lock if not `locked`, and
    /// then until it met somebody.
    Contend { name: String, folder: PathBuf, rounds: u32, locked: bool },
    /// Writes a record over a version.
    Record { name: String, expected_version: u64, value: String },
    /// Says what its wall clock shows.
    WallClock,
    /// Ends the process.
    Quit,
}

/// What an actor reports. Moments are nanoseconds on the machine's clock, which all processes share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the fields are named as in the library")]
pub enum ActorReport {
    /// The engine is open.
    Opened { pid: u32 },
    /// A lock was granted.
    Granted { guard: String, token: u64, at: u64 },
    /// A lock is not free.
    Busy { guard: String },
    /// Something failed.
    Failed { guard: String, kind: String, message: String },
    /// Whether a guard is held, and when that was read.
    Held { guard: String, held: bool, at: u64, deadline: u64 },
    /// A guard was given back: `released`, or why it had been lost.
    Released { guard: String, outcome: String },
    /// A guard was lost; said unasked.
    Lost { guard: String, reason: String, at: u64 },
    /// Whether a write was accepted.
    Written { guard: String, accepted: bool },
    /// The end of a storm: how often somebody else was inside, and the tokens in the order of the grants.
    ContentionResult { overlaps: u32, tokens: Vec<u64> },
    /// A record was written: its version, and the engine's clock, in microseconds since 1970.
    Recorded { version: u64, now_us: u64 },
    /// What its wall clock shows: milliseconds since 1970.
    WallClock { ms: u64 },
}
