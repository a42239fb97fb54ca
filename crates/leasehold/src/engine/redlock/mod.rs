//! Redlock: a lock on a majority of independent Redis servers, with a token that fences.
//!
//! # The protocol
//! N servers (five, as a rule) know nothing of each other: no replication, no cluster. On each of them a lock is one string, and
//! every step one script, which lets in one owner at a time by that server's own clock
//! ([`Ballots`](crate::logic::ballots::Ballots) is its specification). What a majority of them says counts
//! ([`quorum`](crate::logic::quorum)); nothing else does.
//!
//! - **Take.** All nodes are asked at once, each with a timeout that is much smaller than the TTL (`node-timeout`, 250 ms, and
//!   never more than a tenth of the TTL). The lock is held if a majority has stored the claim *and its token*, and something is
//!   left of `validity = ttl - elapsed - drift`, where `elapsed` is counted from before the first request. Otherwise the claim is
//!   withdrawn from *all* nodes, also from those that never answered, and the caller tries again after a random, growing pause.
//!   Those that answer after the majority has the claim, too; those that cannot be reached get it with a later renewal.
//! - **Token.** A node stores a token only if it is higher than all that it stored before, and only under a live claim. Two
//!   majorities share a node; there the later token was stored after the earlier one: it is higher. No clock is part of that.
//!   The first round carries a *guess* of the token (the fastest node's clock, in us, as the client has come to know it). Where
//!   a majority stored the guess, the lock is held after one round. Only otherwise comes the second round: one above the
//!   highest that any node told of is stored by a majority before the lock counts as held.
//! - **Renew.** A lease is extended if a majority extends it, and lasts a TTL from before *that* request. A node that has
//!   forgotten the claim takes it again, unless a higher token was stored there meanwhile. So many refusals that there is no
//!   majority: lost at once, and taken from those that still have it. Silence: asked again until the deadline, then lost.
//! - **Give back.** All nodes are told; a majority of answers is waited for, and with an owner, who may come again at once, the answers of all that are not
//!   silent. Who cannot be told now is told when it is reached
//!   again, as long as the claim's TTL is not over.
//! - **Nodes that fail.** A dead node refuses at once and is connected to again in the background. One that does not answer in
//!   time counts as silent from then on: nobody waits for it until it has answered a probe, unless there is no majority without it.
//!
//! # What is refused, and why
//! - **Semaphores.** A claim takes up a majority of the nodes, not all of them: five nodes that let in n each admit up to 5n/3
//!   claims together. Counting on each node is not counting.
//! - **Shared locks.** A majority keeps readers and writers apart; but without an order over the nodes nobody stops new readers while
//!   a writer waits, and it may wait for ever. Our read/write locks promise that it does not, so there are none here.
//! - **A queue.** Each node would have an order of its own; the first here waits for the first there, for ever. So waiters come
//!   again after random pauses, and nobody is promised a turn.
//! - **An even number of nodes** survives no more failures than one less, and splits in halves more often: `even=allowed` if it must be.
//!
//! # What is assumed
//! - Nodes keep what they acknowledged (`appendfsync always`), or are *strict*: a server that has restarted abstains
//!   (`strict=<longest ttl>`) from everything but give-backs until the longest lease is over. Without either, a node that restarts empty
//!   can vote twice, and two may hold at once. The token of the second is higher nevertheless while the nodes' clocks agree
//!   better than the two grants lie apart. A strict node stores no token below the end of its abstaining, on its own clock: tokens
//!   rise as long as none was ahead of that clock, when it restarted, by more than the longest lease.
//! - For exclusion: clocks that do not run apart by more than the drift (1 % and 2 ms; `drift`, `drift-fixed`), and no jumps on
//!   so many nodes that the rest is no majority. For the order of tokens, where nodes keep what
//!   they acknowledged: no clock at all. (Where clocks jump, a grant is higher than all that were made before its attempt began.)
//!
//! # What if
//! | | |
//! |---|---|
//! | a reply to a take is lost | that node counts as silent; if a majority is there without it, all is well; otherwise its claim is withdrawn |
//! | a take arrives after it was withdrawn | another attempt has a higher number; what is left of it ends with its TTL |
//! | a withdrawal arrives late, during the next attempt | it ends nothing of a later attempt |
//! | a take, or a renewal, is repeated or late after the give-back | its token was given back here: refused; where the claim never was, or with an owner, it ends with its TTL |
//! | the client stops between two rounds | what is left of the validity is computed afterwards: too late is not held |
//! | the client stops while it holds | its deadline is over before a majority lets others in; its token is lower than theirs |
//! | two take half of the nodes each | both withdraw, and come again at different times |
//! | a node dies | nothing, while a majority lives; its claims are taken again when it comes back |
//! | a node comes back without its data | see above: `strict`, or keep the data |
//! | a node hangs | one timeout; then nobody waits for it until it answers again |
//! | a majority is gone | an error that names the nodes; leases run down; nobody holds |
//! | a clock is set back | its node lets others in later, by one TTL at most: a time to come counts as now |
//! | a node takes no writes | it does not vote, and is connected to again after pauses that grow |
//! | a clock jumps forward | its node lets others in earlier. As soon as such nodes, with those that had not voted for the holder, are a majority, two may hold, and tokens tell them apart: with all votes three of five must jump, with a bare majority of them one is enough |
//! | a record was dropped, an hour after its last use | tokens go on from the clock; it is kept until the node's clock has passed its token |
//! | a claim is evicted | it goes, and a higher token is stored on a majority. Each node that had it publishes that to its client, which renews at once: the renewal is refused. A client that may not subscribe learns of it by its next renewal |
//! | an operator asks for a release | each node that has the claim publishes that to its client; the first message counts. A client that may not subscribe does not learn of it, and the operator sees that it still holds |
//! | ... that is gone already | no node has it, and none stores anything |

mod config;
pub(crate) mod doctor;
mod engine;
mod error;
mod inspect;
mod node;
mod open;
mod server;
#[cfg(test)]
mod simulation;
mod wire;

use std::sync::Arc;

pub use self::engine::RedlockEngine;

use self::config::Config;
use super::{Capabilities, Engine, EngineUrl, Fencing};
use crate::clock::Clock;
use crate::error::Result;

/// What it can do.
pub const CAPABILITIES: Capabilities = Capabilities {
    reentry: true,
    fencing: Fencing::Durable,
    inspection: true,
    eviction: true,
    survives: "any client's crash, cut or pause; the death, hang or cut of any minority of its servers",
    breaks: "servers that restart without their data (strict makes them abstain), clocks that jump forward on nodes that, with those that had not voted, are a majority",
    ..Capabilities::exclusive_only("redlock")
};

/// Opens what the URL names.
pub(crate) async fn open(url: &EngineUrl, clock: &Clock) -> Result<Arc<dyn Engine>> {
    Ok(RedlockEngine::open(Config::read(url)?.on(clock), clock).await?)
}
