//! `technique=session` and `technique=for-update`: the lock is what an open session of the database has, and ends with it.
//!
//! # The protocol
//! Every claim that holds has a connection of its own, and so has the first of this client that waits for a name; those behind it wait here, in
//! order. `connections=` bounds them all; one or two of them are kept for what holds nothing.
//!
//! - **Idle time.** The session is told to end when nothing is heard of it for the TTL (`wait_timeout`, `idle_session_timeout`,
//!   `idle_in_transaction_session_timeout`): by this the server frees the lock of a holder that is stopped, cut off or gone, and never before
//!   the holder's own deadline, which counts from when the last answered statement was *sent*.
//! - **Take.** `session`: `GET_LOCK(key, 0)`, `pg_try_advisory_lock(key)`. `for-update`: the row is made by a statement of its own if it is not there
//!   (a missing row would let both pass), then `BEGIN` and `SELECT … FOR UPDATE SKIP LOCKED`. Only a clear yes is a grant.
//! - **Wait.** The same without the bound, one statement for as long as the claim waits: a new one would lose the place. Who leaves has it ended from
//!   beside (`KILL QUERY`, a cancel request), and then gives back *all* that the session may have: the grant may have come in that moment.
//! - **Token.** A counter of the name in a table, `greatest(counter + 1, microseconds of the database's clock)`, raised *after* the lock was
//!   got. `session`: on the session itself, each statement its own transaction; the answer shows that the lock was held meanwhile.
//!   `for-update`: on another connection (what its own transaction writes is undone with it), and then a statement on the session shows that the
//!   lock was held all the time.
//! - **Renew.** A statement on the session. Its answer shows that the session lived after it was sent. (MySQL: that the lock is its own.)
//! - **Give back.** `RELEASE_LOCK`, `pg_advisory_unlock`, `ROLLBACK`. The connection is used again only if the answer shows that nothing is left.
//! - **Loss.** PostgreSQL's driver hears of a connection's end at once. MySQL's hears nothing while idle; the server is asked elsewhere, every `poll`,
//!   which of our connections it has (asking on the connection itself would keep the lock of somebody who does not renew it).
//!
//! # What if
//! | | |
//! |---|---|
//! | the reply to a take is lost | the connection is broken with it, or cut after `connect-timeout`: the server lets go; the next try is a new session |
//! | ... while it waits | the place is lost; the claim asks again, and comes last |
//! | ... to the raising of the counter | it is raised again: numbers are left out, none is given twice |
//! | ... to a renewal | the session is taken for lost, and the claim with it, not later than a TTL after; until then the lease runs down |
//! | ... while other leases of the client are renewed | those are told theirs: each is waited for by itself, for less long than the keeper waits for all |
//! | ... to what holds nothing (counters, looks) | asked again on another connection after `connect-timeout` |
//! | ... to a give-back | the connection is cut; what is left of the lock ends with it, by the idle time at the latest. Whether the lock was ours until then is not known: it is said to be lost |
//! | the caller goes away | the claim's task goes on; a claim that is not wanted for a TTL leaves |
//! | the process is killed | the kernel closes its connections: the server frees all its locks at once |
//! | ... or the machine, or the line | the idle time ends the session; who waits is found out when it is granted (PostgreSQL: within a second) |
//! | the process stops, before the lock is got | the server frees it a TTL after the grant |
//! | ... while it holds | the same; its own deadline was over before |
//! | ... between lock and counter | it raises the counter on a session that is over (fails), or elsewhere, and then finds its session over: no grant |
//! | two take at once | the server decides; its answer is the grant |
//! | the server ends a connection | waiting: asks again; releasing: said to be lost; holding: lost. **The lock is free at once, and its holder hears of it a moment later** (PostgreSQL: with the end of the connection; MySQL: within `poll`, of 1 s at most): until then two believe that they hold, and the token tells them apart |
//! | the server is killed | all sessions end, and all locks; counters are kept, and never fall behind the clock |
//! | a deadlock (1213, 40P01), a lock wait timeout (1205, 55P03) | the statement was not done: the counter is tried again, four times in all, then the lock is given back and the error says why; a wait is asked for again |
//! | ... of a counter that somebody keeps locked, on a session of PostgreSQL, which has none | no answer within `connect-timeout`: the connection is cut, and the lock with it |
//! | a server that takes no writes | the counter cannot be raised: the lock is given back, and the error says so |
//! | the database's clock jumps | back: the counter goes on by one; forward: it goes on from there. Nothing else reads it |
//! | our clock | only the monotonic one is read |
//! | two names have one key | PostgreSQL only, 1 in 2^64 for each pair: they exclude each other, and never are two in |
//!
//! # What is assumed
//! All clients use the same technique, table and server. A pooler in transaction mode is looked for at opening, and refused; so is Galera. A failover to another server ends the locks of the first only for those who notice: a server that
//! was cut off and is not stopped goes on holding for those who still reach it; their tokens are then lower, or the resource cannot tell. Nothing
//! between us and the server changes sessions (a pooler in transaction mode), and the server's clock does not run more than 1 % fast.

mod engine;
mod room;
mod seat;
mod serve;
mod session;
mod trial;
mod trouble;
mod watch;
mod wire;

use std::sync::Arc;
use std::time::Duration;

pub use self::engine::HeldEngine;
pub(super) use self::trial::take_back;

