//! Checks that the connections of holders still exist.
//!
//! PostgreSQL's driver reads all the time, and notices the end of a connection at once. MySQL's
//! driver reads only while a statement runs. Nothing may be sent on a holder's connection to find
//! out: that would prolong the lock of a holder that does not renew. So another connection asks the
//! server which of ours it has. If one is missing, its own task sends a statement on it, and the
//! answer decides.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::super::Dialect;
use super::super::connection::Value;
use super::session_pool::SessionPool;

/// All connections of our user.
const CONNECTION_IDS_QUERY: &str = "SELECT id FROM information_schema.processlist";

/// Checks every `poll`, until the engine is gone.
pub(super) async fn run(room: Weak<SessionPool>) {
    loop {
        let Some(strong) = room.upgrade() else { return };
        if strong.wire.dialect != Dialect::MySql {
            return;
        }
        check_holders(&strong).await;
        let (clock, pause) = (strong.clock.clone(), strong.config.poll);
        drop(strong);
        clock.sleep_until(clock.now().saturating_add(pause)).await;
    }
}

async fn check_holders(room: &Arc<SessionPool>) {
    // First the holders, then the connections: a holder that comes in between is not taken for
    // missing.
    let held: Vec<_> =
        room.claims.holders().into_iter().map(|seat| (seat.connection.load(Ordering::Acquire), seat)).collect();
    if held.is_empty() {
        return;
    }
    let there: HashSet<i64> = match room.side_pool.run(CONNECTION_IDS_QUERY, &[]).await {
        Ok(reply) => reply.rows.iter().filter_map(|row| row.first().and_then(Value::int)).collect(),
        Err(failure) => {
            room.side_pool.discard_idle();
            tracing::debug!(?failure, "the connections could not be looked after");
            HashSet::new()
        }
    };
    for (id, seat) in held {
        if id != 0 && !there.contains(&id) {
            seat.recheck.notify_one();
        }
    }
}
