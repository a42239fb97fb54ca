//! Helpers for the tests of Redis deployments.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{ErrorKind, Locks, ReleaseOutcome, Token};
pub(crate) use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT, patient_url};
use leasehold_internals::redis::{Epoch, Stored};
use leasehold_testbed::eventually;
use leasehold_testbed::redis::{Reply, RespClient};
use tokio::task::JoinSet;

/// Opens a client, retrying while the deployment elects a master; every other error fails the test.
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

/// Waits for a future, up to the test's timeout.
pub(crate) async fn within_bound<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, future).await.unwrap_or_else(|_| panic!("not within {TEST_TIMEOUT:?}: {what}"))
}

/// Sends a raw command on a new connection.
pub(crate) async fn raw_command(addr: SocketAddr, words: &[impl AsRef<[u8]>]) -> Reply {
    RespClient::connect(addr).await.expect("a connection").command(words).await.expect("an answer")
}

/// The text of a reply.
/// What strict mode has stored in this key.
pub(crate) async fn stored_epoch(addr: SocketAddr, key: &str) -> Epoch {
    let reply = raw_command(addr, &["GET", key]).await;
    Epoch::read(reply.bytes().expect("a value")).expect("an epoch")
}

pub(crate) fn text(reply: Reply) -> String {
    match reply {
        Reply::Bulk(text) | Reply::Simple(text) => text,
        other => panic!("no text: {other:?}"),
    }
}

/// Waits until `count` clients are subscribed at the server. A replica that becomes master closes
/// its connections, so this retries.
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

/// Waits until `count` waiters queue for the lock.
pub(crate) async fn until_waiting(locks: &Locks, name: &str, count: usize) {
    eventually(TEST_TIMEOUT, || async {
        let view = locks.inspect(name).await.map_err(|error| error.to_string())?;
        if view.waiters.len() == count { Ok(()) } else { Err(format!("{count} should wait: {view:?}")) }
    })
    .await;
}

/// Waits until the lock has no holders and no waiters.
pub(crate) async fn until_free(locks: &Locks, name: &str) {
    eventually(TEST_TIMEOUT, || async {
        let view = locks.inspect(name).await.map_err(|error| error.to_string())?;
        let free = view.holders.is_empty() && view.waiters.is_empty();
        if free { Ok(()) } else { Err(format!("should be free: {view:?}")) }
    })
    .await;
}

/// Runs a renewal test with growing TTLs until it succeeds. `false` means that a lease expired
/// before it was renewed, as on a busy machine.
#[cfg(feature = "nightly")]
pub(crate) async fn with_a_lease(test: impl AsyncFn(Duration) -> bool) {
    for ttl in [6, 12, 24, 48].map(Duration::from_secs) {
        if test(ttl).await {
            return;
        }
    }
    panic!("no lease was renewed");
}

/// Waits until the lease was renewed once more; returns `false` if it expired before.
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

/// Tasks that queue for one lock, hold it for a moment and release it.
#[derive(Default)]
pub(crate) struct WaiterQueue {
    tasks: JoinSet<()>,
    grants: Arc<Mutex<Vec<(usize, Token)>>>,
}

impl WaiterQueue {
    /// Adds a waiter at the end and returns when it waits.
    pub(crate) async fn add_waiter(&mut self, locks: &Locks, name: &str) {
        assert!(self.try_add_waiter(locks, name).await, "a waiter was served before all waited");
    }

    /// Adds a waiter at the end and returns `true` when it waits; `false` if a waiter was served
    /// first.
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

    /// Waits until all are served. Returns their numbers in the order of service, and their tokens.
    pub(crate) async fn wait_all_served(self) -> (Vec<usize>, Vec<Token>) {
        within_bound("all waiters are served", self.tasks.join_all()).await;
        let served = self.grants.lock().expect("no panic").clone();
        served.into_iter().unzip()
    }
}

/// The numbers below `count`, in order.
pub(crate) fn numbers_up_to(count: usize) -> Vec<usize> {
    (0..count).collect()
}
