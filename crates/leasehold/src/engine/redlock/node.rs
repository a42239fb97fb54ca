//! One node: whether it responds, and which releases it has not received yet.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use redis::{Pipeline, Value};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::server::{Request, Server, What, address};
use crate::claim::{Claim, ClaimId};
use crate::clock::{Clock, Moment};
use crate::engine::LossBoard;
use crate::engine::redis::config::{Address, Config};
use crate::engine::redis::error;
use crate::engine::redis::wire::{Reader, bytes};
use crate::error::Result;
use crate::logic::backoff;

/// How many undelivered releases are kept for a node: claims beyond that end with their TTL.
const MOST_DEBTS: usize = 10_000;

/// How often a node is touched that stays reached: its clock drifts from ours, and the key of
/// strict mode expires after a day.
const AGAIN: Duration = Duration::from_secs(60);

/// One server.
pub(super) struct Node {
    pub(super) address: Address,
    config: Arc<Config>,
    clock: Clock,
    server: Box<dyn Server>,
    ears: Arc<Ears>,
    /// By how many us its clock is ahead of ours; zero if it is unknown.
    ahead: AtomicU64,
    debts: Mutex<VecDeque<Debt>>,
    tender: Mutex<Option<JoinHandle<()>>>,
}

/// A release that a node has not received yet.
struct Debt {
    request: Arc<Request>,
    /// When the claim has expired.
    until: Moment,
}

/// Receives what the connection to a node reports.
pub(super) struct Ears {
    losses: Arc<LossBoard>,
    /// The node missed a timeout, and has not responded since.
    silent: AtomicBool,
    /// Notified when the node is reached, and when it stops responding.
    change: Notify,
}

impl Ears {
    /// The node has force released a claim of ours.
    pub(super) fn evicted(&self, claim: ClaimId) {
        self.losses.check(claim);
    }

    /// An operator asks for the release of a claim of ours. Each node that has the claim sends
    /// this; once is enough.
    pub(super) fn release_requested(&self, claim: ClaimId) {
        self.losses.request_release(claim);
    }

    /// The node is reached. It may have lost our claims, or not have been asked for them so far.
    pub(super) fn reached(&self) {
        self.silent.store(false, Ordering::SeqCst);
        self.change.notify_one();
        self.losses.doubt();
    }
}

impl Node {
    /// Begins to connect.
    pub(super) fn new(
        config: &Arc<Config>,
        clock: &Clock,
        losses: &Arc<LossBoard>,
        reach: &impl Fn(&Arc<Config>, Arc<Ears>) -> Box<dyn Server>,
    ) -> Arc<Self> {
        let ears = Arc::new(Ears { losses: Arc::clone(losses), silent: AtomicBool::new(false), change: Notify::new() });
        let node = Arc::new(Self {
            address: address(config),
            config: Arc::clone(config),
            clock: clock.clone(),
            server: reach(config, Arc::clone(&ears)),
            ears: Arc::clone(&ears),
            ahead: AtomicU64::new(0),
            debts: Mutex::default(),
            tender: Mutex::default(),
        });
        let touch = Request::new(What::Touch, Vec::new(), Vec::new());
        let tender = tokio::spawn(tend(Arc::downgrade(&node), clock.clone(), ears, touch));
        *node.tender.lock().unwrap_or_else(PoisonError::into_inner) = Some(tender);
        node
    }

    /// Waits until the node is reached, or the reason why not is known.
    pub(super) async fn reached(&self) -> Result<()> {
        self.server.reached().await
    }

    /// Notes the node's clock, in us.
    pub(super) fn saw_time(&self, micros: u64) {
        self.ahead.store(micros.saturating_sub(self.clock.now().as_nanos() / 1000), Ordering::SeqCst);
    }

    /// The node's clock by now, in us, as far as it is known; zero if it is unknown.
    pub(super) fn time(&self) -> u64 {
        match self.ahead.load(Ordering::SeqCst) {
            0 => 0,
            ahead => ahead.saturating_add(self.clock.now().as_nanos() / 1000),
        }
    }

    /// Whether the node has missed a timeout and not responded since: it is not worth waiting for.
    pub(super) fn is_silent(&self) -> bool {
        self.ears.silent.load(Ordering::SeqCst)
    }

