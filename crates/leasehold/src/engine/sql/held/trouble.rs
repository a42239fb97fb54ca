//! Why a claim came to nothing, for whoever asks.

use std::sync::Arc;

use super::super::error::Failure;
use super::room::Room;
use crate::error::{Effect, Error, ErrorKind};

/// Why a claim came to nothing. Kept by its seat, and told to all who wait for it.
#[derive(Clone, Debug)]
pub(super) enum Trouble {
    /// The server, or the connection.
    Said(Failure),
    /// As it was told.
    Told(Arc<Error>),
    /// All connections hold other locks, or wait for them.
    Crowded,
    /// The engine was closed.
    Closed,
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Said(failure)
    }
}

impl Trouble {
    /// In the library's words.
    pub(super) fn tell(&self, room: &Room) -> Error {
        let error = match self {
            Self::Said(failure) => room.side.tell(failure),
            Self::Told(told) => {
                let error = Error::new(told.kind(), told.said());
                let error = if told.is_retryable() { error.retryable() } else { error };
                if told.effect() == Effect::Unknown { error.effect_unknown() } else { error }
            }
            Self::Crowded => Error::new(
                ErrorKind::Unavailable,
                format!(
                    "all {} connections hold other locks or wait for them: raise connections=",
                    room.config.connections
                ),
            )
            .retryable(),
            Self::Closed => Error::new(ErrorKind::Closed, "this engine was closed"),
        };
        error.at_engine(room.config.dialect.name())
    }
}
