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

/// Implements [`Session`] for a connection or transaction type of a client library. The module that
/// calls it has the functions `read`, `write` and `statement_error` for that library. `$run` is the
/// library's method that runs a statement without parameters.
#[cfg(any(feature = "mysql", feature = "postgres"))]
macro_rules! implement_session {
    ($session:ty, $dialect:expr, $row:ty, $value:ty, $run:ident) => {
        impl sealed::Sealed for $session {}

        impl Session for $session {
            const DIALECT: Dialect = $dialect;
            type Row = $row;
            type Value = $value;

            async fn run(&mut self, sql: &str) -> Result<(), StatementError> {
                self.$run(sql).await.map_err(statement_error)
            }

            async fn read(&mut self, sql: &str, key: &Self::Value) -> Result<sealed::Rows<Self::Row>, StatementError> {
                read(self, sql, key).await
            }

            async fn write(
                &mut self,
                sql: &str,
                values: &[Self::Value],
                key: &Self::Value,
                version: i64,
            ) -> Result<u64, StatementError> {
                write(self, sql, values, key, version).await
            }
        }
    };
}

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
    /// Quotes a table or column name, which the caller has checked to be plain.
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

    /// Runs a statement that has no parameters and returns no rows.
    #[doc(hidden)]
    fn run(&mut self, sql: &str) -> impl Future<Output = Result<(), sealed::StatementError>> + Send;

    /// Runs a query whose only parameter is `key`. Returns each row with the number in its last
    /// column, which is the row's version.
    #[doc(hidden)]
    fn read(
        &mut self,
        sql: &str,
        key: &Self::Value,
    ) -> impl Future<Output = Result<sealed::Rows<Self::Row>, sealed::StatementError>> + Send;

    /// Runs a statement whose parameters are `values`, then `key`, then `version`: it writes the
    /// values to the row with this key if the row still has this version. Returns the number of
    /// rows written: 0 if the row has another version.
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
    /// Records `token` for the resource unless the fence has seen a higher one, or the same one
    /// from another owner. `sql` is the statement that records it and the one that then reads the
    /// fence. `None`: the token is admitted. `Some`: it is stale, and this is what the fence has
    /// seen.
    #[doc(hidden)]
    fn admit(
        &mut self,
        sql: &[String],
        resource: &str,
        token: Token,
        owner: Option<Owner>,
    ) -> impl Future<Output = Result<Option<FenceState>, sealed::StatementError>> + Send;
}

/// A value that can be written to a column, through the client library whose value type is `V`.
pub trait IntoValue<V> {
    /// Converts it to the client library's value type.
    fn into_value(self) -> V;
}

/// The client library's error behind an error of ours; it can be downcast to the library's type.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

pub(crate) use self::sealed::StatementError;

pub(crate) mod sealed {
    use crate::database::Cause;
    use crate::logic::sql_error::SqlErrorClass;

    #[allow(unreachable_pub, reason = "keeps the public traits to ourselves")]
    pub trait Sealed {}

    /// Rows, each with its version: `None` if the version column is NULL.
    #[allow(unreachable_pub, reason = "stands in hidden methods of public traits")]
    pub type Rows<R> = Vec<(R, Option<i64>)>;

    /// A statement that failed: what that means for its effect, and the client library's error.
    #[derive(Debug)]
    #[allow(unreachable_pub, reason = "stands in hidden methods of public traits")]
    pub struct StatementError {
        pub(crate) class: SqlErrorClass,
        pub(crate) cause: Cause,
    }

    impl StatementError {
        #[cfg(any(feature = "mysql", feature = "postgres"))]
        pub(crate) fn new(class: SqlErrorClass, cause: impl Into<Cause>) -> Self {
            Self { class, cause: cause.into() }
        }

        /// The same error, for a failure before the statement ran: it certainly had no effect.
        #[cfg(any(feature = "mysql", feature = "postgres"))]
        pub(crate) fn before_execution(self) -> Self {
            match self.class {
                SqlErrorClass::Unknown => Self { class: SqlErrorClass::Refused, ..self },
                _ => self,
            }
        }
    }
}
