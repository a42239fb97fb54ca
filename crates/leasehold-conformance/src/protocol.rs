//! The protocol between a test and the program `leasehold-actor`: one JSON value per line.

use std::path::PathBuf;

use leasehold::Mode;
use serde::{Deserialize, Serialize};

/// The mode of a lock request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestMode {
    /// A mutex or a write lock.
    Exclusive,
    /// A read lock.
    Shared,
    /// Permits of a semaphore, and the semaphore's limit.
    Permits(u32, u32),
}

impl From<RequestMode> for Mode {
    fn from(mode: RequestMode) -> Self {
        match mode {
            RequestMode::Exclusive => Self::Exclusive,
            RequestMode::Shared => Self::Shared,
            RequestMode::Permits(n, limit) => Self::Permits { n, limit },
        }
    }
}

/// A request for a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRequest {
    /// The name by which later commands and reports refer to the acquired guard.
    pub guard: String,
    /// The lock name.
    pub name: String,
    /// The lock mode.
    pub mode: RequestMode,
    /// The owner's name; `None` for a claim without an owner.
    pub owner: Option<String>,
    /// The timeout in milliseconds; 0 is a try, and `None` is unlimited.
    pub wait_ms: Option<u64>,
    /// The description of the holder that other clients see.
    pub describe: String,
    /// Whether to retry while the engine does not answer in time, for a TTL that is short for a
    /// slow machine.
    pub retries_unavailable: bool,
}

impl LockRequest {
    /// Acquires a lock exclusively without a timeout. The guard has the lock's name.
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

    /// Acquires a lock exclusively without a timeout, and retries while the engine does not answer
    /// in time. The guard has the lock's name.
    pub fn exclusive_with_retries(name: &str) -> Self {
        Self { retries_unavailable: true, ..Self::exclusive(name) }
    }
}

/// A command to an actor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the fields are named as in the reports")]
pub enum ActorCommand {
    /// Opens the engine, with this TTL for all requests.
    Open { url: String, ttl_ms: u64 },
    /// Acquires a lock in the background.
    Lock(LockRequest),
    /// Reports whether a guard is held.
    Held { guard: String },
    /// Releases a guard.
    Release { guard: String },
    /// Writes to a resource that checks tokens, or (`fenced: false`) to one that does not.
    Write { guard: String, register: PathBuf, value: u64, fenced: bool },
    /// Acquires and releases a lock repeatedly and checks for other visitors. Unless `locked`, it
    /// does so without the lock, until the first overlap.
    Contend { name: String, folder: PathBuf, rounds: u32, locked: bool },
    /// Writes a record if it still has this version.
    Record { name: String, expected_version: u64, value: String },
    /// Makes the actor report its wall clock.
    WallClock,
    /// Ends the process.
    Quit,
}

/// A report of an actor. Times are nanoseconds on the machine's clock, which all processes share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the fields are named as in the library")]
pub enum ActorReport {
    /// The engine is open.
    Opened { pid: u32 },
    /// A lock was granted.
    Granted { guard: String, token: u64, at: u64 },
    /// A lock was not acquired, because it was not free within the timeout.
    Busy { guard: String },
    /// A command failed with an error of the library.
    Failed { guard: String, kind: String, message: String },
    /// Whether a guard is held, and when that was checked.
    Held { guard: String, held: bool, at: u64, deadline: u64 },
    /// A guard was released. `outcome` is `released`, or the reason for which the lock was lost
    /// before.
    Released { guard: String, outcome: String },
    /// A guard was lost; reported without a command.
    Lost { guard: String, reason: String, at: u64 },
    /// Whether a write was accepted.
    Written { guard: String, accepted: bool },
    /// The end of a contention run: the number of overlaps, and the tokens in the order of the
    /// grants.
    ContentionResult { overlaps: u32, tokens: Vec<u64> },
    /// A record was written: its version, and the engine's time in microseconds since 1970.
    Recorded { version: u64, now_us: u64 },
    /// The wall clock in milliseconds since 1970.
    WallClock { ms: u64 },
}
