//! Checks that the sessions of holders still exist, for MySQL.
//!
//! PostgreSQL's client library reads all the time, and notices the end of a connection at once.
//! MySQL's reads only while a statement runs. A check on the holder's own session would prolong the
//! lock of a holder that does not renew. So another connection asks the server for its list of
//! sessions. If a holder's session is missing, the claim's own task sends a statement on it, and
//! the answer decides.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::super::Dialect;
use super::super::connection::Value;
use super::session_pool::SessionPool;

/// The numbers of all sessions of this database user.
const CONNECTION_IDS_QUERY: &str = "SELECT id FROM information_schema.processlist";

/// Checks at the interval `poll=` of the URL, until the engine is dropped. Ends at once for
/// PostgreSQL.
pub(super) async fn run(pool: Weak<SessionPool>) {
    loop {
        let Some(strong) = pool.upgrade() else { return };
        if strong.wire.dialect != Dialect::MySql {
            return;
        }
        check_holders(&strong).await;
        let (clock, pause) = (strong.clock.clone(), strong.config.poll);
        drop(strong);
        clock.sleep_until(clock.now().saturating_add(pause)).await;
    }
}

/// Makes the tasks of holders check their sessions if the server does not list them, or does not
/// answer.
async fn check_holders(pool: &Arc<SessionPool>) {
    // The holders are listed before the sessions, so that a session which begins in between is not
    // taken for missing.
    let held: Vec<_> =
        pool.claims.holders().into_iter().map(|entry| (entry.connection.load(Ordering::Acquire), entry)).collect();
    if held.is_empty() {
        return;
    }
    let live_ids: HashSet<i64> = match pool.side_pool.run(CONNECTION_IDS_QUERY, &[]).await {
        Ok(reply) => reply.rows.iter().filter_map(|row| row.first().and_then(Value::int)).collect(),
        Err(failure) => {
            pool.side_pool.discard_idle();
            tracing::debug!(?failure, "the server did not list its sessions; each holder checks its own");
            HashSet::new()
        }
    };
    for (id, entry) in held {
        if id != 0 && !live_ids.contains(&id) {
            entry.recheck.notify_one();
        }
    }
}
