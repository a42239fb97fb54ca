//! Checks whether others have written to our rows, where no notification reaches us (MySQL,
//! `wake=poll`, a broken connection). So a force-released holder, and the waiter behind it, know
//! within 500 ms, however long the TTL is.
//!
//! One statement reads the versions of up to 256 locks by their primary key. It leaves out rows
//! that were read or written within the last [`POLL_INTERVAL`]. It does not run while no row has a
//! claim of ours: short holds cost no statement.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::engine::{DEFAULT_STEP_TIMEOUT, LeaseEngine};
use super::lock_state::{LockState, lock};
use super::step::Op;
use crate::engine::sql::error::Failure;
use crate::types::ClaimId;

/// How often versions are read, and how old a row must be for it. Both together, plus a round trip,
/// are below 500 ms.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// How many locks one statement covers.
pub(super) const MAX_BATCH: usize = 256;

/// Runs as long as the engine lives.
pub(super) async fn run(engine: Weak<LeaseEngine>) {
    loop {
        let Some(strong) = engine.upgrade() else { return };
        let (clock, cached) = (strong.clock.clone(), Arc::clone(&strong.row_cached));
        let idle = !strong.is_unsubscribed() || strong.known_versions(Duration::ZERO).is_empty();
        drop(strong);
        if idle {
            // The engine's end sends no notification if its last row is dropped by then, so this
            // wakes now and then.
            let _ = clock.timeout(DEFAULT_STEP_TIMEOUT, cached.notified()).await;
        }
        clock.sleep(POLL_INTERVAL).await;
        let Some(strong) = engine.upgrade() else { return };
        // If the server is short of connections, a client that only waits opens none for this: it
        // polls its claims anyway.
        if !strong.is_unsubscribed() || strong.pool.is_releasing_idle() {
            continue;
        }
        for some in strong.known_versions(POLL_INTERVAL).chunks(MAX_BATCH) {
            if let Err(failure) = strong.poll_versions(some).await {
                tracing::debug!(?failure, "versions could not be read");
            }
        }
    }
}

/// A lock whose row is cached, and its version.
type KnownVersion = (Arc<LockState>, i64);

impl LeaseEngine {
    /// The rows that have a claim of ours and were not read or written for `age`.
    fn known_versions(&self, age: Duration) -> Vec<KnownVersion> {
        let now = self.clock.now();
        let lock_states: Vec<Arc<LockState>> = lock(&self.lock_states).values().cloned().collect();
        let known = |lock_state: Arc<LockState>| {
            let inner = lock_state.lock();
            let row = inner.row.as_ref().filter(|row| now.duration_since(row.reading.received) >= age)?;
            let version = row.version;
            drop(inner);
            Some((lock_state, version))
        };
        lock_states.into_iter().filter_map(known).collect()
    }

    /// Reads the versions of some rows, then every row that others have written or deleted.
    async fn poll_versions(self: &Arc<Self>, rows: &[KnownVersion]) -> Result<(), Failure> {
        let names: Vec<&str> = rows.iter().map(|(lock_state, _)| lock_state.name.as_str()).collect();
        let (sql, values) = self.sql.versions(&names);
        let mut connection = self.pool.borrow().await?;
        let reply = self.run(&mut connection, &sql, &values).await?;
        drop(connection);
        let mut found: HashMap<&str, i64> = HashMap::new();
        for row in &reply.rows {
            if let [name, version] = &row[..]
                && let (Some(name), Some(version)) = (name.text(), version.int())
            {
                found.insert(name, version);
            }
        }
        for (lock_state, version) in
            rows.iter().filter(|(lock_state, version)| found.get(lock_state.name.as_str()) != Some(version))
        {
            self.refresh_changed_row(lock_state, *version).await;
        }
        Ok(())
    }

    /// Reads a row that others have changed. Claims of ours that no longer hold are checked by a
    /// renewal, and so learn of their loss.
    async fn refresh_changed_row(self: &Arc<Self>, lock_state: &Arc<LockState>, version: i64) {
        let held: Vec<ClaimId> = {
            let mut inner = lock_state.lock();
            let Some(row) = inner.row.as_ref().filter(|row| row.version == version && !inner.is_running_rounds) else {
                // We have written it, or are about to.
                return;
            };
            let own_holders =
                row.content.table.holders.iter().filter(|contender| contender.details.client_id == self.client_id);
            let held = own_holders.map(|contender| contender.claim).collect();
            inner.invalidate_row();
            held
        };
        if let Err(error) = self.submit(lock_state, Op::Check, DEFAULT_STEP_TIMEOUT).await {
            tracing::debug!(%error, name = %lock_state.name, "a row could not be read");
        }
        let removed = |claim: &ClaimId| {
            lock_state.lock().row.as_ref().is_none_or(|row| row.content.table.holder(*claim).is_none())
        };
        for claim in held.into_iter().filter(removed) {
            self.losses.report_maybe_lost(claim);
        }
    }
}