use self::room::Room;
use self::wire::{Server, Wire};
use super::Dialect;
use super::config::{Config, Technique};
use super::link::Value;
use super::pool::Pool;
use crate::clock::Clock;
use crate::engine::{Capabilities, Engine, Expiry, Fencing};
use crate::error::{Error, ErrorKind, Result};

const SURVIVES: &str =
    "any client's crash, cut or pause; the server's crash and restart (all locks are lost then, tokens rise)";

const MYSQL_BREAKS: &str = "a session that the server ends: its lock is free at once, and its holder learns of it within poll=; \
    a failover that leaves the old server up; a proxy that changes sessions; clients of other techniques";
const POSTGRES_BREAKS: &str = "a session that the server ends: its lock is free at once, and its holder learns of it a moment later; \
    a failover that leaves the old server up; a pooler that changes sessions; clients of other techniques";

/// What all of them can do.
const fn base(engine: &'static str) -> Capabilities {
    Capabilities {
        fencing: Fencing::Durable,
        records: true,
        expiry: Expiry::LeaseOrDeath,
        // MySQL's idle time is in whole seconds.
        min_ttl: Duration::from_secs(1),
        survives: SURVIVES,
        ..Capabilities::exclusive_only(engine)
    }
}

/// `mysql:…?technique=session`: `GET_LOCK`.
pub const MYSQL_SESSION: Capabilities = Capabilities { breaks: MYSQL_BREAKS, ..base("mysql") };

/// `mysql:…?technique=for-update`.
pub const MYSQL_FOR_UPDATE: Capabilities = Capabilities {
    shared: true,
    breaks: MYSQL_BREAKS,
    caution: "a transaction is open for as long as the lock is held",
    ..base("mysql")
};

/// `postgres:…?technique=session`: advisory locks.
pub const POSTGRES_SESSION: Capabilities = Capabilities { shared: true, breaks: POSTGRES_BREAKS, ..base("postgres") };

/// `postgres:…?technique=for-update`.
pub const POSTGRES_FOR_UPDATE: Capabilities = Capabilities {
    shared: true,
    breaks: POSTGRES_BREAKS,
    caution: "a transaction is open for as long as the lock is held: nothing that changed meanwhile can be vacuumed; readers may overtake a waiting writer",
    ..base("postgres")
};

fn capabilities(config: &Config) -> Capabilities {
    match (config.dialect, config.technique) {
        (Dialect::MySql, Technique::ForUpdate) => MYSQL_FOR_UPDATE,
        (Dialect::MySql, _) => MYSQL_SESSION,
        (Dialect::Postgres, Technique::ForUpdate) => POSTGRES_FOR_UPDATE,
        (Dialect::Postgres, _) => POSTGRES_SESSION,
    }
}

/// Opens it: connects once, so that what is wrong is known at once, and makes the tables that are not there.
pub(super) async fn open(config: Config, clock: &Clock) -> Result<Arc<dyn Engine>> {
    let config = Arc::new(config);
    // Those who hold must not keep a counter from being raised, nor a statement from being ended.
    let beside = if config.connections >= 8 { 2 } else { 1 };
    let side = Pool::new(&Arc::new(Config { connections: beside, ..Config::clone(&config) }));
    let server = find_out(&side, &config).await?;
    let mut link = side.take().await?;
    super::make_tables(&config, &mut link).await.map_err(|failure| side.tell(&failure))?;
    drop(link);
    let can = capabilities(&config);
    let places = config.connections - beside;
    let wire = Wire::new(&config, server);
    let room = Arc::new(Room::new(config, wire, clock.clone(), side, places));
    // Logging in may take longer than a lock: the first of them shall not wait for it.
    let first = session::Session::open(&room).await.map_err(|failure| room.side.tell(&failure))?;
    room.keep(first).await;
    Ok(Arc::new(HeldEngine::new(room, can)))
}

/// Which server it is, and whether its sessions' locks exclude all its clients.
async fn find_out(side: &Arc<Pool>, config: &Config) -> Result<Server> {
    let unsupported = |message: &str| {
        Err(Error::new(ErrorKind::Unsupported, format!("{} {message}: use technique=row", side.server))
            .at_engine(config.dialect.name()))
    };
    match config.dialect {
        Dialect::MySql => {
            let reply = side.run("SELECT VERSION()", &[]).await.map_err(|failure| side.tell(&failure))?;
            let maria = reply.value().and_then(Value::text).is_some_and(|version| version.contains("MariaDB"));
            if super::is_galera(side.run(super::IS_GALERA, &[]).await).map_err(|failure| side.tell(&failure))? {
                return unsupported("is part of a Galera cluster, whose nodes do not share the locks of sessions");
            }
            Ok(Server { maria, version: 0 })
        }
        Dialect::Postgres => {
            if super::pooler::changes_sessions(config).await.map_err(|failure| side.tell(&failure))? {
                return unsupported(
                    "is behind a pooler that gives each transaction another session, and the lock would be anybody's: connect to the server \
                     itself, or with pooler=transaction",
                );
            }
            let sql = "SELECT current_setting('server_version_num')::bigint";
            let reply = side.run(sql, &[]).await.map_err(|failure| side.tell(&failure))?;
            let version = reply.value().and_then(Value::int).unwrap_or(0);
            if version < 140_000 && config.technique == Technique::Session {
                return unsupported("is older than PostgreSQL 14, and does not end idle sessions");
            }
            Ok(Server { maria: false, version })
        }
    }
}
