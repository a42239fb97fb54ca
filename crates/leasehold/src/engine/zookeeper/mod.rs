//! `zookeeper:` — locks in a ZooKeeper ensemble: a fair queue of ephemeral nodes, in which each
//! waiter watches one other node.
//!
//! # The protocol
//! A lock is a folder (a node with children); a claim is an ephemeral, sequential node in it. The
//! holders follow from the names of the nodes alone, and so are the same for all clients
//! ([`node_queue`](crate::logic::node_queue)): the longest prefix of the sorted list whose claims
//! can hold together.
//!
//! - **Acquire.** One transaction creates the node *and* touches the folder. Its answer has the
//!   number of nodes in the folder. If its own is the only one, the claim holds the lock: one
//!   request, one round trip, no list. Otherwise the client reads the list, and waits unless its
//!   claim is among the holders. A folder that may be missing is created in the same transaction.
//! - **Wait.** A waiter watches one node ahead of it: the node just ahead, or for readers the
//!   nearest writer. The first waiter for permits watches the folder. The nodes ahead can only
//!   become fewer. When the watched node goes and no other is known to be ahead, the waiter holds
//!   the lock without another request. For that, the next waiter in the queue watches its own node,
//!   too. Otherwise the list is read again. A claim that was granted after waiting, and still holds
//!   after 50 ms, changes its own node's data. The waiter behind it then reads the list, and knows
//!   that it is next long before it is woken.
//! - **Release.** The node is deleted: one request. One waiter is woken.
//! - **Token.** The number of the transaction that created the node (czxid). It rises in the order
//!   of the queue, and over all locks. It keeps rising past the end of the folder and of the
//!   sequence, as long as the ensemble keeps its data.
//! - **Re-entry.** A further claim of an owner shares the position of the first one (a re-entrant
//!   child node). One transaction creates its node, named after the position and the token of the
//!   first. It also changes the first one's data, so that the waiter behind it reads the list again.
//! - **Permits and owners.** When a claim that others may have seen waiting is granted the lock, it
//!   changes its own node's data; at once if it has permits or an owner. That notifies the waiter
//!   behind it, which may be compatible, too.
//! - **Records** are nodes of their own; `records.rs` describes how they are written.
//!
//! # How long a lock is certainly held
//! As long as its session. The leader ends a session that shows no activity for the session's
//! timeout; the holder's own deadline must come earlier. *An answered request does not show that
//! the leader knows of the client's activity.* Followers answer reads without the leader, even when
//! they have just been partitioned. They report active sessions to the leader only twice a tick. So
//! leases are renewed by a **write** (a transaction that checks the nodes of all claims), which
//! only the leader can commit. The deadline does not count from that write, but from the last
//! request that was answered a quarter of the timeout before it: the leader knew of that one by
//! then ([`SessionLifetime`](crate::logic::session_lifetime::SessionLifetime)). Between renewals, a
//! read every sixth of the timeout keeps that recent.
//!
//! A claim's TTL limits the timeout of its session:
//! - The first three TTLs of a client have sessions of exactly that timeout.
//! - Claims of further TTLs share the longest session that is not too long and has at least half of
//!   their TTL. If there is none, they share one of a power of two seconds
//!   ([`session_sharing`](crate::logic::session_sharing)).
//! - With `session=own`, each claim has its own session.
//! - A session that no claim has needed for half a minute is closed, except the one used last.
//! - A server that allows only shorter sessions gives shorter ones, which are renewed more often.
//! - A TTL below the server's shortest session is refused, because a dead holder's lock would not
//!   be free in time.
//!
//! # What if
//! | event | consequence |
//! |---|---|
//! | the answer to an acquire is lost | the node's name has the claim's id: the retry finds the node, after a `sync` |
//! | a request to create a node is delayed, and arrives when the claim has another node | harmless while the claim exists; after the claim has ended, its nodes are searched for and deleted for two more timeouts |
//! | the answer to an acquire is lost, and the caller has stopped waiting | the node is searched for and deleted until that is confirmed or the session is over |
//! | the answer to a release is lost | the node is deleted again; another claim's node has another name |
//! | the connection breaks | leases run down; the library connects to another server; a write checks all claims before they count again |
//! | the session ends | all its claims are lost at once (their deadlines passed before); no lock is acquired again automatically |
//! | the session ends for its client but not for the servers, because answers were lost or all servers were unreachable | the claim's old node counts as another client's: the claim waits behind it; with an owner, it deletes the old node and does not re-enter with it |
//! | an owner acquires again while a node of its ended hold still exists | no re-entry: the client knows its past sessions, and what it has lost or is releasing; it deletes the node and gets a new token |
//! | an owner acquires again while a node of its ended hold in another client still exists | only that client knows that the hold has ended: until the servers end its session, this is a re-entry |
//! | a waiter's future is dropped, or not polled any more | the claim leaves the queue after its TTL |
//! | a client's process is stopped | its deadline passes before the leader ends the session; a resource refuses its token later |
//! | the leader dies | no answers until there is a new one, which restarts the full timeout of all sessions |
//! | a follower is partitioned | its reads are no proof; without writes the lease runs down before the leader ends the session |
//! | a claim is force released | one transaction deletes its node and creates a mark, which is a node of its own. A holder's own watch fires: lost; a waiter finds the mark, and ends with an error |
//! | an operator requests a release | a line in the node's data, written over the version that was read; its holder's watch fires. If its client writes to the node at that moment, the line is written again |
//! | a claim's node is deleted by hand | the watch on it fires: a holder has lost the lock; a waiter goes to the end of the queue |
//! | a watch event arrives after a broken connection | it is not trusted: the list of nodes is read again |
//! | a lock's folder is deleted | it is created again; tokens keep rising |
//! | the sequence numbers of a folder are used up | the server uses the last number again and again: the transactions that created the nodes give the order, and the claim that leaves the folder empty deletes it |
//! | another claim re-enters while a claim waits | the data of the node that the waiter watches, or will watch, changes: it reads the list again |
//! | a wall clock jumps | no effect: only the clients' and the leader's monotonic clocks are read |
//!
//! # What is assumed
//! - The leader's clock does not run faster than a client's by more than 1 %.
//! - The leader gets its followers' reports at least four times within a session's timeout. They
//!   come twice a tick, and a session is at least two ticks long unless the server is configured
//!   otherwise.
//! - While a claim is in a lock's folder, fewer than 2^31 others are created there.

