//! `technique=session` and `technique=for-update`: an open database session holds the lock, and the
//! lock ends with the session.
//!
//! # The protocol
//! Every claim that holds has a connection of its own. So has this client's first waiter for each
//! name; the client's other waiters wait in its memory, in order. `connections=` limits the
//! connections. One or two of them are reserved for statements on behalf of no lock.
//!
//! - **Idle time.** The server ends the session when it receives no statement for a TTL
//!   (`wait_timeout`, `idle_session_timeout`, `idle_in_transaction_session_timeout`). So it frees
//!   the lock of a holder that is stopped, partitioned or dead, and never before the holder's own
//!   deadline. That deadline counts from when the last answered statement was *sent*.
//! - **Acquire.** `session`: `GET_LOCK(key, 0)`, `pg_try_advisory_lock(key)`. `for-update`: a
//!   statement of its own creates a missing row (without a row, both clients would pass), then
//!   `BEGIN` and `SELECT … FOR UPDATE SKIP LOCKED`. Only a clear yes is a grant.
//! - **Wait.** The same statements without the time limit: one statement for as long as the claim
//!   waits, since a new one would lose the position. When a claim stops waiting, another connection
//!   ends the statement (`KILL QUERY`, a cancel request). The session then releases *everything*
//!   that it may have, because the grant may have come in that moment.
//! - **Token.** A counter per name in a table, `greatest(counter + 1, microseconds of the
//!   database's clock)`, raised *after* the lock was acquired. `session`: on the session itself,
//!   each statement in its own transaction; the answer shows that the lock was held meanwhile.
//!   `for-update`: on another connection, since a rollback would undo it on its own. A statement on
//!   the session then shows that the lock was held all the time.
//! - **Renew.** A statement on the session. Its answer shows that the session still lived after the
//!   statement was sent. (In MySQL: that the lock is its own.)
//! - **Release.** `RELEASE_LOCK`, `pg_advisory_unlock`, `ROLLBACK`. The connection is reused only
//!   if the answer shows that the session holds no lock.
//! - **Loss.** PostgreSQL's driver notices the end of a connection at once. MySQL's does not while
//!   idle. Every `poll`, another connection asks the server which sessions of this user it has. (A
//!   query on the connection itself would prolong the lock of a holder that does not renew.)
//!
//! # What if
//! | event | consequence |
//! |---|---|
//! | the reply to an acquire is lost | the connection is broken too, or cut after `connect-timeout`: the server releases the lock; the retry uses a new session |
//! | the reply to a waiting claim's statement is lost | its queue position is lost; the claim tries again, at the end of the queue |
//! | the reply to the increment of a token counter is lost | the counter is incremented again: numbers are skipped, none is given twice |
//! | the reply to a renewal is lost | the lease runs down; the session, and so the lock, counts as lost after a TTL at the latest |
//! | one of several leases that are renewed together gets no answer | the others get theirs: each has a time limit of its own, shorter than the keeper's for all of them |
//! | the reply to a statement on behalf of no lock (counters, checks) is lost | it is sent again on another connection after `connect-timeout` |
//! | the reply to a release is lost | the connection is closed, and with it the session and its lock, by the idle time at the latest. It is unknown whether the holder held the lock until then: reported as lost |
//! | a caller stops waiting for the lock | the claim's task goes on; it releases a claim that no caller has wanted for a TTL |
//! | a client's process is killed | the kernel closes its connections: the server frees all its locks at once |
//! | a client's machine or its network fails | the server ends the session after its idle time; a dead waiter is found when it is granted the lock (PostgreSQL: within a second) |
//! | a client's process is stopped while it acquires the lock | the server frees the lock a TTL after the grant |
//! | a client's process is stopped while it holds the lock | the server frees the lock a TTL after the last statement; the holder's own deadline passed before |
//! | a client's process is stopped after it acquired the lock and before it incremented the token counter | the increment fails because the session has ended; or it succeeds on another connection, and then the session is found ended. Either way there is no grant |
//! | two clients acquire at once | the server decides; its answer is the grant |
//! | the server ends a connection | waiting: tries again; releasing: reported as lost; holding: lost. **The lock is free at once, and its holder learns of it a moment later** (PostgreSQL: with the end of the connection; MySQL: within `poll`, at most 1 s). Until then two clients believe that they hold, and their tokens differ |
//! | the server is killed | all sessions end, and all locks; counters are kept, and never fall behind the clock |
//! | a statement fails by a deadlock (1213, 40P01) or a lock wait timeout (1205, 55P03) | it had no effect. The counter is tried four times in all, then the lock is released and the error gives the reason; a wait is started again |
//! | another transaction keeps the row of a token counter locked, for a PostgreSQL session, which has no lock timeout | there is no answer within `connect-timeout`: the connection is closed, and the lock freed |
//! | the server accepts no writes | the counter cannot be incremented: the lock is released, and the error gives the reason |
//! | the database's clock jumps | back: the counter continues by one; forward: it continues from there. That clock has no other use |
//! | a client's wall clock jumps | no effect: clients read only their monotonic clock |
//! | two lock names have the same key (PostgreSQL only; 1 in 2^64 for each pair) | the two locks exclude each other; there are never two holders |
//!
//! # What is assumed
//! - All clients use the same technique, table and server.
//! - No proxy between client and server changes sessions. A pooler in transaction mode is detected
//!   at opening and refused; so is Galera.
//! - After a failover, the locks of the first server are over only for clients that notice. A
//!   server that was partitioned but not stopped still holds locks for clients that reach it. Their
//!   tokens are lower, or the resource cannot distinguish them.
//! - The server's clock does not run more than 1 % fast.

