//! How an engine tells of lost claims without being asked.

use std::sync::{Mutex, PoisonError};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::claim::ClaimId;

/// Claims that an engine knows to be lost, as it learns of them.
#[derive(Debug)]
pub struct Losses(Option<UnboundedReceiver<ClaimId>>);

impl Losses {
    /// Never tells of any.
    pub fn never() -> Self {
        Self(None)
    }

    /// The next lost claims; does not end while there are none.
    ///
    /// # Cancellation safety
    /// May be dropped; nothing is missed.
    pub async fn next(&mut self) -> Vec<ClaimId> {
        let Some(receiver) = &mut self.0 else { return std::future::pending().await };
        let mut claims = Vec::new();
        if receiver.recv_many(&mut claims, 1024).await == 0 {
            // The engine is gone, and tells nothing any more.
            return std::future::pending().await;
        }
        claims
    }
}

/// Where an engine posts losses for all who listen.
#[derive(Debug, Default)]
pub struct LossBoard(Mutex<Vec<UnboundedSender<ClaimId>>>);

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
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|sender| sender.send(claim).is_ok());
    }
}
