//! Detects a pooler before PostgreSQL that gives each transaction another session. Then a session's
//! lock belongs to any program, and what is set in a session (settings, prepared statements,
//! `LISTEN`) reaches other programs.

use super::config::Config;
use super::connection::{Connection, Value};
use super::error::{ErrorClass, Failure};

/// How many times the sessions are compared.
const ROUNDS: usize = 3;

/// Two connections to one server, and whether each keeps its session.
#[derive(Debug)]
pub(super) struct PoolerProbe {
    pub(super) first: Connection,
    /// `None`: the server had no second connection to spare, and the result is unknown.
    pub(super) second: Option<Connection>,
    /// Whether a pooler gives each transaction another session.
    pub(super) has_transaction_pooler: bool,
}

/// Opens two connections and finds out whether they share a session, or whether one gets another
/// session while its own is in use. It sets, prepares and listens on neither.
pub(super) async fn probe(config: &Config) -> Result<PoolerProbe, Failure> {
    probe_with(Connection::open(config).await?, config).await
}

/// The same as [`probe`], with a first connection that is already open.
pub(super) async fn probe_with(mut first: Connection, config: &Config) -> Result<PoolerProbe, Failure> {
    let mut second = match Connection::open(config).await {
        Ok(second) => second,
        Err(failure) if failure.class(config.dialect) == Some(ErrorClass::TooManyConnections) => {
            return Ok(PoolerProbe { first, second: None, has_transaction_pooler: false });
        }
        Err(failure) => return Err(failure),
    };
    let mut met = Ok(false);
    for _ in 0..ROUNDS {
        let within = config.connect_timeout;
        let met_in_time = config.clock.timeout(within, share_or_change_session(&mut first, &mut second)).await;
        met = met_in_time.unwrap_or_else(|_| Err(Failure::timed_out(within)));
        if met != Ok(false) {
            break;
        }
    }
    let pooled = match met {
        // A pooler that does not even allow a transaction.
        Err(failure) if failure.class(config.dialect) == Some(ErrorClass::TransactionPooler) => true,
        met => met?,
    };
    Ok(PoolerProbe { first, second: Some(second), has_transaction_pooler: pooled })
}

/// The same as [`probe`], and closes both connections.
pub(super) async fn has_transaction_pooler(config: &Config) -> Result<bool, Failure> {
    // Treated as pooled: otherwise a setting would stay in the session for the next program.
    let config = Config { has_transaction_pooler: true, ..config.clone() };
    let PoolerProbe { first, second, has_transaction_pooler: pooled } = probe(&config).await?;
    let known = second.is_some();
    first.close().await;
    if let Some(second) = second {
        second.close().await;
    }
    if known { Ok(pooled) } else { Err(Failure::refused("53300", "detecting a pooler needs two connections")) }
}

async fn share_or_change_session(one: &mut Connection, other: &mut Connection) -> Result<bool, Failure> {
    let first = session_id(one).await?;
    other.execute_batch("BEGIN").await?;
    // With only one session, the first connection would wait for it now.
    if session_id(other).await? == first {
        return other.execute_batch("ROLLBACK").await.map(|()| true);
    }
    let third = session_id(one).await?;
    other.execute_batch("ROLLBACK").await?;
    Ok(third != first)
}

async fn session_id(link: &mut Connection) -> Result<Option<i64>, Failure> {
    let reply = link.run("SELECT pg_backend_pid()::bigint", &[]).await?;
    Ok(reply.value().and_then(Value::int))
}
