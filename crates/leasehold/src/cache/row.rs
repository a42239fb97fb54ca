//! What a loader gives, and what a writer leaves.

/// A value out of the database, with the version of its row if it has one.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Row {
    /// The value, as it will be read back.
    pub value: Vec<u8>,
    /// The row's version: a value of a lower one than is known is not let in.
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

/// What there is after a write.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Now {
    /// This row: it is put into the cache.
    Is(Row),
    /// No row: that is put into the cache.
    Nothing,
    /// The next reader shall load it.
    #[default]
    Unknown,
}

impl From<()> for Now {
    fn from((): ()) -> Self {
        Self::Unknown
    }
}

impl From<Row> for Now {
    fn from(row: Row) -> Self {
        Self::Is(row)
    }
}

impl From<Option<Row>> for Now {
    fn from(row: Option<Row>) -> Self {
        row.map_or(Self::Nothing, Self::Is)
    }
}
