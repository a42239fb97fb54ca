//! Readers of this process that wait for another reader's load.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// The last notification of a key: which lease ended, and the error if its load failed.
#[derive(Clone, Debug, Default)]
struct News {
    lease: u128,
    failure: Option<Arc<str>>,
}

/// Notifies waiting readers when a load of their key ended.
#[derive(Debug, Default)]
pub(crate) struct Bells(Mutex<HashMap<String, Bell>>);

#[derive(Debug, Default)]
struct Bell {
    news: watch::Sender<News>,
    /// The number of listeners, counted under the mutex, so that the last one knows that it is the
    /// last.
    ears: usize,
}

impl Bells {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Bell>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribes to notifications from now on.
    pub(crate) fn listen(self: &Arc<Self>, key: String) -> Ear {
        let news = {
            let mut all = self.all();
            let bell = all.entry(key.clone()).or_default();
            bell.ears += 1;
            bell.news.subscribe()
        };
        Ear { bells: Arc::clone(self), key, news }
    }

    pub(crate) fn ring(&self, key: &str, lease: u128, failure: Option<&str>) {
        if let Some(bell) = self.all().get(key) {
            bell.news.send_replace(News { lease, failure: failure.map(Arc::from) });
        }
    }

    /// Notifications may have been lost: all readers look again.
    pub(crate) fn ring_all(&self) {
        for bell in self.all().values() {
            bell.news.send_replace(News::default());
        }
    }
}

/// One waiting reader.
#[derive(Debug)]
pub(crate) struct Ear {
    bells: Arc<Bells>,
    key: String,
    news: watch::Receiver<News>,
}

impl Ear {
    /// Waits for a notification. Returns the error if the load under this lease failed.
    pub(crate) async fn hear(&mut self, lease: u128) -> Option<Arc<str>> {
        // The sender lives as long as there is a listener.
        let _ = self.news.changed().await;
        let news = self.news.borrow_and_update();
        news.failure.clone().filter(|_| news.lease == lease)
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        let mut all = self.bells.all();
        if let Some(bell) = all.get_mut(&self.key) {
            bell.ears -= 1;
            if bell.ears == 0 {
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
    async fn a_failure_is_told_to_those_who_waited_for_it_and_nobody_is_kept() {
        let bells = Arc::<Bells>::default();
        let (mut one, mut two) = (bells.listen("a".into()), bells.listen("a".into()));
        bells.ring("a", 1, Some("no"));
        assert_eq!(one.hear(1).await.as_deref(), Some("no"));
        assert_eq!(two.hear(2).await, None);
        drop((one, two));
        assert!(bells.all().is_empty());
    }

    #[test]
    fn nobody_is_kept_if_two_go_at_once() {
        let (bells, together) = (Arc::<Bells>::default(), Barrier::new(2));
        let listen = || {
            for round in 0..20_000 {
                let ear = bells.listen(round.to_string());
                together.wait();
                drop(ear);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(listen);
            scope.spawn(listen);
        });
        assert_eq!(bells.all().len(), 0);
    }
}
