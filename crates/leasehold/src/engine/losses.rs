//! How an engine tells of lost claims without being asked.

use std::sync::{Mutex, PoisonError};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::claim::ClaimId;

/// What an engine tells without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// This claim is lost.
    Of(ClaimId),
    /// This claim may be lost: it is renewed at once.
    Check(ClaimId),
    /// An operator asks the holder of this claim to release it. It still holds until its deadline, and is not renewed any more.
    ReleaseRequested(ClaimId),
    /// Any claim may be lost: the connection was broken for a while, the server is another one. All are renewed at once.
    Doubt,
}

/// Claims that an engine knows or fears to be lost, as it learns of them.
#[derive(Debug)]
pub struct Losses(Option<UnboundedReceiver<Loss>>);

impl Losses {
    /// Never tells of any.
    pub fn never() -> Self {
        Self(None)
    }

    /// The next of them; does not end while there are none.
    ///
    /// # Cancellation safety
    /// May be dropped; nothing is missed.
    pub async fn next(&mut self) -> Vec<Loss> {
        let Some(receiver) = &mut self.0 else { return std::future::pending().await };
        let mut losses = Vec::new();
        if receiver.recv_many(&mut losses, 1024).await == 0 {
            // The engine is gone, and tells nothing any more.
            return std::future::pending().await;
        }
        losses
    }
}

/// Where an engine posts losses for all who listen.
#[derive(Debug, Default)]
pub struct LossBoard(Mutex<Vec<UnboundedSender<Loss>>>);

impl LossBoard {
    /// Listens from now on.
    pub fn listen(&self) -> Losses {
        let (sender, receiver) = unbounded_channel();
        let mut senders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        senders.retain(|sender| !sender.is_closed());
        senders.push(sender);
        drop(senders);
        Losses(Some(receiver))
    }

    /// Tells all listeners; each knows its own claims.
    pub fn post(&self, claim: ClaimId) {
        self.tell(Loss::Of(claim));
    }

    /// Has the listener whose claim it is renew it now.
    pub fn check(&self, claim: ClaimId) {
        self.tell(Loss::Check(claim));
    }

    /// Asks the listener whose claim it is to release it.
    pub fn request_release(&self, claim: ClaimId) {
        self.tell(Loss::ReleaseRequested(claim));
    }

    /// Has all listeners renew all their claims now.
    pub fn doubt(&self) {
        self.tell(Loss::Doubt);
    }

    fn tell(&self, loss: Loss) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|sender| sender.send(loss).is_ok());
    }
}
