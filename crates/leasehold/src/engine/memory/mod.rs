//! `memory:` — locks between the tasks of one process, and the reference for every other engine.
//!
//! Each lock name has a [`LockTable`](crate::logic::table::LockTable) behind a mutex. Each method
//! of the trait is one operation on that table, after which the engine wakes the claims that were
//! granted. `memory:` opens a new engine; within a process, all users of `memory:NAME` share one
//! engine.
//!
//! [Records](crate::engine::Record) are a map beside the tables. Their time is the wall clock's
//! when the engine is opened; from then on the injected clock advances it. All records share one
//! counter of versions, so that the engine need not remember the versions of removed records.
//!
//! | event | consequence |
//! |---|---|
//! | a holder stops renewing | its lease expires on the injected clock; the next operation on that lock grants it to the next waiter |
//! | a waiter is dropped | the library releases its claim; failing that, its queue position expires after a TTL |
//! | the process dies | its locks end with it |

mod engine;
mod records;

use std::time::Duration;

pub use self::engine::MemoryEngine;

use super::{Capabilities, Fairness, Reach};
use crate::logic::lease::Drift;

/// Capabilities of `memory:`.
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
