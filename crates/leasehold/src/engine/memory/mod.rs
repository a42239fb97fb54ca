//! `memory:` — locks between the tasks of one process, and the reference for every other engine.
//!
//! The engine is a [`LockTable`](crate::logic::table::LockTable) behind a mutex. Each lock name has a
//! table, each step of the trait is one step of the table, and the engine wakes the claims that a
//! step granted. `memory:` opens a new engine; within a process, all users of `memory:NAME` share
//! one engine.
//!
//! [Records](crate::engine::Record) are a map beside the tables. Their clock starts at the wall
//! clock when the engine is opened, and the injected clock advances it. All records share one
//! counter of versions, so that the engine can drop removed ones.
//!
//! | event | consequence |
//! |---|---|
//! | a holder stops renewing | its lease expires on the injected clock; the next step on that name serves the queue |
//! | a waiter is dropped | the acquire loop gives up its position; failing that, the position expires after a TTL |
//! | the process dies | its locks end with it |

mod engine;
mod records;

use std::time::Duration;

pub use self::engine::MemoryEngine;

use super::{Capabilities, Fairness, Reach};
use crate::logic::lease::Drift;

/// What the engine can do.
pub const CAPABILITIES: Capabilities = Capabilities {
    reach: Reach::Process,
    shared: true,
    permits: true,
    reentrancy: true,
    fairness: Fairness::Fifo,
    inspection: true,
    force_release: true,
    records: true,
    min_ttl: Duration::from_millis(20),
    max_ttl: Duration::from_secs(366 * 24 * 3600),
    uses_local_clock: true,
    drift: Drift::SAME_CLOCK,
    tolerates: "anything but the end of the process",
    fails_when: "never inside one process; two processes do not see each other",
    ..Capabilities::exclusive_only("memory")
};
