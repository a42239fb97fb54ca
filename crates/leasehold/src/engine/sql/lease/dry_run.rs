//! For `leasehold doctor`: runs the statements of a lock on the lease table once, and rolls them
//! back.

use std::time::Duration;

use super::state::{self, Content, instant_from_micros};
use super::wire::{LeaseStatements, Swap};
use crate::engine::sql::config::Config;
use crate::engine::sql::connection::{Connection, row_lock_timeout};
use crate::engine::sql::ddl::Tables;
use crate::engine::sql::error::Failure;

/// The TTL of the lease that the dry run acquires.
const TTL: Duration = Duration::from_secs(1);

/// Acquires a lock with a random name, reads and writes its row, and rolls everything back. An
/// error if a statement fails or has another result than for a lock.
pub async fn dry_run(connection: &mut Connection, config: &Config) -> Result<(), Failure> {
    connection.execute_batch("BEGIN").await?;
    let tried = run_statements(connection, config).await;
    let undone = connection.execute_batch("ROLLBACK").await;
    tried.and(undone)
}

/// Runs the statements inside a transaction, which the caller rolls back.
async fn run_statements(connection: &mut Connection, config: &Config) -> Result<(), Failure> {
    let unexpected = |detail: &str| Failure::UnexpectedReply(detail.to_owned());
    let sql = LeaseStatements::new(config.dialect, &Tables::from_config(config));
    let name = format!("leasehold-doctor-{:032x}", crate::random::random_bits());
    let empty_state = state::write(&Content::default(), instant_from_micros(0));
    let ttl = i64::try_from(TTL.as_micros()).unwrap_or(1);
    let lock_timeout = row_lock_timeout(TTL);
    let (text, values) = sql.acquire(&name, ttl, &empty_state, 0, &lock_timeout);
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
        state: empty_state,
        notifications: &[],
        row_lock_timeout: &lock_timeout,
    };
    let (text, values) = sql.swap(&swap);
    let reply = connection.run(text, &values).await?;
    sql.write_time(&reply).map_err(unexpected)?.map(drop).ok_or_else(|| unexpected("the written row cannot be updated"))
}

/// What is wrong with the `state` of a row; `None` if it can be parsed.
pub fn corruption(text: &str) -> Option<&'static str> {
    state::read(text, instant_from_micros(0)).err()
}
