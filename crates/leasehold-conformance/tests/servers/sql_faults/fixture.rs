//! Databases of both kinds, their clients, and faults.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold::{Guard, Locks};
use leasehold_conformance::test_context::{TEST_TIMEOUT, patient_url};
use leasehold_testbed::mariadb::Connection;
use leasehold_testbed::{Proxy, Server, WallClock, eventually, mariadb, postgres};

pub(crate) use super::manual_transaction::ManualTransaction;
pub(crate) use super::shared_server::{BOTH, DatabaseKind, TestDatabase, lock_with_retries};
pub(crate) use super::shifted_clock::ShiftedClock;

/// A TTL that a test waits out.
pub(crate) const SHORT: Duration = Duration::from_secs(1);
/// A TTL that no test outlives.
pub(crate) const LASTING: Duration = Duration::from_secs(600);

/// A database with the lease table.
pub(crate) struct Fixture {
    pub(crate) kind: DatabaseKind,
    pub(crate) database: TestDatabase,
}

impl Fixture {
    /// On the shared server.
    pub(crate) async fn new(kind: DatabaseKind) -> Self {
        Self { kind, database: TestDatabase::on_shared_server(kind).await }
    }

    /// On a server of its own, which the test may kill.
    pub(crate) async fn on_own_server(kind: DatabaseKind) -> Self {
        let server = match kind {
            DatabaseKind::MariaDb => mariadb::start().await,
            DatabaseKind::Postgres => postgres::start().await,
        };
        Self::on_server(kind, server.expect("a server"))
    }

    /// On a server whose clock can be moved.
    pub(crate) async fn with_clock(kind: DatabaseKind, clock: &WallClock) -> Self {
        let server = match kind {
            DatabaseKind::MariaDb => mariadb::MariaDb::new().clock(clock).start().await,
            DatabaseKind::Postgres => postgres::Postgres::new().clock(clock).start().await,
        };
        Self::on_server(kind, server.expect("a server"))
    }

    /// On this server, which no other test uses.
    pub(crate) fn on_server(kind: DatabaseKind, server: Server) -> Self {
        Self { kind, database: TestDatabase::on_own_server(kind, server) }
    }

    pub(crate) fn server(&self) -> &Server {
        self.database.server()
    }

    pub(crate) fn url(&self) -> String {
        self.database.url()
    }

    /// The same server at another address.
    pub(crate) fn url_at(&self, addr: SocketAddr) -> String {
        self.url().replace(&self.server().addr().to_string(), &addr.to_string())
    }

    pub(crate) async fn open_locks(&self, ttl: Duration) -> Locks {
        open_locks(&self.url(), ttl).await
    }

    pub(crate) async fn proxy(&self) -> Proxy {
        Proxy::start(self.server().addr()).await.expect("a proxy")
    }

    /// A client behind a proxy.
    pub(crate) async fn open_through_proxy(&self, ttl: Duration) -> (Locks, Proxy) {
        let proxy = self.proxy().await;
        (open_locks(&self.url_at(proxy.addr()), ttl).await, proxy)
    }

    pub(crate) async fn query_as_admin(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.database.query_as_admin(sql).await
    }

    /// The single number that a statement returns.
    pub(crate) async fn number(&self, sql: &str) -> u64 {
        self.query_as_admin(sql).await[0][0].as_ref().expect("a value").parse().expect("a number")
    }

    /// A table of this database as the administrator's statements name it.
    pub(crate) fn qualified_name(&self, what: &str) -> String {
        match self.kind {
            DatabaseKind::MariaDb => format!("{}.{what}", self.database.database),
            DatabaseKind::Postgres => what.to_owned(),
        }
    }

    /// The lease table.
    pub(crate) fn table(&self) -> String {
        self.qualified_name("leasehold")
    }

    pub(crate) async fn connections(&self) -> Vec<Connection> {
        self.database.connections().await
    }

    /// Asserts that no more statements run than `at_work`, and waits until no more connections
    /// exist than `connections`: a closed one may be visible for a moment beside its replacement.
    /// Returns the number of running statements.
    pub(crate) async fn assert_at_most(&self, at_work: usize, connections: usize) -> usize {
        let busy = |one: &&Connection| ["active", "Query", "Execute"].contains(&one.state.as_str());
        eventually(TEST_TIMEOUT, || async {
            let all = self.connections().await;
            let busy = all.iter().filter(busy).count();
            assert!(busy <= at_work, "{:?}: {all:?}", self.kind);
            if all.len() <= connections { Ok(busy) } else { Err(format!("{:?}: {all:?}", self.kind)) }
        })
        .await
    }

    /// Closes all connections of the locks' user from the server's side.
    pub(crate) async fn kill_connections(&self) {
        for connection in self.connections().await {
            // It may have closed meanwhile.
            let _ = self.database.kill_connection(connection.id).await;
        }
    }
}

pub(crate) async fn open_locks(url: &str, ttl: Duration) -> Locks {
    Locks::builder().ttl(ttl).open(&patient_url(url)).await.expect("locks")
}

/// Acquires a lock, with a timeout on the machine's clock only.
pub(crate) async fn acquire(locks: &Locks, name: &str) -> Guard {
    let mutex = locks.mutex(name);
    tokio::time::timeout(TEST_TIMEOUT, mutex.lock()).await.expect("the lock becomes free").expect("a lock")
}

pub(crate) async fn is_lock_free(locks: &Locks, name: &str) -> bool {
    locks.mutex(name).try_lock().await.expect("an answer").is_some()
}

/// Waits until `waiters` claims wait for a lock.
pub(crate) async fn until_queued(locks: &Locks, name: &str, waiters: usize) {
    eventually(TEST_TIMEOUT, || async {
        let view = locks.inspect(name).await.map_err(|error| error.to_string())?;
        if view.waiters.len() == waiters { Ok(()) } else { Err(format!("{} wait", view.waiters.len())) }
    })
    .await;
}
