//! The decisions of the protocols, without I/O, clock, runtime or randomness: callers pass in the
//! time and the random numbers.
//!
//! - [`lease`]: how long a grant is valid, when to renew it, when to retry.
//! - [`admission`]: which modes may hold a lock together.
//! - [`table`]: the holders and the queue of one lock, and every operation on them. This is the
//!   specification of an engine.
//! - [`local_hand_off`]: local hand-offs of a lock between claims of one process.
//! - [`wait_queue`]: which claim a waiter watches, where the engine stores the queue.
//! - [`mod@node_queue`]: holders and waiters, computed by every client from the same ordered list.
//! - [`session_lifetime`]: a lower bound on how long a session lives; [`session_sharing`]: which
//!   session serves which TTL.
//! - [`connections`]: how a client waits when a server runs short of connections.
//! - [`fence`]: which tokens a resource accepts.
//! - [`force_released_claims`]: the claims that were force released lately, for clients that could
//!   not be notified.
//! - [`sentinel_election`]: which master to follow when several Sentinels disagree.
//! - [`quorum`]: decisions by a majority of independent nodes; [`acceptor`]: the state of one such
//!   node.
//! - [`sql_identifier`]: table and column names in a statement; [`sql_error`]: what a database
//!   error means; [`optimistic_update`]: what to do after each attempt of an update by version.
//! - [`record_version`]: the next version of a record.
//! - [`backoff`]: how long to wait before a retry.

pub mod acceptor;
pub mod admission;
pub mod backoff;
pub mod connections;
pub mod fence;
pub mod force_released_claims;
pub mod lease;
pub mod local_hand_off;
pub mod node_queue;
pub mod optimistic_update;
pub mod quorum;
pub mod record_version;
pub mod sentinel_election;
pub mod session_lifetime;
pub mod session_sharing;
pub mod sql_error;
pub mod sql_identifier;
pub mod table;
pub mod wait_queue;
