//! `technique=row`, the default: a table of leases with one row per lock.
//!
//! # The protocol
//! A row has these columns:
//! - `version` changes with every write.
//! - `token` is the highest token granted. The row is kept when the lock is free, so this is the
//!   token counter.
//! - `busy` is the time until which `state` counts: the last lease or queue position ends then, or
//!   the last note of a force release is dropped.
//! - `state` lists the holders, the waiters and the latest force-released claims, as JSON.
//!
//! The steps:
//! - **Acquire.** One upsert, which succeeds if there is no row or if `busy` has passed on the
//!   database's clock. Its time `x = greatest(token + 1, version + 1, microseconds of that clock)`
//!   is the new version, the token and the start of the lease. So the reply is one number: from
//!   `RETURNING`, or from MySQL's `LAST_INSERT_ID(…)`, which needs no second statement either.
//! - **Everything else** is decided by the client: [`LockTable`](crate::logic::table::LockTable) (the
//!   specification of all engines) works on the row as it was read. The result is written with
//!   `UPDATE … WHERE version = (the version read)`. If another client wrote first, the update
//!   has no effect; the client reads the row and decides again. No transaction stays open between
//!   two messages: a client that stops half-way blocks no other client.
//! - **The last contender leaves.** The same, as a plain `UPDATE` without a time: no lease is left
//!   that needs one. The number of changed rows shows whether the write was made.
//! - **Batches.** A process runs one statement at a time for each lock. All its requests for the
//!   lock that arrive meanwhile become one *batch*: one decision and one statement. The client
//!   remembers the row while it has a claim in it, so that a release, or a hand-off inside the
//!   process, is one statement.
//! - **Time.** The writing statement inserts the database's time (`\u{1}` stands for it in the text
//!   that is sent), so no client's clock is ever stored. The client's own deadline counts from
//!   before the statement was sent, on the monotonic clock. The client judges other clients' leases
//!   by the database time that it read with the row, plus the local time that has certainly elapsed
//!   since.
//! - **Hand-off.** The releasing client grants the lock to the next waiter in the same write.
//!   PostgreSQL notifies the waiter in the same statement (`pg_notify` to the client's own channel;
//!   one connection listens). MySQL has no notifications: see [`wakeup_locks`]. Where neither works
//!   (a pooler, Galera, `wake=poll`), one waiter of each client polls every `poll`. All of these
//!   are hints. Behind them, a timer fires when the holder's lease ends and at a third of the TTL.
//! - **Force releases.** PostgreSQL notifies the client in the same statement. Without
//!   notifications, each client reads the versions of its rows five times a second (`version_poll`)
//!   and reads every row that others have written.
//! - **Force releases of unreachable clients.** The row keeps the latest force-released
//!   claims ([`force_released_claims`](crate::logic::force_released_claims)), each
//!   for its TTL. A client that repeats such a claim finds it there, and does not queue it again.
//!   While the row keeps one, `busy` has not passed, so an acquire does not overwrite the list: it
//!   costs a read and a write more. The release that ends the force-released request removes its
//!   entry.
//! - **Local hand-offs** ([`local_hand_off`](crate::logic::local_hand_off)). They apply if the
//!   next waiters belong to the holder's client, are exclusive, have no owner and have the holder's
//!   TTL. The write that finds them reserves a token for each. They then hold the lock one after
//!   the other without a statement. The row still names the first of them as holder, so no other
//!   client acquires the lock. Each lease is the rest of the first one's. The next request's write
//!   also records the current holder. The order is the queue's, so no other client's waiter waits
//!   longer.
//!
//! # What if
//! | event | consequence |
//! |---|---|
//! | the reply to a statement is lost | the client reads the row on another connection and decides again; the row has the claim's id, so no request takes effect twice |
//! | a write whose reply was lost reaches the server late | the row has another version, so it has no effect. A late acquire finds the row busy; on a free lock it leaves a lease for one TTL |
//! | a waiter is force released while its connection is down | its next request finds that in the row and ends, unless its TTL has passed since, or the row has 1,000 later notes of force releases |
//! | a caller stops waiting for the lock | the library releases its claim in a step of its own |
//! | a client's process is killed or stopped | its leases and queue positions end by the database's clock; its own deadlines passed before |
//! | two clients write at once | one version wins; the other client reads and decides again |
//! | a statement fails by a deadlock (1213) or a serialization failure | it had no effect, and is retried at once |
//! | another transaction keeps the lock's row locked (1205, 55P03) | the server ends the statement after a second (PostgreSQL: sooner for a short TTL), without effect; it is retried while the caller waits, and then reported |
//! | the row stays locked for a third of a short TTL, before MySQL's row-lock timeout of a second has passed | the client stops waiting; the outcome is unknown. The connection counts as in use until the server has ended the statement, too |
//! | one of several leases that are renewed together gets no answer | the others get theirs: each has a time limit of its own, shorter than the keeper's for all of them |
//! | connections become unresponsive | the statement times out after a third of the TTL. If no connection has received anything since, no idle one is reused and the retry opens a new one |
//! | the connection, or the server, is killed | leases are in the table: the next statement uses a new connection |
//! | the database's clock is set back | a lease that begins in the future begins now (`state::read`); tokens continue from the highest |
//! | the database's clock is set forward while a lock is held | **two holders**, until the first renews: as with every lease on a wall clock. Their tokens differ |
//! | a server whose clock is ahead takes over | **two holders** are possible until the first renews, for at most the difference of the clocks: the server that is asked judges a lease by its own clock. `clock-skew=` of that difference prevents it; `leasehold doctor` compares the clocks |
//! | a fail-over loses the last commits | **two holders** are possible; tokens still rise, as they never fall behind the clock |
//! | the row is deleted by hand | the holder loses the lock at its next renewal; because of the clock, no later token is below an older one |
//! | two servers accept writes (Galera) | a second write on the same version fails at commit; `clock-skew=` is the allowed difference of their clocks |
//! | the process is killed while local hand-offs are ahead of the row | the row names the first of their holders until its lease ends, as if that one had been killed |
//! | an operator force releases the holder that the row names, after it handed off locally | the force release's token is above all reserved ones. The claim that really holds the lock learns of the loss when the row is next read, a round trip later. The same applies when another client force releases a waiter that got the lock by a local hand-off |
//! | a waiter is granted the lock and force released before its caller fetches the grant | the next row read lacks the claim: the grant is withdrawn |
//! | an operator requests a release | a mark in the row, and a notification where the database has them; a client finds the mark with its next read |
//! | after a local hand-off, the new holder cannot be written to the row, or it is unknown whether it was | there are no more local hand-offs until a write succeeds; the holder's lease ends as last written, unless the next renewal writes it |
//! | a pooler gives each transaction another session | detected before any state is kept in a session, and refused; with `pooler=transaction`, no state is kept in a session and no statement is prepared |
//! | the server is short of connections | a client without a lock closes its own and polls ([`connections`](crate::logic::connections)); a waiting client that is refused one keeps waiting |

mod batch;
mod batch_outcome;
mod dry_run;
mod engine;
mod inspect;
mod lock_state;
mod notifications;
mod state;
mod step;
mod version_poll;
mod wait_task;
mod wakeup_locks;
mod wire;

pub(super) use self::wire::acquire_and_release_statements;

pub use self::dry_run::{corruption, dry_run};
pub(super) use self::engine::LeaseEngine;
