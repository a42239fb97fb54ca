//! Whether something between us and PostgreSQL gives each transaction another session: then a lock that a session has is anybody's.

use super::super::config::Config;
use super::super::error::{Failure, Meaning};
use super::super::link::{Link, Value};

/// How often it is looked.
const ROUNDS: usize = 3;

/// Whether two connections meet in one session, or one moves to another while its own is in use.
pub(super) async fn changes_sessions(config: &Config) -> Result<bool, Failure> {
    // As behind one: what is set in a session that others get next would stay there.
    let config = Config { pooler: true, ..config.clone() };
    let mut one = Link::open(&config).await?;
    let mut other = Link::open(&config).await?;
    let mut met = Ok(false);
    for _ in 0..ROUNDS {
        let within = config.connect_timeout;
        let met_in_time = config.clock.timeout(within, meet(&mut one, &mut other)).await;
        met = met_in_time.unwrap_or_else(|_| Err(Failure::silent(within)));
        if met != Ok(false) {
            break;
        }
    }
    one.close().await;
    other.close().await;
    match met {
        // One that does not even let a transaction pass.
        Err(failure) if failure.meaning(config.dialect) == Some(Meaning::Pooled) => Ok(true),
        met => met,
    }
}

async fn meet(one: &mut Link, other: &mut Link) -> Result<bool, Failure> {
    let first = session(one).await?;
    other.script("BEGIN").await?;
    // Where there is but one session, the first would wait for it now.
    if session(other).await? == first {
        return other.script("ROLLBACK").await.map(|()| true);
    }
    let third = session(one).await?;
    other.script("ROLLBACK").await?;
    Ok(third != first)
}

async fn session(link: &mut Link) -> Result<Option<i64>, Failure> {
    let reply = link.run("SELECT pg_backend_pid()::bigint", &[]).await?;
    Ok(reply.value().and_then(Value::int))
}
