//! ZooKeeper: a fair queue of ephemeral nodes, where each waiter watches one other.
//!
//! # The protocol
//! A lock is a folder; a claim is an ephemeral, sequential node in it. Who holds is read from the names alone
//! ([`line`](crate::logic::line)), by everybody alike: the longest start of the list that fits together.
//!
//! - **Take.** One transaction makes the node *and* touches the folder. Its answer has the number of nodes in the folder: if ours
//!   is the only one, the lock is held, after one request and one round trip, without a list. Otherwise the list is read, and
//!   whoever is not among the first that fit waits. A folder that is not known to be there is made in the same transaction.
//! - **Wait.** A waiter watches one node ahead of it (the one just ahead; readers the nearest writer; the first who waits for permits
//!   the folder). Those ahead can only become fewer: when the watched one goes and nobody else is known to be ahead, the lock is
//!   held, without another request; for that, who is next watches its own node, too. Otherwise the list is read again.
//!   Whoever was let in after waiting, and still holds it after 50 ms, changes its own node's data; the one behind then reads the
//!   list, and knows that it is next long before it is woken.
//! - **Give back.** The node is deleted: one request. One waiter is woken.
//! - **Token.** The number of the transaction that made the node (czxid): it rises in the order of the queue, over all locks, over
//!   the end of the folder and of the sequence, and as long as the ensemble keeps its data.
//! - **Re-entry.** A further claim of an owner stands *with* its first one (a rider): a transaction makes its node, named after
//!   the place and token of the first, and changes the data of that, which tells the waiter behind it to look again.
//! - **Permits and owners.** Somebody whom others may have seen wait changes its own node's data when let in, at once if it has permits
//!   or an owner: that tells the one behind, who may fit, too.
//! - **Records** are nodes of their own; `records.rs` says how they are written.
//!
//! # How long a lock is surely held
//! As long as its session. The leader ends a session that it has not heard of for the session's timeout; our own deadline must
//! come earlier. *That a request was answered does not show that the leader has heard of us*: followers answer reads by themselves,
//! also when they have just been cut off, and report to the leader whom they have heard of only twice a tick. So leases are
//! renewed by a **write** (a transaction that checks the nodes of all claims), which only the leader can take; and what is counted from
//! is not that write, but the last request that was answered a quarter of the timeout before it, of which the leader had been
//! told by then ([`Proof`](crate::logic::session::Proof)). Between renewals, a read every sixth of the timeout keeps that fresh.
//!
//! A claim's TTL bounds the timeout of its session. The first three TTLs of a client have sessions of exactly that timeout; claims of
//! further TTLs share the longest that is not too long and at least half of theirs, or one of a power of two seconds
//! ([`sharing`](crate::logic::sharing)); `session=own`: each claim has its own. A session that no claim has needed for half a minute is
//! closed, except the one used last. A server that allows only shorter sessions gives shorter ones, which are renewed more often; a TTL
//! below its shortest is refused, because a dead holder's lock would not be free in time.
//!
//! # What if
//! | | |
//! |---|---|
//! | the answer to a take is lost | the claim's own number is in the node's name: the next try finds it, after a `sync` |
//! | ... because the request itself was held back, and arrives when the claim has another node | while it is held, nobody minds; when it has left, its nodes are looked for and deleted for two more timeouts |
//! | ... and the caller has given up | the node is looked for and deleted until that is confirmed or the session is over |
//! | the answer to a give-back is lost | it is deleted again; another's node has another name |
//! | the connection breaks | leases run down; the library goes to another server; all claims are then checked by a write before they count again |
//! | the session ends | all its claims are lost at once (their deadlines were over before); nothing is taken again by itself |
//! | ... only for its client: answers were lost, or the servers were all away, and give it its full time again | the claim's old node is another's to it: it waits behind that; with an owner, it deletes it and does not ride on it |
//! | an owner comes again while a node of its ended hold is still there | no re-entry: the client knows the sessions that it had, and what it has lost or gives back; it deletes the node, and the token is a new one |
//! | ... which was another client's | nobody else can know that it has ended: until the servers end its session, it is a re-entry |
//! | nobody polls, or drops, a waiter's call | it is taken out of the queue after its TTL |
//! | the client stops | its deadline is over before the leader ends the session; the token tells later |
//! | the leader dies | no answers until there is another, who gives all sessions their full timeout again |
//! | a follower is cut off | its reads prove nothing; without writes the lease runs down, before the leader ends the session |
//! | a claim is evicted | its node goes, and a mark comes in the same transaction. A holder's own watch tells: lost; a waiter finds the mark, and ends with an error |
//! | an operator asks for a release | a line in the node's data, over the version that was read; its holder's watch tells. If its client writes to the node at that moment, the line is written again |
//! | somebody deletes our node by hand | our own watch tells: lost; a waiter goes to the end of the queue |
//! | an event is seen after a broken connection | it is not trusted: the list is read again |
//! | the folder vanishes | it is made again; tokens go on |
//! | the sequence ends | the server gives its last number again and again: the transactions that made the nodes tell who came first, and whoever leaves the folder empty deletes it |
//! | somebody re-enters while we wait | the data of the node that we watch, or will watch, changes: the list is read again |
//! | a clock jumps | nothing: only our own monotonic clock and the leader's count |
//!
//! # What is assumed
//! The leader's clock does not run faster than ours by more than 1 %, and it hears its followers' reports at least four times
//! within a session's timeout (they come twice a tick, and a session is at least two ticks long unless the server was told otherwise).
//! While a claim stands in a lock's folder, fewer than 2^31 others come to it.

mod config;
pub(crate) mod doctor;
mod endings;
mod engine;
mod error;
mod inspect;
mod records;
mod seats;
mod session;
mod sessions;
mod steps;
mod tls;
mod wire;

use std::sync::Arc;
use std::time::Duration;

pub use self::engine::ZookeeperEngine;

use self::config::Config;
use super::{Capabilities, Engine, EngineUrl, Fairness, Fencing};
use crate::clock::Clock;
use crate::error::Result;
use crate::logic::lease::Drift;

/// The shortest TTL: shorter sessions end when a server's garbage is collected. By default servers allow none below 4 s.
const MIN_TTL: Duration = Duration::from_secs(2);

/// What it can do.
pub const CAPABILITIES: Capabilities = Capabilities {
    shared: true,
    permits: true,
    reentry: true,
    fairness: Fairness::Fifo,
    fencing: Fencing::Durable,
    inspection: true,
    eviction: true,
    records: true,
    min_ttl: MIN_TTL,
    // What clocks may run apart within a session is taken off by the engine: a session may be shorter than the TTL.
    drift: Drift { ppm: 0, fixed: Duration::from_millis(2) },
    survives: "any client's crash, cut or pause; the death or cut of any minority of its servers, the leader too",
    breaks: "a leader whose clock runs more than 1 % fast, a server told to allow sessions shorter than two ticks",
    ..Capabilities::exclusive_only("zookeeper")
};

/// Opens what the URL names.
pub(crate) async fn open(url: &EngineUrl, clock: &Clock) -> Result<Arc<dyn Engine>> {
    Ok(ZookeeperEngine::open(Config::read(url)?, clock).await?)
}
