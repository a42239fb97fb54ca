//! Asking jobs to stop.

use std::sync::Arc;

use tokio::sync::watch;

/// Asks jobs to begin nothing more. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Stop(Arc<watch::Sender<bool>>);

impl Default for Stop {
    fn default() -> Self {
        Self::new()
    }
}

impl Stop {
    /// One that nobody has used yet.
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// From now on nothing is begun; what runs goes on to its end.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    /// Whether somebody has asked.
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until somebody asks.
    pub async fn stopped(&self) {
        let mut told = self.0.subscribe();
        // The sender is ours, so it lives.
        let _ = told.wait_for(|stopped| *stopped).await;
    }
}
