//! Optimistic updates by a version column: no lock is held, and no update is lost.
//!
//! Read the row, decide, and write only if the row still has the version that was read. If not,
//! another client was faster: pause and start over.
//!
//! ```no_run
//! # #[cfg(feature = "postgres")]
//! # async fn buy(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! use leasehold::versioned::{Change, VersionedTable};
//!
//! let stock = VersionedTable::new("stock").key("id").version("version");
//! let bought = stock
//!     .update(client, 42i64, |row| {
//!         let units: i64 = row.try_get("units")?;
//!         if units == 0 {
//!             return Ok(Change::none().returning(None));              // sold out: the row stays as it is
//!         }
//!         Ok(Change::set("units", units - 1).returning(Some(units)))
//!     })
//!     .await?;
//! println!("{:?}, after {} retries", bought.value, bought.retries);
//! # Ok(()) }
//! ```
//!
//! With `mysql_async::Conn` it is the same, except for how its rows are read: `row.get("units")`.
//!
//! # When to use it, and when to use a lock
//! An update protects one row, not a section of work, and holds no lock in between. It is the
//! fastest way if conflicts are rare. If many clients write the same row, most tries are wasted,
//! and a slow client may starve; it gets [`UpdateError::TooContended`]. Every writer of the row
//! must raise its version: a plain `UPDATE` goes unnoticed.
//!
//! # What is never retried
//! If the connection is lost while the new values are sent, their effect is unknown:
//! [`UpdateError::Unknown`]. A retry could make the same change twice (two units sold to one
//! buyer), so there is none. Read the row and decide, or make the change recognisable: a buyer's id
//! in a table with a unique key, in [the same transaction](VersionedTable::update_in). The same
//! applies if a future of `update` is dropped before it completes.

mod change;
mod error;
mod statements;

use std::borrow::Cow;
use std::time::Duration;

use crate::clock::Clock;
use crate::database::{Connection, IntoValue, Session, StatementError, Transaction};
use crate::logic::optimistic_update::{AttemptResult, NextStep, RetryLimits, next_step};
use crate::logic::sql_error::SqlErrorClass;
use crate::random;

pub use self::change::{Change, Updated};
pub use self::error::UpdateError;
pub use crate::database::Cause;

/// A table of yours with a key and a version column (a whole number, not null).
///
/// ```
/// use std::time::Duration;
/// use leasehold::versioned::VersionedTable;
///
/// let stock = VersionedTable::new("shop.stock")
///     .key("sku")
///     .columns(["units"])
///     .max_attempts(10)
///     .time_limit(Duration::from_secs(2));
/// ```
#[derive(Clone, Debug)]
pub struct VersionedTable {
    table: Cow<'static, str>,
    key: Cow<'static, str>,
    version: Cow<'static, str>,
    /// The columns to read; empty: all.
    columns: Vec<Cow<'static, str>>,
    limits: RetryLimits,
}

impl VersionedTable {
    /// The table with this name, with or without a schema. By default its key column is `id` and
    /// its version column is `version`. Names are quoted, so their case must match the database's
    /// (PostgreSQL: lower case, unless they were created with quotes).
    pub fn new(name: impl Into<Cow<'static, str>>) -> Self {
        Self {
            table: name.into(),
            key: "id".into(),
            version: "version".into(),
            columns: Vec::new(),
            limits: RetryLimits::default(),
        }
    }

    /// Sets the column that identifies a row: the primary key, or another unique column.
    #[must_use]
    pub fn key(mut self, column: impl Into<Cow<'static, str>>) -> Self {
        self.key = column.into();
        self
    }

    /// Sets the column that counts the changes of a row.
    #[must_use]
    pub fn version(mut self, column: impl Into<Cow<'static, str>>) -> Self {
        self.version = column.into();
        self
    }

    /// Reads only these columns instead of all.
    #[must_use]
    pub fn columns<C: Into<Cow<'static, str>>>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.columns = columns.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the maximum number of attempts, the first included; 50 by default.
    #[must_use]
    pub fn max_attempts(mut self, limit: u32) -> Self {
        self.limits.max_attempts = limit;
        self
    }

    /// Sets the time after which no further attempt starts; 10 s by default.
    #[must_use]
    pub fn time_limit(mut self, time: Duration) -> Self {
        self.limits.time_limit = time;
        self
    }

    /// Sets the pause after the first conflict and the longest pause; 1 ms and 100 ms by default.
    /// Each pause is twice the one before, less a random part of up to half.
    #[must_use]
    pub fn retry_pause(mut self, first: Duration, max: Duration) -> Self {
        (self.limits.first_pause, self.limits.max_pause) = (first, max);
        self
    }

