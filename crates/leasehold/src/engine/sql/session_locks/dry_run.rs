//! For `leasehold doctor`: runs the statements of `technique=session` or `for-update` on the tables
//! once, and rolls them back.

use super::wire::{ServerKind, SessionStatements};
use crate::engine::sql::config::{Config, Technique};
use crate::engine::sql::connection::Connection;
use crate::engine::sql::error::Failure;
use crate::types::Mode;

/// Creates and locks the row of a lock with a random name, increments its token counter, and rolls
/// everything back. An error if a statement fails or has another result than for a lock.
pub async fn dry_run(connection: &mut Connection, config: &Config) -> Result<(), Failure> {
    connection.execute_batch("BEGIN").await?;
    let tried = run_statements(connection, config).await;
    let undone = connection.execute_batch("ROLLBACK").await;
    tried.and(undone)
}

/// Runs the statements inside a transaction, which the caller rolls back.
async fn run_statements(connection: &mut Connection, config: &Config) -> Result<(), Failure> {
    let unexpected = |detail: &str| Failure::UnexpectedReply(detail.to_owned());
    let wire = SessionStatements::new(config, ServerKind::default());
    let name = format!("leasehold-doctor-{:032x}", crate::random::random_bits());
    if config.technique == Technique::ForUpdate {
        let (_, (sql, values)) = wire.insert_row(&name);
        connection.run(&sql, &values).await?;
        let (sql, values) = wire.try_acquire(&name, Mode::Exclusive);
        if !wire.is_granted(&connection.run(&sql, &values).await?, &name) {
            return Err(unexpected("a new row cannot be locked"));
        }
    }
    for _ in 0..2 {
        // The second time, the row exists.
        let (sql, values) = wire.next_token(&name);
        wire.parse_token(&connection.run(&sql, &values).await?)
            .ok_or_else(|| unexpected("the counter has no value"))?;
    }
    Ok(())
}
