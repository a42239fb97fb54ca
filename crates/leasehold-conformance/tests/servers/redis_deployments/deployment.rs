//! What the tests of Redis deployments share.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{ErrorKind, Locks, ReleaseOutcome, Token};
pub(crate) use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT, patient_url};
use leasehold_testbed::eventually;
use leasehold_testbed::redis::{Reply, RespClient};
use tokio::task::JoinSet;

/// A client of its own. A deployment that elects a master is asked again; every other refusal is the finding.
pub(crate) async fn client(url: &str, ttl: Duration) -> Locks {
    let url = &patient_url(url);
    let open = || async {
        match Locks::builder().ttl(ttl).open(url).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => Err(error),
            opened => Ok(opened),
        }
    };
    eventually(TEST_TIMEOUT, open).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// Waits for what should happen soon.
pub(crate) async fn within_bound<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, future).await.unwrap_or_else(|_| panic!("not within {TEST_TIMEOUT:?}: {what}"))
}

/// Asks a server by hand, on a connection of its own.
pub(crate) async fn raw_command(addr: SocketAddr, words: &[&str]) -> Reply {
    RespClient::connect(addr).await.expect("a connection").command(words).await.expect("an answer")
}

/// The text of an answer.
pub(crate) fn text(reply: Reply) -> String {
    match reply {
        Reply::Bulk(text) | Reply::Simple(text) => text,
        other => panic!("no text: {other:?}"),
    }
}

/// Waits until so many of our clients listen at the server. One that becomes the master closes its connections: it is asked again.
#[cfg(feature = "nightly")]
pub(crate) async fn until_listening(addr: SocketAddr, count: usize) {
    eventually(TEST_TIMEOUT, || async {
        let mut server = RespClient::connect(addr).await.map_err(|error| error.to_string())?;
        let channels = server.command(&["PUBSUB", "CHANNELS", "leasehold:i*"]).await;
        match channels.map_err(|error| error.to_string())? {
            Reply::Array(inboxes) if inboxes.len() == count => Ok(()),
            other => Err(format!("{count} clients should listen at {addr}: {other:?}")),
        }
    })
    .await;
}

/// Waits until the client's engine answers.
#[cfg(feature = "nightly")]
pub(crate) async fn until_answering(locks: &Locks) {
    eventually(TEST_TIMEOUT, || async { locks.inspect("anything").await.map(drop) }).await;
}

/// Waits until so many wait for the lock.
pub(crate) async fn until_waiting(locks: &Locks, name: &str, count: usize) {
    eventually(TEST_TIMEOUT, || async {
        let view = locks.inspect(name).await.map_err(|error| error.to_string())?;
        if view.waiters.len() == count { Ok(()) } else { Err(format!("{count} should wait: {view:?}")) }
    })
    .await;
}

/// Waits until nobody holds the lock and nobody waits.
pub(crate) async fn until_free(locks: &Locks, name: &str) {
    eventually(TEST_TIMEOUT, || async {
        let view = locks.inspect(name).await.map_err(|error| error.to_string())?;
        let free = view.holders.is_empty() && view.waiters.is_empty();
        if free { Ok(()) } else { Err(format!("should be free: {view:?}")) }
    })
    .await;
}

/// Runs a test of renewals with one TTL after the other until a try shows it. `false`: on a busy machine a lease ended before it was
/// renewed. A longer lease has to show the same.
#[cfg(feature = "nightly")]
pub(crate) async fn with_a_lease(test: impl AsyncFn(Duration) -> bool) {
    for ttl in [6, 12, 24, 48].map(Duration::from_secs) {
        if test(ttl).await {
            return;
        }
    }
    panic!("no lease was renewed");
}

/// Waits until the lease was extended once more; `false`: it was lost before.
#[cfg(feature = "nightly")]
pub(crate) async fn is_renewed(guard: &leasehold::Guard) -> bool {
    let before = guard.deadline();
    eventually(TEST_TIMEOUT, || async {
        match (guard.deadline() > before, guard.lost_reason()) {
            (_, Some(leasehold::LostReason::Expired)) => Ok(false),
            (true, None) => Ok(true),
            (_, lost) => Err(format!("not renewed: {guard:?} {lost:?}")),
        }
    })
    .await
}

/// Tasks that wait for one lock, one after the other, hold it for a moment and give it back.
#[derive(Default)]
pub(crate) struct WaiterQueue {
    tasks: JoinSet<()>,
    grants: Arc<Mutex<Vec<(usize, Token)>>>,
}

impl WaiterQueue {
    /// Adds one at the end, and returns when it waits.
    pub(crate) async fn add_waiter(&mut self, locks: &Locks, name: &str) {
        assert!(self.try_add_waiter(locks, name).await, "a waiter was served before all waited");
    }

    /// The same; `false`: one was served before it was seen that all wait.
    pub(crate) async fn try_add_waiter(&mut self, locks: &Locks, name: &str) -> bool {
        let served_before = self.grants.lock().expect("no panic").len();
        let before = locks.inspect(name).await.expect("a view").waiters.len();
        let (number, served, mutex) = (self.tasks.len(), Arc::clone(&self.grants), locks.mutex(name));
        self.tasks.spawn(async move {
            let guard = mutex.lock().await.expect("a lock");
            served.lock().expect("no panic").push((number, guard.token()));
            assert_eq!(guard.release().await.expect("a release"), ReleaseOutcome::Released, "waiter {number}");
        });
        eventually(TEST_TIMEOUT, || async {
            if self.grants.lock().expect("no panic").len() > served_before {
                return Ok(false);
            }
            let view = locks.inspect(name).await.map_err(|error| error.to_string())?;
            if view.waiters.len() == before + 1 { Ok(true) } else { Err(format!("one more should wait: {view:?}")) }
        })
        .await
    }

    /// Waits until all were served; their numbers in the order in which they were, and their tokens.
    pub(crate) async fn wait_all_served(self) -> (Vec<usize>, Vec<Token>) {
        within_bound("all who wait are served", self.tasks.join_all()).await;
        let served = self.grants.lock().expect("no panic").clone();
        served.into_iter().unzip()
    }
}

/// The numbers up to `count`, in order.
pub(crate) fn numbers_up_to(count: usize) -> Vec<usize> {
    (0..count).collect()
}
