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
///
/// ```
/// use leasehold::{database::Dialect, fence};
///
/// assert!(fence::ddl(Dialect::Postgres).starts_with("CREATE TABLE"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Dialect {
    /// The dialect of PostgreSQL.
    Postgres,
    /// The dialect of MySQL and MariaDB.
    Mysql,
}

impl Dialect {
    /// The name of a table or column, in this dialect's quotation marks. The caller has checked it.
    pub(crate) fn quote(self, name: &str) -> String {
        crate::logic::sql_identifier::quote(name, if self == Self::Postgres { '"' } else { '`' })
    }
}

/// A connection or a transaction of yours. Implemented for the types in the
/// [table of this module](self) and no others.
///
/// ```
/// use leasehold::database::{Dialect, Session};
///
/// fn dialect_of<S: Session>(_session: &S) -> Dialect {
///     S::DIALECT
/// }
/// ```
pub trait Session: sealed::Sealed + Send {
    /// The SQL dialect of the session.
    const DIALECT: Dialect;
    /// The client library's type of a row.
    type Row: Send + Sync;
    /// The client library's type of a column's value.
    type Value: Send + Sync;

    /// Runs a statement that has no parameters and returns no rows.
    #[doc(hidden)]
    fn run(&mut self, sql: &str) -> impl Future<Output = Result<(), sealed::StatementError>> + Send;

    /// Runs a SELECT with `key` as its only value, and returns its rows. The last column of each is
    /// its version.
    #[doc(hidden)]
    fn read(
        &mut self,
        sql: &str,
        key: &Self::Value,
    ) -> impl Future<Output = Result<sealed::Rows<Self::Row>, sealed::StatementError>> + Send;

    /// Runs an UPDATE that writes `values` to the row with this key and version. Returns the number
    /// of rows written: 0 if the row has another version by now.
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
///
/// ```
/// use leasehold::{database::Connection, fence};
///
/// async fn prepare<C: Connection>(connection: &mut C) -> Result<(), fence::AdmitError> {
///     fence::create_table(connection).await
/// }
/// ```
pub trait Connection: Session {}

/// A transaction: its statements take effect together, when you commit it.
///
/// ```
/// use leasehold::{Token, database::Transaction, fence};
///
/// async fn begin_write<T: Transaction>(tx: &mut T, token: Token) -> Result<(), fence::AdmitError> {
///     fence::admit(tx, "stock:42", token).await
/// }
/// ```
pub trait Transaction: Session {
    /// Stores the token as the resource's highest and returns `None`; returns what the fence has
    /// seen if the token is stale. `sql` has the two statements of the fence.
    #[doc(hidden)]
    fn admit(
        &mut self,
        sql: &[String],
        resource: &str,
        token: Token,
        owner: Option<Owner>,
    ) -> impl Future<Output = Result<Option<FenceState>, sealed::StatementError>> + Send;
}

/// A value that can be written to a column, or looked up as a key. `V` is the client library's type
/// of values.
///
/// ```
/// use leasehold::database::{IntoValue, Session};
///
/// fn column_value<S: Session>(value: impl IntoValue<S::Value>) -> S::Value {
///     value.into_value()
/// }
/// ```
pub trait IntoValue<V> {
    /// Converts the value to the client library's type.
    fn into_value(self) -> V;
}

/// The client library's error behind an error of this library; it can be downcast to the library's
/// type.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

pub(crate) use self::sealed::StatementError;

pub(crate) mod sealed {
    use crate::database::Cause;
    use crate::logic::sql_error::SqlErrorClass;

    /// Implemented only in this crate, so that no other crate can implement `Session`.
    #[allow(unreachable_pub, reason = "a public trait extends it")]
    pub trait Sealed {}

    /// Rows, each with its version: `None` if the version column is NULL.
    #[allow(unreachable_pub, reason = "stands in hidden methods of public traits")]
    pub type Rows<R> = Vec<(R, Option<i64>)>;

    /// A statement that failed: what that means for its effect, and the client library's error.
    #[derive(Debug)]
    #[allow(unreachable_pub, reason = "a hidden method of a public trait has it")]
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
