//! Inspection of locks: what their rows show.

use super::batch::corrupt_row;
use super::engine::{DEFAULT_STEP_TIMEOUT, LeaseEngine};
use super::lock_state::{LockState, lock};
use super::state::{self, instant_from_micros};
use super::step::{Op, to_contender_view};
use super::wire::{self, StoredRow};
use crate::engine::LockView;
use crate::engine::sql::connection::Value;
use crate::engine::sql::error::Failure;
use crate::logic::lease::call_timeout;
use crate::types::{LockName, Result, Token};
use std::sync::Arc;

/// The holders and waiters of one lock.
pub(super) async fn inspect_lock(engine: &Arc<LeaseEngine>, name: LockName) -> Result<LockView> {
    engine.flush_holders(|lock_state| lock_state.name == name).await?;
    let (sql, values) = engine.sql.read(name.as_str());
    let reply = engine.read_query(sql, &values).await?;
    let Some(row) = reply.row() else { return Ok(LockView::free(name)) };
    let stored = wire::parse_row(row).map_err(|failure| engine.pool.to_error(&failure))?;
    to_lock_view(name, &stored).map_err(|failure| engine.pool.to_error(&failure))
}

/// All locks with holders or waiters whose names start with `prefix`. A damaged row is listed with
/// a description of the damage.
pub(super) async fn list_locks(engine: &Arc<LeaseEngine>, prefix: &str) -> Result<Vec<LockView>> {
    engine.flush_holders(|lock_state| lock_state.name.as_str().starts_with(prefix)).await?;
    let (sql, values) = engine.sql.list(prefix);
    let reply = engine.read_query(sql, &values).await?;
    let mut views = Vec::new();
    for row in &reply.rows {
        let Some((Value::Text(name), rest)) = row.split_first() else { continue };
        let Ok(name) = LockName::new(name) else { continue };
        let view = wire::parse_row(rest).and_then(|stored| to_lock_view(name.clone(), &stored));
        let view = view.unwrap_or_else(|failure| {
            let damage = Some(engine.pool.to_error(&failure).to_string());
            LockView { damage, ..LockView::free(name) }
        });
        if !view.holders.is_empty() || !view.waiters.is_empty() || view.damage.is_some() {
            views.push(view);
        }
    }
    Ok(views)
}

/// The view of a row, without the holders and waiters that have expired.
fn to_lock_view(name: LockName, stored: &StoredRow) -> Result<LockView, Failure> {
    let now = instant_from_micros(stored.now);
    let table = state::read(&stored.state, now)
        .map(|content| content.table)
        .map_err(|reason| corrupt_row(name.as_str(), reason))?;
    let holders = table
        .holders
        .iter()
        .filter(|contender| contender.expires_at > now)
        .map(|contender| to_contender_view(contender, now))
        .collect();
    let waiters = table
        .waiters
        .iter()
        .filter(|contender| contender.expires_at > now)
        .map(|contender| to_contender_view(contender, now))
        .collect();
    let mut view = LockView::free(name);
    (view.holders, view.waiters, view.last_token) = (holders, waiters, Some(Token(stored.token)));
    Ok(view)
}

impl LeaseEngine {
    /// For the locks that `selects` accepts: writes holders that got the lock by a local hand-off
    /// to the row, so that the row shows them.
    async fn flush_holders(self: &Arc<Self>, selects: impl Fn(&LockState) -> bool) -> Result<()> {
        let lock_states: Vec<Arc<LockState>> =
            lock(&self.lock_states).values().filter(|lock_state| selects(lock_state)).cloned().collect();
        for lock_state in lock_states {
            let unwritten = lock_state
                .lock()
                .local_hand_offs
                .as_ref()
                .filter(|hand_offs| hand_offs.has_unwritten_hand_off())
                .cloned();
            if let Some((claim, ttl)) =
                unwritten.and_then(|hand_offs| Some((hand_offs.current_holder()?, hand_offs.ttl())))
            {
                self.submit(&lock_state, Op::LookUp(claim), ttl).await?;
            }
        }
        Ok(())
    }

    /// Runs one statement that only reads, on any connection. If the connection was dead, runs it
    /// once more on a new one.
    async fn read_query(&self, sql: &str, values: &[Value]) -> Result<crate::engine::sql::connection::Reply> {
        let to_error = |failure: Failure| self.pool.to_error(&failure);
        let mut connection = self.pool.borrow().await.map_err(to_error)?;
        match self.run(&mut connection, sql, values).await {
            Err(failure) if failure.is_connection_lost(self.pool.config.dialect) => {
                drop(connection);
                self.pool.discard_idle();
                let mut connection = self.pool.borrow().await.map_err(to_error)?;
                self.run(&mut connection, sql, values).await.map_err(to_error)
            }
            result => result.map_err(to_error),
        }
    }

    /// The version of a lock's row; 0 if there is no row. Has a time limit, because the connection
    /// may be dead.
    pub(super) async fn row_version(&self, name: &LockName) -> Result<i64> {
        let (sql, values) = self.sql.read(name.as_str());
        let within = call_timeout(DEFAULT_STEP_TIMEOUT);
        let late = |_| self.pool.to_error(&Failure::timed_out(within));
        let reply = self.clock.timeout(within, self.read_query(sql, &values)).await.map_err(late)??;
        Ok(reply.row().and_then(|row| row.first()).and_then(Value::int).unwrap_or(0))
    }
}
