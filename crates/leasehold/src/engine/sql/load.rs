//! How many of the server's connections are in use.

use std::time::Duration;

use super::error::Failure;
use super::link::{Link, Value};
use super::pool::Pooled;
use crate::clock::{Clock, Moment};
use crate::logic::backoff;
use crate::logic::connections::Load;

/// The longest interval between two checks. Each is up to half of it earlier, so that clients do
/// not decide at the same time.
pub(super) const CHECK: Duration = Duration::from_secs(5);

/// When to check next.
pub(super) fn next_check(clock: &Clock) -> Moment {
    clock.now().after(pause())
}

/// How long to wait before the next check.
pub(super) fn pause() -> Duration {
    backoff::pause(0, CHECK, CHECK, (crate::random::bits() & u128::from(u32::MAX)) as u32)
}

/// Queries PostgreSQL. Every user may see how many sessions each database has.
pub(super) async fn postgres(link: &mut Link) -> Result<Load, Failure> {
    const LOAD: &str = "SELECT COALESCE(sum(numbackends), 0)::bigint, current_setting('max_connections')::bigint FROM pg_stat_database";
    let reply = link.run(LOAD, &[]).await?;
    load(reply.value(), reply.row().and_then(|row| row.get(1)))
}

/// Queries MySQL or MariaDB.
pub(super) async fn mysql(link: &mut Pooled) -> Result<Load, Failure> {
    let used = link.run("SHOW GLOBAL STATUS LIKE 'Threads_connected'", &[]).await?;
    let most = link.run("SELECT @@max_connections", &[]).await?;
    load(used.row().and_then(|row| row.get(1)), most.value())
}

fn load(used: Option<&Value>, most: Option<&Value>) -> Result<Load, Failure> {
    let number = |value: Option<&Value>| value.and_then(Value::int).and_then(|number| u64::try_from(number).ok());
    match (number(used), number(most)) {
        (Some(used), Some(most)) => Ok(Load { used, most }),
        _ => Err(Failure::Strange("no number of connections".into())),
    }
}
