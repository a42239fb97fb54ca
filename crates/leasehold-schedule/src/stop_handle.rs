//! Stopping jobs.

use std::sync::Arc;

use tokio::sync::watch;

/// Stops jobs from beginning further runs. Cheap to clone.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use leasehold_schedule::{self as schedule, Job, StopHandle};
///
/// # let locks = leasehold::Locks::open("memory:").await?;
/// # let work = |_| async { Ok::<(), std::io::Error>(()) };
/// let stop = StopHandle::new();
/// let on_signal = stop.clone();
/// on_signal.stop();                              // in the task that waits for SIGTERM
/// schedule::run_until(&locks, Job::new("mail", "@every 5m")?, &stop, work).await?;
/// assert!(stop.is_stopped());
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
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
