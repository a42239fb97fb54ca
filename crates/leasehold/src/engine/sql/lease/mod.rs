//! `technique=row`, the default: a table of leases, one row a lock.
//!
//! # The protocol
//! A row has a `version`, the highest `token`, `busy` (when the last lease or place in the queue ends) and `state`: who holds and who waits, as JSON.
//! The row is kept when the lock is free: its token is the counter.
//!
//! - **Take.** One upsert, which succeeds if there is no row or `busy` is over on the database's clock. Its moment `x = greatest(token + 1, version
//!   + 1, microseconds of that clock)` is the new version, the token and the lease's beginning, so that one number comes back: by `RETURNING`, or by
//!   MySQL's `LAST_INSERT_ID(…)`, which needs no second statement either.
//! - **Everything else** is decided here, by [`Table`](crate::logic::table::Table) (the specification of all engines), on the row as it was read, and
//!   written with `UPDATE … WHERE version = what was read`. If somebody wrote first, nothing is written; it is read and decided again. No transaction is ever
//!   open between two messages: a client that is stopped half-way holds up nobody.
//! - **The last one leaves.** The same, as a plain `UPDATE` without a time: nobody is left whose lease has one, and whether it was made is told by the
//!   number of rows.
//! - **Rounds.** What is asked of one lock in this process meanwhile becomes one decision and one statement. The row is remembered while we have anybody there, so
//!   that a give-back, or a hand-over inside the process, is one statement.
//! - **Time.** The statement that writes puts the database's time in (`\u{1}` stands for it in the text on its way), so no client's clock is ever stored.
//!   Our own deadline counts from before the statement was sent, on the monotonic clock. What a row says of others is judged by the time that
//!   the database showed with it, or later by that plus what has passed here for sure.
//! - **Hand-over.** Whoever gives back lets the next in, in the same write. PostgreSQL tells it with a message in the same statement (`pg_notify` to the
//!   client's own channel; one connection listens). MySQL has none: see [`bells`]. Where neither is (a pooler, Galera, `wake=poll`), one of each
//!   client's waiters looks every `poll`. All are hints; behind them is a timer at the holder's end and at a third of the TTL.
//! - **Evictions.** PostgreSQL tells the client in the same statement. Where no messages are sent, each client reads the versions of its rows five times a
//!   second (`pulse`), and reads a row that others have written to. A waiter that is not in its row before its place can have lapsed was evicted.
//! - **Cohorts.** If those next in line are of the same client as the holder (exclusive, without an owner, of the same TTL), the write that
//!   finds them there takes a token for each in advance. Then they have the lock one after the other without a statement: in the row the first
//!   of them still holds, so nobody else comes in; the lease of each is what is left of that one's; and who has it now is written down
//!   meanwhile, with whatever else is asked ([`cohort`](crate::logic::cohort)). The order is the queue's, so nobody of another client waits longer.
//!
//! # What if
//! | | |
//! |---|---|
//! | the reply to any statement is lost | read again on another connection and decided again: the claim's number is in the row, so nothing is done twice |
//! | ... and the statement is done later | its version is not there any more: it writes nothing. A late take finds the row busy; on a free lock it leaves a lease for one TTL |
//! | the caller goes away | its claim departs by a step of its own |
//! | the process is killed or stops | its leases and places end by the database's clock; its own deadlines were over before |
//! | two write at once | one version wins; the other reads and decides again |
//! | a deadlock (1213), a serialization failure | nothing was done: again, at once |
//! | somebody locks our row (1205, 55P03) | the server gives up after a second (PostgreSQL: in half of a bound that is shorter than two): nothing was done; said, and tried again while the caller waits |
//! | ... and MySQL, which has only whole seconds, is too late for a TTL of a few | we stop waiting after a third of the TTL, and do not know what was done. The connection counts as ours until the server has given up, too |
//! | one of several leases that are renewed together gets no answer | the others are told theirs: each is waited for by itself, for less long than the keeper waits for all |
//! | connections go silent | after a third of the TTL the statement is given up; if no connection has said anything since, no idle one is used again, and the next try goes over a new one |
//! | the connection, or the server, is killed | leases are in the table: the next statement goes over a new connection |
//! | the database's clock is set back | a lease that begins in the future begins now (`state::read`); tokens go on from the highest |
//! | ... is set forward while a lock is held | **two holders**, until the first renews: as with every lease on a wall clock. Tokens tell them apart |
//! | a server takes over whose clock is ahead | **two holders** may be, until the first renews, for at most as long as the clocks are apart: a lease is judged by the clock of the server that is asked. `clock-skew=` of that distance prevents it; `leasehold doctor` compares the clocks |
//! | a fail-over loses the last commits | **two holders** may be; tokens still rise, as they never fall behind the clock |
//! | the row is deleted by hand | the holder loses it at its next renewal; a token below an older one is not given, because of the clock |
//! | two servers take writes (Galera) | a write on the same version fails at commit; `clock-skew=` is how far their clocks may be apart |
//! | the process is killed while its cohort is ahead of the row | the first of the cohort stands there until its lease ends, as if it had been the one killed |
//! | somebody puts out who stands in the row, but has passed it on | the eviction's token is above all that were taken in advance; whoever of the cohort has the lock is told that it is lost when the row is next read, a round trip later. So it is if somebody of another client puts out one who waits |
//! | a claim was let in, and evicted before anybody took that | the row that is read next does not have it: what it was given is taken back |
//! | an operator asks for a release | a mark in the row, and a message where there are any; a client finds the mark with whatever it reads next |
//! | who has it cannot be written down, or it is not known whether it was | nothing more is passed on until a write has been made; the lease ends here with what was written last, or the next renewal writes it |
//! | a pooler changes sessions | it is looked for before anything is kept in a session, and refused; with `pooler=transaction` nothing is kept in one, and no statement is prepared |
//! | the server is short of connections | a client that holds nothing gives its own up and polls ([`connections`](crate::logic::connections)); one that is refused while it waits goes on waiting |

mod bells;
mod engine;
mod inspect;
mod lot;
mod news;
mod pulse;
mod round;
mod settle;
mod state;
mod step;
mod trial;
mod watch;
mod wire;

pub(super) use self::wire::take_and_clear;

pub(super) use self::engine::LeaseEngine;
pub(super) use self::trial::{damage, take_back};