mod claim_registry;
#[doc(hidden)]
pub mod config;
mod ended_holds;
mod engine;
#[doc(hidden)]
pub mod error;
mod inspect;
mod records;
#[doc(hidden)]
pub mod session;
mod session_pool;
mod steps;
mod tls;
#[doc(hidden)]
pub mod wire;

use std::sync::Arc;
use std::time::Duration;

pub use self::engine::ZookeeperEngine;

use self::config::Config;
use super::{Capabilities, Engine, EngineUrl, Fairness, Fencing};
use crate::clock::Clock;
use crate::logic::lease::Drift;
use crate::types::Result;

/// The shortest TTL of a claim. Shorter sessions could expire during a server's garbage collection.
/// Servers with default settings allow no session, and so no TTL, below 4 s.
pub const MIN_TTL: Duration = Duration::from_secs(2);

/// Capabilities of `zookeeper:`.
pub const CAPABILITIES: Capabilities = Capabilities {
    shared: true,
    permits: true,
    reentrancy: true,
    fairness: Fairness::Fifo,
    fencing: Fencing::Durable,
    inspection: true,
    force_release: true,
    records: true,
    min_ttl: MIN_TTL,
    // The engine subtracts the clock drift within a session, since a session may be shorter than
    // the TTL.
    drift: Drift { ppm: 0, fixed: Duration::from_millis(2) },
    tolerates: "any client's crash, cut or pause; the death or cut of any minority of its servers, the leader too",
    fails_when: "a leader whose clock runs more than 1 % fast, a server configured to allow sessions shorter than two ticks",
    ..Capabilities::exclusive_only("zookeeper")
};

/// Opens the engine of a `zookeeper:` URL.
pub(crate) async fn open(url: &EngineUrl, clock: &Clock) -> Result<Arc<dyn Engine>> {
    Ok(ZookeeperEngine::open(Config::from_url(url)?, clock).await?)
}
