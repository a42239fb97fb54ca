//! How an engine reports lost claims on its own.

use std::sync::{Mutex, PoisonError};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::claim::ClaimId;

/// What an engine reports on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// This claim is lost.
    Of(ClaimId),
    /// This claim may be lost: the keeper renews it at once.
    Check(ClaimId),
    /// An operator asks the holder of this claim to release it. The claim holds until its deadline,
    /// and is not renewed any more.
    ReleaseRequested(ClaimId),
    /// Any claim may be lost: the connection was broken for a while, or the server is another one.
    /// The keeper renews all claims at once.
    Doubt,
}

/// A stream of losses and possible losses, as the engine learns of them.
#[derive(Debug)]
pub struct Losses(Option<UnboundedReceiver<Loss>>);

impl Losses {
    /// A stream without any losses.
    pub fn never() -> Self {
        Self(None)
    }

    /// The next losses; does not complete while there are none.
    ///
    /// # Cancellation safety
    /// May be dropped; no loss is missed.
    pub async fn next(&mut self) -> Vec<Loss> {
        let Some(receiver) = &mut self.0 else { return std::future::pending().await };
        let mut losses = Vec::new();
        if receiver.recv_many(&mut losses, 1024).await == 0 {
            // The engine was dropped, and reports nothing any more.
            return std::future::pending().await;
        }
        losses
    }
}

/// Broadcasts an engine's losses to its subscribers.
#[derive(Debug, Default)]
pub struct LossBoard(Mutex<Vec<UnboundedSender<Loss>>>);

impl LossBoard {
    /// Subscribes from now on.
    pub fn listen(&self) -> Losses {
        let (sender, receiver) = unbounded_channel();
        let mut senders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        senders.retain(|sender| !sender.is_closed());
        senders.push(sender);
        drop(senders);
        Losses(Some(receiver))
    }

    /// Reports a lost claim to all subscribers; each knows its own claims.
    pub fn post(&self, claim: ClaimId) {
        self.tell(Loss::Of(claim));
    }

    /// Makes the subscriber that has this claim renew it now.
    pub fn check(&self, claim: ClaimId) {
        self.tell(Loss::Check(claim));
    }

    /// Makes the subscriber that has this claim ask its holder to release it.
    pub fn request_release(&self, claim: ClaimId) {
        self.tell(Loss::ReleaseRequested(claim));
    }

    /// Makes all subscribers renew all their claims now.
    pub fn doubt(&self) {
        self.tell(Loss::Doubt);
    }

    fn tell(&self, loss: Loss) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|sender| sender.send(loss).is_ok());
    }
}
