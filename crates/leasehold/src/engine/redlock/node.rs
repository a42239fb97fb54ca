//! One node: whether it answers, and what is still owed to it.

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

/// How many claims a node is owed the end of, at most: what is beyond ends with its TTL.
const MOST_DEBTS: usize = 10_000;

/// How often a node is touched that stays reached: our clocks drift apart, and what nobody touches for a day strict mode forgets.
const AGAIN: Duration = Duration::from_secs(60);

/// One server.
pub(super) struct Node {
    pub(super) address: Address,
    config: Arc<Config>,
    clock: Clock,
    server: Box<dyn Server>,
    ears: Arc<Ears>,
    /// By how many us its clock is ahead of ours; zero if it was never seen.
    ahead: AtomicU64,
    debts: Mutex<VecDeque<Debt>>,
    tender: Mutex<Option<JoinHandle<()>>>,
}

/// The end of a claim that a node has not been told yet.
struct Debt {
    request: Arc<Request>,
    /// When the claim has ended by itself.
    until: Moment,
}

/// What is told of a node while nobody asks it.
pub(super) struct Ears {
    losses: Arc<LossBoard>,
    /// It did not answer in time, and has not answered since.
    silent: AtomicBool,
    /// Rung when it is reached, and when it falls silent.
    change: Notify,
}

impl Ears {
    /// It has evicted a claim of ours.
    pub(super) fn evicted(&self, claim: ClaimId) {
        self.losses.check(claim);
    }

    /// An operator asks for the release of a claim of ours. Each node that has the claim passes that on; once is enough.
    pub(super) fn release_requested(&self, claim: ClaimId) {
        self.losses.request_release(claim);
    }

    /// It is reached; `again`: it was reached before.
    pub(super) fn reached(&self, again: bool) {
        self.silent.store(false, Ordering::SeqCst);
        self.change.notify_one();
        if again {
            // It may have forgotten our claims.
            self.losses.doubt();
        }
    }
}

impl Node {
    /// Begins to reach it.
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

    /// Waits until it is reached, or known why not.
    pub(super) async fn reached(&self) -> Result<()> {
        self.server.reached().await
    }

    /// Its clock was seen, in us.
    pub(super) fn saw_time(&self, micros: u64) {
        self.ahead.store(micros.saturating_sub(self.clock.now().as_nanos() / 1000), Ordering::SeqCst);
    }

    /// What its clock says by now, in us, as far as is known; zero: it was never seen.
    pub(super) fn time(&self) -> u64 {
        match self.ahead.load(Ordering::SeqCst) {
            0 => 0,
            ahead => ahead.saturating_add(self.clock.now().as_nanos() / 1000),
        }
    }

    /// Whether it has not answered lately: it is not worth waiting for.
    pub(super) fn is_silent(&self) -> bool {
        self.ears.silent.load(Ordering::SeqCst)
    }

    /// A claim's lease is due for renewal.
    pub(super) fn renews(&self, claim: &Claim) {
        self.server.renews(claim.terms.ttl, claim.lease.deadline());
    }

    /// Asks it. If it does not answer in time, it counts as silent until it does.
    pub(super) async fn ask(&self, request: &Arc<Request>, most: Duration) -> Result<Value> {
        self.in_time(self.server.ask(request), most).await
    }

    /// Sends it commands in a row.
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

    /// Tells it the end of a claim. What it cannot be told now it is told when it is reached again.
    pub(super) async fn end(&self, request: Arc<Request>, most: Duration, ttl: Duration) -> Result<Value> {
        let answer = self.ask(&request, most).await;
        if answer.is_err() {
            self.owe(request, ttl);
            // It may have answered others meanwhile: then nothing would ring for this any more.
            if self.server.is_up() && !self.is_silent() {
                self.ears.change.notify_one();
            }
        }
        answer
    }

    fn owe(&self, request: Arc<Request>, ttl: Duration) {
        let now = self.clock.now();
        let mut debts = self.debts.lock().unwrap_or_else(PoisonError::into_inner);
        // Those with one TTL stand in the order of their ends: to look at all of them each time would cost more than the rest.
        while debts.front().is_some_and(|debt| debt.until <= now) {
            debts.pop_front();
        }
        if debts.len() < MOST_DEBTS {
            debts.push_back(Debt { request, until: now.after(ttl) });
        }
    }

    /// Tells it what it is owed.
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

/// Probes a node that has fallen silent until it answers, begins strict mode's wait where it has restarted, and pays what it is
/// owed; for as long as the node is wanted.
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
