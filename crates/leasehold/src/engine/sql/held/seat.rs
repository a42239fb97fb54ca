//! This client's claims, and the state of each.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, oneshot, watch};

use super::trouble::Trouble;
use crate::claim::{Claim, ClaimId, Mode, Token};
use crate::clock::{Clock, Moment};
use crate::engine::Released;
use crate::name::LockName;

/// The state of a claim.
#[derive(Clone, Debug)]
pub(super) enum Stage {
    /// Just created.
    New,
    /// It waits: here, or at the server.
    Waiting,
    /// It holds, by a session that certainly lasts until then.
    Held { token: Token, until: Moment },
    /// It has ended; with the reason, if something went wrong.
    Gone(Option<Trouble>),
}

/// A request to the task of a claim.
#[derive(Debug)]
pub(super) enum Order {
    /// Show that the lock is held, and return until when it certainly is.
    Prove(oneshot::Sender<Moment>),
    /// End the claim.
    Leave(oneshot::Sender<Result<Released, Trouble>>),
}

/// One claim. Its connection belongs to a task of its own, which goes on when a caller's step is
/// dropped.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) claim: ClaimId,
    pub(super) name: LockName,
    pub(super) mode: Mode,
    pub(super) ttl: Duration,
    pub(super) stage: watch::Sender<Stage>,
    orders: UnboundedSender<Order>,
    /// When a caller last wanted it, in nanoseconds.
    shown: AtomicU64,
    /// The server's number of the connection that holds; 0 while none does.
    pub(super) connection: AtomicI64,
    /// Notified when the connection was found missing.
    pub(super) doubt: Notify,
}

impl Seat {
    fn new(claim: &Claim, clock: &Clock) -> (Arc<Self>, UnboundedReceiver<Order>) {
        let (orders, receiver) = unbounded_channel();
        let seat = Self {
            claim: claim.id,
            name: claim.name().clone(),
            mode: claim.terms.mode,
            ttl: claim.terms.ttl,
            stage: watch::Sender::new(Stage::New),
            orders,
            shown: AtomicU64::new(clock.now().as_nanos()),
            connection: AtomicI64::new(0),
            doubt: Notify::new(),
        };
        (Arc::new(seat), receiver)
    }

    /// Notes that a caller still wants it.
    pub(super) fn show(&self, now: Moment) {
        self.shown.fetch_max(now.as_nanos(), Ordering::AcqRel);
    }

    /// Returns when no caller has wanted it for a TTL.
    pub(super) async fn stale(&self, clock: &Clock) {
        loop {
            let until = Moment::from_nanos(self.shown.load(Ordering::Acquire)).after(self.ttl);
            if clock.now() >= until {
                return;
            }
            clock.sleep_until(until).await;
        }
    }

    /// Until when it certainly holds, by the server's answer now. `None`: it does not.
    pub(super) async fn prove(&self) -> Option<Moment> {
        let (sender, answer) = oneshot::channel();
        self.orders.send(Order::Prove(sender)).ok()?;
        answer.await.ok()
    }

    /// Ends it. `None`: it had ended before.
    pub(super) async fn leave(&self) -> Option<Result<Released, Trouble>> {
        let (sender, answer) = oneshot::channel();
        self.orders.send(Order::Leave(sender)).ok()?;
        answer.await.ok()
    }
}

/// All claims of one client.
#[derive(Debug, Default)]
pub(super) struct Seats(Mutex<HashMap<ClaimId, Arc<Seat>>>);

impl Seats {
    fn all(&self) -> MutexGuard<'_, HashMap<ClaimId, Arc<Seat>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn find(&self, claim: ClaimId) -> Option<Arc<Seat>> {
        self.all().get(&claim).cloned()
    }

    /// The claim's entry; for a new one, also the requests for its task.
    pub(super) fn take(&self, claim: &Claim, clock: &Clock) -> (Arc<Seat>, Option<UnboundedReceiver<Order>>) {
        let mut all = self.all();
        if let Some(seat) = all.get(&claim.id) {
            return (Arc::clone(seat), None);
        }
        let (seat, orders) = Seat::new(claim, clock);
        all.insert(claim.id, Arc::clone(&seat));
        (seat, Some(orders))
    }

    /// Removes a claim that has ended.
    pub(super) fn leave(&self, seat: &Arc<Seat>) {
        let mut all = self.all();
        if all.get(&seat.claim).is_some_and(|there| Arc::ptr_eq(there, seat)) {
            all.remove(&seat.claim);
        }
    }

    /// Whether another claim of this client certainly holds the lock and excludes this one.
    pub(super) fn excludes(&self, seat: &Seat, now: Moment) -> bool {
        self.all().values().any(|other| {
            let same = other.claim != seat.claim && other.name == seat.name;
            let together = other.mode == Mode::Shared && seat.mode == Mode::Shared;
            same && !together && matches!(*other.stage.borrow(), Stage::Held { until, .. } if until > now)
        })
    }

    /// The claims that hold.
    pub(super) fn held(&self) -> Vec<Arc<Seat>> {
        self.all().values().filter(|seat| seat.connection.load(Ordering::Acquire) != 0).cloned().collect()
    }
}
