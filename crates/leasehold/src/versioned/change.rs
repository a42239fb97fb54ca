//! The change of an update, and its result.

use std::borrow::Cow;

use crate::database::IntoValue;

/// The columns to write to a row, and the value to return to the caller once they are written.
///
/// `V` is the database's value type, which follows from where the change is used. Texts must be
/// owned (`String`).
#[derive(Debug)]
#[must_use]
pub struct Change<V, T = ()> {
    pub(super) columns: Vec<Cow<'static, str>>,
    pub(super) values: Vec<V>,
    pub(super) value: T,
}

impl<V> Change<V> {
    /// No change: the row and its version stay as they are.
    pub fn none() -> Self {
        Self { columns: Vec::new(), values: Vec::new(), value: () }
    }

    /// Sets this column to this value.
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

    /// Returns `value` to the caller once the change is written.
    pub fn returning<U>(self, value: U) -> Change<V, U> {
        Change { columns: self.columns, values: self.values, value }
    }
}

/// A completed update.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Updated<T> {
    /// The value that the [`Change`] returned.
    pub value: T,
    /// The row's version after the update.
    pub version: i64,
    /// The number of failed tries before it.
    pub retries: u32,
    /// Whether anything was written.
    pub changed: bool,
}
