//! Why a claim failed, for all its callers.

use super::super::error::Failure;
use super::room::Room;
use crate::error::{Error, ErrorKind};

/// Why a claim failed. Its entry keeps this, and all its callers get it.
#[derive(Clone, Debug)]
pub(super) enum Trouble {
    /// The server or the connection failed.
    Said(Failure),
    /// All connections hold other locks, or wait for them.
    Crowded,
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Said(failure)
    }
}

impl Trouble {
    /// Converts it to the library's error.
    pub(super) fn tell(&self, room: &Room) -> Error {
        match self {
            Self::Said(failure) => room.side.tell(failure),
            Self::Crowded => {
                let most = room.config.connections;
                let message = format!("all {most} connections hold other locks or wait for them: raise connections=");
                Error::new(ErrorKind::Unavailable, message).retryable().at_engine(room.config.dialect.name())
            }
        }
    }
}
