//! Checks whether others have written to our rows, where no notification reaches us (MySQL,
//! `wake=poll`, a broken connection). So a force-released holder, and the waiter behind it, know
//! within 500 ms, however long the TTL is.
//!
//! One statement reads the versions of up to 256 locks by their primary key. It leaves out rows
//! that were read or written within the last [`PULSE`]. Nothing runs while no row has a claim of
//! ours: short holds cost nothing.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::engine::{LeaseEngine, UNHURRIED};
use super::lot::{Lot, lock};
use super::step::Op;
use crate::claim::ClaimId;
use crate::engine::sql::error::Failure;

/// How often versions are read, and how old a row must be for it. Both together, plus a round trip,
/// are below 500 ms.
const PULSE: Duration = Duration::from_millis(200);

/// How many locks one statement covers.
pub(super) const AT_ONCE: usize = 256;

/// Runs as long as the engine lives.
pub(super) async fn attend(engine: Weak<LeaseEngine>) {
    loop {
        let Some(strong) = engine.upgrade() else { return };
        let (clock, kept) = (strong.clock.clone(), Arc::clone(&strong.kept));
        let idle = !strong.is_deaf() || strong.rows(Duration::ZERO).is_empty();
        drop(strong);
        if idle {
            // The engine's end sends no notification if its last row is gone by then, so this wakes
            // now and then.
            let _ = clock.timeout(UNHURRIED, kept.notified()).await;
        }
        clock.sleep(PULSE).await;
        let Some(strong) = engine.upgrade() else { return };
        // If the server is short of connections, a client that only waits opens none for this: it
        // polls its claims anyway.
        if !strong.is_deaf() || strong.pool.spares() {
            continue;
        }
        for some in strong.rows(PULSE).chunks(AT_ONCE) {
            if let Err(failure) = strong.compare(some).await {
                tracing::debug!(?failure, "versions could not be read");
            }
        }
    }
}

/// A lock whose row we know, and its version.
type Known = (Arc<Lot>, i64);

impl LeaseEngine {
    /// The rows that have a claim of ours and were not read or written for `age`.
    fn rows(&self, age: Duration) -> Vec<Known> {
        let now = self.clock.now();
        let lots: Vec<Arc<Lot>> = lock(&self.lots).values().cloned().collect();
        let known = |lot: Arc<Lot>| {
            let inside = lot.lock();
            let row = inside.row.as_ref().filter(|row| now.since(row.reading.heard) >= age)?;
            let version = row.version;
            drop(inside);
            Some((lot, version))
        };
        lots.into_iter().filter_map(known).collect()
    }

    /// Reads the versions of some rows, then every row that others have written or deleted.
    async fn compare(self: &Arc<Self>, rows: &[Known]) -> Result<(), Failure> {
        let names: Vec<&str> = rows.iter().map(|(lot, _)| lot.name.as_str()).collect();
        let (sql, values) = self.sql.versions(&names);
        let mut link = self.pool.borrow().await?;
        let reply = self.run(&mut link, &sql, &values).await?;
        drop(link);
        let mut found: HashMap<&str, i64> = HashMap::new();
        for row in &reply.rows {
            if let [name, version] = &row[..]
                && let (Some(name), Some(version)) = (name.text(), version.int())
            {
                found.insert(name, version);
            }
        }
        for (lot, version) in rows.iter().filter(|(lot, version)| found.get(lot.name.as_str()) != Some(version)) {
            self.written_by_others(lot, *version).await;
        }
        Ok(())
    }

    /// Reads a row that others have changed. Claims of ours that no longer hold are checked by a
    /// renewal, and so learn of their loss.
    async fn written_by_others(self: &Arc<Self>, lot: &Arc<Lot>, version: i64) {
        let held: Vec<ClaimId> = {
            let mut inside = lot.lock();
            let Some(row) = inside.row.as_ref().filter(|row| row.version == version && !inside.at_work) else {
                // We have written it, or are about to.
                return;
            };
            let ours = row.content.table.holders.iter().filter(|party| party.note.inbox == self.inbox);
            let held = ours.map(|party| party.claim).collect();
            inside.hear();
            held
        };
        if let Err(error) = self.ask(lot, Op::Check, UNHURRIED).await {
            tracing::debug!(%error, name = %lot.name, "a row could not be read");
        }
        let gone =
            |claim: &ClaimId| lot.lock().row.as_ref().is_none_or(|row| row.content.table.holder(*claim).is_none());
        for claim in held.into_iter().filter(gone) {
            self.losses.check(claim);
        }
    }
}
