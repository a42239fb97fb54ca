//! Why an update was not done.

use std::error::Error as StdError;
use std::fmt;

use crate::database::Cause;
use crate::error::Error;

/// Why an update was not done, or is not known to be.
#[derive(Debug)]
#[non_exhaustive]
pub enum UpdateError {
    /// Others were quicker each time. Wait, or take a lock for this row.
    TooContended {
        /// How often it was tried.
        tries: u32,
    },
    /// Somebody else changed the row: run the transaction again. If there is a cause, the database has ended it already.
    Conflict(Option<Cause>),
    /// Nobody knows whether the change was written: the connection was lost while it was. It must not be tried again blindly: it could
    /// be done twice.
    Unknown(Cause),
    /// No row has this key.
    NoRow,
    /// Several rows have this key: it is not unique.
    NotUnique {
        /// How many.
        rows: usize,
    },
    /// The row's version is NULL.
    NoVersion,
    /// The name of a table or column is none, or a change sets the key's or the version's column; nothing was sent.
    Invalid(Error),
    /// What the caller's function said.
    Refused(Cause),
    /// What the database or the way to it said; nothing was written.
    Failed(Cause),
}

impl fmt::Display for UpdateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooContended { tries } => {
                write!(f, "the row was changed by others during each of {tries} tries: wait, or take a lock")
            }
            Self::Conflict(None) => f.write_str("the row was changed by somebody else: run the transaction again"),
            Self::Conflict(Some(cause)) => {
                write!(f, "another transaction was in the way: roll back and run the transaction again: {cause}")
            }
            Self::Unknown(cause) => write!(
                f,
                "nobody knows whether the row was changed; read it before you try again, or it may be changed twice: {cause}"
            ),
            Self::NoRow => f.write_str("no row has this key"),
            Self::NotUnique { rows } => write!(f, "{rows} rows have this key: it must be unique"),
            Self::NoVersion => f.write_str("the row's version is NULL: it must be a number"),
            Self::Invalid(error) => error.fmt(f),
            Self::Refused(cause) => write!(f, "the change was not made: {cause}"),
            Self::Failed(cause) => write!(f, "the row could not be read or changed: {cause}"),
        }
    }
}

impl StdError for UpdateError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Invalid(error) => Some(error),
            Self::Conflict(cause) => cause.as_ref().map(|cause| &**cause as _),
            Self::Unknown(cause) | Self::Refused(cause) | Self::Failed(cause) => Some(&**cause),
            _ => None,
        }
    }
}
