//! One server, its clients, and direct access to nodes.

use std::sync::{Arc, Mutex, MutexGuard};

use leasehold::{Guard, Locks, ReleaseOutcome, Token};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::{Server, eventually};
use leasehold_zookeeper::{Acls, Client, CreateMode, Stat};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A server and the base of the test's locks.
pub(crate) struct Fixture {
    pub(crate) server: &'static Server,
    pub(crate) base: &'static str,
}

impl Fixture {
    /// A base of its own on a shared server.
    pub(crate) async fn new(base: &'static str) -> Self {
        Self { server: crate::zookeeper_access::fixture::shared_server().await, base }
    }

    /// Opens a client.
    pub(crate) async fn open_locks(&self) -> Locks {
        let url = format!("zookeeper://{}{}", self.server.url(), if self.base.is_empty() { "/" } else { self.base });
        Locks::builder().ttl(LONG_TTL).open(&url).await.expect("a client")
    }

    /// Opens a plain client for direct access to nodes.
    pub(crate) async fn admin_client(&self) -> Client {
        Client::connect(&self.server.url()).await.expect("a session")
    }

    /// The folder of a lock whose name needs no escaping.
    pub(crate) fn folder(&self, name: &str) -> String {
        format!("{}/{name}", self.base)
    }
}

/// Creates a node and returns its path.
pub(crate) async fn create_node(admin: &Client, path: &str, mode: CreateMode) -> String {
    let (_, sequence) = admin.create(path, b"", &mode.with_acls(Acls::anyone_all())).await.expect("a node");
    let sequential = matches!(mode, CreateMode::PersistentSequential | CreateMode::EphemeralSequential);
    if sequential { format!("{path}{sequence}") } else { path.to_owned() }
}

/// The stat of a node, if it exists.
pub(crate) async fn stat(admin: &Client, path: &str) -> Option<Stat> {
    admin.sync(path).await.expect("an up-to-date server");
    admin.check_stat(path).await.expect("an answer")
}

/// The sequence numbers of the nodes in a folder.
pub(crate) async fn numbers(admin: &Client, folder: &str) -> Vec<i32> {
    admin.sync(folder).await.expect("an up-to-date server");
    let nodes = admin.list_children(folder).await.expect("a list");
    nodes.iter().map(|node| number(node)).collect()
}

/// The sequence number at the end of a name, which may be negative.
pub(crate) fn number(node: &str) -> i32 {
    let (_, tail) = node.split_at(node.len() - 10);
    let digits =
        if tail.starts_with('-') { tail } else { &node[node.rfind("--").map_or(node.len() - 10, |at| at + 1)..] };
    digits.parse().expect("a number")
}

/// Waits until a folder is removed.
pub(crate) async fn until_gone(admin: &Client, folder: &str) {
    eventually(TEST_TIMEOUT, || async {
        match stat(admin, folder).await {
            None => Ok(()),
            Some(stat) => Err(format!("{folder} is still there: {stat:?}")),
        }
    })
    .await;
}

/// Waits until `count` waiters queue for the lock.
pub(crate) async fn until_waiting(locks: &Locks, name: &str, count: usize) {
    eventually(TEST_TIMEOUT, || async {
        let view = locks.inspect(name).await.map_err(|error| error.to_string())?;
        if view.waiters.len() == count { Ok(()) } else { Err(format!("{count} should wait: {view:?}")) }
    })
    .await;
}

pub(crate) async fn release(guard: Guard) {
    assert_eq!(guard.release().await.expect("an answer"), ReleaseOutcome::Released);
}

/// Waits for a future, up to the test's timeout.
pub(crate) async fn within_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(TEST_TIMEOUT, future).await.unwrap_or_else(|_| panic!("not within {TEST_TIMEOUT:?}: {what}"))
}

/// What a lock protects: the grants in order, and the current holders.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProtectedResource(Arc<Mutex<ResourceState>>);

#[derive(Debug, Default)]
struct ResourceState {
    grants: Vec<(usize, Token)>,
    holders: Vec<(usize, bool)>,
    violations: Vec<String>,
}

impl ProtectedResource {
    fn state(&self) -> MutexGuard<'_, ResourceState> {
        self.0.lock().expect("no panic")
    }

    /// Enters as a holder; `shares` if other sharing holders may be inside.
    pub(crate) fn enter(&self, number: usize, shares: bool, guard: &Guard) {
        let mut state = self.state();
        if !state.holders.iter().all(|(_, shared)| shares && *shared) {
            let message = format!("{number} entered beside {:?}", state.holders);
            state.violations.push(message);
        }
        state.grants.push((number, guard.token()));
        state.holders.push((number, shares));
    }

    /// Leaves, and only then releases the lock.
    pub(crate) async fn release(&self, number: usize, guard: Guard) {
        self.state().holders.retain(|(other, _)| *other != number);
        assert!(guard.is_held(), "holder {number} lost the lock: {:?}", guard.lost_reason());
        release(guard).await;
    }

    /// Acquires the lock in a task, enters, and leaves on request.
    pub(crate) fn spawn_holder<F>(&self, number: usize, shares: bool, acquiring: F) -> HolderTask
    where
        F: Future<Output = leasehold::Result<Guard>> + Send + 'static,
    {
        let (resource, (leave, left)) = (self.clone(), oneshot::channel());
        let task = tokio::spawn(async move {
            let guard = acquiring.await.expect("the lock");
            resource.enter(number, shares, &guard);
            let _ = left.await;
            resource.release(number, guard).await;
        });
        HolderTask { release: leave, task }
    }

    /// Waits until exactly these have entered, in this order.
    pub(crate) async fn until_grants(&self, numbers: &[usize]) {
        eventually(TEST_TIMEOUT, || async {
            let entered: Vec<usize> = self.state().grants.iter().map(|(number, _)| *number).collect();
            if entered == numbers { Ok(()) } else { Err(format!("{numbers:?} should have entered: {entered:?}")) }
        })
        .await;
        self.check();
    }

    /// Number of grants.
    pub(crate) fn grant_count(&self) -> usize {
        self.state().grants.len()
    }

    /// Asserts that exclusion was never violated, and that tokens rise.
    pub(crate) fn check(&self) {
        let state = self.state();
        assert!(state.violations.is_empty(), "{:?}", state.violations);
        assert!(state.grants.is_sorted_by_key(|(_, token)| *token), "{:?}", state.grants);
    }
}

/// A waiter for a lock, or its holder.
pub(crate) struct HolderTask {
    release: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl HolderTask {
    /// Makes the holder leave, and waits until it has.
    pub(crate) async fn release(self) {
        self.release.send(()).expect("the task is running");
        within_time("the holder releases the lock", self.task).await.expect("no panic");
    }
}
