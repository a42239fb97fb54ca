//! Locks in Redis or Valkey: one server, the master that Sentinels choose, or a cluster.
//!
//! # The protocol
//! A lock is **one key**, a hash, so that one script works in one slot and a slot can move under
//! load. Every step is **one script**. It does to the hash what
//! [`LockTable`](crate::logic::table::LockTable) does in memory; a model test compares the two.
//! `wire.rs` has the layouts of all stored values, and `scripts/table.lua` the steps on them. Names,
//! claims and texts are only ever arguments of a script.
//!
//! A script uses the server's `TIME` and no other clock. A *run* is one lifetime of a server
//! process, as its `run_id` identifies it. A lease ends when its holder has not renewed it for a
//! TTL, by the clock of the run that wrote it. The expiry of the keys is only cleanup: a key
//! expires about an hour after its last use (`retention`).
//!
//! - **Acquire** (`attempt`): if the lock is free and has no waiters, the claim is granted. If the
//!   claim already holds, it gets the same answer again. Otherwise it joins the queue, a list of
//!   claims inside the hash, and the answer is its position.
//! - **Release** (`release`): the script removes the claim and grants the next live waiter *in the
//!   same step*. It sends one message to the inbox of that waiter. So a hand-off costs one message
//!   and two scripts (one to join, one to release), however long the queue is. A waiter whose inbox
//!   has no subscriber (`PUBSUB NUMSUB` returns 0) is skipped in the same script.
//! - **Wait** (`heartbeat`): a waiter sends only a heartbeat every third of a TTL. It also serves
//!   the queue if a lease has ended. The first waiter sends another one when the holder's lease
//!   ends.
//! - **Renew**: one script renews up to 128 leases, and several scripts run side by side. Many
//!   leases of one TTL are renewed as a group (`renewal_groups`).
//! - **Force release** (`force_release`): the script removes the claim and sends a message to its
//!   client. The token rises if the claim was the only holder. The message voids a grant that the
//!   client has received but not used: one server delivers messages in order. A copy of the grant
//!   that arrives over another connection is older than the force release, and does not count.
//!
//! **Inbox.** A client has one connection for everything, over RESP3: its commands, and one channel
//! of its own with a random name. No lock has a channel.
//!
//! **Tokens.** A token is `max(last + 1, TIME in microseconds)`. While the lock's record exists,
//! tokens rise for any change of the clock. Without a record (after a `DEL`, a restart without
//! data, a fail-over that lost writes) they continue from the clock. If that clock was also set
//! back, tokens are lower than before. They fit 53 bits until 2255.
//!
//! **Deadlines.** A grant in an answer lasts a TTL, counted from before the client sent the
//! request. A grant in a message was made after the last request that was answered with "queued".
//! It lasts a TTL, counted from before *that* request, so no second round trip is needed. Both are
//! shortened by 1 % and 2 ms for clock drift.
//!
//! **Records** are keys of their own; see `records.rs`.
//!
//! # What if
//! | event | consequence |
//! |---|---|
//! | reply to an acquire is lost | the client sends the same claim again: same grant, same token |
//! | reply to a release is lost | the client sends it again: "not there", as wanted |
//! | caller drops its request | its claim is released, held or waiting; a late request on a broken connection may leave it for a TTL |
//! | message of a grant is lost | found by the next heartbeat, at the latest the one after a reconnect; otherwise the grant's lease ends |
//! | old message arrives late | ignored: it names a queue position that the claim no longer has |
//! | grant and force release arrive before the request is polled again | the force release counts: the request ends with an error |
//! | message of a force release is lost | found by the next heartbeat, see below |
//! | request to release is lost with a connection | no change: the holder keeps the lock, and the operator repeats it |
//! | waiter dies | its inbox has no subscriber: skipped; with a half-open connection, its grant ends with its TTL |
//! | holder dies | the first waiter sends a heartbeat at the end of the lease; the heartbeats of the other waiters are the backup |
//! | connection breaks | back-off and reconnect; then all waiters send a heartbeat, and all leases are renewed at once |
//! | server hangs | a request whose caller gave up triggers a `PING`; without an answer the connection is replaced |
//! | server has dropped the scripts | `NOSCRIPT`: the client sends the script as text |
//! | fail-over or restart loses a grant | the next renewal (at once, after the reconnect) reports the guard as lost; until then two may hold, the first with the lower token |
//! | the same, in strict mode | cool-down for the longest lease, see below |
//! | partitioned master continues | as with every asynchronous replication; `min-replicas-to-write` bounds it, `replicas=N` waits for replicas |
//! | slot moves | the client follows `MOVED` and `ASK`; a lock is one key, so it is never in two places |
//! | slot is half moved, in strict mode (whose own key may be on the other node: `TRYAGAIN`) | held locks are renewed and released without that key; no new grants |
//! | slot moves to a node that a waiter's client does not know yet | the waiter counts as inherited, and is not skipped for want of a subscriber there; it receives its grant over the cluster bus, or at its next heartbeat |
//! | new server's clock is ahead or behind (promoted, restarted, new node of a slot) | another run: what other runs wrote counts from when the new run first sees it |
//! | Sentinels name different masters | the newest election counts: [`sentinel_election`](crate::logic::sentinel_election) |
//! | one master of a cluster hangs | each node's leases are renewed by calls of their own: the other nodes' renewals continue |
//! | server refuses writes (`READONLY`) | its connection is replaced, after growing pauses, see below |
//! | server's clock is set back | a timestamp in the future counts as now: leases last one TTL from then; tokens still rise for locks whose record exists |
//! | server's clock jumps forward | leases end early: two may hold, and their tokens differ |
//! | a key is deleted by hand, or evicted by the server | the lock is free; the holder learns it at its next renewal; in a group, at the fourth at the latest |
//!
//! - *The message of a force release is lost* only if the connection broke, too. After a break the
//!   client trusts no grant that its caller has not received. All waiters send a heartbeat, and all
//!   leases are renewed. The lock keeps the last hundred claims that were force released, each for
//!   its TTL. From this list the heartbeat reports that the claim is gone.
//! - *A fail-over or restart loses a grant, in strict mode.* The server's `run_id` is not the
//!   stored one, or none is stored. For the longest lease, the server makes no new grants. An owner
//!   does not re-enter on a hold that it has not renewed since: the server may have lost that
//!   hold's release.
//! - *A server refuses writes.* A successful read does not reset the pauses. No pause is longer
//!   than a tenth of the TTL of a lease that waits for its renewal.

