//! Readers of this process that wait for another reader's load.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// The last notification of a key: which lease ended, and the error if its load failed.
#[derive(Clone, Debug, Default)]
struct Notification {
    lease: u128,
    failure: Option<Arc<str>>,
}

/// Notifies waiting readers when a load of their key ended.
#[derive(Debug, Default)]
pub(crate) struct Wakeups(Mutex<HashMap<String, KeyChannel>>);

#[derive(Debug, Default)]
struct KeyChannel {
    sender: watch::Sender<Notification>,
    /// The number of listeners, counted under the mutex, so that the last one knows that it is the
    /// last.
    subscribers: usize,
}

impl Wakeups {
    fn channels(&self) -> MutexGuard<'_, HashMap<String, KeyChannel>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribes to notifications from now on.
    pub(crate) fn subscribe(self: &Arc<Self>, key: String) -> Subscriber {
        let notification = {
            let mut all = self.channels();
            let bell = all.entry(key.clone()).or_default();
            bell.subscribers += 1;
            bell.sender.subscribe()
        };
        Subscriber { wakeups: Arc::clone(self), key, receiver: notification }
    }

    pub(crate) fn notify(&self, key: &str, lease: u128, failure: Option<&str>) {
        if let Some(bell) = self.channels().get(key) {
            bell.sender.send_replace(Notification { lease, failure: failure.map(Arc::from) });
        }
    }

    /// Notifications may have been lost: all readers read again.
    pub(crate) fn notify_all(&self) {
        for bell in self.channels().values() {
            bell.sender.send_replace(Notification::default());
        }
    }
}

/// One waiting reader.
#[derive(Debug)]
pub(crate) struct Subscriber {
    wakeups: Arc<Wakeups>,
    key: String,
    receiver: watch::Receiver<Notification>,
}

impl Subscriber {
    /// Waits for a notification. Returns the error if the load under this lease failed.
    pub(crate) async fn wait(&mut self, lease: u128) -> Option<Arc<str>> {
        // The sender lives as long as there is a listener.
        let _ = self.receiver.changed().await;
        let notification = self.receiver.borrow_and_update();
        notification.failure.clone().filter(|_| notification.lease == lease)
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let mut all = self.wakeups.channels();
        if let Some(bell) = all.get_mut(&self.key) {
            bell.subscribers -= 1;
            if bell.subscribers == 0 {
                all.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[tokio::test]
    async fn a_failure_reaches_its_waiters_and_no_channel_is_left() {
        let wakeups = Arc::<Wakeups>::default();
        let (mut one, mut two) = (wakeups.subscribe("a".into()), wakeups.subscribe("a".into()));
        wakeups.notify("a", 1, Some("no"));
        assert_eq!(one.wait(1).await.as_deref(), Some("no"));
        assert_eq!(two.wait(2).await, None);
        drop((one, two));
        assert!(wakeups.channels().is_empty());
    }

    #[test]
    fn no_channel_is_left_if_two_subscribers_leave_at_once() {
        let (wakeups, together) = (Arc::<Wakeups>::default(), Barrier::new(2));
        let listen = || {
            for round in 0..20_000 {
                let subscriber = wakeups.subscribe(round.to_string());
                together.wait();
                drop(subscriber);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(listen);
            scope.spawn(listen);
        });
        assert_eq!(wakeups.channels().len(), 0);
    }
}
