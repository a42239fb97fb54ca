//! Why a fence refuses a write, or cannot decide.

use std::error::Error as StdError;
use std::fmt;

use crate::database::Cause;
use crate::types::{Error, Token};

/// The refusal of a write whose token is older than one that the resource has seen.
///
/// ```
/// use leasehold::{Token, fence::Fence};
///
/// let fence = Fence::default();
/// fence.admit("stock:42", Token(8)).unwrap();
/// let stale = fence.admit("stock:42", Token(7)).unwrap_err();
/// assert_eq!((stale.token, stale.highest), (Token(7), Token(8)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleToken {
    /// The token that was refused.
    pub token: Token,
    /// The highest token that the resource has seen.
    pub highest: Token,
}

impl fmt::Display for StaleToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { token, highest } = self;
        write!(f, "token {token} is stale: {highest} was seen already; the lock was lost meanwhile, acquire it again")
    }
}

impl std::error::Error for StaleToken {}

/// Why a fence on a server did not admit a write.
///
/// ```
/// use leasehold::Token;
/// use leasehold::database::Transaction;
/// use leasehold::fence::{self, AdmitError};
///
/// /// `false`: the lock was lost, and the transaction must be rolled back.
/// async fn may_write<T: Transaction>(tx: &mut T, token: Token) -> Result<bool, AdmitError> {
///     match fence::admit(tx, "stock:42", token).await {
///         Err(AdmitError::Stale(_)) => Ok(false),
///         other => other.map(|()| true),
///     }
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum AdmitError {
    /// The fence has seen a newer token. Roll back: the lock was lost, and another client may have
    /// written since.
    Stale(StaleToken),
    /// Another transaction interfered: a serialization failure, a deadlock, or a lock timeout. Roll
    /// back and run the whole transaction again. (Do not continue in it: after a deadlock MySQL has
    /// ended the transaction, and later statements would take effect one by one.)
    Retry(Cause),
    /// The fence's table does not exist: run this statement once, or
    /// [`create_table`](super::create_table).
    NoTable {
        /// The statement that creates the table.
        ddl: String,
        /// The database's error.
        cause: Cause,
    },
    /// The resource or table name is invalid; no statement was sent.
    Invalid(Error),
    /// The server failed, refused the request or is unreachable. In a transaction it had no effect,
    /// because it was not committed.
    Failed(Cause),
}

impl AdmitError {
    /// The refused and the highest token, if the error is [`Stale`](Self::Stale).
    pub fn stale_token(&self) -> Option<StaleToken> {
        if let Self::Stale(stale) = self { Some(*stale) } else { None }
    }

    /// Whether the same transaction may succeed when it is run again.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Retry(_))
    }
}

impl fmt::Display for AdmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale(stale) => stale.fmt(f),
            Self::Retry(cause) => {
                write!(f, "another transaction conflicted: roll back and run the transaction again: {cause}")
            }
            Self::NoTable { ddl, cause } => write!(f, "the fence has no table, create it with: {ddl}: {cause}"),
            Self::Invalid(error) => error.fmt(f),
            Self::Failed(cause) => write!(f, "the fence could not be checked: {cause}"),
        }
    }
}

impl StdError for AdmitError {
    /// The source of the variant's error, whose own text is part of this error's text.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Stale(_) => None,
            Self::Invalid(error) => error.source(),
            Self::Retry(cause) | Self::NoTable { cause, .. } | Self::Failed(cause) => cause.source(),
        }
    }
}

impl From<StaleToken> for AdmitError {
    fn from(stale: StaleToken) -> Self {
        Self::Stale(stale)
    }
}