mod acquire_all;
mod engine;
mod inspect;
mod pending_grants;
mod records;
mod renew;
mod renewal_groups;
mod replicas;
#[cfg(test)]
mod scripted_server_tests;
pub mod simple;
mod strict;
mod subscriber;
#[doc(hidden)]
pub mod wire;

use std::sync::Arc;

pub use self::engine::RedisEngine;

use super::{Capabilities, Engine, EngineUrl, Fairness, Fencing};
use crate::clock::Clock;
use crate::redis_client::{Config, Protocol};
use crate::types::Result;

/// Capabilities of `redis:` with the full protocol.
pub const CAPABILITIES: Capabilities = Capabilities {
    shared: true,
    permits: true,
    reentrancy: true,
    fairness: Fairness::Fifo,
    fencing: Fencing::Durable,
    inspection: true,
    force_release: true,
    records: true,
    tolerates: "any client's crash, cut or pause; a restart of the server with its data; lost messages and replies",
    fails_when: "a fail-over or restart that loses a grant (strict mode waits it out), a server clock that jumps forward",
    ..Capabilities::exclusive_only("redis")
};

/// Opens the engine for the URL, with the protocol that it names.
pub(crate) async fn open(url: &EngineUrl, clock: &Clock) -> Result<Arc<dyn Engine>> {
    let config = Config::read(url)?.with_clock(clock);
    match config.protocol {
        Protocol::Full => Ok(RedisEngine::open(config, clock).await?),
        Protocol::Simple => Ok(simple::SimpleEngine::open(config, clock).await?),
    }
}
