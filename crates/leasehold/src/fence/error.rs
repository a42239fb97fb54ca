//! Why a write was not let in.

use std::error::Error as StdError;
use std::fmt;

use crate::claim::Token;
use crate::database::Cause;
use crate::error::Error;

/// A write with a token that is older than one already seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// The token that was refused.
    pub token: Token,
    /// The highest one seen.
    pub seen: Token,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { token, seen } = self;
        write!(f, "token {token} is stale: {seen} was seen already; the lock was lost meanwhile, take it again")
    }
}

impl std::error::Error for Stale {}

/// Why a fence that is kept at a server did not let a write in.
#[derive(Debug)]
#[non_exhaustive]
pub enum AdmitError {
    /// A newer token was here. Roll back: the lock was lost, and somebody else may have written since.
    Stale(Stale),
    /// Another transaction was in the way: a serialization failure, a deadlock, a lock that was not free in time. Roll back and
    /// run the whole transaction again. (Do not go on in it: after a deadlock MySQL has ended it, and what follows would take
    /// effect statement by statement.)
    Retry(Cause),
    /// The fence's table is not there: run this once, or [`create_table`](super::create_table).
    NoTable {
        /// The statement that creates it.
        ddl: String,
        /// What the database said.
        cause: Cause,
    },
    /// This resource or table name is none; nothing was sent.
    Invalid(Error),
    /// The server failed, refused or could not be reached. In a transaction nothing was done: it was not committed.
    Failed(Cause),
}

impl AdmitError {
    /// The tokens, if this is a stale one.
    pub fn stale(&self) -> Option<Stale> {
        if let Self::Stale(stale) = self { Some(*stale) } else { None }
    }

    /// Whether the same transaction may pass when it is run again.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Retry(_))
    }
}

impl fmt::Display for AdmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale(stale) => stale.fmt(f),
            Self::Retry(cause) => {
                write!(f, "another transaction was in the way: roll back and run the transaction again: {cause}")
            }
            Self::NoTable { ddl, cause } => write!(f, "the fence has no table, create it with: {ddl}: {cause}"),
            Self::Invalid(error) => error.fmt(f),
            Self::Failed(cause) => write!(f, "the fence could not be asked: {cause}"),
        }
    }
}

impl StdError for AdmitError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Stale(stale) => Some(stale),
            Self::Invalid(error) => Some(error),
            Self::Retry(cause) | Self::NoTable { cause, .. } | Self::Failed(cause) => Some(&**cause),
        }
    }
}

impl From<Stale> for AdmitError {
    fn from(stale: Stale) -> Self {
        Self::Stale(stale)
    }
}
