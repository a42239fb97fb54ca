//! Pure decisions: no sockets, no clock, no runtime, no randomness. What time it is and what the dice say is handed in.
//!
//! - [`lease`]: until when a grant may be relied on, when to renew, when to try again.
//! - [`admission`]: who may hold beside whom.
//! - [`table`]: one lock's holders and queue, and every step on them: the specification of an engine.
//! - [`cohort`]: claims of one process that have a lock one after the other, in one breath.
//! - [`queue`]: whom a waiter watches.
//! - [`mod@line`]: who holds and who waits, read from one ordered list by everybody alike.
//! - [`session`]: how long a session surely lives; [`sharing`]: which session serves claims of which TTL.
//! - [`connections`]: how a client waits where a server is short of connections.
//! - [`fence`]: which token a resource accepts.
//! - [`election`]: which of several Sentinels' masters to follow.
//! - [`quorum`]: what a majority of independent nodes says; [`ballots`]: what each of them does.
//! - [`identifier`]: names of tables and columns in a statement; [`verdict`]: what a database's error means;
//!   [`versioned`]: what to do after each try of an update by version.
//! - `schedule`: which tick of a job is run, skipped, queued or tried again.
//! - [`record`]: which version a record has next.
//! - [`cache`]: one key of a cache, and every step on it.
//! - [`backoff`]: how long to wait before another try.

pub mod admission;
pub mod backoff;
pub mod ballots;
pub mod cache;
pub mod cohort;
pub mod connections;
pub mod election;
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
