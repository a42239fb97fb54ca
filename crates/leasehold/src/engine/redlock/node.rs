//! One node: whether it responds, and which releases it has not received yet.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use redis::{Pipeline, Value};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::server::{Request, RequestKind, Server, address_of};
use crate::clock::{Clock, Instant};
use crate::engine::Claim;
use crate::engine::LossBroadcaster;
use crate::logic::backoff;
use crate::redis_client::values::integer;
use crate::redis_client::{Address, Config, error};
use crate::types::{ClaimId, Result};

/// How many undelivered releases are kept for a node: claims beyond that end with their TTL.
const MAX_PENDING_RELEASES: usize = 10_000;

/// How often to probe a node that stays reachable: its clock drifts from this client's, and the key
/// of strict mode expires after a day.
const PROBE_INTERVAL: Duration = Duration::from_secs(60);

/// One server.
pub(super) struct Node {
    pub(super) address: Address,
    config: Arc<Config>,
    clock: Clock,
    server: Box<dyn Server>,
    listener: Arc<NodeListener>,
    /// How far its clock is ahead of this client's, in µs; zero if unknown.
    clock_ahead_us: AtomicU64,
    pending_releases: Mutex<VecDeque<PendingRelease>>,
    probe_task: Mutex<Option<JoinHandle<()>>>,
}

/// A release that a node has not received yet.
struct PendingRelease {
    request: Arc<Request>,
    /// When the claim has expired.
    expires_at: Instant,
}

/// Receives what the connection to a node reports.
pub(super) struct NodeListener {
    losses: Arc<LossBroadcaster>,
    /// The node missed a timeout, and has not responded since.
    is_unresponsive: AtomicBool,
    /// Notified when the node is reached, and when it stops responding.
    changed: Notify,
}

impl NodeListener {
    /// The node has force released a claim of this client.
    pub(super) fn on_force_released(&self, claim: ClaimId) {
        self.losses.report_maybe_lost(claim);
    }

    /// An operator requests the release of a claim of this client. Each node that has the claim
    /// sends this; once is enough.
    pub(super) fn on_release_requested(&self, claim: ClaimId) {
        self.losses.report_release_request(claim);
    }

    /// The node is reached. It may have lost this client's claims, or not have received them so
    /// far.
    pub(super) fn on_reached(&self) {
        self.is_unresponsive.store(false, Ordering::SeqCst);
        self.changed.notify_one();
        self.losses.report_resync();
    }
}

impl Node {
    /// Begins to connect.
    pub(super) fn new(
        config: &Arc<Config>,
        clock: &Clock,
        losses: &Arc<LossBroadcaster>,
        connect: &impl Fn(&Arc<Config>, Arc<NodeListener>) -> Box<dyn Server>,
    ) -> Arc<Self> {
        let listener = Arc::new(NodeListener {
            losses: Arc::clone(losses),
            is_unresponsive: AtomicBool::new(false),
            changed: Notify::new(),
        });
        let node = Arc::new(Self {
            address: address_of(config),
            config: Arc::clone(config),
            clock: clock.clone(),
            server: connect(config, Arc::clone(&listener)),
            listener: Arc::clone(&listener),
            clock_ahead_us: AtomicU64::new(0),
            pending_releases: Mutex::default(),
            probe_task: Mutex::default(),
        });
        let probe = Request::new(RequestKind::Probe, Vec::new(), Vec::new());
        let probe_task = tokio::spawn(keep_probing(Arc::downgrade(&node), clock.clone(), listener, probe));
        *node.probe_task.lock().unwrap_or_else(PoisonError::into_inner) = Some(probe_task);
        node
    }

    /// Waits until the node is reached, or the reason why not is known.
    pub(super) async fn wait_reached(&self) -> Result<()> {
        self.server.wait_reached().await
    }

    /// Notes the node's clock, in µs.
    pub(super) fn observe_clock(&self, micros: u64) {
        self.clock_ahead_us.store(micros.saturating_sub(self.clock.now().as_nanos() / 1000), Ordering::SeqCst);
    }

    /// The node's clock by now, in µs, as far as it is known; zero if it is unknown.
    pub(super) fn clock_us(&self) -> u64 {
        match self.clock_ahead_us.load(Ordering::SeqCst) {
            0 => 0,
            ahead => ahead.saturating_add(self.clock.now().as_nanos() / 1000),
        }
    }

