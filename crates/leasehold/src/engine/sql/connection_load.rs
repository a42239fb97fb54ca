//! Asks the database server how many of its connections are in use, so that a client that only
//! waits can give up its own in time.

use std::time::Duration;

use super::connection::{Connection, Value};
use super::error::Failure;
use super::pool::PooledConnection;
use crate::clock::{Clock, Instant};
use crate::logic::backoff;
use crate::logic::connections::ConnectionUsage;

/// The longest interval between two checks of one client. The actual interval is a random one
/// between half of this and this, so that not all clients give up their connections at the same
/// time.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// When to check next: after [`check_pause`] from now.
pub(super) fn next_check(clock: &Clock) -> Instant {
    clock.now().saturating_add(check_pause())
}

/// A random pause between half of [`CHECK_INTERVAL`] and all of it.
pub(super) fn check_pause() -> Duration {
    backoff::pause(0, CHECK_INTERVAL, CHECK_INTERVAL, (crate::random::random_bits() & u128::from(u32::MAX)) as u32)
}

/// Asks PostgreSQL how many connections it has and allows. The sums of `pg_stat_database` are
/// visible to every user.
pub(super) async fn query_postgres(connection: &mut Connection) -> Result<ConnectionUsage, Failure> {
    const CONNECTION_COUNT_QUERY: &str = "SELECT COALESCE(sum(numbackends), 0)::bigint, current_setting('max_connections')::bigint FROM pg_stat_database";
    let reply = connection.run(CONNECTION_COUNT_QUERY, &[]).await?;
    parse_usage(reply.value(), reply.row().and_then(|row| row.get(1)))
}

/// Asks MySQL or MariaDB how many connections it has and allows.
pub(super) async fn query_mysql(connection: &mut PooledConnection) -> Result<ConnectionUsage, Failure> {
    let used = connection.run("SHOW GLOBAL STATUS LIKE 'Threads_connected'", &[]).await?;
    let limit = connection.run("SELECT @@max_connections", &[]).await?;
    parse_usage(used.row().and_then(|row| row.get(1)), limit.value())
}

/// The two numbers that a server returned; an error if one is missing.
fn parse_usage(used: Option<&Value>, limit: Option<&Value>) -> Result<ConnectionUsage, Failure> {
    let number = |value: Option<&Value>| value.and_then(Value::int).and_then(|number| u64::try_from(number).ok());
    match (number(used), number(limit)) {
        (Some(used), Some(limit)) => Ok(ConnectionUsage { used, limit }),
        _ => Err(Failure::UnexpectedReply("no number of connections".into())),
    }
}
