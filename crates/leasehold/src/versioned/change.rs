//! What an update changes, and what it answers.

use std::borrow::Cow;

use crate::database::IntoValue;

/// What to write to the row, and what to tell the caller when it was written.
///
/// `V` is the database's value; it follows from where the change is used. Texts must be owned (`String`).
#[derive(Debug)]
#[must_use]
pub struct Change<V, T = ()> {
    pub(super) columns: Vec<Cow<'static, str>>,
    pub(super) values: Vec<V>,
    pub(super) value: T,
}

impl<V> Change<V> {
    /// Nothing: the row stays as it is, with its version.
    pub fn none() -> Self {
        Self { columns: Vec::new(), values: Vec::new(), value: () }
    }

    /// This column gets this value.
    pub fn set(column: impl Into<Cow<'static, str>>, value: impl IntoValue<V>) -> Self {
        Self::none().and(column, value)
    }
}

impl<V, T> Change<V, T> {
    /// And this column this one.
    pub fn and(mut self, column: impl Into<Cow<'static, str>>, value: impl IntoValue<V>) -> Self {
        self.columns.push(column.into());
        self.values.push(value.into_value());
        self
    }

    /// The caller gets `value` once it is written.
    pub fn giving<U>(self, value: U) -> Change<V, U> {
        Change { columns: self.columns, values: self.values, value }
    }
}

/// An update that was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Updated<T> {
    /// What the [`Change`] gave.
    pub value: T,
    /// The row's version now.
    pub version: i64,
    /// How many tries were in vain before.
    pub retries: u32,
    /// Whether anything was written.
    pub changed: bool,
}
