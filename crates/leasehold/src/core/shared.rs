//! The state that the guards and requests of one [`Locks`](crate::Locks) share.

use std::sync::Arc;
use std::time::Duration;

use super::keeper::LeaseManager;
use crate::types::{Error, Holder, Result};

/// What guards and requests share.
pub(crate) struct Shared {
    pub(crate) manager: Arc<LeaseManager>,
    pub(crate) holder: Arc<Holder>,
    pub(crate) ttl: Duration,
}

impl Shared {
    pub(crate) fn engine_name(&self) -> &'static str {
        self.manager.capabilities.engine
    }

    /// See [`LeaseManager::add_location`].
    pub(crate) fn locate(&self, error: Error) -> Error {
        self.manager.add_location(error)
    }

    /// Returns `Unsupported` if the engine cannot do this.
    pub(crate) fn require(&self, is_supported: bool, capability: &str) -> Result<()> {
        self.manager.capabilities.require(is_supported, capability).map_err(|error| self.locate(error))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.manager.close();
    }
}
