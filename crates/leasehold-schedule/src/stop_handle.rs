//! Stopping jobs.

use std::sync::Arc;

use tokio::sync::watch;

/// Stops jobs from beginning further runs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct StopHandle(Arc<watch::Sender<bool>>);

impl Default for StopHandle {
    fn default() -> Self {
        Self::new()
    }
}

impl StopHandle {
    /// A handle that has not been used yet.
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// From now on no run begins; runs in progress continue to their end.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    /// Whether a stop was requested.
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until a stop is requested.
    pub async fn stopped(&self) {
        let mut stopped = self.0.subscribe();
        // `self` owns the sender, so the channel is open.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    }
}
