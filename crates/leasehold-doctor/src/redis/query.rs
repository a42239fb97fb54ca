//! Queries to one server, each with a timeout. A refusal is a fact, too.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind as Native, FromRedisValue};

use leasehold::clock::Clock;
use leasehold_internals::redis::config::Config;
use leasehold_internals::redis::error::one_line;

/// A server that does not reply to a small query within this time counts as unreachable.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Why something is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum QueryError {
    /// The server, or a proxy before it, refuses: a missing permission, an unknown command, the
    /// server's state.
    Refused(String),
    /// It did not respond.
    NoResponse(String),
}

impl QueryError {
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
    failure: Arc<OnceLock<String>>,
}

impl QueryConnection {
    pub(crate) fn new(config: &Config, connection: MultiplexedConnection) -> Self {
        Self { connection, clock: config.clock.clone(), failure: Arc::default() }
    }

    fn mark_failed(&self, why: String) -> QueryError {
        QueryError::NoResponse(self.failure.get_or_init(|| why).clone())
    }
}

/// Sends a command and waits for its reply.
pub(crate) async fn query<T: FromRedisValue>(link: &QueryConnection, command: &Cmd) -> Fact<T> {
    if let Some(why) = link.failure.get() {
        return Err(QueryError::NoResponse(why.clone()));
    }
    let mut connection = link.connection.clone();
    match link.clock.timeout(QUERY_TIMEOUT, command.query_async(&mut connection)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(match error.kind() {
            Native::Server(_) | Native::Extension => QueryError::Refused(one_line(&error)),
            Native::Parse | Native::UnexpectedReturnType => {
                QueryError::Refused(format!("unexpected reply ({})", one_line(&error)))
            }
            _ => link.mark_failed(one_line(&error)),
        }),
        Err(_) => Err(link.mark_failed(format!("no answer within {QUERY_TIMEOUT:?}"))),
    }
}

/// A command with these words.
pub(crate) fn redis_command(words: &[&str]) -> Cmd {
    let mut command = Cmd::new();
    command.arg(words);
    command
}
