//! Detects a transaction pooler before PostgreSQL: one that gives each transaction another session.
//! Then a lock of a session would belong to whichever program gets that session next, and settings,
//! prepared statements and `LISTEN` would reach other programs.

use super::config::Config;
use super::connection::{Connection, Value};
use super::error::{ErrorClass, Failure};

/// How many times the sessions of the two connections are compared.
const ROUNDS: usize = 3;

/// The result of the test: its two connections, and whether there is a transaction pooler.
#[derive(Debug)]
pub(super) struct PoolerProbe {
    /// The first of the two connections.
    pub(super) first: Connection,
    /// The second one. `None`: the server had no second connection left, and the result is unknown.
    pub(super) second: Option<Connection>,
    /// Whether a pooler gives each transaction another session; `false` if unknown.
    pub(super) has_transaction_pooler: bool,
}

/// Opens two connections, and finds out whether they share a session, or whether one gets another
/// session while its own is in use. Leaves no state in the sessions.
pub(super) async fn probe(config: &Config) -> Result<PoolerProbe, Failure> {
    probe_with(Connection::open(config).await?, config).await
}

/// Does what [`probe`] does, with a first connection that is already open.
pub(super) async fn probe_with(mut first: Connection, config: &Config) -> Result<PoolerProbe, Failure> {
    let mut second = match Connection::open(config).await {
        Ok(second) => second,
        Err(failure) if failure.class(config.dialect) == Some(ErrorClass::TooManyConnections) => {
            return Ok(PoolerProbe { first, second: None, has_transaction_pooler: false });
        }
        Err(failure) => return Err(failure),
    };
    let mut is_pooled = Ok(false);
    for _ in 0..ROUNDS {
        let within = config.connect_timeout;
        let result = config.clock.timeout(within, share_or_change_session(&mut first, &mut second)).await;
        is_pooled = result.unwrap_or_else(|_| Err(Failure::timed_out(within)));
        if is_pooled != Ok(false) {
            break;
        }
    }
    let has_transaction_pooler = match is_pooled {
        // A pooler that allows no transactions gives each statement another session.
        Err(failure) if failure.class(config.dialect) == Some(ErrorClass::TransactionPooler) => true,
        result => result?,
    };
    Ok(PoolerProbe { first, second: Some(second), has_transaction_pooler })
}

/// Whether there is a transaction pooler; an error if that cannot be found out. Opens and closes
/// two connections.
pub(super) async fn has_transaction_pooler(config: &Config) -> Result<bool, Failure> {
    // The connections are opened as for a pooler: otherwise a setting could stay in a session that
    // another program gets next.
    let config = Config { has_transaction_pooler: true, ..config.clone() };
    let PoolerProbe { first, second, has_transaction_pooler: pooled } = probe(&config).await?;
    let known = second.is_some();
    first.close().await;
    if let Some(second) = second {
        second.close().await;
    }
    if known {
        Ok(pooled)
    } else {
        Err(Failure::refused("53300", "detecting a pooler needs two connections, and the server has only one left"))
    }
}

/// Whether the two connections have the same session, or the first gets another session while the
/// second is in a transaction.
async fn share_or_change_session(one: &mut Connection, other: &mut Connection) -> Result<bool, Failure> {
    let first = session_id(one).await?;
    other.execute_batch("BEGIN").await?;
    // If both had the same session, the transaction would block the first connection below.
    if session_id(other).await? == first {
        return other.execute_batch("ROLLBACK").await.map(|()| true);
    }
    let third = session_id(one).await?;
    other.execute_batch("ROLLBACK").await?;
    Ok(third != first)
}

/// The number of the session that executes this connection's statement.
async fn session_id(connection: &mut Connection) -> Result<Option<i64>, Failure> {
    let reply = connection.run("SELECT pg_backend_pid()::bigint", &[]).await?;
    Ok(reply.value().and_then(Value::int))
}
