//! An engine that can do less than the real one behind it: what the suite and the library do with an engine that holds
//! locks exclusively and has no queue.

use std::sync::Arc;

use leasehold::Claim;
use leasehold::engine::{Answer, Capabilities, Engine, Released, Renewal, Step};

/// A real engine of which only the least is used: no queue, no modes, no owners, no inspection, no eviction.
#[derive(Debug)]
pub struct Limited {
    inner: Arc<dyn Engine>,
    capabilities: Capabilities,
}

impl Limited {
    /// Wraps an engine.
    pub fn wrap(inner: Arc<dyn Engine>) -> Arc<dyn Engine> {
        let can = inner.capabilities();
        let mut capabilities = Capabilities::exclusive_only("limited");
        capabilities.reach = can.reach;
        capabilities.expiry = can.expiry;
        capabilities.fencing = can.fencing;
        (capabilities.min_ttl, capabilities.max_ttl) = (can.min_ttl, can.max_ttl);
        (capabilities.drift, capabilities.same_clock) = (can.drift, can.same_clock);
        Arc::new(Self { inner, capabilities })
    }

    fn inner(&self) -> Arc<dyn Engine> {
        Arc::clone(&self.inner)
    }
}

impl Engine for Limited {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn url(&self) -> String {
        self.inner.url()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>, _queue: bool) -> Step<Answer> {
        self.inner().attempt(claim, false)
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<Renewal>> {
        self.inner().renew(claims)
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<Released> {
        self.inner().release(claim)
    }

    fn farewell(self: Arc<Self>) -> Step<()> {
        Arc::clone(&self.inner).farewell()
    }

    fn lifeline(&self) -> Option<std::os::fd::OwnedFd> {
        self.inner.lifeline()
    }
}
