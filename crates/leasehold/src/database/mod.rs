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

    /// Runs a statement without values.
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

/// The cause of an error: the client library's error. Can be downcast to its type.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

pub(crate) use self::sealed::StatementError;

pub(crate) mod sealed {
    use crate::database::Cause;
    use crate::logic::sql_error::SqlErrorClass;

    /// Implemented only in this crate, so that no other crate can implement `Session`.
    #[allow(unreachable_pub, reason = "a public trait extends it")]
    pub trait Sealed {}

    /// Rows, each with its version; `None` if the version is NULL.
    #[allow(unreachable_pub, reason = "a hidden method of a public trait has it")]
    pub type Rows<R> = Vec<(R, Option<i64>)>;

    /// Why a statement failed: what that means for it, and the client library's error.
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
    }
}
