//! One connection to either kind of database, which runs one statement at a time.

use std::time::Duration;

use super::config::Config;
use super::error::Failure;
use crate::clock::Clock;

/// How long a statement waits at the server for a row that another transaction has locked. It is
/// less than the client's own time limit, so that the server ends the statement and reports the
/// reason. For a short TTL, PostgreSQL's statements set a shorter timeout ([`row_lock_timeout`]).
/// MySQL cannot, because its timeouts are in whole seconds.
pub const ROW_LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The row-lock timeout for a step with the time limit `within`: half of that, but no more than
/// [`ROW_LOCK_TIMEOUT`]. As text in milliseconds, for PostgreSQL.
pub fn row_lock_timeout(within: Duration) -> String {
    // At least 1: PostgreSQL takes 0 for no timeout.
    (within / 2).min(ROW_LOCK_TIMEOUT).as_millis().max(1).to_string()
}

/// A parameter of a statement, or a value in a row of its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// SQL's NULL.
    Null,
    /// A whole number.
    Int(i64),
    /// A text; also a number that does not fit into `Int`.
    Text(String),
}

impl Value {
    /// The value as a whole number; `None` if it is NULL or a text that is not a number.
    pub fn int(&self) -> Option<i64> {
        match self {
            Self::Int(int) => Some(*int),
            Self::Text(text) => text.parse().ok(),
            Self::Null => None,
        }
    }

    /// The value if it is a text.
    pub fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Value {
    fn from(int: i64) -> Self {
        Self::Int(int)
    }
}

/// The result of a statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The rows, each with its values in the order of the columns.
    pub rows: Vec<Vec<Value>>,
    /// How many rows the statement changed.
    pub rows_changed: u64,
    /// MySQL only: the value that the statement set with `LAST_INSERT_ID(…)`.
    pub insert_id: u64,
}

impl Reply {
    /// The first row, if there is one.
    pub fn row(&self) -> Option<&[Value]> {
        self.rows.first().map(Vec::as_slice)
    }

    /// The first value of the first row, if there is one.
    pub fn value(&self) -> Option<&Value> {
        self.row().and_then(<[Value]>::first)
    }
}

/// A connection to a database. It runs one statement at a time. If a caller drops the future of a
/// statement, it must drop the connection, too, because the answer may still arrive on it.
#[allow(clippy::large_enum_variant, reason = "there are few of them, and they are not moved about")]
pub enum Connection {
    #[cfg(feature = "mysql")]
    MySql(super::mysql::MySqlConnection),
    #[cfg(feature = "postgres")]
    Postgres(super::postgres::PostgresConnection),
}

impl Connection {
    /// Connects to the first server in the URL that can be reached and accepts writes.
    pub async fn open(config: &Config) -> Result<Self, Failure> {
        match config.dialect {
            #[cfg(feature = "mysql")]
            super::Dialect::MySql => Ok(Self::MySql(super::mysql::MySqlConnection::open(config).await?)),
            #[cfg(feature = "postgres")]
            super::Dialect::Postgres => Ok(Self::Postgres(super::postgres::PostgresConnection::open(config).await?)),
            #[cfg(not(all(feature = "mysql", feature = "postgres")))]
            other => Err(Failure::Unreachable(format!("{} is not in this build", other.name()))),
        }
    }

    /// Runs one statement, and returns its rows. A statement with parameters is prepared once per
    /// connection, unless a pooler forbids that.
    pub async fn run(&mut self, sql: &str, values: &[Value]) -> Result<Reply, Failure> {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(connection) => connection.run(sql, values).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => connection.run(sql, values).await,
        }
    }

    /// Sends statements, separated by `;`, in one message. They have no parameters and return no
    /// rows.
    pub async fn execute_batch(&mut self, sql: &str) -> Result<(), Failure> {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(connection) => connection.execute_batch(sql).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => connection.execute_batch(sql).await,
        }
    }

    /// Notes that no pooler gives the session to other programs, so that it may keep prepared
    /// statements. Has no effect for MySQL.
    pub fn mark_own_session(&mut self) {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(_) => {}
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => connection.mark_own_session(),
        }
    }

    /// The server's number for this session: `CONNECTION_ID()` or `pg_backend_pid()`.
    pub fn id(&self) -> i64 {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(connection) => connection.id(),
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => connection.id(),
        }
    }

    /// The payloads of notifications on the channels to which this connection listens. `None` for
    /// MySQL, and if they were taken before.
    pub fn take_notifications(&mut self) -> Option<tokio::sync::mpsc::UnboundedReceiver<String>> {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(_) => None,
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => connection.take_notifications(),
        }
    }

    /// Whether the connection is known to have ended. MySQL's client library notices that only
    /// during a statement.
    pub fn is_closed(&self) -> bool {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(connection) => connection.is_closed(),
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => connection.is_closed(),
        }
    }

    /// Completes when the connection has ended. Never completes for MySQL, whose client library
    /// does not notice that while the connection is idle.
    pub async fn wait_closed(&mut self) {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(_) => std::future::pending().await,
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => connection.wait_closed().await,
        }
    }

    /// A handle that can cancel this connection's current statement, by way of another connection.
    /// `None` for MySQL.
    #[cfg(feature = "postgres")]
    pub fn cancel_token(&self) -> Option<tokio_postgres::CancelToken> {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(_) => None,
            Self::Postgres(connection) => Some(connection.cancel_token()),
        }
    }

    /// Closes the connection at once, even during a statement, which the server may then still
    /// execute.
    pub fn abort(self) {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(connection) => drop(connection),
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => connection.abort(),
        }
    }

    /// Closes the connection during a statement. Returns when the server has ended the statement,
    /// too, as far as can be known: after a clean close, or after [`ROW_LOCK_TIMEOUT`].
    pub async fn abandon(self, clock: &Clock) {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(connection) => {
                drop(connection);
                clock.sleep(ROW_LOCK_TIMEOUT).await;
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => {
                let _ = clock;
                connection.close().await;
            }
        }
    }

    /// Ends the session and closes the connection.
    pub async fn close(self) {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(connection) => connection.close().await,
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => connection.close().await,
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection({})", self.id())
    }
}
