//! Queries to one server, each with a timeout. That a server refuses a query is a fact, too.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind as Native, FromRedisValue};

use leasehold::clock::Clock;
use leasehold_internals::redis::Config;
use leasehold_internals::redis::error::one_line;

/// A server that does not reply to a small query within this time counts as unreachable.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a fact about a server is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum QueryError {
    /// The server, or a proxy before it, refuses: a missing permission, an unknown command, the
    /// server's state.
    Refused(String),
    /// The server did not respond.
    NoResponse(String),
}

impl QueryError {
    /// The server responded without `what`.
    pub(crate) fn missing(what: &str) -> Self {
        Self::Refused(format!("it does not report {what}"))
    }
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) | Self::NoResponse(why) => f.write_str(why),
        }
    }
}

/// A fact, or why it is not known.
pub(crate) type Fact<T> = Result<T, QueryError>;

/// A connection for queries. After a timeout it is not used again, so that the report ends in time.
#[derive(Clone)]
pub(crate) struct QueryConnection {
    connection: MultiplexedConnection,
    clock: Clock,
    /// Why it is no longer used; unset while it works. Shared by all clones.
    failure: Arc<OnceLock<String>>,
}

impl QueryConnection {
    pub(crate) fn new(config: &Config, connection: MultiplexedConnection) -> Self {
        Self { connection, clock: config.clock.clone(), failure: Arc::default() }
    }

    /// Ends the use of the connection; returns the reason of its first failure.
    fn mark_failed(&self, why: String) -> QueryError {
        QueryError::NoResponse(self.failure.get_or_init(|| why).clone())
    }
}

/// Sends a command and waits for its reply, but only if no earlier command on the connection
/// failed.
pub(crate) async fn query<T: FromRedisValue>(connection: &QueryConnection, command: &Cmd) -> Fact<T> {
    if let Some(why) = connection.failure.get() {
        return Err(QueryError::NoResponse(why.clone()));
    }
    let mut multiplexed = connection.connection.clone();
    match connection.clock.timeout(QUERY_TIMEOUT, command.query_async(&mut multiplexed)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(match error.kind() {
            Native::Server(_) | Native::Extension => QueryError::Refused(one_line(&error)),
            Native::Parse | Native::UnexpectedReturnType => {
                QueryError::Refused(format!("unexpected reply ({})", one_line(&error)))
            }
            _ => connection.mark_failed(one_line(&error)),
        }),
        Err(_) => Err(connection.mark_failed(format!("no answer within {QUERY_TIMEOUT:?}"))),
    }
}

/// A Redis command: its name and its arguments.
pub(crate) fn redis_command(words: &[&str]) -> Cmd {
    let mut command = Cmd::new();
    command.arg(words);
    command
}
