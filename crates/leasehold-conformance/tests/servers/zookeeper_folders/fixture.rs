//! One server, its clients, and its nodes as one sees them by hand.

use std::sync::{Arc, Mutex, MutexGuard};

use leasehold::{Guard, Locks, ReleaseOutcome, Token};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::{Server, eventually};
use leasehold_zookeeper::{Acls, Client, CreateMode, Stat};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A server and the folder in which its locks are.
pub(crate) struct Fixture {
    pub(crate) server: &'static Server,
    pub(crate) base: &'static str,
}

impl Fixture {
    /// A base of its own on a server that others use, too.
    pub(crate) async fn new(base: &'static str) -> Self {
        Self { server: crate::zookeeper_access::fixture::shared_server().await, base }
    }

    /// A client of its own.
    pub(crate) async fn open_locks(&self) -> Locks {
        let url = format!("zookeeper://{}{}", self.server.url(), if self.base.is_empty() { "/" } else { self.base });
        Locks::builder().ttl(LONG_TTL).open(&url).await.expect("a client")
    }

    /// Somebody who looks at nodes by hand.
    pub(crate) async fn admin_client(&self) -> Client {
        Client::connect(&self.server.url()).await.expect("a session")
    }

    /// The folder of a lock whose name needs no escape.
    pub(crate) fn folder(&self, name: &str) -> String {
        format!("{}/{name}", self.base)
    }
}

/// Makes a node by hand; its path.
pub(crate) async fn create_node(hand: &Client, path: &str, mode: CreateMode) -> String {
    let (_, sequence) = hand.create(path, b"", &mode.with_acls(Acls::anyone_all())).await.expect("a node");
    let sequential = matches!(mode, CreateMode::PersistentSequential | CreateMode::EphemeralSequential);
    if sequential { format!("{path}{sequence}") } else { path.to_owned() }
}

/// What is there of a node.
pub(crate) async fn stat(hand: &Client, path: &str) -> Option<Stat> {
    hand.sync(path).await.expect("a server that is up to date");
    hand.check_stat(path).await.expect("an answer")
}

/// The numbers at the ends of the nodes in a folder.
pub(crate) async fn numbers(hand: &Client, folder: &str) -> Vec<i32> {
    hand.sync(folder).await.expect("a server that is up to date");
    let nodes = hand.list_children(folder).await.expect("a list");
    nodes.iter().map(|node| number(node)).collect()
}

/// The number that the server has put at the end of a name; it may have a sign of its own.
pub(crate) fn number(node: &str) -> i32 {
    let (_, tail) = node.split_at(node.len() - 10);
    let digits =
        if tail.starts_with('-') { tail } else { &node[node.rfind("--").map_or(node.len() - 10, |at| at + 1)..] };
    digits.parse().expect("a number")
}

/// Waits until a folder is gone.
pub(crate) async fn until_gone(hand: &Client, folder: &str) {
    eventually(TEST_TIMEOUT, || async {
        match stat(hand, folder).await {
            None => Ok(()),
            Some(stat) => Err(format!("{folder} is still there: {stat:?}")),
        }
    })
    .await;
}

/// Waits until so many wait for the lock.
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

/// Waits for what should happen soon.
pub(crate) async fn within_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(TEST_TIMEOUT, future).await.unwrap_or_else(|_| panic!("not within {TEST_TIMEOUT:?}: {what}"))
}

/// What a lock protects: who came in, in order, and who is inside.
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

    /// Somebody comes in; `shares` if others may be inside who do, too.
    pub(crate) fn enter(&self, number: usize, shares: bool, guard: &Guard) {
        let mut state = self.state();
        if !state.holders.iter().all(|(_, shared)| shares && *shared) {
            let message = format!("{number} came in beside {:?}", state.holders);
            state.violations.push(message);
        }
        state.grants.push((number, guard.token()));
        state.holders.push((number, shares));
    }

    /// Goes out, and only then gives back.
    pub(crate) async fn release(&self, number: usize, guard: Guard) {
        self.state().holders.retain(|(other, _)| *other != number);
        assert!(guard.is_held(), "visitor {number} has lost it: {:?}", guard.lost_reason());
        release(guard).await;
    }

    /// Somebody asks for the lock, comes in, and leaves when told to.
    pub(crate) fn spawn_holder<F>(&self, number: usize, shares: bool, asking: F) -> HolderTask
    where
        F: Future<Output = leasehold::Result<Guard>> + Send + 'static,
    {
        let (room, (leave, told)) = (self.clone(), oneshot::channel());
        let task = tokio::spawn(async move {
            let guard = asking.await.expect("the lock");
            room.enter(number, shares, &guard);
            let _ = told.await;
            room.release(number, guard).await;
        });
        HolderTask { release: leave, task }
    }

    /// Waits until exactly these have come in, in this order.
    pub(crate) async fn until_grants(&self, numbers: &[usize]) {
        eventually(TEST_TIMEOUT, || async {
            let came: Vec<usize> = self.state().grants.iter().map(|(number, _)| *number).collect();
            if came == numbers { Ok(()) } else { Err(format!("{numbers:?} should have come in: {came:?}")) }
        })
        .await;
        self.check();
    }

    /// How many have come in.
    pub(crate) fn grant_count(&self) -> usize {
        self.state().grants.len()
    }

    /// Nobody has met whom he should not; and who came later has the higher token.
    pub(crate) fn check(&self) {
        let state = self.state();
        assert!(state.violations.is_empty(), "{:?}", state.violations);
        assert!(state.grants.is_sorted_by_key(|(_, token)| *token), "{:?}", state.grants);
    }
}

/// Somebody who waits for a lock, or has it.
pub(crate) struct HolderTask {
    release: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl HolderTask {
    /// Has it leave, and waits until it has.
    pub(crate) async fn release(self) {
        self.release.send(()).expect("it is still there");
        within_time("it gives the lock back", self.task).await.expect("no panic");
    }
}
