//! A wrapper with fewer capabilities than its engine: it has only exclusive locks, and no queue. It
//! tests the suite and the library with such an engine.

use std::sync::Arc;

use leasehold::Claim;
use leasehold::engine::{AcquireReply, Capabilities, Engine, ReleaseReply, RenewReply, Step};

/// A real engine without queues, modes, owners, inspections and force releases.
#[derive(Debug)]
pub struct LimitedEngine {
    inner: Arc<dyn Engine>,
    capabilities: Capabilities,
}

impl LimitedEngine {
    /// Wraps an engine.
    pub fn wrap(inner: Arc<dyn Engine>) -> Arc<dyn Engine> {
        let can = inner.capabilities();
        let mut capabilities = Capabilities::exclusive_only("limited");
        capabilities.reach = can.reach;
        capabilities.expiry = can.expiry;
        capabilities.fencing = can.fencing;
        (capabilities.min_ttl, capabilities.max_ttl) = (can.min_ttl, can.max_ttl);
        (capabilities.drift, capabilities.uses_local_clock) = (can.drift, can.uses_local_clock);
        Arc::new(Self { inner, capabilities })
    }

    fn inner(&self) -> Arc<dyn Engine> {
        Arc::clone(&self.inner)
    }
}

impl Engine for LimitedEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn url(&self) -> String {
        self.inner.url()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>, _queue: bool) -> Step<AcquireReply> {
        self.inner().attempt(claim, false)
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<RenewReply>> {
        self.inner().renew(claims)
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<ReleaseReply> {
        self.inner().release(claim)
    }

    fn shutdown(self: Arc<Self>) -> Step<()> {
        Arc::clone(&self.inner).shutdown()
    }

    fn liveness_fd(&self) -> Option<std::os::fd::OwnedFd> {
        self.inner.liveness_fd()
    }
}
