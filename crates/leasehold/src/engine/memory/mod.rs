//! `memory:` — locks between the tasks of one process, and the reference that every other engine is compared with.
//!
//! It is [`Table`](crate::logic::table::Table) behind a mutex: each lock name has a table, each step of the trait is one step of the table, and
//! whoever the step granted is woken. `memory:` is a new engine; `memory:NAME` is one engine for all who say that name in
//! this process.
//!
//! [Records](crate::engine::Record) are a map beside the tables. Their clock is the wall clock as it was when the engine was opened, carried on by the
//! injected one; all of them share one counter of versions, so that a removed one can be forgotten.
//!
//! | failure | answer |
//! |---|---|
//! | a holder stops renewing | its lease ends on the injected clock; the next step on that name serves the queue |
//! | a waiter is dropped | its place is given up by the acquire loop; failing that, it lapses after a TTL |
//! | the process dies | nothing is left |

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
    reentry: true,
    fairness: Fairness::Fifo,
    inspection: true,
    eviction: true,
    records: true,
    min_ttl: Duration::from_millis(20),
    max_ttl: Duration::from_secs(366 * 24 * 3600),
    same_clock: true,
    drift: Drift::SAME_CLOCK,
    survives: "anything but the end of the process",
    breaks: "never inside one process; two processes do not see each other",
    ..Capabilities::exclusive_only("memory")
};
