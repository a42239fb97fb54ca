//! Readers of this process that wait for another reader's load.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// The last notification of a key: which lease ended, and the error if its load failed. The lease 0
/// means that notifications may have been lost.
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
    /// The number of waiting readers; the last one removes the channel.
    subscribers: usize,
}

impl Wakeups {
    fn channels(&self) -> MutexGuard<'_, HashMap<String, KeyChannel>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribes to the notifications of a key, from now on.
    pub(crate) fn subscribe(self: &Arc<Self>, key: String) -> Subscriber {
        let receiver = {
            let mut all = self.channels();
            let channel = all.entry(key.clone()).or_default();
            channel.subscribers += 1;
            channel.sender.subscribe()
        };
        Subscriber { wakeups: Arc::clone(self), key, receiver }
    }

    /// Wakes the readers of a key: this lease has ended; its load failed if there is a `failure`.
    pub(crate) fn notify(&self, key: &str, lease: u128, failure: Option<&str>) {
        if let Some(channel) = self.channels().get(key) {
            channel.sender.send_replace(Notification { lease, failure: failure.map(Arc::from) });
        }
    }

    /// Wakes the readers of all keys, to read again: notifications may have been lost.
    pub(crate) fn notify_all(&self) {
        for channel in self.channels().values() {
            channel.sender.send_replace(Notification::default());
        }
    }
}

/// A reader that waits for notifications of one key.
#[derive(Debug)]
pub(crate) struct Subscriber {
    wakeups: Arc<Wakeups>,
    key: String,
    receiver: watch::Receiver<Notification>,
}

impl Subscriber {
    /// Waits for the next notification. Returns the error if the load under this lease failed, and
    /// otherwise `None`: read again.
    pub(crate) async fn wait(&mut self, lease: u128) -> Option<Arc<str>> {
        // The sender exists as long as there is a subscriber, so this cannot fail.
        let _ = self.receiver.changed().await;
        let notification = self.receiver.borrow_and_update();
        notification.failure.clone().filter(|_| notification.lease == lease)
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let mut all = self.wakeups.channels();
        if let Some(channel) = all.get_mut(&self.key) {
            channel.subscribers -= 1;
            if channel.subscribers == 0 {
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
