//! This client's claims, and the state of each.

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
    /// Just created.
    New,
    /// It waits: here, or at the server.
    Waiting,
    /// It holds, by a session that certainly lasts until then.
    Held { token: Token, until: Instant },
    /// It has ended; with the reason, if something went wrong.
    Ended(Option<ClaimError>),
}

/// A request to the task of a claim.
#[derive(Debug)]
pub(super) enum ClaimRequest {
    /// Show that the lock is held, and return the time until which it certainly is.
    ConfirmHeld(oneshot::Sender<Instant>),
    /// End the claim.
    Release(oneshot::Sender<Result<ReleaseReply, ClaimError>>),
}

/// One claim. A background task owns its connection, and continues when a caller's step is dropped.
#[derive(Debug)]
pub(super) struct ClaimEntry {
    pub(super) claim: ClaimId,
    pub(super) name: LockName,
    pub(super) mode: Mode,
    pub(super) ttl: Duration,
    pub(super) stage: watch::Sender<ClaimStage>,
    requests: UnboundedSender<ClaimRequest>,
    /// When a caller last wanted it, in nanoseconds.
    last_wanted: AtomicU64,
    /// The server's number of the connection that holds; 0 while none does.
    pub(super) connection: AtomicI64,
    /// Notified when the connection was found missing.
    pub(super) recheck: Notify,
}

impl ClaimEntry {
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

    /// Notes that a caller still wants it.
    pub(super) fn mark_wanted(&self, now: Instant) {
        self.last_wanted.fetch_max(now.as_nanos(), Ordering::AcqRel);
    }

    /// Returns when no caller has wanted it for a TTL.
    pub(super) async fn wait_until_unwanted(&self, clock: &Clock) {
        loop {
            let until = Instant::from_nanos(self.last_wanted.load(Ordering::Acquire)).saturating_add(self.ttl);
            if clock.now() >= until {
                return;
            }
            clock.sleep_until(until).await;
        }
    }

    /// The time until which it certainly holds, by the server's answer now. `None`: it does not.
    pub(super) async fn confirm_held(&self) -> Option<Instant> {
        let (sender, answer) = oneshot::channel();
        self.requests.send(ClaimRequest::ConfirmHeld(sender)).ok()?;
        answer.await.ok()
    }

    /// Ends it. `None`: it had ended before.
    pub(super) async fn release(&self) -> Option<Result<ReleaseReply, ClaimError>> {
        let (sender, answer) = oneshot::channel();
        self.requests.send(ClaimRequest::Release(sender)).ok()?;
        answer.await.ok()
    }
}

/// All claims of one client.
#[derive(Debug, Default)]
pub(super) struct ClaimRegistry(Mutex<HashMap<ClaimId, Arc<ClaimEntry>>>);

impl ClaimRegistry {
    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimId, Arc<ClaimEntry>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn find(&self, claim: ClaimId) -> Option<Arc<ClaimEntry>> {
        self.lock().get(&claim).cloned()
    }

    /// The claim's entry; for a new one, also the requests for its task.
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

    /// Removes a claim that has ended.
    pub(super) fn remove(&self, entry: &Arc<ClaimEntry>) {
        let mut entries = self.lock();
        if entries.get(&entry.claim).is_some_and(|current| Arc::ptr_eq(current, entry)) {
            entries.remove(&entry.claim);
        }
    }

    /// Whether another claim of this client certainly holds the lock and excludes this one.
    pub(super) fn is_excluded_locally(&self, entry: &ClaimEntry, now: Instant) -> bool {
        self.lock().values().any(|other| {
            let same = other.claim != entry.claim && other.name == entry.name;
            let together = other.mode == Mode::Shared && entry.mode == Mode::Shared;
            same && !together && matches!(*other.stage.borrow(), ClaimStage::Held { until, .. } if until > now)
        })
    }

    /// The claims that hold.
    pub(super) fn holders(&self) -> Vec<Arc<ClaimEntry>> {
        self.lock().values().filter(|entry| entry.connection.load(Ordering::Acquire) != 0).cloned().collect()
    }
}
