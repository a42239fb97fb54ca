//! One connection, to either database: a statement in, rows out.

use std::time::Duration;

use super::config::Config;
use super::error::Failure;
use crate::clock::Clock;

/// How long a statement waits at the server for a row that another transaction keeps locked. It is
/// less than the client's own time limit, so that the server reports the reason. If the TTL leaves
/// less, PostgreSQL's statements set a shorter time ([`row_lock_timeout`]); MySQL counts whole
/// seconds.
pub const ROW_LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The row-lock timeout of a step that may take `within`: half of that. In milliseconds, as
/// PostgreSQL reads it.
pub fn row_lock_timeout(within: Duration) -> String {
    // Zero would mean no timeout.
    (within / 2).min(ROW_LOCK_TIMEOUT).as_millis().max(1).to_string()
}

/// A value of a statement or of its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Null,
    Int(i64),
    Text(String),
}

impl Value {
    /// A whole number, or `None`.
    pub fn int(&self) -> Option<i64> {
        match self {
            Self::Int(int) => Some(*int),
            Self::Text(text) => text.parse().ok(),
            Self::Null => None,
        }
    }

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
    pub rows: Vec<Vec<Value>>,
    /// How many rows it changed.
    pub rows_changed: u64,
    /// MySQL only: the value that the statement set with `LAST_INSERT_ID(…)`.
    pub insert_id: u64,
}

impl Reply {
    /// The first row.
    pub fn row(&self) -> Option<&[Value]> {
        self.rows.first().map(Vec::as_slice)
    }

    /// The only value of the only row.
    pub fn value(&self) -> Option<&Value> {
        self.row().and_then(<[Value]>::first)
    }
}

/// A connection. It runs one statement at a time. A caller that drops a call must drop the
/// connection, too.
#[allow(clippy::large_enum_variant, reason = "there are few of them, and they are not moved about")]
pub enum Connection {
    #[cfg(feature = "mysql")]
    MySql(super::mysql::MySqlConnection),
    #[cfg(feature = "postgres")]
    Postgres(super::postgres::PostgresConnection),
}

impl Connection {
    /// Connects to the first server that accepts writes.
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

    /// Runs one statement. It is prepared once per connection, unless a pooler forbids that.
    pub async fn run(&mut self, sql: &str, values: &[Value]) -> Result<Reply, Failure> {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(link) => link.run(sql, values).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => link.run(sql, values).await,
        }
    }

    /// Runs statements without values and rows, one after the other in one message.
    pub async fn execute_batch(&mut self, sql: &str) -> Result<(), Failure> {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(link) => link.execute_batch(sql).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => link.execute_batch(sql).await,
        }
    }

    /// Notes that the session belongs to this connection alone: its state (prepared statements)
    /// stays there.
    pub fn mark_own_session(&mut self) {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(_) => {}
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => link.mark_own_session(),
        }
    }

    /// The server's number of this connection.
    pub fn id(&self) -> i64 {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(link) => link.id(),
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => link.id(),
        }
    }

    /// The notifications of the channels that this connection listens on; returned once. PostgreSQL
    /// only.
    pub fn take_notifications(&mut self) -> Option<tokio::sync::mpsc::UnboundedReceiver<String>> {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(_) => None,
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => link.take_notifications(),
        }
    }

    /// Whether the connection is known to be closed.
    pub fn is_closed(&self) -> bool {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(link) => link.is_closed(),
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => link.is_closed(),
        }
    }

    /// Returns when the connection has ended. MySQL's driver does not notice that while idle.
    pub async fn wait_closed(&mut self) {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(_) => std::future::pending().await,
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => link.wait_closed().await,
        }
    }

    /// The handle that ends a statement of this connection from another one. MySQL's driver has
    /// none.
    #[cfg(feature = "postgres")]
    pub fn cancel_token(&self) -> Option<tokio_postgres::CancelToken> {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(_) => None,
            Self::Postgres(link) => Some(link.cancel_token()),
        }
    }

    /// Aborts the connection at once, even during a statement.
    pub fn abort(self) {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(link) => drop(link),
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => link.abort(),
        }
    }

    /// Aborts the connection during a statement, and returns when the server has certainly ended
    /// the statement, too.
    pub async fn abandon(self, clock: &Clock) {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(link) => {
                drop(link);
                clock.sleep(ROW_LOCK_TIMEOUT).await;
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => {
                let _ = clock;
                link.close().await;
            }
        }
    }

    /// Closes the connection cleanly.
    pub async fn close(self) {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(link) => link.close().await,
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => link.close().await,
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({})", self.id())
    }
}
