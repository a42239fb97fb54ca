//! How many of the server's connections are in use.

use std::time::Duration;

use super::connection::{Connection, Value};
use super::error::Failure;
use super::pool::PooledConnection;
use crate::clock::{Clock, Instant};
use crate::logic::backoff;
use crate::logic::connections::ConnectionUsage;

/// The longest interval between two checks. Each is up to half of it earlier, so that clients do
/// not decide at the same time.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// When to check next.
pub(super) fn next_check(clock: &Clock) -> Instant {
    clock.now().saturating_add(check_pause())
}

/// How long to wait before the next check.
pub(super) fn check_pause() -> Duration {
    backoff::pause(0, CHECK_INTERVAL, CHECK_INTERVAL, (crate::random::random_bits() & u128::from(u32::MAX)) as u32)
}

/// Queries PostgreSQL. Every user may see how many sessions each database has.
pub(super) async fn query_postgres(link: &mut Connection) -> Result<ConnectionUsage, Failure> {
    const LOAD: &str = "SELECT COALESCE(sum(numbackends), 0)::bigint, current_setting('max_connections')::bigint FROM pg_stat_database";
    let reply = link.run(LOAD, &[]).await?;
    parse_load(reply.value(), reply.row().and_then(|row| row.get(1)))
}

/// Queries MySQL or MariaDB.
pub(super) async fn query_mysql(link: &mut PooledConnection) -> Result<ConnectionUsage, Failure> {
    let used = link.run("SHOW GLOBAL STATUS LIKE 'Threads_connected'", &[]).await?;
    let limit = link.run("SELECT @@max_connections", &[]).await?;
    parse_load(used.row().and_then(|row| row.get(1)), limit.value())
}

fn parse_load(used: Option<&Value>, limit: Option<&Value>) -> Result<ConnectionUsage, Failure> {
    let number = |value: Option<&Value>| value.and_then(Value::int).and_then(|number| u64::try_from(number).ok());
    match (number(used), number(limit)) {
        (Some(used), Some(limit)) => Ok(ConnectionUsage { used, limit }),
        _ => Err(Failure::UnexpectedReply("no number of connections".into())),
    }
}