    /// Whether the node has missed a timeout and not responded since: it is not worth waiting for.
    pub(super) fn is_unresponsive(&self) -> bool {
        self.listener.is_unresponsive.load(Ordering::SeqCst)
    }

    /// Records that a claim's lease is due for renewal.
    pub(super) fn note_renewal_due(&self, claim: &Claim) {
        self.server.note_renewal_due(claim.options.ttl, claim.deadline());
    }

    /// Sends a request. A node that does not answer in time counts as not responding until it does.
    pub(super) async fn send(&self, request: &Arc<Request>, timeout: Duration) -> Result<Value> {
        self.with_timeout(self.server.send(request), timeout).await
    }

    /// Sends commands in a row.
    pub(super) async fn send_commands(&self, pipeline: &Pipeline, timeout: Duration) -> Result<Vec<Value>> {
        self.with_timeout(self.server.send_commands(pipeline), timeout).await
    }

    async fn with_timeout<T>(&self, request: impl Future<Output = Result<T>>, timeout: Duration) -> Result<T> {
        match self.clock.timeout(timeout, request).await {
            Ok(answer) => answer,
            Err(_) => {
                self.listener.is_unresponsive.store(true, Ordering::SeqCst);
                self.listener.changed.notify_one();
                Err(error::unreachable(&self.address, &format!("no answer within {timeout:?}")).effect_unknown())
            }
        }
    }

    /// Sends the release of a claim. If it fails, the node gets it when it is reached again.
    pub(super) async fn send_release(&self, request: Arc<Request>, timeout: Duration, ttl: Duration) -> Result<Value> {
        let answer = self.send(&request, timeout).await;
        if answer.is_err() {
            self.keep_release(request, ttl);
            // The node may have answered other requests since: then no other notification would
            // deliver this release.
            if self.server.is_up() && !self.is_unresponsive() {
                self.listener.changed.notify_one();
            }
        }
        answer
    }

    fn keep_release(&self, request: Arc<Request>, ttl: Duration) {
        let now = self.clock.now();
        let mut pending = self.pending_releases.lock().unwrap_or_else(PoisonError::into_inner);
        // Releases of one TTL are in the order of their ends: to scan all of them each time would
        // cost more than the rest.
        while pending.front().is_some_and(|release| release.expires_at <= now) {
            pending.pop_front();
        }
        if pending.len() < MAX_PENDING_RELEASES {
            pending.push_back(PendingRelease { request, expires_at: now.saturating_add(ttl) });
        }
    }

    /// Sends the releases that the node has not received yet.
    async fn deliver_releases(&self) {
        let pending = std::mem::take(&mut *self.pending_releases.lock().unwrap_or_else(PoisonError::into_inner));
        for release in pending {
            let now = self.clock.now();
            if release.expires_at > now && self.send(&release.request, self.config.connect_timeout).await.is_err() {
                self.keep_release(release.request, release.expires_at.duration_since(now));
            }
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(probe_task) = self.probe_task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            probe_task.abort();
        }
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node({}, {})", self.address, if self.is_unresponsive() { "unresponsive" } else { "responding" })
    }
}

/// Probes a node that does not respond until it does, starts strict mode's cool-down where it has
/// restarted, and delivers pending releases; ends with the node.
async fn keep_probing(node: Weak<Node>, clock: Clock, listener: Arc<NodeListener>, probe: Arc<Request>) {
    let mut failures = 0;
    loop {
        if failures == 0 {
            let _ = clock.timeout(PROBE_INTERVAL, listener.changed.notified()).await;
        } else {
            let rng = (crate::random::random_bits() & u128::from(u32::MAX)) as u32;
            let pause = backoff::pause(failures, Duration::from_millis(20), Duration::from_secs(1), rng);
            clock.sleep(pause).await;
        }
        let Some(node) = node.upgrade() else { return };
        let was_silent = node.is_unresponsive();
        match node.send(&probe, node.config.connect_timeout).await {
            Ok(time) => {
                failures = 0;
                if let Some(micros) = integer(&time).and_then(|time| time.try_into().ok()) {
                    node.observe_clock(micros);
                }
                listener.is_unresponsive.store(false, Ordering::SeqCst);
                if was_silent {
                    tracing::debug!(address = %node.address, "responds again");
                    listener.losses.report_resync();
                }
                node.deliver_releases().await;
            }
            Err(error) => {
                tracing::debug!(%error, address = %node.address, "does not respond");
                failures += 1;
            }
        }
    }
}
