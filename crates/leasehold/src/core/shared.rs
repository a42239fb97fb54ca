//! The state that the guards and requests of one [`Locks`](crate::Locks) share.

use std::sync::Arc;
use std::time::Duration;

use super::keeper::LeaseManager;
use crate::types::{Error, Holder, Result};

/// The state that a [`Locks`](crate::Locks) shares with its clones, guards and requests. When the
/// last of them is dropped, the keeper ends.
pub(crate) struct Shared {
    pub(crate) manager: Arc<LeaseManager>,
    /// The holder that inspection shows for every claim without a description.
    pub(crate) holder: Arc<Holder>,
    /// The TTL of requests that set none.
    pub(crate) ttl: Duration,
}

impl Shared {
    /// The engine's name, such as `redis`.
    pub(crate) fn engine_name(&self) -> &'static str {
        self.manager.capabilities.engine
    }

    /// Adds the engine's name and URL to an error that has none.
    pub(crate) fn locate(&self, error: Error) -> Error {
        self.manager.add_location(error)
    }

    /// Returns the error `Unsupported`, which names `capability`, unless `is_supported`.
    pub(crate) fn require(&self, is_supported: bool, capability: &str) -> Result<()> {
        self.manager.capabilities.require(is_supported, capability).map_err(|error| self.locate(error))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.manager.close();
    }
}
