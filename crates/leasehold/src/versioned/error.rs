//! Why an update by version failed.

use std::error::Error as StdError;
use std::fmt;

use crate::database::Cause;
use crate::types::Error;

/// Why an update failed. Only after [`Unknown`](Self::Unknown) may the row have been changed.
///
/// ```
/// use leasehold::versioned::UpdateError;
///
/// fn advice(error: &UpdateError) -> &'static str {
///     match error {
///         UpdateError::TooContended { .. } | UpdateError::Conflict(_) => "try again later",
///         UpdateError::Unknown(_) => "read the row before you try again",
///         _ => "the row is unchanged",
///     }
/// }
/// assert_eq!(advice(&UpdateError::TooContended { attempts: 50 }), "try again later");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum UpdateError {
    /// Other clients changed the row during each try. Wait, or acquire a lock for this row.
    TooContended {
        /// The number of tries.
        attempts: u32,
    },
    /// Another client changed the row: run the transaction again. `Some`: the database reported the
    /// conflict with this error, and has ended the transaction already.
    Conflict(Option<Cause>),
    /// The connection was lost during the write: the change may or may not have been written. Do
    /// not retry blindly, because the change could be made twice.
    Unknown(Cause),
    /// No row of the table has the given key.
    NoRow,
    /// Several rows of the table have the given key.
    NotUnique {
        /// The number of rows with the key.
        rows: usize,
    },
    /// The row's version is NULL.
    NoVersion,
    /// The name of a table or column is invalid, or a change sets the column of the key or the
    /// version. No statement was sent.
    Invalid(Error),
    /// The error that the caller's function returned.
    Rejected(Cause),
    /// The error of the database or of the connection; the row is unchanged.
    Failed(Cause),
}

impl fmt::Display for UpdateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooContended { attempts } => {
                write!(f, "other clients changed the row during each of {attempts} tries: wait, or acquire a lock")
            }
            Self::Conflict(None) => f.write_str("the row was changed by another client: run the transaction again"),
            Self::Conflict(Some(cause)) => {
                write!(f, "another transaction conflicted: roll back and run the transaction again: {cause}")
            }
            Self::Unknown(cause) => write!(
                f,
                "it is unknown whether the row was changed; read it before you try again, or it may be changed twice: {cause}"
            ),
            Self::NoRow => f.write_str("no row has this key"),
            Self::NotUnique { rows } => write!(f, "{rows} rows have this key: it must be unique"),
            Self::NoVersion => f.write_str("the row's version is NULL: it must be a number"),
            Self::Invalid(error) => error.fmt(f),
            Self::Rejected(cause) => write!(f, "the change was not made: {cause}"),
            Self::Failed(cause) => write!(f, "the row could not be read or changed: {cause}"),
        }
    }
}

impl StdError for UpdateError {
    /// The source of the variant's error, whose own text is part of this error's text.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Invalid(error) => error.source(),
            Self::Conflict(Some(cause)) | Self::Unknown(cause) | Self::Rejected(cause) | Self::Failed(cause) => {
                cause.source()
            }
            _ => None,
        }
    }
}