    /// Records that a claim's lease is due for renewal.
    pub(super) fn renews(&self, claim: &Claim) {
        self.server.renews(claim.terms.ttl, claim.deadline());
    }

    /// Sends a request. A node that does not answer in time counts as not responding until it does.
    pub(super) async fn ask(&self, request: &Arc<Request>, most: Duration) -> Result<Value> {
        self.in_time(self.server.ask(request), most).await
    }

    /// Sends commands in a row.
    pub(super) async fn commands(&self, pipeline: &Pipeline, most: Duration) -> Result<Vec<Value>> {
        self.in_time(self.server.commands(pipeline), most).await
    }

    async fn in_time<T>(&self, asking: impl Future<Output = Result<T>>, most: Duration) -> Result<T> {
        match self.clock.timeout(most, asking).await {
            Ok(answer) => answer,
            Err(_) => {
                self.ears.silent.store(true, Ordering::SeqCst);
                self.ears.change.notify_one();
                Err(error::unreachable(&self.address, &format!("no answer within {most:?}")).effect_unknown())
            }
        }
    }

    /// Sends the release of a claim. If it fails, the node gets it when it is reached again.
    pub(super) async fn end(&self, request: Arc<Request>, most: Duration, ttl: Duration) -> Result<Value> {
        let answer = self.ask(&request, most).await;
        if answer.is_err() {
            self.owe(request, ttl);
            // The node may have answered other requests meanwhile: then no other notification would
            // deliver this release.
            if self.server.is_up() && !self.is_silent() {
                self.ears.change.notify_one();
            }
        }
        answer
    }

    fn owe(&self, request: Arc<Request>, ttl: Duration) {
        let now = self.clock.now();
        let mut debts = self.debts.lock().unwrap_or_else(PoisonError::into_inner);
        // Releases of one TTL are in the order of their ends: to scan all of them each time would
        // cost more than the rest.
        while debts.front().is_some_and(|debt| debt.until <= now) {
            debts.pop_front();
        }
        if debts.len() < MOST_DEBTS {
            debts.push_back(Debt { request, until: now.after(ttl) });
        }
    }

    /// Sends the releases that the node has not received yet.
    async fn pay(&self) {
        let debts = std::mem::take(&mut *self.debts.lock().unwrap_or_else(PoisonError::into_inner));
        for debt in debts {
            let now = self.clock.now();
            if debt.until > now && self.ask(&debt.request, self.config.connect_timeout).await.is_err() {
                self.owe(debt.request, debt.until.since(now));
            }
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(tender) = self.tender.lock().unwrap_or_else(PoisonError::into_inner).take() {
            tender.abort();
        }
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node({}, {})", self.address, if self.is_silent() { "silent" } else { "in touch" })
    }
}

/// Probes a node that does not respond until it does, starts strict mode's cool-down where it has
/// restarted, and delivers pending releases; ends with the node.
async fn tend(node: Weak<Node>, clock: Clock, ears: Arc<Ears>, touch: Arc<Request>) {
    let mut failures = 0;
    loop {
        if failures == 0 {
            let _ = clock.timeout(AGAIN, ears.change.notified()).await;
        } else {
            let dice = (crate::random::bits() & u128::from(u32::MAX)) as u32;
            let pause = backoff::pause(failures, Duration::from_millis(20), Duration::from_secs(1), dice);
            clock.sleep(pause).await;
        }
        let Some(node) = node.upgrade() else { return };
        let was_silent = node.is_silent();
        match node.ask(&touch, node.config.connect_timeout).await {
            Ok(time) => {
                failures = 0;
                if let Some(micros) = bytes(&time).and_then(|digits| Reader(digits).number(16)) {
                    node.saw_time(micros);
                }
                ears.silent.store(false, Ordering::SeqCst);
                if was_silent {
                    tracing::debug!(address = %node.address, "answers again");
                    ears.losses.doubt();
                }
                node.pay().await;
            }
            Err(error) => {
                tracing::debug!(%error, address = %node.address, "does not answer");
                failures += 1;
            }
        }
    }
}
