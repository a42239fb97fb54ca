//! Loads that bypass the store, one at a time per key.
//!
//! Only reads that came before a load began may share it: a load in progress may have read a value
//! that has been changed since. A read that comes during a load waits for the next one, with all
//! others that came meanwhile.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as Turn, watch};

use super::error::CacheError;
use crate::logic::cache::Data;

type Outcome = Result<Data, CacheError>;
type Boarding = watch::Receiver<Option<Outcome>>;

/// All keys that are now loaded past the store.
#[derive(Debug, Default)]
pub(crate) struct Flights(Mutex<HashMap<String, Open>>);

#[derive(Debug, Default)]
struct Open {
    lane: Arc<Lane>,
    /// The number of users, counted under the mutex, so that the last one knows that it is the
    /// last.
    users: usize,
}

#[derive(Debug, Default)]
struct Lane {
    turn: Turn<()>,
    /// The load that has not begun.
    boarding: Mutex<Option<Boarding>>,
}

impl Lane {
    fn boarding(&self) -> MutexGuard<'_, Option<Boarding>> {
        self.boarding.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a lane while it is in use.
struct Using<'a> {
    flights: &'a Flights,
    key: &'a str,
}

impl Drop for Using<'_> {
    fn drop(&mut self) {
        let mut all = self.flights.all();
        if let Some(open) = all.get_mut(self.key) {
            open.users -= 1;
            if open.users == 0 {
                all.remove(self.key);
            }
        }
    }
}

impl Flights {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Open>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter<'a>(&'a self, key: &'a str) -> (Arc<Lane>, Using<'a>) {
        let mut all = self.all();
        let open = all.entry(key.to_owned()).or_default();
        open.users += 1;
        (Arc::clone(&open.lane), Using { flights: self, key })
    }

    /// The result of a load that begins after now: our own load, or one of another reader that came
    /// before the load began.
    pub(crate) async fn join<F, Fut>(&self, key: &str, load: F) -> Outcome
    where
        F: Fn() -> Fut + Send + Sync,
        Fut: Future<Output = Outcome> + Send,
    {
        let (lane, _using) = self.enter(key);
        loop {
            let (mut boarding, ours) = {
                let mut open = lane.boarding();
                // A load whose leader was cancelled will never send a result.
                match open.as_ref().filter(|open| open.has_changed().is_ok()) {
                    Some(theirs) => (theirs.clone(), None),
                    None => {
                        let (sender, receiver) = watch::channel(None);
                        *open = Some(receiver.clone());
                        (receiver, Some(sender))
                    }
                }
            };
            if let Some(sender) = ours {
                let _turn = lane.turn.lock().await;
                *lane.boarding() = None;
                let outcome = load().await;
                sender.send_replace(Some(outcome.clone()));
                return outcome;
            }
            if let Ok(outcome) = boarding.wait_for(Option::is_some).await
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
    async fn a_load_that_has_begun_is_not_joined_and_the_next_is_shared() {
        let flights = Arc::<Flights>::default();
        let (gate, loads) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicU32::new(0)));
        let read = || {
            let (flights, gate, loads) = (Arc::clone(&flights), Arc::clone(&gate), Arc::clone(&loads));
            tokio::spawn(async move {
                let (gate, loads) = (&gate, &loads);
                let load = || async move {
                    let number = loads.fetch_add(1, Ordering::SeqCst);
                    gate.acquire().await.unwrap().forget();
                    Ok(Some(vec![number as u8]))
                };
                flights.join("k", load).await.unwrap().unwrap()[0]
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
        assert!(flights.all().is_empty());
    }

    #[test]
    fn no_lane_is_kept_if_two_go_at_once() {
        let (flights, together) = (Flights::default(), Barrier::new(2));
        let fly = || {
            for round in 0..20_000 {
                let key = round.to_string();
                let using = flights.enter(&key);
                together.wait();
                drop(using);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(fly);
            scope.spawn(fly);
        });
        assert_eq!(flights.all().len(), 0);
    }

    #[tokio::test]
    async fn a_leader_that_goes_away_is_replaced() {
        let flights = Arc::<Flights>::default();
        let leads = tokio::spawn({
            let flights = Arc::clone(&flights);
            async move { flights.join("k", std::future::pending).await }
        });
        tokio::task::yield_now().await;
        let queued = tokio::spawn({
            let flights = Arc::clone(&flights);
            async move { flights.join("k", std::future::pending).await }
        });
        tokio::task::yield_now().await;
        let follows = tokio::spawn({
            let flights = Arc::clone(&flights);
            async move { flights.join("k", || async { Ok(None) }).await }
        });
        tokio::task::yield_now().await;
        queued.abort();
        leads.abort();
        assert_eq!(follows.await.unwrap().unwrap(), None);
    }
}
