//! The engine trait: every method goes through the fault plan.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use leasehold::engine::{
    AcquireReply, Capabilities, ContenderView, Engine, ForceReleaseOutcome, Grant, LockView, LossEvents, Record,
    RecordStore, ReleaseReply, RenewReply, Step,
};
use leasehold::{Claim, ClaimId, LockName};

use super::{FlakyEngine, Method};

impl Engine for FlakyEngine {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn url(&self) -> String {
        self.inner.url()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>, queue: bool) -> Step<AcquireReply> {
        self.call_with_fault(Method::Attempt, move |inner| inner.attempt(claim, queue))
    }

    fn attempt_all(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Option<Vec<Grant>>> {
        self.call_with_fault(Method::AttemptAll, move |inner| inner.attempt_all(claims))
    }

    fn wait(self: Arc<Self>, claim: Arc<Claim>, timeout: Duration) -> Step<AcquireReply> {
        self.recorded_waits.lock().unwrap_or_else(PoisonError::into_inner).push((claim.name().clone(), timeout));
        self.call_with_fault(Method::Wait, move |inner| inner.wait(claim, timeout))
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<RenewReply>> {
        self.call_with_fault(Method::Renew, move |inner| inner.renew(claims))
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<ReleaseReply> {
        self.call_with_fault(Method::Release, move |inner| inner.release(claim))
    }

    fn loss_events(&self) -> LossEvents {
        self.inner.loss_events()
    }

    fn watch(self: Arc<Self>, name: LockName, timeout: Duration) -> Step<Step<()>> {
        self.call_with_fault(Method::Watch, move |inner| inner.watch(name, timeout))
    }

    fn inspect(self: Arc<Self>, name: LockName) -> Step<LockView> {
        self.call_with_fault(Method::Inspect, move |inner| inner.inspect(name))
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockView>> {
        self.call_with_fault(Method::List, move |inner| inner.list(prefix))
    }

    fn force_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<ForceReleaseOutcome> {
        self.call_with_fault(Method::ForceRelease, move |inner| inner.force_release(name, claim, reason))
    }

    fn request_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<Option<ContenderView>> {
        self.call_with_fault(Method::RequestRelease, move |inner| inner.request_release(name, claim, reason))
    }

    fn shutdown(self: Arc<Self>) -> Step<()> {
        Arc::clone(&self.inner).shutdown()
    }

    fn liveness_fd(&self) -> Option<std::os::fd::OwnedFd> {
        self.inner.liveness_fd()
    }

    fn records(self: Arc<Self>) -> Option<Arc<dyn RecordStore>> {
        let has_records = Arc::clone(&self.inner).records().is_some();
        has_records.then_some(self as Arc<dyn RecordStore>)
    }
}

impl RecordStore for FlakyEngine {
    fn get(self: Arc<Self>, name: LockName) -> Step<Record> {
        self.call_with_fault(Method::GetRecord, move |inner| records_of(inner).get(name))
    }

    fn compare_and_set(self: Arc<Self>, name: LockName, expected_version: u64, value: String) -> Step<Option<Record>> {
        self.call_with_fault(Method::CompareAndSetRecord, move |inner| {
            records_of(inner).compare_and_set(name, expected_version, value)
        })
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockName>> {
        self.call_with_fault(Method::ListRecords, move |inner| records_of(inner).list(prefix))
    }
}

fn records_of(inner: Arc<dyn Engine>) -> Arc<dyn RecordStore> {
    inner.records().expect("a record store")
}
