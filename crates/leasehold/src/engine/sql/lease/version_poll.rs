//! Checks whether other clients have written to the rows of this client's claims, where no
//! notification reaches it (MySQL, `wake=poll`, a broken connection). So a force-released holder,
//! and the waiter behind it, learn of that within 500 ms, however long the TTL is.
//!
//! One statement reads the versions of up to 256 locks by their primary key. It leaves out rows
//! that were read or written within the last [`POLL_INTERVAL`]. It does not run while no row has a
//! claim of this client, so short holds cost no statement.
//!
//! The same task closes connections that the pool no longer needs.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::engine::{DEFAULT_STEP_TIMEOUT, LeaseEngine};
use super::lock_state::{LockState, lock};
use super::step::Op;
use crate::engine::sql::error::Failure;
use crate::types::ClaimId;

/// How often versions are read, and how long ago a row must have been read or written to be
/// included. Both together, plus a round trip, are below 500 ms.
const POLL_INTERVAL: Duration = Duration::from_millis(150);

/// How many locks' versions one statement reads.
pub(super) const MAX_LOCKS_PER_STATEMENT: usize = 256;

/// Polls until the engine is dropped.
pub(super) async fn run(engine: Weak<LeaseEngine>) {
    loop {
        let Some(strong) = engine.upgrade() else { return };
        let (clock, cached) = (strong.clock.clone(), Arc::clone(&strong.row_cached));
        let is_idle = !strong.is_unsubscribed() || strong.known_versions(Duration::ZERO).is_empty();
        drop(strong);
        if is_idle {
            // Nothing notifies this task when the engine is dropped, so it also wakes after a
            // timeout.
            let _ = clock.timeout(DEFAULT_STEP_TIMEOUT, cached.notified()).await;
        }
        clock.sleep(POLL_INTERVAL).await;
        let Some(strong) = engine.upgrade() else { return };
        strong.pool.close_unused();
        // A client that has closed its connections because the server is short of them opens none
        // for this. It only waits, and reads its rows from time to time anyway.
        if !strong.is_unsubscribed() || strong.pool.is_releasing_idle() {
            continue;
        }
        for rows in strong.known_versions(POLL_INTERVAL).chunks(MAX_LOCKS_PER_STATEMENT) {
            if let Err(failure) = strong.poll_versions(rows).await {
                tracing::debug!(?failure, "could not check whether other clients have written to the rows");
            }
        }
    }
}

/// A lock whose row is cached, and the row's version.
type KnownVersion = (Arc<LockState>, i64);

impl LeaseEngine {
    /// The cached rows that were last read or written at least `age` ago.
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

    /// Reads the versions of these rows, and then every row that other clients have written or
    /// deleted.
    async fn poll_versions(self: &Arc<Self>, rows: &[KnownVersion]) -> Result<(), Failure> {
        let names: Vec<&str> = rows.iter().map(|(lock_state, _)| lock_state.name.as_str()).collect();
        let (sql, values) = self.sql.versions(&names);
        let mut connection = self.pool.borrow().await?;
        let within = self.reply_timeout();
        let reply = self.clock.timeout(within, self.run(&mut connection, &sql, &values)).await;
        drop(connection);
        let reply = reply.unwrap_or_else(|_| Err(Failure::timed_out(within)))?;
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

    /// Reads a row that another client has changed since it had `version`. For claims of this
    /// client that do not hold any more, makes the keeper renew them, which finds the loss.
    async fn refresh_changed_row(self: &Arc<Self>, lock_state: &Arc<LockState>, version: i64) {
        let held_before: Vec<ClaimId> = {
            let mut inner = lock_state.lock();
            let Some(row) = inner.row.as_ref().filter(|row| row.version == version && !inner.is_running_batches) else {
                // This client has written the row since, or is about to.
                return;
            };
            let own_holders =
                row.content.table.holders.iter().filter(|contender| contender.details.client_id == self.client_id);
            let held = own_holders.map(|contender| contender.claim).collect();
            inner.invalidate_row();
            held
        };
        if let Err(error) = self.submit(lock_state, Op::Check, DEFAULT_STEP_TIMEOUT).await {
            tracing::debug!(%error, name = %lock_state.name, "could not read a row that another client has changed");
        }
        let is_lost = |claim: &ClaimId| {
            lock_state.lock().row.as_ref().is_none_or(|row| row.content.table.holder(*claim).is_none())
        };
        for claim in held_before.into_iter().filter(is_lost) {
            self.losses.report_maybe_lost(claim);
        }
    }
}
