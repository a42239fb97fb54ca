//! One server, its clients, and its nodes as one sees them by hand.

use std::sync::{Arc, Mutex, MutexGuard};

use leasehold::{Guard, Locks, Outcome, Token};
use leasehold_conformance::world::{LONG, SOON};
use leasehold_testbed::{Server, eventually};
use leasehold_zookeeper::{Acls, Client, CreateMode, Stat};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A server and the folder in which its locks are.
pub(crate) struct Site {
    pub(crate) server: &'static Server,
    pub(crate) base: &'static str,
}

impl Site {
    /// A base of its own on a server that others use, too.
    pub(crate) async fn new(base: &'static str) -> Self {
        Self { server: crate::zookeeper_access::site::server().await, base }
    }

    /// A client of its own.
    pub(crate) async fn locks(&self) -> Locks {
        let url = format!("zookeeper://{}{}", self.server.url(), if self.base.is_empty() { "/" } else { self.base });
        Locks::builder().ttl(LONG).open(&url).await.expect("a client")
    }

    /// Somebody who looks at nodes by hand.
    pub(crate) async fn hand(&self) -> Client {
        Client::connect(&self.server.url()).await.expect("a session")
    }

    /// The folder of a lock whose name needs no escape.
    pub(crate) fn folder(&self, name: &str) -> String {
        format!("{}/{name}", self.base)
    }
}

/// Makes a node by hand; its path.
pub(crate) async fn make(hand: &Client, path: &str, mode: CreateMode) -> String {
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
    eventually(SOON, || async {
        match stat(hand, folder).await {
            None => Ok(()),
            Some(stat) => Err(format!("{folder} is still there: {stat:?}")),
        }
    })
    .await;
}

/// Waits until so many wait for the lock.
pub(crate) async fn until_waiting(locks: &Locks, name: &str, count: usize) {
    eventually(SOON, || async {
        let view = locks.inspect(name).await.map_err(|error| error.to_string())?;
        if view.waiters.len() == count { Ok(()) } else { Err(format!("{count} should wait: {view:?}")) }
    })
    .await;
}

pub(crate) async fn give_back(guard: Guard) {
    assert_eq!(guard.release().await.expect("an answer"), Outcome::Released);
}

/// Waits for what should happen soon.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(SOON, future).await.unwrap_or_else(|_| panic!("not within {SOON:?}: {what}"))
}

/// What a lock protects: who came in, in order, and who is inside.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room(Arc<Mutex<Inside>>);

#[derive(Debug, Default)]
struct Inside {
    came: Vec<(usize, Token)>,
    inside: Vec<(usize, bool)>,
    wrong: Vec<String>,
}

impl Room {
    fn state(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().expect("no panic")
    }

    /// Somebody comes in; `shares` if others may be inside who do, too.
    pub(crate) fn enter(&self, number: usize, shares: bool, guard: &Guard) {
        let mut state = self.state();
        if !state.inside.iter().all(|(_, shared)| shares && *shared) {
            let message = format!("{number} came in beside {:?}", state.inside);
            state.wrong.push(message);
        }
        state.came.push((number, guard.token()));
        state.inside.push((number, shares));
    }

    /// Goes out, and only then gives back.
    pub(crate) async fn leave(&self, number: usize, guard: Guard) {
        self.state().inside.retain(|(other, _)| *other != number);
        assert!(guard.is_held(), "visitor {number} has lost it: {:?}", guard.lost_reason());
        give_back(guard).await;
    }

    /// Somebody asks for the lock, comes in, and leaves when told to.
    pub(crate) fn visit<F>(&self, number: usize, shares: bool, asking: F) -> Visitor
    where
        F: Future<Output = leasehold::Result<Guard>> + Send + 'static,
    {
        let (room, (leave, told)) = (self.clone(), oneshot::channel());
        let task = tokio::spawn(async move {
            let guard = asking.await.expect("the lock");
            room.enter(number, shares, &guard);
            let _ = told.await;
            room.leave(number, guard).await;
        });
        Visitor { leave, task }
    }

    /// Waits until exactly these have come in, in this order.
    pub(crate) async fn until(&self, numbers: &[usize]) {
        eventually(SOON, || async {
            let came: Vec<usize> = self.state().came.iter().map(|(number, _)| *number).collect();
            if came == numbers { Ok(()) } else { Err(format!("{numbers:?} should have come in: {came:?}")) }
        })
        .await;
        self.check();
    }

    /// How many have come in.
    pub(crate) fn count(&self) -> usize {
        self.state().came.len()
    }

    /// Nobody has met whom he should not; and who came later has the higher token.
    pub(crate) fn check(&self) {
        let state = self.state();
        assert!(state.wrong.is_empty(), "{:?}", state.wrong);
        assert!(state.came.is_sorted_by_key(|(_, token)| *token), "{:?}", state.came);
    }
}

/// Somebody who waits for a lock, or has it.
pub(crate) struct Visitor {
    leave: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Visitor {
    /// Has it leave, and waits until it has.
    pub(crate) async fn goes(self) {
        self.leave.send(()).expect("it is still there");
        soon("it gives the lock back", self.task).await.expect("no panic");
    }
}
