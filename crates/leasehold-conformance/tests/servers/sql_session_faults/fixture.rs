//! A server, its clients, and faults.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{Guard, Locks};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::mariadb::{Connection, MariaDb};
use leasehold_testbed::postgres::Postgres;
use leasehold_testbed::{Proxy, Server, WallClock, eventually};

pub(crate) use crate::sql_faults::manual_transaction::ManualTransaction;
pub(crate) use crate::sql_faults::shared_server::{DatabaseKind, TestDatabase, lock_with_retries};

/// A TTL that no test outlives.
pub(crate) const LASTING: Duration = Duration::from_secs(600);
/// A TTL that a test waits out.
pub(crate) const SHORT: Duration = Duration::from_secs(2);

/// A database.
pub(crate) struct Fixture {
    pub(crate) kind: DatabaseKind,
    pub(crate) database: TestDatabase,
}

/// The tables of one technique.
pub(crate) struct TechniqueFixture {
    pub(crate) fixture: Arc<Fixture>,
    pub(crate) technique: &'static str,
    pub(crate) name: String,
}

impl Fixture {
    /// On the shared server.
    pub(crate) async fn new(kind: DatabaseKind) -> Self {
        Self { kind, database: TestDatabase::on_shared_server(kind).await }
    }

    /// On a server of its own, which the test may kill or change.
    pub(crate) async fn on_own_server(kind: DatabaseKind) -> Self {
        let server = match kind {
            DatabaseKind::MariaDb => MariaDb::new().start().await,
            DatabaseKind::Postgres => Postgres::new().start().await,
        };
        Self::on_server(kind, server.expect("a server"))
    }

    /// On a server whose clock can be moved.
    pub(crate) async fn with_clock(kind: DatabaseKind, clock: &WallClock) -> Self {
        let server = match kind {
            DatabaseKind::MariaDb => MariaDb::new().clock(clock).start().await,
            DatabaseKind::Postgres => Postgres::new().clock(clock).start().await,
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

    /// A fixture for each of the two techniques of session locks.
    pub(crate) fn techniques(self) -> Vec<TechniqueFixture> {
        let fixture = Arc::new(self);
        ["session", "for-update"].map(|technique| fixture.technique_fixture(technique)).into()
    }

    fn technique_fixture(self: &Arc<Self>, technique: &'static str) -> TechniqueFixture {
        TechniqueFixture { fixture: Arc::clone(self), technique, name: technique.replace('-', "_") }
    }

    /// Runs a statement as the administrator.
    pub(crate) async fn query_as_admin(&self, statement: &str) -> Vec<Vec<Option<String>>> {
        self.database.query_as_admin(statement).await
    }

    pub(crate) async fn connections(&self) -> Vec<Connection> {
        self.database.connections().await
    }

    /// Closes all connections that `which` selects, and returns their number.
    pub(crate) async fn kill_connections(&self, which: impl FnMut(&Connection) -> bool) -> usize {
        let mut ended = 0;
        for connection in self.connections().await.into_iter().filter(which) {
            // It may have closed meanwhile.
            ended += usize::from(self.database.kill_connection(connection.id).await);
        }
        ended
    }

    /// Closes all connections and waits until they are gone: PostgreSQL answers before they close.
    pub(crate) async fn kill_all_connections(&self) {
        let before: HashSet<_> = self.connections().await.iter().map(|one| one.id).collect();
        self.kill_connections(|one| before.contains(&one.id)).await;
        eventually(TEST_TIMEOUT, || async {
            let left = self.connections().await;
            if left.iter().any(|one| before.contains(&one.id)) { Err(format!("still there: {left:?}")) } else { Ok(()) }
        })
        .await;
    }

    /// Waits for a connection that `which` selects.
    pub(crate) async fn until_connection(&self, what: &str, which: impl Fn(&Connection) -> bool) {
        eventually(TEST_TIMEOUT, || async {
            let there = self.connections().await;
            if there.iter().any(&which) { Ok(()) } else { Err(format!("none {what}: {there:?}")) }
        })
        .await;
    }
}

/// Whether a connection waits for a lock.
pub(crate) fn is_waiting(connection: &Connection) -> bool {
    let query = connection.query.as_deref().unwrap_or("");
    let statement = query.contains("GET_LOCK") || query.contains("pg_advisory_lock") || query.contains("FOR UPDATE");
    statement && matches!(connection.state.as_str(), "Query" | "Execute" | "active")
}

impl TechniqueFixture {
    /// The table with this suffix, such as `_tokens`, as the administrator's statements name it.
    pub(crate) fn qualified_name(&self, end: &str) -> String {
        match self.fixture.kind {
            DatabaseKind::MariaDb => format!("{}.{}{end}", self.fixture.database.database, self.name),
            DatabaseKind::Postgres => format!("{}{end}", self.name),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("{}?technique={}&table={}", self.fixture.database.url(), self.technique, self.name)
    }

    /// A client with this TTL.
    pub(crate) async fn open_locks(&self, ttl: Duration) -> Locks {
        open_locks(&self.url(), ttl).await
    }

    /// A client with this TTL, behind a proxy.
    pub(crate) async fn open_through_proxy(&self, ttl: Duration) -> (Locks, Proxy) {
        self.open_through_proxy_with("", ttl).await
    }

    /// A client with this TTL and these URL options, behind a proxy.
    pub(crate) async fn open_through_proxy_with(&self, options: &str, ttl: Duration) -> (Locks, Proxy) {
        let addr = self.fixture.server().addr();
        let proxy = Proxy::start(addr).await.expect("a proxy");
        let url = self.url().replace(&addr.to_string(), &proxy.addr().to_string());
        (open_locks(&format!("{url}{options}"), ttl).await, proxy)
    }
}

pub(crate) async fn open_locks(url: &str, ttl: Duration) -> Locks {
    Locks::builder().ttl(ttl).open(url).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// Acquires a lock, waiting for it.
pub(crate) async fn acquire(locks: &Locks, name: &str) -> Guard {
    let mutex = locks.mutex(name);
    tokio::time::timeout(TEST_TIMEOUT, mutex.lock()).await.expect("the lock becomes free").expect("a lock")
}

/// The holder learns of the loss.
pub(crate) async fn assert_lost(guard: &Guard) {
    tokio::time::timeout(TEST_TIMEOUT, guard.lost()).await.expect("the holder learns of the loss");
    assert!(!guard.is_held());
}
