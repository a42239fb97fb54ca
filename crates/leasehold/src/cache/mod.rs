//! A cache in step with its database: in Redis, in front of your own loader.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use leasehold::cache::{CacheError, ReadThrough};
//! use std::io::Error;
//!
//! let cache = ReadThrough::open("memory:").await.unwrap();       // or redis://host, redis+sentinel:, redis+cluster:
//!
//! // One of all who ask, in whatever process, loads; the others get what it found.
//! let name = cache.get_or_load("user:42", || async { Ok::<_, Error>(Some("Ada")) }).await?;
//! assert_eq!(name.as_deref(), Some(&b"Ada"[..]));
//!
//! // After a commit: nobody who asks from now on gets what was there before.
//! cache.invalidate("user:42").await?;
//! # Ok::<(), CacheError>(()) }).unwrap();
//! ```
//!
//! Under a lock, with its token ([`write_through`](ReadThrough::write_through)), the write is announced before it is made, and the new
//! value is in the cache when it is done:
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! # use leasehold::cache::{ReadThrough, Row};
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
//! A key is **one hash**: value, generation, lease, mark, the highest token of a writer, the lowest version of a row. Every step on
//! it is **one script**, by the server's own clock, which does what [`Entry`](crate::logic::cache::Entry) specifies; a test compares the two, and the
//! specification is checked over every order of a few readers, writers and losses.
//!
//! - **Read**: one round trip for a hit. On a miss one reader, of all processes, gets the **lease** and loads; the others are told
//!   by one message to each process. Its value is let in only with that lease.
//! - **Invalidate**: the **generation** rises and the lease goes. What is left is the tombstone: a value that was read before comes without a
//!   lease that counts, and is refused. If the server has evicted the tombstone, it has evicted the lease with it.
//! - **Write through**: the key is **marked** before the commit. While it is, reads go past the cache, and nothing is let in. Then the generation
//!   rises, and the new value is there.
//!
//! Nobody joins a load that began before it came, except by the lease that the server told it of: so no invalidation is overlooked inside a
//! process, either.
//!
//! # What if
//! | | |
//! |---|---|
//! | a loader is slower than an invalidation | its value is refused; strong reads load again |
//! | a loader is slower than its lease | another takes over; if one did, the first one's value is refused, and its own caller has it all the same: nothing was invalidated |
//! | a loader dies, or its caller goes away | another takes over, at once if that could still be told, else at the end of the lease |
//! | a loader fails | everybody who waits for it is told; stale values serve, where they may |
//! | the reply with a lease is lost, or its caller goes away before it comes | the lease is given up in the background; if that cannot be told, it ends by itself |
//! | the reply to a set is lost | the caller has its value; it is in the cache or not. The lease is given up, so that nobody waits for it |
//! | the reply to an invalidation is lost | sent again: it does no harm |
//! | a process dies between commit and `invalidate` | stale until the TTL ends. With `write_through`: nothing is stale; the mark ends |
//! | a writer is slow | its mark is renewed while it lives |
//! | a writer stands still for longer than its mark, then commits, then dies before it can say so | stale until the TTL ends |
//! | a commit fails, and nobody knows whether the database will still do it | the mark begins anew, and is left to end by itself |
//! | a writer that stood still ends after its mark did | what a reader let in meanwhile is old from then on |
//! | the reply to the end of a write is lost | sent again; then the mark ends by itself |
//! | two writers | the older token may not begin after the newer one has; whoever ends later leaves nothing in the cache that is not surely the last |
//! | somebody only invalidates while another writes through | nobody knows who was last: the value is not put into the cache |
//! | a replica that the loader reads lags behind | [`invalidate_below`](ReadThrough::invalidate_below) names the version that must be seen; "nothing" is not let in for a while |
//! | Redis does not answer | reads go to the loader ([`Outage::Open`]) or fail; writes through and invalidations fail, and say so |
//! | Redis restarts empty, or evicts keys | misses; late values are refused. A mark, the highest token and the lowest version go, too |
//! | a fail-over loses the last writes | an invalidation may be among them: stale until the TTL ends |
//! | an old master that is cut off answers a client that is cut off with it | stale until the client finds the new one, at most until the TTL ends |
//! | Redis's clock jumps ahead, or a server takes over that is ahead | values, leases and marks end early by as much; a writer whose mark has ended invalidates at its end |
//! | Redis's clock is set back, or a server takes over that is behind | what was left of a value, a lease or a mark when the record was last written is left at the next step; generations rise all the same |

mod bells;
mod error;
mod flights;
mod memory;
mod options;
mod read_through;
mod redis;
mod row;
mod stats;
mod store;
pub mod strategy;
mod wire;
mod write;

#[cfg(test)]
mod tests;

pub use self::error::{CacheError, Cause};
pub use self::options::{Builder, Mode, Outage};
pub use self::read_through::{MAX_KEY, ReadThrough};
pub use self::row::{Now, Row};
pub use self::stats::Stats;
pub use self::store::Store;
