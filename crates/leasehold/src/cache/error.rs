//! Why there is no value, or a write was not done.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::claim::Token;
use crate::error::Error;

/// What a caller's own function said: shared, since one load may have many callers.
pub type Cause = Arc<dyn StdError + Send + Sync>;

/// Why there is no value, or a write was not done. Cheap to clone: one load may have many callers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CacheError {
    /// What the loader said.
    Loader(Cause),
    /// The load that this read waited for, of another task or process, failed; this is what its loader said.
    LoaderElsewhere(String),
    /// The loader goes on giving a row that is older than one that is known: does it read from a replica that lags behind?
    Behind,
    /// The store does not answer. After an invalidation: what is cached may be stale until its TTL ends.
    Unavailable(Arc<Error>),
    /// What the writer's function said. Nobody knows whether it was, or still will be, written: what was cached is invalidated, and the key
    /// stays marked for [`longest_write`](super::Builder::longest_write), so that reads go to the loader. If the store did not answer, either, and
    /// the write took longer than its mark lasted, what is cached may be stale until its TTL ends: invalidate it.
    Commit(Cause),
    /// A writer with a newer token has been here. Nothing was written.
    Superseded {
        /// Ours.
        token: Token,
        /// Theirs.
        seen: Token,
    },
    /// The lock was lost before anything was written.
    Lost(Arc<Error>),
    /// It was written, but later than the mark that announced it lasted, and the store does not answer: what is cached may be stale until
    /// its TTL ends. Invalidate it.
    Unsettled(Arc<Error>),
    /// The key or an option cannot be used. Nothing was sent.
    Invalid(Arc<Error>),
}

impl CacheError {
    pub(crate) fn unavailable(error: Error) -> Self {
        Self::Unavailable(Arc::new(error))
    }

    pub(crate) fn cause(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Cause {
        cause.into().into()
    }
}

impl fmt::Display for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loader(cause) => write!(f, "the value could not be loaded: {cause}"),
            Self::LoaderElsewhere(why) => {
                write!(f, "the value could not be loaded by the one who did it for all: {why}")
            }
            Self::Behind => f.write_str(
                "the loader gives a row that is older than one that is known: have it read from the primary",
            ),
            Self::Unavailable(error) => write!(f, "the cache does not answer: {error}"),
            Self::Commit(cause) => write!(f, "the write failed: {cause}"),
            Self::Superseded { token, seen } => {
                write!(f, "a newer writer was here (token {}, ours is {}): nothing was written", seen.0, token.0)
            }
            Self::Lost(error) => write!(f, "nothing was written: {error}"),
            Self::Unsettled(error) => write!(
                f,
                "it was written, but the cache could not be told in time; invalidate the key, or it may be stale until its TTL ends: {error}"
            ),
            Self::Invalid(error) => error.fmt(f),
        }
    }
}

impl StdError for CacheError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Loader(cause) | Self::Commit(cause) => Some(&**cause),
            Self::Unavailable(error) | Self::Lost(error) | Self::Unsettled(error) | Self::Invalid(error) => {
                Some(&**error)
            }
            _ => None,
        }
    }
}
