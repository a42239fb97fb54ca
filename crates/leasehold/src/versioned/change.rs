//! What an update by version writes, and what it returns.

use std::borrow::Cow;

use crate::database::IntoValue;

/// The columns to write to a row, and the value to return to the caller once they are written.
///
/// `V` is the client library's type of values, which follows from where the change is used. Texts
/// must be owned (`String`).
///
/// ```
/// use leasehold::{database::IntoValue, versioned::Change};
///
/// /// Takes one unit from the stock, and returns how many are left.
/// fn sell<V>(units: i64) -> Change<V, i64>
/// where
///     i64: IntoValue<V>,
/// {
///     Change::set("units", units - 1).returning(units - 1)
/// }
/// ```
#[derive(Debug)]
#[must_use]
pub struct Change<V, T = ()> {
    pub(super) columns: Vec<Cow<'static, str>>,
    /// One value per column.
    pub(super) values: Vec<V>,
    /// What the update returns to the caller.
    pub(super) value: T,
}

impl<V> Change<V> {
    /// No change: the row and its version stay as they are.
    pub fn none() -> Self {
        Self { columns: Vec::new(), values: Vec::new(), value: () }
    }

    /// A change that sets this column to this value.
    pub fn set(column: impl Into<Cow<'static, str>>, value: impl IntoValue<V>) -> Self {
        Self::none().and_set(column, value)
    }
}

impl<V, T> Change<V, T> {
    /// Also sets this column to this value.
    pub fn and_set(mut self, column: impl Into<Cow<'static, str>>, value: impl IntoValue<V>) -> Self {
        self.columns.push(column.into());
        self.values.push(value.into_value());
        self
    }

    /// The same change, whose update returns `value` to the caller once it is written.
    pub fn returning<U>(self, value: U) -> Change<V, U> {
        Change { columns: self.columns, values: self.values, value }
    }
}

/// The result of an update that succeeded.
///
/// ```
/// use leasehold::versioned::Updated;
///
/// fn report(updated: &Updated<i64>) -> String {
///     format!("{} units left, version {}, after {} retries", updated.value, updated.version, updated.retries)
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Updated<T> {
    /// The value that was passed to [`Change::returning`].
    pub value: T,
    /// The row's version after the update.
    pub version: i64,
    /// The number of attempts that failed before this one, because another client wrote first.
    pub retries: u32,
    /// Whether the row was written; `false` after [`Change::none`].
    pub changed: bool,
}
