//! Updates by a version column: no lock is held, and no update is lost.
//!
//! Read the row, decide, and write only if its version is still the one that was read; if not, somebody else was quicker: wait a
//! little and begin again.
//!
//! ```no_run
//! # #[cfg(feature = "postgres")]
//! # async fn buy(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! use leasehold::versioned::{Change, Versioned};
//!
//! let stock = Versioned::table("stock").key("id").version("version");
//! let bought = stock
//!     .update(client, 42i64, |row| {
//!         let units: i64 = row.try_get("units")?;
//!         if units == 0 {
//!             return Ok(Change::none().giving(None));              // sold out: the row stays as it is
//!         }
//!         Ok(Change::set("units", units - 1).giving(Some(units)))
//!     })
//!     .await?;
//! println!("{:?}, after {} retries", bought.value, bought.retries);
//! # Ok(()) }
//! ```
//!
//! The same with `mysql_async::Conn`, except for how its rows are read: `row.get("units")`.
//!
//! # When it is right, and when a lock is
//! It protects one row, not a section of work, and holds nothing in between. It is the quickest way where conflicts are rare. Where
//! many write the same row, most tries are wasted, and whoever is slow may starve: [`UpdateError::TooContended`] says so. All who write the
//! row must raise its version; a plain `UPDATE` beside it is not noticed.
//!
//! # What is never retried
//! If the connection is lost while the new values are sent, nobody knows whether they were written:
//! [`UpdateError::Unknown`]. Another try could do the same change twice (two units sold to one buyer), so there is none. Read the row
//! and decide, or make the change recognisable: a buyer's id in a table with a unique key, in [the same
//! transaction](Versioned::update_in). The same holds for a future of `update` that is dropped before its end.

mod change;
mod error;
mod text;

use std::borrow::Cow;
use std::time::Duration;

use crate::clock::Clock;
use crate::database::{Connection, Fault, IntoValue, Session, Transaction};
use crate::logic::verdict::Verdict;
use crate::logic::versioned::{Limits, Next, Tried, next};
use crate::random;

pub use self::change::{Change, Updated};
pub use self::error::UpdateError;
pub use crate::database::Cause;

/// A table of yours with a key and a version column (a whole number, not null).
#[derive(Clone, Debug)]
pub struct Versioned {
    table: Cow<'static, str>,
    key: Cow<'static, str>,
    version: Cow<'static, str>,
    columns: Vec<Cow<'static, str>>,
    limits: Limits,
}

impl Versioned {
    /// The table, with or without a schema before it; its key is `id` and its version `version` unless you say otherwise. Names are
    /// quoted, so that upper and lower case are as the database keeps them (PostgreSQL: in lower case unless they were quoted, too).
    pub fn table(name: impl Into<Cow<'static, str>>) -> Self {
        Self {
            table: name.into(),
            key: "id".into(),
            version: "version".into(),
            columns: Vec::new(),
            limits: Limits::default(),
        }
    }

    /// The column that tells the rows apart: the primary key, or another that is unique.
    #[must_use]
    pub fn key(mut self, column: impl Into<Cow<'static, str>>) -> Self {
        self.key = column.into();
        self
    }

    /// The column that counts the changes.
    #[must_use]
    pub fn version(mut self, column: impl Into<Cow<'static, str>>) -> Self {
        self.version = column.into();
        self
    }

