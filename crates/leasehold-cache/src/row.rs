//! The results of loaders and writers.

/// A value from the database, with the version of its row if it has one.
///
/// ```
/// use leasehold_cache::Row;
///
/// assert_eq!(Row::from("Ada"), Row { value: b"Ada".to_vec(), version: None });
/// assert_eq!(Row::from(("Ada", 7)).version, Some(7));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Row {
    /// The value, as reads return it.
    pub value: Vec<u8>,
    /// The row's version: a row with a lower version than a known one is rejected. `None`: rows
    /// have no versions.
    pub version: Option<u64>,
}

impl From<Vec<u8>> for Row {
    fn from(value: Vec<u8>) -> Self {
        Self { value, version: None }
    }
}

impl From<String> for Row {
    fn from(value: String) -> Self {
        value.into_bytes().into()
    }
}

impl From<&str> for Row {
    fn from(value: &str) -> Self {
        value.as_bytes().to_vec().into()
    }
}

impl<V: Into<Vec<u8>>> From<(V, u64)> for Row {
    fn from((value, version): (V, u64)) -> Self {
        Self { value: value.into(), version: Some(version) }
    }
}

/// The state of a row after a write.
///
/// ```
/// use leasehold_cache::{Row, RowState};
///
/// assert_eq!(RowState::from(Row::from("Ada")), RowState::Present(Row::from("Ada")));
/// assert_eq!(RowState::from(None), RowState::Absent);        // the write deleted the row
/// assert_eq!(RowState::from(()), RowState::Unknown);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum RowState {
    /// The row exists with this value, which is stored in the cache.
    Present(Row),
    /// The row does not exist; "not found" is stored in the cache.
    Absent,
    /// The writer does not know the row's value: the next reader loads it.
    #[default]
    Unknown,
}

impl From<()> for RowState {
    fn from((): ()) -> Self {
        Self::Unknown
    }
}

impl From<Row> for RowState {
    fn from(row: Row) -> Self {
        Self::Present(row)
    }
}

impl From<Option<Row>> for RowState {
    fn from(row: Option<Row>) -> Self {
        row.map_or(Self::Absent, Self::Present)
    }
}
