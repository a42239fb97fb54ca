//! Why a claim failed. The claim's entry keeps this for all its callers.

use super::super::error::Failure;
use super::session_pool::SessionPool;
use crate::types::{Error, ErrorKind};

/// Why a claim failed.
#[derive(Clone, Debug)]
pub(super) enum ClaimError {
    /// The server or the connection failed.
    Failed(Failure),
    /// All connections that the URL allows hold other locks or wait for them.
    PoolExhausted,
}

impl From<Failure> for ClaimError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl ClaimError {
    /// Converts it to the library's error.
    pub(super) fn to_error(&self, pool: &SessionPool) -> Error {
        match self {
            Self::Failed(failure) => pool.side_pool.to_error(failure),
            Self::PoolExhausted => {
                let limit = pool.config.connections;
                let message =
                    format!("all {limit} connections hold other locks or wait for them: raise connections= in the URL");
                Error::new(ErrorKind::Unavailable, message).retryable().at_engine(pool.config.dialect.name())
            }
        }
    }
}
