//! Why a read has no value, or a write did not happen.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use leasehold::Error;
use leasehold::Token;

/// The error of a caller's own function; shared, since one load may have many callers.
pub type Cause = Arc<dyn StdError + Send + Sync>;

/// Why a read has no value, or a write did not happen. Cheap to clone: one load may have many
/// callers.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold_cache::{CacheError, ReadThrough};
///
/// let cache = ReadThrough::open("memory:").await?;
/// match cache.get_or_load("user:42", || async { Err::<Option<&str>, _>("no database") }).await {
///     Err(CacheError::Loader(cause)) => assert_eq!(cause.to_string(), "no database"),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CacheError {
    /// The loader failed with this error.
    Loader(Cause),
    /// This read waited for a load by another task or process, which failed with this message.
    RemoteLoader(String),
    /// The loader keeps returning a row that is older than a known one: it may read from a lagging
    /// replica.
    LoaderBehind,
    /// The store does not respond. After an invalidation: cached values may be stale until their
    /// TTL ends.
    Unavailable(Arc<Error>),
    /// The writer's function failed with this error. It is unknown whether the write had, or will
    /// have, an effect. The cached value is invalidated, and the key stays marked for
    /// [`max_write_time`](super::Builder::max_write_time), so that reads go to the loader. If the
    /// store did not respond, either, and the write outlasted its mark, the cached value may be
    /// stale until its TTL ends: invalidate it.
    Commit(Cause),
    /// A writer of the key with a higher token came first. This write did not happen.
    Superseded {
        /// The token of the writer that got this error.
        token: Token,
        /// The token of the writer that came first, which is higher.
        newest: Token,
    },
    /// The lock was lost before the write.
    Lost(Arc<Error>),
    /// The write happened, but after its mark had expired, and the store does not respond: the
    /// cached value may be stale until its TTL ends. Invalidate it.
    MarkExpired(Arc<Error>),
    /// The key or an option is invalid. No request was sent.
    Invalid(Arc<Error>),
}

impl CacheError {
    pub(crate) fn unavailable(error: Error) -> Self {
        Self::Unavailable(Arc::new(error))
    }

    /// Makes the error of a caller's own function shareable.
    pub(crate) fn cause(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Cause {
        cause.into().into()
    }
}

impl fmt::Display for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loader(cause) => write!(f, "the value could not be loaded: {cause}"),
            Self::RemoteLoader(why) => {
                write!(f, "the load by another reader failed: {why}")
            }
            Self::LoaderBehind => {
                f.write_str("the loader returns a row older than a known one: let it read from the primary")
            }
            Self::Unavailable(error) => write!(f, "the cache store does not respond: {error}"),
            Self::Commit(cause) => write!(f, "the write failed: {cause}"),
            Self::Superseded { token, newest } => {
                write!(
                    f,
                    "a writer with the higher token {} came first, and this one has token {}: nothing was written",
                    newest.0, token.0
                )
            }
            Self::Lost(error) => write!(f, "nothing was written: {error}"),
            Self::MarkExpired(error) => write!(
                f,
                "the write succeeded, but the cache store did not respond in time; invalidate the key, or it may be stale until its TTL ends: {error}"
            ),
            Self::Invalid(error) => error.fmt(f),
        }
    }
}

impl StdError for CacheError {
    /// The source of the variant's error, whose own text is part of this error's text.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Loader(cause) | Self::Commit(cause) => cause.source(),
            Self::Unavailable(error) | Self::Lost(error) | Self::MarkExpired(error) | Self::Invalid(error) => {
                error.source()
            }
            Self::RemoteLoader(_) | Self::LoaderBehind | Self::Superseded { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::ErrorKind;

    /// A chain of errors names each cause once.
    #[test]
    fn a_chain_names_each_cause_once() {
        let refused = || std::io::Error::from_raw_os_error(111);
        let unavailable = Error::new(ErrorKind::Unavailable, "no answer").caused_by(refused());
        for error in [CacheError::Loader(CacheError::cause(refused())), CacheError::unavailable(unavailable)] {
            let mut texts = vec![error.to_string()];
            let mut cause = error.source();
            while let Some(next) = cause {
                texts.push(next.to_string());
                cause = next.source();
            }
            assert_eq!(texts.join(": ").matches(&refused().to_string()).count(), 1, "{texts:?}");
        }
    }
}
