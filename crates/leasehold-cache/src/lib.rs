//! A cache that stays consistent with its database: in Redis, in front of your own loader.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use leasehold_cache::{CacheError, ReadThrough};
//! use std::io::Error;
//!
//! let cache = ReadThrough::open("memory:").await.unwrap();       // or redis://host, redis+sentinel:, redis+cluster:
//!
//! // One caller, in any process, loads; the others get the loaded value.
//! let name = cache.get_or_load("user:42", || async { Ok::<_, Error>(Some("Ada")) }).await?;
//! assert_eq!(name.as_deref(), Some(&b"Ada"[..]));
//!
//! // After a commit: no read that begins from now on gets an older value.
//! cache.invalidate("user:42").await?;
//! # Ok::<(), CacheError>(()) }).unwrap();
//! ```
//!
//! [`write_through`](ReadThrough::write_through) announces a write, under a lock and with its
//! token, before the commit. The new value is in the cache once the write returns:
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! # use leasehold_cache::{ReadThrough, Row};
//! # use leasehold::Locks;
//! # let (cache, locks) = (ReadThrough::open("memory:").await?, Locks::open("memory:").await?);
//! let guard = locks.mutex("user:42").lock().await?;
//! cache.write_through("user:42", &guard, |token| async move {
//!     // UPDATE … in a transaction that `token` may be checked in, and COMMIT
//!     Ok::<_, std::io::Error>(Row::from("Grace"))
//! }).await?;
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```
//!
//! # The protocol
//! A key is **one hash**: value, generation, lease, mark, the highest token of a writer, the lowest
//! version of a row. Every operation on it is **one script**, by the server's own clock, and does
//! what [`CacheEntry`](crate::logic::CacheEntry) specifies. A test compares the two, and the
//! specification is checked over every order of a few readers, writers and losses.
//!
//! - **Read**: a hit takes one round trip. On a miss one reader, among all processes, gets the
//!   **lease** and loads; each waiting process gets one notification. The loaded value is accepted
//!   only with that lease.
//! - **Invalidate**: the **generation** rises and the lease is dropped. The rest is the tombstone:
//!   a value that was read before comes with an outdated lease and is rejected. If the server has
//!   evicted the tombstone, it has evicted the lease with it.
//! - **Write through**: the key is **marked** before the commit. While it is marked, reads bypass
//!   the cache and no value is accepted. Then the generation rises, and the new value is stored.
//!
//! A read never joins a load that began before the read did, unless the server named that load's
//! lease. So no invalidation is missed within a process, either.
//!
//! # Failure cases
//! | event | consequence |
//! |---|---|
//! | a loader is slower than an invalidation | its value is rejected; strong reads load again |
//! | a loader is slower than its lease | another reader takes over; if one did, the first loader's value is rejected, but its own caller still gets it: there was no invalidation |
//! | a loader dies, or its caller is cancelled | another reader takes over: at once if the notification is still sent, else at the end of the lease |
//! | a loader fails | all waiting readers are notified; stale values are served where allowed |
//! | the reply with a lease is lost, or its caller is cancelled before it arrives | the lease is released in the background; if that fails, it expires |
//! | the reply to a set is lost | the caller has its value; it is in the cache or not. The lease is released, so that no reader waits for it |
//! | the reply to an invalidation is lost | sent again, which is harmless |
//! | a process dies between commit and `invalidate` | stale until the TTL ends. With `write_through`: no stale value; the mark expires |
//! | a writer is slow | its mark is renewed while the writer lives |
//! | a writer is suspended for longer than its mark, then commits, then dies before it can report that | stale until the TTL ends |
//! | a commit fails, and it is unknown whether the database will still apply it | the mark is set again, and then expires |
//! | a suspended writer finishes after its mark has expired | a value that a reader stored meanwhile becomes stale |
//! | the reply to the end of a write is lost | sent again; then the mark expires |
//! | two writers | the older token may not begin after the newer one; the writer that finishes later leaves no value unless it is certainly the latest |
//! | one client only invalidates while another writes through | it is unknown which was last: the value is not stored |
//! | a replica that the loader reads lags behind | [`invalidate_below`](ReadThrough::invalidate_below) names the version that must be seen; "not found" is rejected for a while |
//! | Redis is unreachable | reads go to the loader ([`OutagePolicy::FailOpen`]) or fail; write-throughs and invalidations fail with an error |
//! | Redis restarts empty, or evicts keys | misses; late values are rejected. A mark, the highest token and the lowest version are lost, too |
//! | a failover loses the last writes | an invalidation may be among them: stale until the TTL ends |
//! | a partitioned old master serves a client in the same partition | stale until the client finds the new master, at most until the TTL ends |
//! | Redis's clock jumps ahead, or a server whose clock is ahead takes over | values, leases and marks expire early by that difference; a writer whose mark has expired invalidates at its end |
//! | Redis's clock is set back, or a server whose clock is behind takes over | a value, a lease or a mark keeps, from the next operation on, the time it had left when the record was last written; generations still rise |
//!
//! # Metrics
//! | name | kind | label | meaning |
//! |---|---|---|---|
//! | `leasehold_cache_get_total` | counter | `result`: hit, stale, load, wait, bypass | reads of a cache |
//! | `leasehold_cache_stale_set_rejected_total` | counter | | loaded values that came too late to be stored |

mod error;
#[doc(hidden)]
pub mod logic;
mod memory;
mod options;
mod protocol;
mod read_through;
mod redis;
mod row;
mod single_flight;
mod stats;
mod store;
pub mod strategy;
mod wakeups;
mod write;

/// Compiles the code blocks in the documents.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/cache.md")]
    mod page {}
}

#[cfg(test)]
mod tests;

pub use self::error::{CacheError, Cause};
pub use self::options::{Builder, Freshness, OutagePolicy};
pub use self::read_through::{MAX_KEY, ReadThrough};
pub use self::row::{Row, RowState};
pub use self::stats::CacheStats;
pub use self::store::CacheStore;
