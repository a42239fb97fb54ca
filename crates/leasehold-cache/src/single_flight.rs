//! Loads that bypass the store, one at a time per key.
//!
//! Only reads that came before a load began may share it: a load in progress may have read a value
//! that has changed since. A read that arrives during a load waits for the next one, which all
//! reads that arrived meanwhile share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, watch};

use super::error::CacheError;
use crate::logic::Data;

type LoadResult = Result<Data, CacheError>;
type PendingLoad = watch::Receiver<Option<LoadResult>>;

/// The keys that are being loaded without the store.
#[derive(Debug, Default)]
pub(crate) struct SingleFlight(Mutex<HashMap<String, KeyEntry>>);

#[derive(Debug, Default)]
struct KeyEntry {
    queue: Arc<LoadQueue>,
    /// The number of reads that use this entry; the last one removes it.
    users: usize,
}

#[derive(Debug, Default)]
struct LoadQueue {
    /// Locked by the reader that loads.
    running: AsyncMutex<()>,
    /// The load that has not begun, which readers may still join; `None` if there is none.
    pending: Mutex<Option<PendingLoad>>,
}

impl LoadQueue {
    fn pending(&self) -> MutexGuard<'_, Option<PendingLoad>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a key's entry while it is in use.
struct KeyUser<'a> {
    single_flight: &'a SingleFlight,
    key: &'a str,
}

impl Drop for KeyUser<'_> {
    fn drop(&mut self) {
        let mut all = self.single_flight.entries();
        if let Some(open) = all.get_mut(self.key) {
            open.users -= 1;
            if open.users == 0 {
                all.remove(self.key);
            }
        }
    }
}

impl SingleFlight {
    fn entries(&self) -> MutexGuard<'_, HashMap<String, KeyEntry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter<'a>(&'a self, key: &'a str) -> (Arc<LoadQueue>, KeyUser<'a>) {
        let mut all = self.entries();
        let open = all.entry(key.to_owned()).or_default();
        open.users += 1;
        (Arc::clone(&open.queue), KeyUser { single_flight: self, key })
    }

    /// The result of a load that begins after now: the one of this call, or of another reader that
    /// came before the load began. Calls `on_joined` as soon as it is certain which load that is.
    pub(crate) async fn load_once<F, Fut>(&self, key: &str, on_joined: impl FnOnce(), load: F) -> LoadResult
    where
        F: Fn() -> Fut + Send + Sync,
        Fut: Future<Output = LoadResult> + Send,
    {
        let (queue, _user) = self.enter(key);
        let mut on_joined = Some(on_joined);
        loop {
            let (mut result, own_sender) = {
                let mut pending = queue.pending();
                // A load whose reader was cancelled will never send a result.
                match pending.as_ref().filter(|pending| pending.has_changed().is_ok()) {
                    Some(other) => (other.clone(), None),
                    None => {
                        let (sender, receiver) = watch::channel(None);
                        *pending = Some(receiver.clone());
                        (receiver, Some(sender))
                    }
                }
            };
            if let Some(on_joined) = on_joined.take() {
                on_joined();
            }
            if let Some(sender) = own_sender {
                let _running = queue.running.lock().await;
                *queue.pending() = None;
                let outcome = load().await;
                sender.send_replace(Some(outcome.clone()));
                return outcome;
            }
            if let Ok(outcome) = result.wait_for(Option::is_some).await
                && let Some(outcome) = &*outcome
            {
                return outcome.clone();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn a_running_load_is_not_joined_and_the_next_one_is_shared() {
        let single_flight = Arc::<SingleFlight>::default();
        let (gate, loads) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicU32::new(0)));
        let read = || {
            let (single_flight, gate, loads) = (Arc::clone(&single_flight), Arc::clone(&gate), Arc::clone(&loads));
            tokio::spawn(async move {
                let (gate, loads) = (&gate, &loads);
                let load = || async move {
                    let number = loads.fetch_add(1, Ordering::SeqCst);
                    gate.acquire().await.unwrap().forget();
                    Ok(Some(vec![number as u8]))
                };
                single_flight.load_once("k", || (), load).await.unwrap().unwrap()[0]
            })
        };
        let first = read();
        while loads.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        let later: Vec<_> = (0..50).map(|_| read()).collect();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        gate.add_permits(2);
        assert_eq!(first.await.unwrap(), 0);
        for one in later {
            assert_eq!(one.await.unwrap(), 1, "a load that began after it came");
        }
        assert_eq!(loads.load(Ordering::SeqCst), 2);
        assert!(single_flight.entries().is_empty());
    }

    #[test]
    fn no_queue_is_left_if_two_users_leave_at_once() {
        let (single_flight, together) = (SingleFlight::default(), Barrier::new(2));
        let fly = || {
            for round in 0..20_000 {
                let key = round.to_string();
                let using = single_flight.enter(&key);
                together.wait();
                drop(using);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(fly);
            scope.spawn(fly);
        });
        assert_eq!(single_flight.entries().len(), 0);
    }

    #[tokio::test]
    async fn a_cancelled_loading_reader_is_replaced() {
        let single_flight = Arc::<SingleFlight>::default();
        let leads = tokio::spawn({
            let single_flight = Arc::clone(&single_flight);
            async move { single_flight.load_once("k", || (), std::future::pending).await }
        });
        tokio::task::yield_now().await;
        let queued = tokio::spawn({
            let single_flight = Arc::clone(&single_flight);
            async move { single_flight.load_once("k", || (), std::future::pending).await }
        });
        tokio::task::yield_now().await;
        let follows = tokio::spawn({
            let single_flight = Arc::clone(&single_flight);
            async move { single_flight.load_once("k", || (), || async { Ok(None) }).await }
        });
        tokio::task::yield_now().await;
        queued.abort();
        leads.abort();
        assert_eq!(follows.await.unwrap().unwrap(), None);
    }
}