mod claim_entry;
mod claim_error;
mod claim_task;
mod dry_run;
mod engine;
mod session;
mod session_check;
mod session_pool;
mod wire;

use std::sync::Arc;
use std::time::Duration;

pub use self::dry_run::dry_run;
pub use self::engine::SessionLockEngine;

use self::session_pool::SessionPool;
use self::wire::{ServerKind, SessionStatements};
use super::Dialect;
use super::config::{Config, Technique};
use super::connection::Value;
use super::pool::Pool;
use crate::clock::Clock;
use crate::engine::{Capabilities, Engine, Expiry, Fencing};
use crate::types::{Error, ErrorKind, Result};

/// For [`Capabilities::tolerates`], of all these engines.
const TOLERATES: &str =
    "any client's crash, cut or pause; the server's crash and restart (all locks are lost then, tokens rise)";

/// For [`Capabilities::fails_when`], of MySQL and MariaDB.
const MYSQL_FAILS_WHEN: &str = "a session that the server ends: its lock is free at once, and its holder learns of it within poll=; \
    a failover that leaves the old server up; a proxy that changes sessions; clients of other techniques";
/// For [`Capabilities::fails_when`], of PostgreSQL.
const POSTGRES_FAILS_WHEN: &str = "a session that the server ends: its lock is free at once, and its holder learns of it a moment later; \
    a failover that leaves the old server up; a pooler that changes sessions; clients of other techniques";

/// The capabilities that the engines of both techniques and both databases share.
const fn base(engine: &'static str) -> Capabilities {
    Capabilities {
        fencing: Fencing::Durable,
        records: true,
        expiry: Expiry::LeaseOrProcessDeath,
        // MySQL's idle time is in whole seconds.
        min_ttl: Duration::from_secs(1),
        tolerates: TOLERATES,
        ..Capabilities::exclusive_only(engine)
    }
}

/// Capabilities of `mysql:…?technique=session`, whose locks are `GET_LOCK`'s.
pub const MYSQL_SESSION: Capabilities = Capabilities { fails_when: MYSQL_FAILS_WHEN, ..base("mysql") };

/// Capabilities of `mysql:…?technique=for-update`.
pub const MYSQL_FOR_UPDATE: Capabilities = Capabilities {
    shared: true,
    fails_when: MYSQL_FAILS_WHEN,
    warning: "a transaction is open for as long as the lock is held",
    ..base("mysql")
};

/// Capabilities of `postgres:…?technique=session`, whose locks are advisory locks.
pub const POSTGRES_SESSION: Capabilities =
    Capabilities { shared: true, fails_when: POSTGRES_FAILS_WHEN, ..base("postgres") };

