//! Who looks whether the connections that hold are still there.
//!
//! PostgreSQL's driver reads all the time, and hears of an end at once. MySQL's reads only while a statement is under way, and nothing
//! may be sent on a connection that holds to find out: that would keep the lock of a holder that does not renew it. So the server is asked on
//! another connection which of ours it has; if one is missing, its own task asks on it, and that decides.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::super::Dialect;
use super::super::link::Value;
use super::room::Room;

/// All connections of our user.
const OURS: &str = "SELECT id FROM information_schema.processlist";

/// Looks from time to time, until the engine is gone.
pub(super) async fn watch(room: Weak<Room>) {
    loop {
        let Some(strong) = room.upgrade() else { return };
        if strong.wire.dialect != Dialect::MySql {
            return;
        }
        look(&strong).await;
        let (clock, pause) = (strong.clock.clone(), strong.config.poll);
        drop(strong);
        clock.sleep_until(clock.now().after(pause)).await;
    }
}

async fn look(room: &Arc<Room>) {
    // First who holds, then who is there: whoever comes between is not missed.
    let held: Vec<_> =
        room.seats.held().into_iter().map(|seat| (seat.connection.load(Ordering::Acquire), seat)).collect();
    if held.is_empty() {
        return;
    }
    let there: HashSet<i64> = match room.side.run(OURS, &[]).await {
        Ok(reply) => reply.rows.iter().filter_map(|row| row.first().and_then(Value::int)).collect(),
        Err(failure) => {
            room.side.forget_idle();
            tracing::debug!(?failure, "the connections could not be looked after");
            HashSet::new()
        }
    };
    for (id, seat) in held {
        if id != 0 && !there.contains(&id) {
            seat.doubt.notify_one();
        }
    }
}
