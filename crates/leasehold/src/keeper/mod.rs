//! The keeper: the one task of a [`Locks`](crate::Locks) that renews its leases in batches, signals a loss at the deadline,
//! and gives back what was abandoned.

mod book;
mod chores;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;

use self::book::Book;
use self::chores::Chore;
use crate::claim::{Claim, ClaimId};
use crate::clock::{Clock, Moment};
use crate::engine::{Answer, Engine, Step};
use crate::error::Result;
use crate::meter::Gauges;

pub(crate) use self::chores::{call, release};

/// How many leases go into one call to the engine.
const BATCH: usize = 128;

/// What the keeper and its clients share.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) clock: Clock,
    pub(crate) gauges: Gauges,
    book: Book,
    abandoned: std::sync::Mutex<Vec<Abandoned>>,
    wake: Notify,
    closing: AtomicBool,
    idle: Notify,
}

/// A claim that nobody wants any more, perhaps with a call that is still under way.
pub(crate) struct Abandoned {
    claim: Arc<Claim>,
    inflight: Option<Step<Answer>>,
}

impl std::fmt::Debug for Abandoned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Abandoned({:?})", self.claim.id)
    }
}

impl Desk {
    pub(crate) fn new(engine: Arc<dyn Engine>, clock: Clock, gauges: Gauges) -> Self {
        Self {
            engine,
            clock,
            gauges,
            book: Book::default(),
            abandoned: std::sync::Mutex::default(),
            wake: Notify::new(),
            closing: AtomicBool::new(false),
            idle: Notify::new(),
        }
    }

    /// Takes a lease into care.
    pub(crate) fn keep(&self, claim: &Arc<Claim>, due: Moment) {
        if self.book.add(claim, due) {
            self.wake.notify_one();
        }
    }

    /// Stops caring for a lease.
    pub(crate) fn forget(&self, claim: &Claim) {
        self.book.remove(claim);
        if self.gauges.is_on() {
            self.gauges.observe("leasehold_hold_seconds", self.clock.now().since(claim.lease.granted()));
        }
    }

    /// Gives a claim back in the background, after the call that may still grant it.
    pub(crate) fn abandon(&self, claim: Arc<Claim>, inflight: Option<Step<Answer>>) {
        self.abandoned().push(Abandoned { claim, inflight });
        self.wake.notify_one();
    }

    pub(crate) fn held(&self) -> usize {
        self.book.len()
    }

    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Waits until everything abandoned has been given back.
    pub(crate) async fn settled(&self) {
        let mut idle = std::pin::pin!(self.idle.notified());
        idle.as_mut().enable();
        self.wake.notify_one();
        idle.await;
    }

    fn abandoned(&self) -> std::sync::MutexGuard<'_, Vec<Abandoned>> {
        self.abandoned.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Runs until the desk is closed and nothing is left to give back.
pub(crate) async fn run(desk: Arc<Desk>) {
    let mut chores: FuturesUnordered<Chore> = FuturesUnordered::new();
    let mut losses = losses(&desk);
    loop {
        for abandoned in std::mem::take(&mut *desk.abandoned()) {
            chores.push(chores::give_back(Arc::clone(&desk), abandoned.claim, abandoned.inflight).boxed());
        }
        let now = desk.clock.now();
        let round = desk.book.due(now);
        for claim in round.expired {
            claim.lease.expire();
            chores.extend(lost(&desk, &claim));
        }
        for batch in round.renew.chunks(BATCH) {
            chores.push(chores::renew(Arc::clone(&desk), batch.to_vec()).boxed());
        }
        desk.report(now);
        if chores.is_empty() {
            desk.idle.notify_waiters();
            if desk.is_closed() {
                return;
            }
        }
        tokio::select! {
            biased;
            Some(()) = chores.next(), if !chores.is_empty() => {}
            claims = &mut losses => {
                for claim in desk.book.find(&claims.unwrap_or_default()) {
                    claim.lease.take_away();
                    chores.extend(lost(&desk, &claim));
                }
                losses = self::losses(&desk);
            }
            () = desk.wake.notified() => {}
            () = desk.clock.sleep_until(round.next), if round.next != Moment::NEVER => {}
        }
    }
}

/// The engine's own word about losses; an engine that fails to listen is asked at the renewals only.
fn losses(desk: &Desk) -> futures_util::future::BoxFuture<'static, Result<Vec<ClaimId>>> {
    let engine = Arc::clone(&desk.engine);
    async move {
        match engine.losses().await {
            Ok(claims) => Ok(claims),
            Err(error) => {
                tracing::debug!(%error, "the engine does not tell of losses");
                std::future::pending().await
            }
        }
    }
    .boxed()
}

/// After a loss: tell, and give the claim back, so that nobody waits for the rest of its lease.
fn lost(desk: &Arc<Desk>, claim: &Arc<Claim>) -> Option<Chore> {
    chores::bury(desk, claim).then(|| chores::give_back(Arc::clone(desk), Arc::clone(claim), None).boxed())
}
