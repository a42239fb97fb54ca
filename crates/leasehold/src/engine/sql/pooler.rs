//! Detects a pooler before PostgreSQL that gives each transaction another session. Then a session's
//! lock belongs to any program, and what is set in a session (settings, prepared statements,
//! `LISTEN`) reaches other programs.

use super::config::Config;
use super::error::{Failure, Meaning};
use super::link::{Link, Value};

/// How many times the sessions are compared.
const ROUNDS: usize = 3;

/// Two connections to one server, and whether each keeps its session.
#[derive(Debug)]
pub(super) struct Probed {
    pub(super) first: Link,
    /// `None`: the server had no second connection to spare, and nothing is known.
    pub(super) second: Option<Link>,
    /// Whether a pooler gives each transaction another session.
    pub(super) pooled: bool,
}

/// Opens two connections and finds out whether they share a session, or whether one gets another
/// session while its own is in use. Nothing is set, prepared or listened to on either.
pub(super) async fn probe(config: &Config) -> Result<Probed, Failure> {
    probe_beside(Link::open(config).await?, config).await
}

/// The same as [`probe`], with a first connection that is already open.
pub(super) async fn probe_beside(mut first: Link, config: &Config) -> Result<Probed, Failure> {
    let mut second = match Link::open(config).await {
        Ok(second) => second,
        Err(failure) if failure.meaning(config.dialect) == Some(Meaning::Crowded) => {
            return Ok(Probed { first, second: None, pooled: false });
        }
        Err(failure) => return Err(failure),
    };
    let mut met = Ok(false);
    for _ in 0..ROUNDS {
        let within = config.connect_timeout;
        let met_in_time = config.clock.timeout(within, meet(&mut first, &mut second)).await;
        met = met_in_time.unwrap_or_else(|_| Err(Failure::silent(within)));
        if met != Ok(false) {
            break;
        }
    }
    let pooled = match met {
        // A pooler that does not even allow a transaction.
        Err(failure) if failure.meaning(config.dialect) == Some(Meaning::Pooled) => true,
        met => met?,
    };
    Ok(Probed { first, second: Some(second), pooled })
}

/// The same as [`probe`], and closes both connections.
pub(super) async fn changes_sessions(config: &Config) -> Result<bool, Failure> {
    // Treated as pooled: otherwise what is set in a session would stay there for the next program.
    let config = Config { pooler: true, ..config.clone() };
    let Probed { first, second, pooled } = probe(&config).await?;
    let known = second.is_some();
    first.close().await;
    if let Some(second) = second {
        second.close().await;
    }
    if known { Ok(pooled) } else { Err(Failure::refused("53300", "it takes two to look for a pooler")) }
}

async fn meet(one: &mut Link, other: &mut Link) -> Result<bool, Failure> {
    let first = session(one).await?;
    other.script("BEGIN").await?;
    // With only one session, the first connection would wait for it now.
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
