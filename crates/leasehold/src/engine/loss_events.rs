//! Losses that an engine reports without a renewal that asks for them.

use std::sync::{Mutex, PoisonError};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::types::ClaimId;

/// What an engine reports on its own.
///
/// ```
/// use leasehold::{ClaimId, engine::LossEvent};
///
/// let event = LossEvent::Lost(ClaimId::random());
/// assert_ne!(event, LossEvent::Resync);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossEvent {
    /// This claim does not hold its lock any more.
    Lost(ClaimId),
    /// This claim may be lost: the keeper renews it at once.
    MaybeLost(ClaimId),
    /// An operator requests that the holder of this claim releases it. The claim holds until its
    /// deadline, and is not renewed any more.
    ReleaseRequested(ClaimId),
    /// Any claim may be lost: the connection was broken for a while, or leads to another server
    /// now. The keeper renews all claims at once.
    Resync,
}

/// A stream of losses and possible losses, as the engine detects them.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::engine::{LossBroadcaster, LossEvent};
///
/// let broadcaster = LossBroadcaster::default();
/// let mut events = broadcaster.subscribe();
/// broadcaster.report_resync();
/// assert_eq!(events.next().await, [LossEvent::Resync]);
/// # });
/// ```
#[derive(Debug)]
pub struct LossEvents(Option<UnboundedReceiver<LossEvent>>);

impl LossEvents {
    /// A subscription that never receives an event.
    pub fn none() -> Self {
        Self(None)
    }

    /// Waits for at least one event, and returns all that have arrived.
    ///
    /// # Cancellation safety
    /// If the future is dropped, no event is lost.
    pub async fn next(&mut self) -> Vec<LossEvent> {
        let Some(receiver) = &mut self.0 else { return std::future::pending().await };
        let mut losses = Vec::new();
        if receiver.recv_many(&mut losses, 1024).await == 0 {
            // The engine was dropped and reports no more events.
            return std::future::pending().await;
        }
        losses
    }
}

/// Broadcasts an engine's losses to its subscribers.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{ClaimId, engine::{LossBroadcaster, LossEvent}};
///
/// let (broadcaster, claim) = (LossBroadcaster::default(), ClaimId::random());
/// let mut events = broadcaster.subscribe();
/// broadcaster.report_lost(claim);
/// assert_eq!(events.next().await, [LossEvent::Lost(claim)]);
/// # });
/// ```
#[derive(Debug, Default)]
pub struct LossBroadcaster(Mutex<Vec<UnboundedSender<LossEvent>>>);

impl LossBroadcaster {
    /// Adds a subscriber, which gets all events from this call on.
    pub fn subscribe(&self) -> LossEvents {
        let (sender, receiver) = unbounded_channel();
        let mut senders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        senders.retain(|sender| !sender.is_closed());
        senders.push(sender);
        drop(senders);
        LossEvents(Some(receiver))
    }

    /// Reports a lost claim to all subscribers; each ignores claims that it does not know.
    pub fn report_lost(&self, claim: ClaimId) {
        self.broadcast(LossEvent::Lost(claim));
    }

    /// Makes the subscriber that has this claim renew it now.
    pub fn report_maybe_lost(&self, claim: ClaimId) {
        self.broadcast(LossEvent::MaybeLost(claim));
    }

    /// Makes the subscriber that has this claim ask its holder to release it.
    pub fn report_release_request(&self, claim: ClaimId) {
        self.broadcast(LossEvent::ReleaseRequested(claim));
    }

    /// Makes all subscribers renew all their claims now.
    pub fn report_resync(&self) {
        self.broadcast(LossEvent::Resync);
    }

    /// Sends an event to all subscribers, and forgets those that were dropped.
    fn broadcast(&self, event: LossEvent) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|sender| sender.send(event).is_ok());
    }
}
