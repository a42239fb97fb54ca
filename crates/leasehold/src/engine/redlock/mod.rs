//! Redlock: a lock on a majority of independent Redis servers, with a fencing token.
//!
//! # The protocol
//! N servers (five, as a rule) do not know each other: no replication, no cluster. On each of them
//! a lock is one string, and every step is one script. A node grants the lock to one owner at a
//! time, by its own clock ([`AcceptorState`](crate::logic::acceptor::AcceptorState) specifies it).
//! Only the answer of a majority counts ([`quorum`](crate::logic::quorum)).
//!
//! - **Acquire.** The client sends the request to all nodes at once. Each has a timeout that is
//!   much smaller than the TTL (`node-timeout`, 250 ms, and never more than a tenth of the TTL).
//!   The lock is held if a majority has stored the claim *and its token*, and `validity = ttl -
//!   elapsed - drift` is above zero, where `elapsed` counts from before the first request.
//!   Otherwise the client withdraws the claim from *all* nodes, also from those that never
//!   answered, and retries after a random, growing pause. Nodes that answer after the majority get
//!   the claim, too; unreachable nodes get it with a later renewal.
//! - **Token.** A node stores a token only if it is higher than all tokens it stored before, and
//!   only under a live claim. Two majorities share a node. There the later token was stored after
//!   the earlier one, so it is higher. This needs no clock. The first round carries a *guess* of
//!   the token: the fastest node's clock, in µs, as far as the client knows it. If a majority
//!   stored the guess, the lock is held after one round. Otherwise there is a second round: a
//!   majority stores a token one above the highest that any node reported, before the lock counts
//!   as held.
//! - **Renew.** A lease is renewed if a majority renews it, and lasts a TTL from before *that*
//!   request. A node that has lost the claim stores it again, unless a higher token was stored
//!   there meanwhile. If the refusals leave no majority, the lease is lost at once, and the client
//!   releases the claim on the nodes that still have it. Without enough answers, the client retries
//!   until the deadline; then the lease is lost.
//! - **Release.** The client sends the release to all nodes, and waits for a majority of answers.
//!   With an owner, who may acquire again at once, it waits for all nodes that are responding. A
//!   node that cannot be reached gets the release when it is reached again, within the claim's TTL.
//! - **Failing nodes.** A dead node refuses at once, and the client reconnects to it in the
//!   background. A node that misses a timeout counts as not responding. The client does not wait
//!   for such a node until the node has answered a probe, unless there is no majority without it.
//!
//! # What is refused, and why
//! - **Semaphores.** A claim needs a majority of the nodes, not all of them. Five nodes that admit
//!   n each would together admit up to 5n/3 claims. Counting on each node is not counting.
//! - **Shared locks.** A majority keeps readers and writers apart. But without an order over the
//!   nodes, new readers may enter while a writer waits, and the writer may wait for ever. The
//!   read/write locks of other engines guarantee that it does not, so there are none here.
//! - **A queue.** Each node would have an order of its own. The first waiter here could wait for
//!   the first waiter there, for ever. So waiters retry after random pauses, and no waiter is
//!   guaranteed a turn.
//! - **An even number of nodes** survives no more failures than one node less, and splits in halves
//!   more often. `even=allowed` permits it.
//!
//! # What is assumed
//! - Nodes keep what they acknowledged (`appendfsync always`), or are *strict* (`strict=`, with the
//!   longest TTL): after a restart a strict server is in a cool-down until the longest lease is
//!   over, and accepts only releases (forced ones as well). Without either, a node that restarts
//!   empty can vote twice, and two clients may hold at once. The second token is still higher as
//!   long as the nodes' clocks differ by less than the time between the two grants. A strict node
//!   stores no token below the end of its cool-down, by its own clock. So tokens rise unless an
//!   earlier token was ahead of that clock, at the restart, by more than the longest lease.
//! - For exclusion: the drift between clocks stays within 1 % and 2 ms (`drift`, `drift-fixed`),
//!   and clocks do not jump on more nodes than a majority can spare. For the order of tokens, where
//!   nodes keep what they acknowledged: no clock at all. (If clocks jump, a grant is still higher
//!   than all that were made before its attempt began.)
//!
//! # What if
//! | event | consequence |
//! |---|---|
//! | reply to an acquire is lost | the node counts as not responding; a majority without it is enough, otherwise the claim is withdrawn |
//! | acquire arrives after its withdrawal | a later attempt has a higher number; what the late one leaves ends with its TTL |
//! | withdrawal arrives late, during the next attempt | it does not affect a later attempt |
//! | acquire or renewal arrives twice, or late, after the release | its token was released here: refused; where the claim never was, or with an owner, it ends with its TTL |
//! | client stops between two rounds | the validity is computed afterwards: too late is not held |
//! | client stops while it holds | its deadline is over before a majority grants the lock again; its token is lower than the next |
//! | two clients get half of the nodes each | both withdraw, and retry at different times |
//! | node dies | no effect while a majority lives; its claims are stored there again when it returns |
//! | node restarts empty | see above: `strict`, or keep the data |
//! | node hangs | one timeout; then the client does not wait for it until it answers again |
//! | majority is unreachable | an error names the nodes; leases run out; no new holder |
//! | clock is set back | the node grants later, by one TTL at most: a time in the future counts as now |
//! | node refuses writes | it does not vote, and the client reconnects after growing pauses |
//! | clock jumps forward | the node grants earlier, see below |
//! | record has expired, an hour after its last use | tokens continue from the clock; a record is kept until the node's clock has passed its token |
//! | claim is force released (`leasehold evict`) | it is removed, and a majority stores a higher token, see below |
//! | claim to force release has ended already | no node has it, and none stores a token |
//! | operator requests a release | each node that has the claim publishes that to its client; the first message counts, see below |
//!
//! - *A clock jumps forward.* Count the nodes whose clocks jumped, and those that had not voted for
//!   the holder. As soon as they are a majority, two may hold, and their tokens differ.
//!   With all votes, three of five clocks must jump; with a bare majority of votes, one is enough.
//! - *A claim is force released.* Each node that had it publishes that to its client. The client
//!   renews at once, and is refused.
//! - *A client that may not subscribe* learns of a force release by its next renewal. It does not
//!   learn of a requested release, and the operator sees that it still holds.

#[doc(hidden)]
pub mod config;
mod engine;
mod error;
mod inspect;
mod node;
mod open;
mod server;
#[cfg(test)]
mod simulation;
#[doc(hidden)]
pub mod wire;

use std::sync::Arc;

pub use self::engine::RedlockEngine;

use self::config::Config;
use super::{Capabilities, Engine, EngineUrl, Fencing};
use crate::clock::Clock;
use crate::types::Result;

/// Capabilities of `redlock:`.
pub const CAPABILITIES: Capabilities = Capabilities {
    reentrancy: true,
    fencing: Fencing::Durable,
    inspection: true,
    force_release: true,
    tolerates: "any client's crash, cut or pause; the death, hang or cut of any minority of its servers",
    fails_when: "servers that restart without their data (strict makes them cool down), clocks that jump forward on nodes that, with those that had not voted, are a majority",
    ..Capabilities::exclusive_only("redlock")
};

/// Opens the engine for the URL.
pub(crate) async fn open(url: &EngineUrl, clock: &Clock) -> Result<Arc<dyn Engine>> {
    Ok(RedlockEngine::open(Config::read(url)?.with_clock(clock), clock).await?)
}
