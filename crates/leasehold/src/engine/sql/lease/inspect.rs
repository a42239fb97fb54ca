//! Inspection: the holders and waiters of locks.

use super::engine::{LeaseEngine, UNHURRIED};
use super::lot::{Lot, lock};
use super::round::{damaged, strange};
use super::state::{self, moment};
use super::step::{Op, view};
use super::wire::{self, Stored};
use crate::claim::Token;
use crate::engine::LockView;
use crate::engine::sql::error::Failure;
use crate::engine::sql::link::Value;
use crate::error::Result;
use crate::logic::lease::call_timeout;
use crate::name::LockName;
use std::sync::Arc;

/// One lock.
pub(super) async fn one(engine: &Arc<LeaseEngine>, name: LockName) -> Result<LockView> {
    engine.write_down(|lot| lot.name == name).await?;
    let (sql, values) = engine.sql.read(name.as_str());
    let reply = engine.statement(sql, &values).await?;
    let Some(row) = reply.row() else { return Ok(LockView::free(name)) };
    let stored = wire::stored(row).map_err(strange).map_err(|failure| engine.pool.tell(&failure))?;
    shown(name, &stored).map_err(|failure| engine.pool.tell(&failure))
}

/// All locks whose names start with `prefix`. A damaged row does not hide the others.
pub(super) async fn all(engine: &Arc<LeaseEngine>, prefix: &str) -> Result<Vec<LockView>> {
    engine.write_down(|lot| lot.name.as_str().starts_with(prefix)).await?;
    let (sql, values) = engine.sql.list(prefix);
    let reply = engine.statement(sql, &values).await?;
    let mut views = Vec::new();
    for row in &reply.rows {
        let Some((Value::Text(name), rest)) = row.split_first() else { continue };
        let Ok(name) = LockName::new(name) else { continue };
        let view = wire::stored(rest).map_err(strange).and_then(|stored| shown(name.clone(), &stored));
        let view = view.unwrap_or_else(|failure| {
            let trouble = Some(engine.pool.tell(&failure).to_string());
            LockView { trouble, ..LockView::free(name) }
        });
        if !view.holders.is_empty() || !view.waiters.is_empty() || view.trouble.is_some() {
            views.push(view);
        }
    }
    Ok(views)
}

/// Converts a row, without the parties that have expired.
fn shown(name: LockName, stored: &Stored) -> Result<LockView, Failure> {
    let now = moment(stored.now);
    let table =
        state::read(&stored.state, now).map(|content| content.table).map_err(|why| damaged(name.as_str(), why))?;
    let holders = table.holders.iter().filter(|party| party.until > now).map(|party| view(party, now)).collect();
    let waiters = table.waiters.iter().filter(|party| party.until > now).map(|party| view(party, now)).collect();
    let mut shown = LockView::free(name);
    (shown.holders, shown.waiters, shown.last_token) = (holders, waiters, Some(Token(stored.token)));
    Ok(shown)
}

impl LeaseEngine {
    /// Writes our current holders of these locks to their rows, since inspection shows the rows.
    async fn write_down(self: &Arc<Self>, which: impl Fn(&Lot) -> bool) -> Result<()> {
        let lots: Vec<Arc<Lot>> = lock(&self.lots).values().filter(|lot| which(lot)).cloned().collect();
        for lot in lots {
            let behind = lot.lock().cohort.as_ref().filter(|cohort| cohort.is_behind()).cloned();
            if let Some((claim, ttl)) = behind.and_then(|cohort| Some((cohort.current()?, cohort.ttl()))) {
                self.ask(&lot, Op::Look(claim), ttl).await?;
            }
        }
        Ok(())
    }

    /// Runs one reading statement on any connection; retries once if the connection was dead.
    async fn statement(&self, sql: &str, values: &[Value]) -> Result<crate::engine::sql::link::Reply> {
        let tell = |failure: Failure| self.pool.tell(&failure);
        let mut link = self.pool.borrow().await.map_err(tell)?;
        match self.run(&mut link, sql, values).await {
            Err(failure) if failure.is_lost_line(self.pool.config.dialect) => {
                drop(link);
                self.pool.forget_idle();
                let mut link = self.pool.borrow().await.map_err(tell)?;
                self.run(&mut link, sql, values).await.map_err(tell)
            }
            result => result.map_err(tell),
        }
    }

    /// The version of a lock's row; zero if there is none. A dead connection stays in use no longer
    /// than an answer may take.
    pub(super) async fn version(&self, name: &LockName) -> Result<i64> {
        let (sql, values) = self.sql.read(name.as_str());
        let within = call_timeout(UNHURRIED);
        let late = |_| self.pool.tell(&Failure::silent(within));
        let reply = self.clock.timeout(within, self.statement(sql, &values)).await.map_err(late)??;
        Ok(reply.row().and_then(|row| row.first()).and_then(Value::int).unwrap_or(0))
    }
}
