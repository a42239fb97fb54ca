//! An engine that can do less than the real one behind it: what the suite and the library do with an engine that holds
//! locks exclusively and has no queue.

use std::sync::Arc;
use std::time::Duration;

use leasehold::engine::{
    Answer, Capabilities, Engine, Evicted, Grant, LockView, Losses, PartyView, Record, Released, Renewal, Step,
};
use leasehold::{Claim, ClaimId, Error, ErrorKind, LockName};

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

fn unsupported<T: Send + 'static>(what: &str) -> Step<T> {
    let error = Error::new(ErrorKind::Unsupported, format!("has no {what}")).at_engine("limited");
    Step::ready(Err(error))
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

    fn attempt_all(self: Arc<Self>, _claims: Vec<Arc<Claim>>) -> Step<Option<Vec<Grant>>> {
        Step::ready(Ok(None))
    }

    fn wait(self: Arc<Self>, _claim: Arc<Claim>, _patience: Duration) -> Step<Answer> {
        unsupported("queue")
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<Renewal>> {
        self.inner().renew(claims)
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<Released> {
        self.inner().release(claim)
    }

    fn losses(&self) -> Losses {
        Losses::never()
    }

    fn watch(self: Arc<Self>, _name: LockName, _patience: Duration) -> Step<Step<()>> {
        unsupported("inspection")
    }

    fn inspect(self: Arc<Self>, _name: LockName) -> Step<LockView> {
        unsupported("inspection")
    }

    fn list(self: Arc<Self>, _prefix: String) -> Step<Vec<LockView>> {
        unsupported("inspection")
    }

    fn evict(self: Arc<Self>, _name: LockName, _claim: ClaimId, _reason: String) -> Step<Evicted> {
        unsupported("eviction")
    }

    fn request_release(self: Arc<Self>, _name: LockName, _claim: ClaimId, _reason: String) -> Step<Option<PartyView>> {
        unsupported("eviction")
    }

    fn recall(self: Arc<Self>, _name: LockName) -> Step<Record> {
        unsupported("records")
    }

    fn record(self: Arc<Self>, _name: LockName, _over: u64, _value: String) -> Step<Option<Record>> {
        unsupported("records")
    }

    fn recorded(self: Arc<Self>, _prefix: String) -> Step<Vec<LockName>> {
        unsupported("records")
    }

    fn farewell(self: Arc<Self>) -> Step<()> {
        Arc::clone(&self.inner).farewell()
    }

    fn lifeline(&self) -> Option<std::os::fd::OwnedFd> {
        self.inner.lifeline()
    }
}