/// Capabilities of `postgres:…?technique=for-update`.
pub const POSTGRES_FOR_UPDATE: Capabilities = Capabilities {
    shared: true,
    fails_when: POSTGRES_FAILS_WHEN,
    warning: "a transaction is open for as long as the lock is held: rows that change in that time cannot be vacuumed; readers may overtake a waiting writer",
    ..base("postgres")
};

/// The capabilities of the database and technique in the URL.
fn capabilities(config: &Config) -> Capabilities {
    match (config.dialect, config.technique) {
        (Dialect::MySql, Technique::ForUpdate) => MYSQL_FOR_UPDATE,
        (Dialect::MySql, _) => MYSQL_SESSION,
        (Dialect::Postgres, Technique::ForUpdate) => POSTGRES_FOR_UPDATE,
        (Dialect::Postgres, _) => POSTGRES_SESSION,
    }
}

/// Opens the engine of the URL's technique. Connects, so that errors show now and not with the
/// first lock, and creates the tables that do not exist.
pub(super) async fn open(config: Config, clock: &Clock) -> Result<Arc<dyn Engine>> {
    let config = Arc::new(config);
    // Reserved for statements that increment token counters, cancel other statements and check
    // sessions. Holders and waiters cannot use these connections up.
    let side_connections = if config.connections >= 8 { 2 } else { 1 };
    let side_pool = Pool::new(&Arc::new(Config { connections: side_connections, ..Config::clone(&config) }));
    let server = detect_server(&side_pool, &config).await?;
    let mut connection = side_pool.borrow_or_error().await?;
    super::create_tables(&config, &mut connection).await.map_err(|failure| side_pool.to_error(&failure))?;
    drop(connection);
    let engine_capabilities = capabilities(&config);
    let max_sessions = config.connections - side_connections;
    let wire = SessionStatements::new(&config, server);
    let pool = Arc::new(SessionPool::new(config, wire, clock.clone(), side_pool, max_sessions));
    // Opens a connection for the first lock in advance, because logging in takes long.
    let first = session::Session::open(&pool).await.map_err(|failure| pool.side_pool.to_error(&failure))?;
    pool.return_session(first).await;
    Ok(Arc::new(SessionLockEngine::new(pool, engine_capabilities)))
}

/// Finds out which server this is. An error if the locks of its sessions do not exclude all
/// clients, or if the server does not end idle sessions.
async fn detect_server(side_pool: &Arc<Pool>, config: &Config) -> Result<ServerKind> {
    let unsupported = |message: &str| {
        Err(Error::new(ErrorKind::Unsupported, format!("{} {message}: use technique=row", side_pool.server))
            .at_engine(config.dialect.name()))
    };
    match config.dialect {
        Dialect::MySql => {
            let reply = side_pool.run("SELECT VERSION()", &[]).await.map_err(|failure| side_pool.to_error(&failure))?;
            let maria = reply.value().and_then(Value::text).is_some_and(|version| version.contains("MariaDB"));
            if super::parse_is_galera(side_pool.run(super::IS_GALERA_QUERY, &[]).await)
                .map_err(|failure| side_pool.to_error(&failure))?
            {
                return unsupported("is part of a Galera cluster, whose nodes do not share the locks of sessions");
            }
            Ok(ServerKind { is_mariadb: maria, version: 0 })
        }
        Dialect::Postgres => {
            if super::pooler::has_transaction_pooler(config).await.map_err(|failure| side_pool.to_error(&failure))? {
                return unsupported(
                    "is behind a pooler that gives each transaction another session, so the lock would belong to any program: connect to the \
                     server itself, or add pooler=transaction",
                );
            }
            let sql = "SELECT current_setting('server_version_num')::bigint";
            let reply = side_pool.run(sql, &[]).await.map_err(|failure| side_pool.to_error(&failure))?;
            let version = reply.value().and_then(Value::int).unwrap_or(0);
            if version < 140_000 && config.technique == Technique::Session {
                return unsupported("is older than PostgreSQL 14, and does not end idle sessions");
            }
            Ok(ServerKind { is_mariadb: false, version })
        }
    }
}
