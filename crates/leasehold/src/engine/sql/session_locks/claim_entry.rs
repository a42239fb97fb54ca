//! The claims of this client, and the state of each, as callers and the claims' tasks see it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, oneshot, watch};

use super::claim_error::ClaimError;
use crate::clock::{Clock, Instant};
use crate::engine::Claim;
use crate::engine::ReleaseReply;
use crate::types::{ClaimId, LockName, Mode, Token};

/// The state of a claim.
#[derive(Clone, Debug)]
pub(super) enum ClaimStage {
    /// Its task has not found out yet whether the lock is free.
    New,
    /// It waits, in this client's own queue or at the server.
    Waiting,
    /// It holds the lock; its session certainly exists until `until`.
    Held { token: Token, until: Instant },
    /// It has ended. `Some`: because of this failure. `None`: it was released or lost, or did not
    /// get the lock.
    Ended(Option<ClaimError>),
}

/// A request of a caller to a claim's task.
#[derive(Debug)]
pub(super) enum ClaimRequest {
    /// Check with the server that the lock is held, and answer until when it certainly is. There is
    /// no answer if it is not held.
    ConfirmHeld(oneshot::Sender<Instant>),
    /// Release the lock, or stop waiting for it.
    Release(oneshot::Sender<Result<ReleaseReply, ClaimError>>),
}

/// One claim of this client. A background task owns its connection, and goes on when a caller stops
/// waiting.
#[derive(Debug)]
pub(super) struct ClaimEntry {
    pub(super) claim: ClaimId,
    pub(super) name: LockName,
    pub(super) mode: Mode,
    pub(super) ttl: Duration,
    /// Its state, which only its task changes.
    pub(super) stage: watch::Sender<ClaimStage>,
    /// The channel to its task.
    requests: UnboundedSender<ClaimRequest>,
    /// When a caller last waited for it or renewed it, in nanoseconds of the client's clock.
    last_wanted: AtomicU64,
    /// The server's number of the session that holds the lock; 0 while none does.
    pub(super) connection: AtomicI64,
    /// Notified when the server does not list that session any more: the task then checks it.
    pub(super) recheck: Notify,
}

impl ClaimEntry {
    /// A new entry, and the receiver of its requests, for its task.
    fn new(claim: &Claim, clock: &Clock) -> (Arc<Self>, UnboundedReceiver<ClaimRequest>) {
        let (requests, receiver) = unbounded_channel();
        let entry = Self {
            claim: claim.id,
            name: claim.name().clone(),
            mode: claim.options.mode,
            ttl: claim.options.ttl,
            stage: watch::Sender::new(ClaimStage::New),
            requests,
            last_wanted: AtomicU64::new(clock.now().as_nanos()),
            connection: AtomicI64::new(0),
            recheck: Notify::new(),
        };
        (Arc::new(entry), receiver)
    }

    /// Notes that a caller still wants the claim.
    pub(super) fn mark_wanted(&self, now: Instant) {
        self.last_wanted.fetch_max(now.as_nanos(), Ordering::AcqRel);
    }

    /// Completes when no caller has wanted the claim for a TTL.
    pub(super) async fn wait_until_unwanted(&self, clock: &Clock) {
        loop {
            let until = Instant::from_nanos(self.last_wanted.load(Ordering::Acquire)).saturating_add(self.ttl);
            if clock.now() >= until {
                return;
            }
            clock.sleep_until(until).await;
        }
    }

    /// Asks the server whether the claim holds the lock. Returns until when it certainly does;
    /// `None`: it does not.
    pub(super) async fn confirm_held(&self) -> Option<Instant> {
        let (sender, answer) = oneshot::channel();
        self.requests.send(ClaimRequest::ConfirmHeld(sender)).ok()?;
        answer.await.ok()
    }

    /// Releases the lock, or stops waiting for it. `None`: the claim had ended before.
    pub(super) async fn release(&self) -> Option<Result<ReleaseReply, ClaimError>> {
        let (sender, answer) = oneshot::channel();
        self.requests.send(ClaimRequest::Release(sender)).ok()?;
        answer.await.ok()
    }
}

/// All claims of one client that have not ended.
#[derive(Debug, Default)]
pub(super) struct ClaimRegistry(Mutex<HashMap<ClaimId, Arc<ClaimEntry>>>);

impl ClaimRegistry {
    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimId, Arc<ClaimEntry>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry of a claim; `None` if the claim is unknown or has ended.
    pub(super) fn find(&self, claim: ClaimId) -> Option<Arc<ClaimEntry>> {
        self.lock().get(&claim).cloned()
    }

    /// The claim's entry. If it is new, also the channel of requests, for the task that the caller
    /// starts.
    pub(super) fn get_or_insert(
        &self,
        claim: &Claim,
        clock: &Clock,
    ) -> (Arc<ClaimEntry>, Option<UnboundedReceiver<ClaimRequest>>) {
        let mut entries = self.lock();
        if let Some(entry) = entries.get(&claim.id) {
            return (Arc::clone(entry), None);
        }
        let (entry, requests) = ClaimEntry::new(claim, clock);
        entries.insert(claim.id, Arc::clone(&entry));
        (entry, Some(requests))
    }

    /// Removes a claim that has ended, unless it has a newer entry.
    pub(super) fn remove(&self, entry: &Arc<ClaimEntry>) {
        let mut entries = self.lock();
        if entries.get(&entry.claim).is_some_and(|current| Arc::ptr_eq(current, entry)) {
            entries.remove(&entry.claim);
        }
    }

    /// Whether another claim of this client certainly holds the same lock, in a mode that excludes
    /// this one.
    pub(super) fn is_excluded_locally(&self, entry: &ClaimEntry, now: Instant) -> bool {
        self.lock().values().any(|other| {
            let is_other_claim = other.claim != entry.claim && other.name == entry.name;
            let can_hold_together = other.mode == Mode::Shared && entry.mode == Mode::Shared;
            is_other_claim
                && !can_hold_together
                && matches!(*other.stage.borrow(), ClaimStage::Held { until, .. } if until > now)
        })
    }

    /// The claims that hold a lock.
    pub(super) fn holders(&self) -> Vec<Arc<ClaimEntry>> {
        self.lock().values().filter(|entry| entry.connection.load(Ordering::Acquire) != 0).cloned().collect()
    }
}