    /// Reads the row with this key, calls `decide` for the change, and writes it if the row still
    /// has the version that was read. If not, pauses and starts over. `decide` may be called
    /// several times, so it should have no side effects.
    ///
    /// # Errors
    /// [`UpdateError::TooContended`] after the last attempt, [`UpdateError::Unknown`] if the change
    /// may or may not have been written, and the others of [`UpdateError`]. After all but
    /// `Unknown`, the row is unchanged.
    pub async fn update<C: Connection, T>(
        &self,
        conn: &mut C,
        key: impl IntoValue<C::Value>,
        mut decide: impl FnMut(&C::Row) -> Result<Change<C::Value, T>, Cause>,
    ) -> Result<Updated<T>, UpdateError> {
        let key = key.into_value();
        let clock = Clock::system();
        let start = clock.now();
        let mut attempts = 0;
        loop {
            let result = self.attempt(conn, &key, &mut decide).await;
            attempts += 1;
            let attempt_result = match &result {
                Ok(_) => AttemptResult::Written,
                Err(UpdateError::Conflict(_)) => AttemptResult::Conflict,
                Err(UpdateError::Unknown(_)) => AttemptResult::Unknown,
                Err(_) => AttemptResult::Failed,
            };
            let elapsed = clock.now().duration_since(start);
            let random_bits = (random::random_bits() & u128::from(u32::MAX)) as u32;
            match next_step(attempt_result, attempts, elapsed, &self.limits, random_bits) {
                NextStep::Retry(pause) => clock.sleep(pause).await,
                NextStep::TooContended => return Err(UpdateError::TooContended { attempts }),
                NextStep::Done | NextStep::Fail | NextStep::Unknown => {
                    return result.map(|updated| Updated { retries: attempts - 1, ..updated });
                }
            }
        }
    }

    /// As [`update`](Self::update), inside your own transaction: the change takes effect when you
    /// commit, together with your other writes. Makes one attempt only.
    ///
    /// A conflict is returned ([`UpdateError::Conflict`]) and not retried. From `REPEATABLE READ`
    /// on (the default of MySQL), the transaction keeps seeing the version that it saw first,
    /// however often it reads: roll back and run the whole transaction again. Under `READ
    /// COMMITTED` (the default of PostgreSQL) you may also just call this again. The row stays
    /// locked until the transaction ends.
    ///
    /// # Errors
    /// As `update`, but never `TooContended` or `Unknown`: without a commit, the row is unchanged.
    pub async fn update_in<X: Transaction, T>(
        &self,
        tx: &mut X,
        key: impl IntoValue<X::Value>,
        mut decide: impl FnMut(&X::Row) -> Result<Change<X::Value, T>, Cause>,
    ) -> Result<Updated<T>, UpdateError> {
        match self.attempt(tx, &key.into_value(), &mut decide).await {
            Err(UpdateError::Unknown(cause)) => Err(UpdateError::Failed(cause)),
            result => result,
        }
    }

    /// Reads the row, calls `decide`, and writes the change, once. The `retries` of its result are
    /// zero.
    async fn attempt<S: Session, T>(
        &self,
        session: &mut S,
        key: &S::Value,
        decide: &mut impl FnMut(&S::Row) -> Result<Change<S::Value, T>, Cause>,
    ) -> Result<Updated<T>, UpdateError> {
        let sql = self.select(S::DIALECT).map_err(UpdateError::Invalid)?;
        // An error during the read has no effect.
        let mut rows = session.read(&sql, key).await.map_err(|error| match error {
            StatementError { class: SqlErrorClass::Retry, cause } => UpdateError::Conflict(Some(cause)),
            StatementError { cause, .. } => UpdateError::Failed(cause),
        })?;
        let (row, version) = match (rows.pop(), rows.len()) {
            (Some(row), 0) => row,
            (None, _) => return Err(UpdateError::NoRow),
            (Some(_), others) => return Err(UpdateError::NotUnique { rows: others + 1 }),
        };
        let version = version.ok_or(UpdateError::NoVersion)?;
        let Change { columns, values, value } = decide(&row).map_err(UpdateError::Rejected)?;
        if columns.is_empty() {
            return Ok(Updated { value, version, retries: 0, changed: false });
        }
        let sql = self.write(&columns, S::DIALECT).map_err(UpdateError::Invalid)?;
        match session.write(&sql, &values, key, version).await {
            Ok(0) => Err(UpdateError::Conflict(None)),
            Ok(_) => Ok(Updated { value, version: version.saturating_add(1), retries: 0, changed: true }),
            Err(StatementError { class: SqlErrorClass::Retry, cause }) => Err(UpdateError::Conflict(Some(cause))),
            Err(StatementError { class: SqlErrorClass::Unknown, cause }) => Err(UpdateError::Unknown(cause)),
            Err(StatementError { cause, .. }) => Err(UpdateError::Failed(cause)),
        }
    }
}
