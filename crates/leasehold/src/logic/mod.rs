//! Pure decisions: no sockets, clock, runtime or randomness. Callers pass in the time and the
//! random numbers.
//!
//! - [`lease`]: how long a grant is valid, when to renew it, when to retry.
//! - [`admission`]: which modes may hold a lock together.
//! - [`table`]: the holders and the queue of one lock, and every operation on them. This is the
//!   specification of an engine.
//! - [`cohort`]: local hand-offs of a lock between claims of one process.
//! - [`queue`]: which claim a waiter watches.
//! - [`mod@line`]: holders and waiters, computed by every client from the same ordered list.
//! - [`session`]: a lower bound on how long a session lives; [`sharing`]: which session serves
//!   which TTL.
//! - [`connections`]: how a client waits when a server runs short of connections.
//! - [`fence`]: which tokens a resource accepts.
//! - [`evictions`]: the latest evictions at a lock, for clients that could not be notified.
//! - [`election`]: which master to follow when several Sentinels disagree.
//! - [`quorum`]: decisions by a majority of independent nodes; [`ballots`]: the state of one such
//!   node.
//! - [`identifier`]: table and column names in a statement; [`verdict`]: what a database error
//!   means; [`versioned`]: what to do after each attempt of an update by version.
//! - `schedule`: which ticks of a job run, are skipped, are queued or are retried.
//! - [`record`]: the next version of a record.
//! - [`cache`]: one key of a cache, and every operation on it.
//! - [`backoff`]: how long to wait before a retry.

pub mod admission;
pub mod backoff;
pub mod ballots;
pub mod cache;
pub mod cohort;
pub mod connections;
pub mod election;
pub mod evictions;
pub mod fence;
pub mod identifier;
pub mod lease;
pub mod line;
pub mod queue;
pub mod quorum;
pub mod record;
#[cfg(feature = "schedule")]
pub mod schedule;
pub mod session;
pub mod sharing;
pub mod table;
pub mod verdict;
pub mod versioned;
