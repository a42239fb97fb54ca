//! For `leasehold doctor`: runs a lock's statements on its table once, and rolls them back.

use std::time::Duration;

use super::state::{self, Content, instant_from_micros};
use super::wire::{LeaseStatements, Swap};
use crate::engine::sql::config::Config;
use crate::engine::sql::connection::{Connection, row_lock_timeout};
use crate::engine::sql::ddl::Tables;
use crate::engine::sql::error::Failure;

/// The TTL of that lease.
const TTL: Duration = Duration::from_secs(1);

/// Acquires an unused lock, reads and writes its row, and rolls everything back.
pub async fn dry_run(connection: &mut Connection, config: &Config) -> Result<(), Failure> {
    connection.execute_batch("BEGIN").await?;
    let tried = run_statements(connection, config).await;
    let undone = connection.execute_batch("ROLLBACK").await;
    tried.and(undone)
}

async fn run_statements(connection: &mut Connection, config: &Config) -> Result<(), Failure> {
    let unexpected = |detail: &str| Failure::UnexpectedReply(detail.to_owned());
    let sql = LeaseStatements::new(config.dialect, &Tables::from_config(config));
    let name = format!("leasehold-doctor-{:032x}", crate::random::random_bits());
    let nobody = state::write(&Content::default(), instant_from_micros(0));
    let ttl = i64::try_from(TTL.as_micros()).unwrap_or(1);
    let wait = row_lock_timeout(TTL);
    let (text, values) = sql.acquire(&name, ttl, &nobody, 0, &wait);
    let reply = connection.run(text, &values).await?;
    let Some(version) = sql.write_time(&reply).map_err(unexpected)? else {
        return Err(unexpected("a new lock is held"));
    };
    let (text, values) = sql.read(&name);
    if connection.run(text, &values).await?.row().is_none() {
        return Err(unexpected("the written row cannot be read"));
    }
    let token = u64::try_from(version).unwrap_or(0);
    let swap = Swap {
        name: &name,
        version,
        token,
        busy: 0,
        max_new_ttl: None,
        state: nobody,
        notifications: &[],
        row_lock_timeout: &wait,
    };
    let (text, values) = sql.swap(&swap);
    let reply = connection.run(text, &values).await?;
    sql.write_time(&reply).map_err(unexpected)?.map(drop).ok_or_else(|| unexpected("the written row cannot be updated"))
}

/// Why a row's state cannot be parsed, if so.
pub fn corruption(text: &str) -> Option<&'static str> {
    state::read(text, instant_from_micros(0)).err()
}
