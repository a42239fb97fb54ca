//! The user's own connections and transactions, as [`fence`](crate::fence) and `versioned` use
//! them.
//!
//! | | PostgreSQL (feature `postgres`) | MySQL and MariaDB (feature `mysql`) |
//! |---|---|---|
//! | [`Connection`] | `tokio_postgres::Client` | `mysql_async::Conn` |
//! | [`Transaction`] | `tokio_postgres::Transaction` | `mysql_async::Transaction` |
//! | [`Session::Row`] | `tokio_postgres::Row` | `mysql_async::Row` |
//! | [`Session::Value`] | anything with `ToSql` | anything that becomes a `mysql_async::Value` |
//!
//! With a pool, pass the inner connection or transaction: `&mut *tx` of a pooled transaction. With
//! another client library or language, run the same statements: they are constants of
//! [`fence`](crate::fence).

use crate::logic::fence::FenceState;
use crate::types::{Owner, Token};

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;

#[cfg(feature = "postgres")]
pub use self::postgres::PostgresValue;

/// The SQL dialect of a database.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Dialect {
    /// The dialect of PostgreSQL.
    Postgres,
    /// The dialect of MySQL and MariaDB.
    Mysql,
}

impl Dialect {
    /// A checked name, quoted.
    pub(crate) fn quote(self, name: &str) -> String {
        crate::logic::sql_identifier::quote(name, if self == Self::Postgres { '"' } else { '`' })
    }
}

/// A connection or a transaction of yours. Implemented for the types in the [table above](self) and
/// no others.
pub trait Session: sealed::Sealed + Send {
    /// The SQL dialect of the session.
    const DIALECT: Dialect;
    /// A row of the client library.
    type Row: Send + Sync;
    /// A value of a column.
    type Value: Send + Sync;

    /// Runs a statement without values.
    #[doc(hidden)]
    fn run(&mut self, sql: &str) -> impl Future<Output = Result<(), sealed::StatementError>> + Send;

    /// All rows with this key. The last column of each is its version.
    #[doc(hidden)]
    fn read(
        &mut self,
        sql: &str,
        key: &Self::Value,
    ) -> impl Future<Output = Result<sealed::Rows<Self::Row>, sealed::StatementError>> + Send;

    /// Writes these values to the row with this key and version. Returns the number of rows
    /// written.
    #[doc(hidden)]
    fn write(
        &mut self,
        sql: &str,
        values: &[Self::Value],
        key: &Self::Value,
        version: i64,
    ) -> impl Future<Output = Result<u64, sealed::StatementError>> + Send;
}

/// A connection in `autocommit` mode: no transaction is open, and each statement takes effect on
/// its own.
pub trait Connection: Session {}

/// A transaction: its statements take effect together, when you commit it.
pub trait Transaction: Session {
    /// Records the token unless it is stale; returns what the fence has seen if it is.
    #[doc(hidden)]
    fn admit(
        &mut self,
        sql: &[String],
        resource: &str,
        token: Token,
        owner: Option<Owner>,
    ) -> impl Future<Output = Result<Option<FenceState>, sealed::StatementError>> + Send;
}

/// A value that can be written to a column.
pub trait IntoValue<V> {
    /// Converts it to the client library's type.
    fn into_value(self) -> V;
}

/// The cause of an error: the client library's error. Can be downcast to its type.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

pub(crate) use self::sealed::StatementError;

pub(crate) mod sealed {
    use crate::database::Cause;
    use crate::logic::sql_error::SqlErrorClass;

    #[allow(unreachable_pub, reason = "keeps the public traits to ourselves")]
    pub trait Sealed {}

    /// Rows with their versions, if they have one.
    #[allow(unreachable_pub, reason = "stands in hidden methods of public traits")]
    pub type Rows<R> = Vec<(R, Option<i64>)>;

    /// A statement that failed.
    #[derive(Debug)]
    #[allow(unreachable_pub, reason = "stands in hidden methods of public traits")]
    pub struct StatementError {
        pub(crate) class: SqlErrorClass,
        pub(crate) cause: Cause,
    }

    impl StatementError {
        #[cfg(any(feature = "mysql", feature = "postgres"))]
        pub(crate) fn new(verdict: SqlErrorClass, cause: impl Into<Cause>) -> Self {
            Self { class: verdict, cause: cause.into() }
        }
    }
}
