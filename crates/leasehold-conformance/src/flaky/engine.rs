//! The trait: every method takes the same way.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use leasehold::engine::{
    Answer, Capabilities, Engine, Evicted, Grant, LockView, Losses, PartyView, Record, RecordStore, Released, Renewal,
    Step,
};
use leasehold::{Claim, ClaimId, LockName};

use super::{Flaky, Method};

impl Engine for Flaky {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn url(&self) -> String {
        self.inner.url()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>, queue: bool) -> Step<Answer> {
        self.pass(Method::Attempt, move |inner| inner.attempt(claim, queue))
    }

    fn attempt_all(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Option<Vec<Grant>>> {
        self.pass(Method::AttemptAll, move |inner| inner.attempt_all(claims))
    }

    fn wait(self: Arc<Self>, claim: Arc<Claim>, patience: Duration) -> Step<Answer> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner).push((claim.name().clone(), patience));
        self.pass(Method::Wait, move |inner| inner.wait(claim, patience))
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<Renewal>> {
        self.pass(Method::Renew, move |inner| inner.renew(claims))
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<Released> {
        self.pass(Method::Release, move |inner| inner.release(claim))
    }

    fn losses(&self) -> Losses {
        self.inner.losses()
    }

    fn watch(self: Arc<Self>, name: LockName, patience: Duration) -> Step<Step<()>> {
        self.pass(Method::Watch, move |inner| inner.watch(name, patience))
    }

    fn inspect(self: Arc<Self>, name: LockName) -> Step<LockView> {
        self.pass(Method::Inspect, move |inner| inner.inspect(name))
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockView>> {
        self.pass(Method::List, move |inner| inner.list(prefix))
    }

    fn evict(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<Evicted> {
        self.pass(Method::Evict, move |inner| inner.evict(name, claim, reason))
    }

    fn request_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<Option<PartyView>> {
        self.pass(Method::RequestRelease, move |inner| inner.request_release(name, claim, reason))
    }

    fn farewell(self: Arc<Self>) -> Step<()> {
        Arc::clone(&self.inner).farewell()
    }

    fn lifeline(&self) -> Option<std::os::fd::OwnedFd> {
        self.inner.lifeline()
    }

    fn records(self: Arc<Self>) -> Option<Arc<dyn RecordStore>> {
        let has_records = Arc::clone(&self.inner).records().is_some();
        has_records.then_some(self as Arc<dyn RecordStore>)
    }
}

impl RecordStore for Flaky {
    fn get(self: Arc<Self>, name: LockName) -> Step<Record> {
        self.pass(Method::Recall, move |inner| records_of(inner).get(name))
    }

    fn compare_and_set(self: Arc<Self>, name: LockName, over: u64, value: String) -> Step<Option<Record>> {
        self.pass(Method::Record, move |inner| records_of(inner).compare_and_set(name, over, value))
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockName>> {
        self.pass(Method::Recorded, move |inner| records_of(inner).list(prefix))
    }
}

fn records_of(inner: Arc<dyn Engine>) -> Arc<dyn RecordStore> {
    inner.records().expect("it is a record store only if the engine has records")
}
