//! Servers, clients, and direct access to nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::clock::{Clock, Instant};
use leasehold::engine::{AcquireReply, Engine};
use leasehold::{Claim, Guard, Holder, LockName, LockOptions, Locks, LostReason, Mode, Owner, Token};
pub(crate) use leasehold_conformance::test_context::LONG_TTL;
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::zookeeper::{self, Ensemble, ZooKeeper};
use leasehold_testbed::{Proxy, eventually};
use leasehold_zookeeper::Client;
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::JoinHandle;

/// A session that a test outlives.
pub(crate) const SHORT: Duration = Duration::from_secs(2);

/// One server for all tests that do not disturb it, each with its own folder. In nightly runs it is
/// a follower of an ensemble.
pub(crate) struct Fixture {
    addr: std::net::SocketAddr,
    base: String,
    pub(crate) client: Client,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        static NEXT_BASE: AtomicU32 = AtomicU32::new(0);
        Self::at(server().await, &format!("/site-{}", NEXT_BASE.fetch_add(1, Ordering::Relaxed))).await
    }

    pub(crate) async fn at(addr: std::net::SocketAddr, base: &str) -> Self {
        let client = admin_client(&addr.to_string()).await;
        Self { addr, base: base.to_owned(), client }
    }

    pub(crate) fn client_addr(&self) -> std::net::SocketAddr {
        self.addr
    }

    pub(crate) fn url(&self) -> String {
        format!("zookeeper://{}{}", self.addr, self.base)
    }

    pub(crate) async fn open_locks(&self, ttl: Duration) -> Locks {
        open_locks(&self.url(), ttl).await
    }

    /// A client behind a proxy.
    pub(crate) async fn open_through_proxy(&self, ttl: Duration) -> (Locks, Proxy) {
        let proxy = Proxy::start(self.addr).await.expect("a proxy");
        (open_locks(&format!("zookeeper://{}{}", proxy.addr(), self.base), ttl).await, proxy)
    }

    /// An engine without a keeper: it sends only what the test requests.
    pub(crate) async fn engine(&self) -> Arc<dyn Engine> {
        leasehold::registry::open(&self.url(), &Clock::system()).await.expect("an engine")
    }

    pub(crate) fn folder(&self, name: &str) -> String {
        format!("{}/{name}", self.base)
    }

    /// The nodes of a lock, by sequence number.
    pub(crate) async fn nodes(&self, name: &str) -> Vec<String> {
        let folder = self.folder(name);
        self.client.sync(&folder).await.expect("a sync");
        let mut nodes = match self.client.list_children(&folder).await {
            Ok(nodes) => nodes,
            Err(leasehold_zookeeper::Error::NoNode) => Vec::new(),
            Err(error) => panic!("a list of {folder}: {error}"),
        };
        nodes.sort_by_key(|node| node.rsplit('-').next().map(str::to_owned));
        nodes.into_iter().map(|node| format!("{folder}/{node}")).collect()
    }

    /// Puts a foreign node into a lock's folder, so that the folder is not removed.
    pub(crate) async fn add_foreign_node(&self, name: &str) {
        let acls = leasehold_zookeeper::Acls::anyone_all();
        let (folder, container) = (self.folder(name), leasehold_zookeeper::CreateMode::Container.with_acls(acls));
        loop {
            let persistent = leasehold_zookeeper::CreateMode::Persistent.with_acls(acls);
            match self.client.create(&format!("{folder}/foreign"), b"", &persistent).await {
                Ok(_) => return,
                Err(leasehold_zookeeper::Error::NoNode) => {
                    let _ = self.client.create(&folder, b"", &container).await;
                }
                Err(error) => panic!("a foreign node in {folder}: {error}"),
            }
        }
    }

    pub(crate) async fn until_nodes(&self, name: &str, count: usize) {
        eventually(TEST_TIMEOUT, || async {
            let nodes = self.nodes(name).await;
            if nodes.len() == count { Ok(()) } else { Err(format!("{count} nodes: {nodes:?}")) }
        })
        .await;
    }

    /// Packets that the server has received and sent.
    pub(crate) async fn packets(&self) -> (i64, i64) {
        let facts = zookeeper::monitor_values(self.addr).await.expect("facts");
        let figure = |key| facts.get(key).and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{facts:?}"));
        (figure("zk_packets_received"), figure("zk_packets_sent"))
    }
}

#[cfg(not(feature = "nightly"))]
async fn server() -> std::net::SocketAddr {
    crate::zookeeper_access::fixture::shared_server().await.addr()
}

#[cfg(feature = "nightly")]
async fn server() -> std::net::SocketAddr {
    static SERVERS: tokio::sync::OnceCell<(Ensemble, usize)> = tokio::sync::OnceCell::const_new();
    let start = || async {
        let servers = Ensemble::start(3).await.expect("an ensemble");
        let follower = servers.followers().await.expect("followers")[0];
        (servers, follower)
    };
    let (servers, follower) = SERVERS.get_or_init(start).await;
    servers.addr(*follower)
}

pub(crate) async fn admin_client(hosts: &str) -> Client {
    Client::connector().with_session_timeout(LONG_TTL).connect(hosts).await.expect("an admin client")
}

pub(crate) async fn open_locks(url: &str, ttl: Duration) -> Locks {
    Locks::builder().ttl(ttl).open(url).await.expect("a client")
}

pub(crate) fn claim(name: &str, mode: Mode, owner: Option<Owner>, ttl: Duration) -> Arc<Claim> {
    let (name, holder) = (LockName::new(name).expect("a name"), Arc::new(Holder::this_process()));
    Arc::new(Claim::new(Arc::new(LockOptions::new(name, mode, owner, ttl, holder))))
}

/// One attempt, and its token if it is granted.
pub(crate) async fn attempt_once(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) -> Option<Token> {
    match Arc::clone(engine).attempt(Arc::clone(claim), true).await.expect("an answer") {
        AcquireReply::Granted(grant) => Some(grant.token),
        AcquireReply::Queued { .. } => None,
        other => panic!("{other:?}"),
    }
}

/// An ensemble of three servers; only one test runs one at a time.
pub(crate) async fn ensemble(each: &ZooKeeper) -> (Ensemble, MutexGuard<'static, ()>) {
    static ONE: Mutex<()> = Mutex::const_new(());
    let turn = ONE.lock().await;
    (Ensemble::start_with(3, each).await.expect("an ensemble"), turn)
}

/// Waits for a lock in a task, and returns the time of the grant.
pub(crate) fn spawn_waiter(locks: &Locks, name: &'static str) -> JoinHandle<(Instant, Guard)> {
    let locks = locks.clone();
    tokio::spawn(async move {
        let guard = locks.mutex(name).timeout(TEST_TIMEOUT).lock().await.expect("the lock");
        (Clock::system().now(), guard)
    })
}

/// Waits for a loss in a task, and returns its time.
pub(crate) fn spawn_loss_watcher(guard: &Guard) -> JoinHandle<(Instant, LostReason)> {
    let watch = guard.watcher();
    tokio::spawn(async move {
        let reason = watch.lost().await;
        (Clock::system().now(), reason)
    })
}
