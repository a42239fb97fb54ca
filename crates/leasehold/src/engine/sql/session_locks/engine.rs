//! Implements the [`Engine`] trait with locks that database sessions hold.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::super::records::StoredRecords;
use super::claim_entry::{ClaimEntry, ClaimStage};
use super::claim_task::run_claim;
use super::session_pool::SessionPool;
use crate::clock::Instant;
use crate::engine::Claim;
use crate::engine::{
    AcquireReply, Capabilities, Engine, Grant, LossEvents, Record, RecordStore, ReleaseReply, RenewReply, Step,
};
use crate::logic::lease as rules;
use crate::types::{LockName, Result};

/// The engine of `technique=session` and `technique=for-update`: each lock belongs to a database
/// session.
#[derive(Debug)]
pub struct SessionLockEngine {
    capabilities: Capabilities,
    pool: Arc<SessionPool>,
    records: StoredRecords,
    /// The runtime that opened the engine, which runs all connections.
    runtime: tokio::runtime::Handle,
}

impl SessionLockEngine {
    /// An engine on these sessions; starts the task that checks whether holders' sessions exist.
    pub(super) fn new(pool: Arc<SessionPool>, capabilities: Capabilities) -> Self {
        let runtime = tokio::runtime::Handle::current();
        runtime.spawn(super::session_check::run(Arc::downgrade(&pool)));
        Self { capabilities, records: StoredRecords::new(&pool.side_pool), pool, runtime }
    }

    /// The claim's entry; creates it and starts its task if there is none. `queue`: whether a new
    /// claim waits if the lock is not free.
    fn claim_entry(&self, claim: &Claim, queue: bool) -> Arc<ClaimEntry> {
        let (entry, requests) = self.pool.claims.get_or_insert(claim, &self.pool.clock);
        if let Some(requests) = requests {
            self.runtime.spawn(run_claim(Arc::clone(&self.pool), Arc::clone(&entry), requests, queue));
        }
        entry
    }

    /// Converts the claim's state to the answer to a request that was made at `sent`.
    async fn to_answer(&self, entry: &ClaimEntry, stage: ClaimStage, sent: Instant) -> Result<AcquireReply> {
        match stage {
            ClaimStage::New | ClaimStage::Waiting => {
                Ok(AcquireReply::Queued { ahead: 0, recheck_after: None, cool_down: None })
            }
            ClaimStage::Ended(None) => Ok(AcquireReply::Busy { recheck_after: None }),
            ClaimStage::Ended(Some(error)) => Err(error.to_error(&self.pool)),
            ClaimStage::Held { token, until } => {
                // If the grant is older than this request, asks the server until when the session
                // certainly holds the lock.
                let until =
                    if until.saturating_sub(entry.ttl) < sent { entry.confirm_held().await } else { Some(until) };
                Ok(match until {
                    Some(until) => AcquireReply::Granted(Grant { token, reserved_at: sent, expires_at: until }),
                    None => AcquireReply::Busy { recheck_after: None },
                })
            }
        }
    }
}

impl Engine for SessionLockEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn url(&self) -> String {
        self.pool.config.redacted_url.clone()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>, queue: bool) -> Step<AcquireReply> {
        let sent = self.pool.clock.now();
        Step::new(async move {
            let entry = self.claim_entry(&claim, queue);
            entry.mark_wanted(sent);
            let mut stage_changes = entry.stage.subscribe();
            let stage = match stage_changes.wait_for(|stage| !matches!(stage, ClaimStage::New)).await {
                Ok(stage) => stage.clone(),
                Err(_) => ClaimStage::Ended(None),
            };
            self.to_answer(&entry, stage, sent).await
        })
    }

    fn attempt_all(self: Arc<Self>, _claims: Vec<Arc<Claim>>) -> Step<Option<Vec<Grant>>> {
        Step::ready(Ok(None))
    }

    fn wait(self: Arc<Self>, claim: Arc<Claim>, timeout: Duration) -> Step<AcquireReply> {
        let sent = self.pool.clock.now();
        Step::new(async move {
            let Some(entry) = self.pool.claims.find(claim.id) else {
                return Ok(AcquireReply::Busy { recheck_after: None });
            };
            entry.mark_wanted(sent);
            let mut stage_changes = entry.stage.subscribe();
            let changed = stage_changes.wait_for(|stage| !matches!(stage, ClaimStage::New | ClaimStage::Waiting));
            let stage = tokio::select! {
                biased;
                stage = changed => stage.map_or(ClaimStage::Ended(None), |stage| stage.clone()),
                () = self.pool.clock.sleep_until(sent.saturating_add(timeout)) => ClaimStage::Waiting,
            };
            self.to_answer(&entry, stage, sent).await
        })
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<RenewReply>> {
        let sent = self.pool.clock.now();
        let within = rules::renewal_timeout(claims.iter().map(|claim| claim.options.ttl));
        Step::new(async move {
            let renew = async |claim: &Arc<Claim>| {
                let Some(entry) = self.pool.claims.find(claim.id) else { return RenewReply::Lost };
                entry.mark_wanted(sent);
                match self.pool.clock.timeout(within, entry.confirm_held()).await {
                    Ok(Some(until)) => RenewReply::Renewed(until.min(sent.saturating_add(claim.options.ttl))),
                    Ok(None) => RenewReply::Lost,
                    // One unresponsive session must not delay the answers of the others.
                    Err(_) => {
                        tracing::warn!(name = %claim.name(), "a session gave no answer within {within:?}");
                        RenewReply::Unknown
                    }
                }
            };
            Ok(join_all(claims.iter().map(renew)).await)
        })
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<ReleaseReply> {
        Step::new(async move {
            let Some(entry) = self.pool.claims.find(claim.id) else { return Ok(ReleaseReply::Absent) };
            match entry.release().await {
                Some(Ok(released)) => Ok(released),
                Some(Err(error)) => Err(error.to_error(&self.pool)),
                None => Ok(ReleaseReply::Absent),
            }
        })
    }

    fn loss_events(&self) -> LossEvents {
        self.pool.losses.subscribe()
    }

    fn shutdown(self: Arc<Self>) -> Step<()> {
        Step::new(async move {
            self.pool.close().await;
            Ok(())
        })
    }

    fn records(self: Arc<Self>) -> Option<Arc<dyn RecordStore>> {
        Some(self)
    }
}

impl RecordStore for SessionLockEngine {
    fn get(self: Arc<Self>, name: LockName) -> Step<Record> {
        Step::new(async move { self.records.get(&name).await })
    }

    fn compare_and_set(self: Arc<Self>, name: LockName, expected_version: u64, value: String) -> Step<Option<Record>> {
        Step::new(async move { self.records.compare_and_set(&name, expected_version, value).await })
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockName>> {
        Step::new(async move { self.records.list(&prefix).await })
    }
}
