//! One connection, to either database: a statement in, rows out.

use std::time::Duration;

use super::config::Config;
use super::error::Failure;
use crate::clock::Clock;

/// How long a statement waits at the server for a row that another transaction keeps locked: less than the client waits for its answer, so that the
/// server says why. Where the TTL leaves less than that, PostgreSQL's statements say so ([`lock_wait`]); MySQL counts whole seconds.
pub(super) const LOCK_WAIT: Duration = Duration::from_secs(1);

/// How long a statement of a step that may take `within` waits for a locked row: half of that. In milliseconds, as PostgreSQL reads it.
pub(super) fn lock_wait(within: Duration) -> String {
    // Zero would be for ever.
    (within / 2).min(LOCK_WAIT).as_millis().max(1).to_string()
}

/// A value that goes to the server with a statement, or comes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Null,
    Int(i64),
    Text(String),
}

impl Value {
    /// A whole number; anything else is none.
    pub(super) fn int(&self) -> Option<i64> {
        match self {
            Self::Int(int) => Some(*int),
            Self::Text(text) => text.parse().ok(),
            Self::Null => None,
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
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

/// What a statement gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) rows: Vec<Vec<Value>>,
    /// How many rows it changed.
    pub(super) changed: u64,
    /// MySQL only: what the statement said by `LAST_INSERT_ID(…)`.
    pub(super) insert_id: u64,
}

impl Reply {
    /// The first row.
    pub(super) fn row(&self) -> Option<&[Value]> {
        self.rows.first().map(Vec::as_slice)
    }

    /// The only value of the only row.
    pub(super) fn value(&self) -> Option<&Value> {
        self.row().and_then(<[Value]>::first)
    }
}

/// A connection. One statement at a time; whoever drops a call must drop the connection, too.
#[allow(clippy::large_enum_variant, reason = "there are few of them, and they are not moved about")]
pub(super) enum Link {
    #[cfg(feature = "mysql")]
    MySql(super::mysql::MyLink),
    #[cfg(feature = "postgres")]
    Postgres(super::postgres::PgLink),
}

impl Link {
    /// Connects to the first server that takes writes.
    pub(super) async fn open(config: &Config) -> Result<Self, Failure> {
        match config.dialect {
            #[cfg(feature = "mysql")]
            super::Dialect::MySql => Ok(Self::MySql(super::mysql::MyLink::open(config).await?)),
            #[cfg(feature = "postgres")]
            super::Dialect::Postgres => Ok(Self::Postgres(super::postgres::PgLink::open(config).await?)),
            #[cfg(not(all(feature = "mysql", feature = "postgres")))]
            other => Err(Failure::Unreachable(format!("{} is not in this build", other.name()))),
        }
    }

    /// Runs one statement; it is prepared once per connection, unless a pooler forbids that.
    pub(super) async fn run(&mut self, sql: &str, values: &[Value]) -> Result<Reply, Failure> {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(link) => link.run(sql, values).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => link.run(sql, values).await,
        }
    }

    /// Runs statements that have no values and give no rows, one after the other in one message.
    pub(super) async fn script(&mut self, sql: &str) -> Result<(), Failure> {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(link) => link.script(sql).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => link.script(sql).await,
        }
    }

    /// The session is this connection's own: what a session keeps (prepared statements) stays there.
    pub(super) fn own_session(&mut self) {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(_) => {}
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => link.own_session(),
        }
    }

    /// The server's number of this connection.
    pub(super) fn id(&self) -> i64 {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(link) => link.id(),
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => link.id(),
        }
    }

    /// What is said on the channels that this connection listens to, once; only PostgreSQL has them.
    pub(super) fn news(&mut self) -> Option<tokio::sync::mpsc::UnboundedReceiver<String>> {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(_) => None,
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => link.news(),
        }
    }

    /// Whether it is known to be gone.
    pub(super) fn is_closed(&self) -> bool {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(link) => link.is_closed(),
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => link.is_closed(),
        }
    }

    /// Comes back when the connection is over, where that is heard of while it is idle: of MySQL's it is not.
    pub(super) async fn ended(&mut self) {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(_) => std::future::pending().await,
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => link.ended().await,
        }
    }

    /// What ends a statement of this connection from beside it, where the driver can: of MySQL's it cannot.
    #[cfg(feature = "postgres")]
    pub(super) fn stopper(&self) -> Option<tokio_postgres::CancelToken> {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(_) => None,
            Self::Postgres(link) => Some(link.stopper()),
        }
    }

    /// Ends it at once, also in the middle of a statement.
    pub(super) fn cut(self) {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(link) => drop(link),
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => link.cut(),
        }
    }

    /// Gives it up in the middle of a statement, and comes back when the server has surely done the same.
    pub(super) async fn abandon(self, clock: &Clock) {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(link) => {
                drop(link);
                clock.sleep(LOCK_WAIT).await;
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => {
                let _ = clock;
                link.close().await;
            }
        }
    }

    /// Says good-bye.
    pub(super) async fn close(self) {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(link) => link.close().await,
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => link.close().await,
        }
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({})", self.id())
    }
}
