//! Locks in Redis or Valkey: one server, the master that Sentinels choose, or a cluster.
//!
//! # The protocol
//! A lock is **one key**, a hash, so that one script works in one slot and a slot can move under load. Every step is **one
//! script**, which does to that hash what [`Table`](crate::logic::table::Table) does in memory (`scripts/table.lua`; the model
//! test compares the two). Names, claims and texts are only ever arguments. A script decides by the server's `TIME` alone: a
//! lease is over when it has not been heard of for its TTL, by the clock of the run that wrote it. The keys' own expiry only clears up, within an hour of
//! the last use (`retention`).
//!
//! - **Take** (`attempt`): free, and nobody waits: granted. Ours already: the same answer again. Otherwise the claim joins
//!   the queue, a list of claims inside the hash, and the answer says how many are ahead.
//! - **Give back** (`release`): the claim goes; whoever is next and alive is granted *by this script*, and told by one message to
//!   its own inbox. So a hand-off is one message and two scripts (one to join, one to give back), however many wait. A waiter
//!   whose inbox nobody listens to (`PUBLISH` says 0) is passed over in the same script.
//! - **Wait**: nothing is sent but a sign of life every third of a TTL (`look`), which also serves the queue if a lease has
//!   ended. The first in line looks again when the holder's lease ends.
//! - **Renew**: up to 128 leases to a script, scripts side by side; many leases of one TTL share a renewal (`bundles`).
//! - **Evict**: the claim goes, its client is told by a message, and the token rises if it held alone. That message voids the grant which the client
//!   has not taken yet: messages of one server come in order. A grant that comes once more, over another connection, is older.
//!
//! **Inbox.** One connection for everything, over RESP3: commands, and the client's one channel, whose name is random. Never a
//! channel for a lock.
//!
//! **Tokens.** `max(last + 1, TIME in microseconds)`: they rise while the record is there whatever the clock does, and from the
//! clock when it is not: after a `DEL`, a restart without data, a fail-over that lost writes. A clock that was set back as well then gives
//! lower tokens. They fit 53 bits until 2255.
//!
//! **Deadlines.** A grant in an answer lasts a TTL from before the request was sent. A grant in a message was made after the
//! last request to which the answer was "you wait": it lasts a TTL from before *that* was sent, so no second round trip is
//! needed. Both less 1 % and 2 ms for clocks that do not run alike.
//!
//! **Records** are keys of their own; `records.rs` says how they are written.
//!
//! # What if
//! | | |
//! |---|---|
//! | the reply to a take is lost | asked again with the same claim: the same grant, the same token |
//! | the reply to a give-back is lost | asked again: "not there", which is what was wanted |
//! | the caller goes away | its claim is given back, held or waiting; a late request on a broken connection may leave it for a TTL |
//! | the message of a grant is lost | the next sign of life, or the look after a reconnect, finds it; otherwise its lease ends |
//! | an old message comes late | it names the place in the queue that it was for; another place does not count |
//! | a grant and an eviction come while nobody polls the request | the eviction counts: the request ends with an error |
//! | an eviction's message is lost | the connection broke, too: then no grant is believed that nobody has taken, all waiters look, and all leases are renewed. The lock has the last hundred that were evicted, each for its TTL: a waiter that looks is told so |
//! | a request to release is lost with a connection | nothing has changed: the holder keeps the lock, and is asked again |
//! | a waiter dies | nobody listens: passed over; a half-open connection: its grant ends with its TTL |
//! | a holder dies | the first in line looks at the end of the lease; every other sign of life is the backup |
//! | the connection breaks | back-off, reconnect; then all waiters look, and all leases are renewed at once |
//! | the server hangs | a request that its caller gave up has the connection asked for a sign of life, else replaced |
//! | the server has forgotten the scripts | `NOSCRIPT`: sent again as text |
//! | a fail-over or restart lost a grant | the next renewal (at once, after the reconnect) says so: the guard is lost. Until then two may hold; the token of the first is lower |
//! | the same in strict mode | the server's `run_id` is not the one on record, or there is none: nobody new is let in for the longest lease, nor an owner again to what it has not renewed since: it may have given that back |
//! | a master that is cut off goes on | as with every asynchronous replication; `min-replicas-to-write` bounds it, `replicas=N` waits for them |
//! | a slot moves | `MOVED` and `ASK` are followed; one key to a lock, so nothing of it is ever in two places |
//! | half-way, with `strict` (whose own key may be on the other side: `TRYAGAIN`) | what is held is renewed and released without that key; nobody new is let in |
//! | a slot moves to a node that a waiter's client has not heard of | the waiter was inherited, and is not passed over because it does not listen there: it is granted, and learns it over the cluster's bus or when it looks next |
//! | a server takes over whose clock is ahead or behind (promoted, restarted, the new node of a slot) | its run is another one: what other runs wrote counts from when it first sees it |
//! | Sentinels name different masters | the newest election counts: [`election`](crate::logic::election) |
//! | one master of a cluster hangs | leases are renewed by calls for each node: the others' go on |
//! | a server takes no writes (`READONLY`) | its connection is replaced, after pauses that grow: an answer to what only reads does not end them. No pause is longer than a tenth of the TTL of a lease that waits to be renewed |
//! | the server's clock is set back | a time to come counts as now: leases last one TTL from then; tokens rise all the same, of locks whose record is there |
//! | the server's clock jumps forward | leases end early: two may hold. Tokens tell them apart |
//! | somebody deletes a key, or the server evicts it | the lock is free; its holder learns it at its next renewal; in a bundle, at the fourth at the latest |

mod all;
mod bundles;
pub(crate) mod config;
pub(super) mod connect;
mod dial;
pub(crate) mod doctor;
mod ears;
mod engine;
pub(crate) mod error;
pub(super) mod inspect;
pub(crate) mod link;
mod mailbox;
pub(crate) mod nodes;
mod records;
mod renew;
mod replicas;
#[cfg(test)]
mod scripted;
mod sentinel;
pub mod simple;
mod strict;
pub(crate) mod wire;

use std::sync::Arc;

pub use self::engine::RedisEngine;

use self::config::{Config, Protocol};
use super::{Capabilities, Engine, EngineUrl, Fairness, Fencing};
use crate::clock::Clock;
use crate::error::Result;

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
    survives: "any client's crash, cut or pause; a restart of the server with its data; lost messages and replies",
    breaks: "a fail-over or restart that forgets a grant (strict mode waits it out), a server clock that jumps forward",
    ..Capabilities::exclusive_only("redis")
};

/// Opens what the URL names.
pub(crate) async fn open(url: &EngineUrl, clock: &Clock) -> Result<Arc<dyn Engine>> {
    let config = Config::read(url)?.on(clock);
    match config.protocol {
        Protocol::Full => Ok(RedisEngine::open(config, clock).await?),
        Protocol::Simple => Ok(simple::SimpleEngine::open(config, clock).await?),
    }
}