    /// Reads these columns only, not all.
    #[must_use]
    pub fn columns<C: Into<Cow<'static, str>>>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.columns = columns.into_iter().map(Into::into).collect();
        self
    }

    /// The most tries, the first included: 50 unless you say otherwise.
    #[must_use]
    pub fn tries(mut self, most: u32) -> Self {
        self.limits.tries = most;
        self
    }

    /// No try begins after this time: 10 s unless you say otherwise.
    #[must_use]
    pub fn within(mut self, time: Duration) -> Self {
        self.limits.within = time;
        self
    }

    /// The pause after the first conflict and the longest one, from 1 ms to 100 ms unless you say otherwise. Each is twice the one
    /// before it, less a random half.
    #[must_use]
    pub fn pause(mut self, first: Duration, most: Duration) -> Self {
        (self.limits.first, self.limits.most) = (first, most);
        self
    }

    /// Reads the row with this key, has `decide` say what to change, and writes that if the row is still what was read; if not, pauses and begins
    /// again. `decide` may be called several times, so it should have no effects of its own.
    ///
    /// # Errors
    /// [`UpdateError::TooContended`] after the last try, [`UpdateError::Unknown`] if nobody knows whether it was written, and others: see
    /// there. After all but `Unknown`, nothing was written.
    pub async fn update<C: Connection, T>(
        &self,
        conn: &mut C,
        key: impl IntoValue<C::Value>,
        mut decide: impl FnMut(&C::Row) -> Result<Change<C::Value, T>, Cause>,
    ) -> Result<Updated<T>, UpdateError> {
        let key = key.into_value();
        let clock = Clock::system();
        let start = clock.now();
        let mut tries = 0;
        loop {
            let ended = self.attempt(conn, &key, &mut decide).await;
            tries += 1;
            let tried = match &ended {
                Ok(_) => Tried::Written,
                Err(UpdateError::Conflict(_)) => Tried::Conflict,
                Err(UpdateError::Unknown(_)) => Tried::Unknown,
                Err(_) => Tried::Failed,
            };
            let elapsed = clock.now().since(start);
            match next(tried, tries, elapsed, &self.limits, (random::bits() & u128::from(u32::MAX)) as u32) {
                Next::Again(rest) => clock.sleep(rest).await,
                Next::TooContended => return Err(UpdateError::TooContended { tries }),
                Next::Done | Next::Fail | Next::Unknown => {
                    return ended.map(|done| Updated { retries: tries - 1, ..done });
                }
            }
        }
    }

    /// As [`update`](Self::update), inside your own transaction: it takes effect when you commit, with whatever else you write. One try only.
    ///
    /// A conflict is told ([`UpdateError::Conflict`]) and not tried again, because from `REPEATABLE READ` on (the default of MySQL) the
    /// transaction goes on seeing the version that it saw first, however often it reads: roll back and run the whole transaction again. Under
    /// `READ COMMITTED` (the default of PostgreSQL) you may also just call this again. The row stays locked until the transaction ends.
    ///
    /// # Errors
    /// As of `update`, but never `TooContended` nor `Unknown`: what was not committed was not done.
    pub async fn update_in<X: Transaction, T>(
        &self,
        tx: &mut X,
        key: impl IntoValue<X::Value>,
        mut decide: impl FnMut(&X::Row) -> Result<Change<X::Value, T>, Cause>,
    ) -> Result<Updated<T>, UpdateError> {
        match self.attempt(tx, &key.into_value(), &mut decide).await {
            Err(UpdateError::Unknown(cause)) => Err(UpdateError::Failed(cause)),
            ended => ended,
        }
    }

    /// One try.
    async fn attempt<S: Session, T>(
        &self,
        session: &mut S,
        key: &S::Value,
        decide: &mut impl FnMut(&S::Row) -> Result<Change<S::Value, T>, Cause>,
    ) -> Result<Updated<T>, UpdateError> {
        let sql = self.select(S::DIALECT).map_err(UpdateError::Invalid)?;
        // Whatever goes wrong while it is read, nothing was done.
        let mut rows = session.read(&sql, key).await.map_err(|fault| match fault {
            Fault { verdict: Verdict::Again, cause } => UpdateError::Conflict(Some(cause)),
            Fault { cause, .. } => UpdateError::Failed(cause),
        })?;
        let (row, version) = match (rows.pop(), rows.len()) {
            (Some(row), 0) => row,
            (None, _) => return Err(UpdateError::NoRow),
            (Some(_), more) => return Err(UpdateError::NotUnique { rows: more + 1 }),
        };
        let version = version.ok_or(UpdateError::NoVersion)?;
        let Change { columns, values, value } = decide(&row).map_err(UpdateError::Refused)?;
        if columns.is_empty() {
            return Ok(Updated { value, version, retries: 0, changed: false });
        }
        let sql = self.write(&columns, S::DIALECT).map_err(UpdateError::Invalid)?;
        match session.write(&sql, &values, key, version).await {
            Ok(0) => Err(UpdateError::Conflict(None)),
            Ok(_) => Ok(Updated { value, version: version.saturating_add(1), retries: 0, changed: true }),
            Err(Fault { verdict: Verdict::Again, cause }) => Err(UpdateError::Conflict(Some(cause))),
            Err(Fault { verdict: Verdict::Unknown, cause }) => Err(UpdateError::Unknown(cause)),
            Err(Fault { cause, .. }) => Err(UpdateError::Failed(cause)),
        }
    }
}
