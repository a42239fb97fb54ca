//! A server, its clients, and what is done to them.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Guard, Locks};
use leasehold_conformance::world::SOON;
use leasehold_testbed::mariadb::{Connection, MariaDb};
use leasehold_testbed::postgres::Postgres;
use leasehold_testbed::{Proxy, Server, WallClock, eventually};

pub(crate) use crate::sql_faults::hand::Hand;
pub(crate) use crate::sql_faults::shared::{Home, Kind, lock_stubbornly};

/// A TTL that no test outlives.
pub(crate) const LASTING: Duration = Duration::from_secs(600);
/// A TTL whose end a test waits for.
pub(crate) const SHORT: Duration = Duration::from_secs(2);

/// A database.
pub(crate) struct Site {
    pub(crate) kind: Kind,
    pub(crate) home: Home,
}

/// Tables of its own, on one technique.
pub(crate) struct Table {
    pub(crate) site: Arc<Site>,
    pub(crate) technique: &'static str,
    pub(crate) name: String,
}

impl Site {
    /// On the server that all share.
    pub(crate) async fn new(kind: Kind) -> Self {
        Self { kind, home: Home::shared(kind).await }
    }

    /// On a server of its own, to be killed or changed.
    pub(crate) async fn alone(kind: Kind) -> Self {
        let server = match kind {
            Kind::MariaDb => MariaDb::new().start().await,
            Kind::Postgres => Postgres::new().start().await,
        };
        Self::of(kind, server.expect("a server"))
    }

    /// On a server whose clock can be moved.
    pub(crate) async fn with_clock(kind: Kind, clock: &WallClock) -> Self {
        let server = match kind {
            Kind::MariaDb => MariaDb::new().clock(clock).start().await,
            Kind::Postgres => Postgres::new().clock(clock).start().await,
        };
        Self::of(kind, server.expect("a server"))
    }

    /// On this server, where there is nobody else.
    pub(crate) fn of(kind: Kind, server: Server) -> Self {
        Self { kind, home: Home::alone(kind, server) }
    }

    pub(crate) fn server(&self) -> &Server {
        self.home.server()
    }

    /// Both techniques, one after the other.
    pub(crate) fn tables(self) -> Vec<Table> {
        let site = Arc::new(self);
        ["session", "for-update"].map(|technique| site.table(technique)).into()
    }

    fn table(self: &Arc<Self>, technique: &'static str) -> Table {
        Table { site: Arc::clone(self), technique, name: technique.replace('-', "_") }
    }

    /// Asks by hand, as the one who may do everything.
    pub(crate) async fn ask(&self, statement: &str) -> Vec<Vec<Option<String>>> {
        self.home.ask(statement).await
    }

    pub(crate) async fn connections(&self) -> Vec<Connection> {
        self.home.connections().await
    }

    /// Ends all connections that `which` picks; how many.
    pub(crate) async fn end(&self, which: impl FnMut(&Connection) -> bool) -> usize {
        let mut ended = 0;
        for connection in self.connections().await.into_iter().filter(which) {
            // It may have ended by itself.
            ended += usize::from(self.home.kill(connection.id).await);
        }
        ended
    }

    /// Waits until a connection is there that `which` picks.
    pub(crate) async fn until(&self, what: &str, which: impl Fn(&Connection) -> bool) {
        eventually(SOON, || async {
            let there = self.connections().await;
            if there.iter().any(&which) { Ok(()) } else { Err(format!("none {what}: {there:?}")) }
        })
        .await;
    }
}

/// Whether a connection waits for a lock.
pub(crate) fn waits(connection: &Connection) -> bool {
    let query = connection.query.as_deref().unwrap_or("");
    let statement = query.contains("GET_LOCK") || query.contains("pg_advisory_lock") || query.contains("FOR UPDATE");
    statement && matches!(connection.state.as_str(), "Query" | "Execute" | "active")
}

impl Table {
    /// What belongs to it, as a statement of the one who may do everything names it: `_tokens`, say.
    pub(crate) fn named(&self, end: &str) -> String {
        match self.site.kind {
            Kind::MariaDb => format!("{}.{}{end}", self.site.home.database, self.name),
            Kind::Postgres => format!("{}{end}", self.name),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("{}?technique={}&table={}", self.site.home.url(), self.technique, self.name)
    }

    /// A client with this TTL.
    pub(crate) async fn locks(&self, ttl: Duration) -> Locks {
        open(&self.url(), ttl).await
    }

    /// A client with this TTL, behind a proxy.
    pub(crate) async fn behind(&self, ttl: Duration) -> (Locks, Proxy) {
        self.behind_with("", ttl).await
    }

    /// The same, with options of the URL.
    pub(crate) async fn behind_with(&self, options: &str, ttl: Duration) -> (Locks, Proxy) {
        let addr = self.site.server().addr();
        let proxy = Proxy::start(addr).await.expect("a proxy");
        let url = self.url().replace(&addr.to_string(), &proxy.addr().to_string());
        (open(&format!("{url}{options}"), ttl).await, proxy)
    }
}

pub(crate) async fn open(url: &str, ttl: Duration) -> Locks {
    Locks::builder().ttl(ttl).open(url).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// Takes a lock, sooner or later.
pub(crate) async fn lock(locks: &Locks, name: &str) -> Guard {
    let mutex = locks.mutex(name);
    tokio::time::timeout(SOON, mutex.lock()).await.expect("it is free soon").expect("a lock")
}

/// The holder is told.
pub(crate) async fn told(guard: &Guard) {
    tokio::time::timeout(SOON, guard.lost()).await.expect("the holder is told");
    assert!(!guard.is_held());
}
