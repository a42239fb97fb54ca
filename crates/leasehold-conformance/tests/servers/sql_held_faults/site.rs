//! A server, its clients, and what is done to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::{Guard, Locks};
use leasehold_conformance::world::SOON;
use leasehold_testbed::mariadb::{self, Connection, MariaDb};
use leasehold_testbed::postgres::{self, Postgres};
use leasehold_testbed::{Proxy, Server, WallClock, eventually};
use mysql_async::prelude::Queryable;

/// A TTL that no test outlives.
pub(crate) const LONG: Duration = Duration::from_secs(90);
/// A TTL that ends within a test.
pub(crate) const SHORT: Duration = Duration::from_secs(2);

/// Which database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    MariaDb,
    Postgres,
}

/// One server.
pub(crate) struct Site {
    pub(crate) kind: Kind,
    pub(crate) server: Server,
    made: AtomicU32,
}

/// A table of its own, on one technique.
pub(crate) struct Table {
    pub(crate) site: Arc<Site>,
    pub(crate) technique: &'static str,
    pub(crate) name: String,
}

impl Site {
    pub(crate) async fn new(kind: Kind) -> Self {
        let server = match kind {
            Kind::MariaDb => MariaDb::new().start().await,
            Kind::Postgres => Postgres::new().start().await,
        };
        Self::of(kind, server.expect("a server"))
    }

    /// One whose clock can be moved.
    pub(crate) async fn with_clock(kind: Kind, clock: &WallClock) -> Self {
        let server = match kind {
            Kind::MariaDb => MariaDb::new().clock(clock).start().await,
            Kind::Postgres => Postgres::new().clock(clock).start().await,
        };
        Self::of(kind, server.expect("a server"))
    }

    /// One that is there already.
    pub(crate) fn of(kind: Kind, server: Server) -> Self {
        Self { kind, server, made: AtomicU32::new(0) }
    }

    /// Both techniques, one after the other.
    pub(crate) fn tables(self) -> Vec<Table> {
        let site = Arc::new(self);
        ["session", "for-update"].map(|technique| site.table(technique)).into()
    }

    fn table(self: &Arc<Self>, technique: &'static str) -> Table {
        let name = format!("t{}", self.made.fetch_add(1, Ordering::Relaxed));
        Table { site: Arc::clone(self), technique, name }
    }

    /// Asks by hand, as the one who may do everything.
    pub(crate) async fn ask(&self, statement: &str) -> Vec<Vec<Option<String>>> {
        match self.kind {
            Kind::MariaDb => mariadb::ask(&self.server, statement).await,
            Kind::Postgres => postgres::ask(&self.server, statement).await,
        }
        .unwrap_or_else(|error| panic!("{statement}: {error}"))
    }

    pub(crate) async fn connections(&self) -> Vec<Connection> {
        match self.kind {
            Kind::MariaDb => mariadb::connections(&self.server).await,
            Kind::Postgres => postgres::connections(&self.server).await,
        }
        .expect("the connections")
    }

    /// Ends all connections that `which` picks; how many.
    pub(crate) async fn end(&self, which: impl FnMut(&Connection) -> bool) -> usize {
        let mut ended = 0;
        for connection in self.connections().await.into_iter().filter(which) {
            let killed = match self.kind {
                Kind::MariaDb => mariadb::kill_connection(&self.server, connection.id).await,
                Kind::Postgres => postgres::kill_connection(&self.server, connection.id).await,
            };
            // It may have ended by itself.
            ended += usize::from(killed.is_ok());
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

/// A transaction that somebody keeps open by hand.
pub(crate) enum Hand {
    MariaDb(mysql_async::Conn),
    Postgres(tokio_postgres::Client),
}

impl Hand {
    /// Begins one with this statement, as the user of the locks.
    pub(crate) async fn lock(site: &Site, sql: &str) -> Self {
        let url = site.server.url();
        match site.kind {
            Kind::MariaDb => {
                let opts = mysql_async::Opts::from_url(&url).expect("a URL");
                let mut hand = mysql_async::Conn::new(opts).await.expect("a connection");
                hand.query_drop("BEGIN").await.expect("a transaction");
                hand.query_drop(sql).await.expect("rows");
                Self::MariaDb(hand)
            }
            Kind::Postgres => {
                let (hand, line) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("a connection");
                tokio::spawn(line);
                hand.batch_execute(&format!("BEGIN; {sql}")).await.expect("a transaction");
                Self::Postgres(hand)
            }
        }
    }

    pub(crate) async fn commit(self) {
        match self {
            Self::MariaDb(mut hand) => hand.query_drop("COMMIT").await.expect("a commit"),
            Self::Postgres(hand) => hand.batch_execute("COMMIT").await.expect("a commit"),
        }
    }
}

/// Whether a connection waits for a lock.
pub(crate) fn waits(connection: &Connection) -> bool {
    let query = connection.query.as_deref().unwrap_or("");
    let statement = query.contains("GET_LOCK") || query.contains("pg_advisory_lock") || query.contains("FOR UPDATE");
    statement && matches!(connection.state.as_str(), "Query" | "Execute" | "active")
}

impl Table {
    pub(crate) fn url(&self) -> String {
        format!("{}?technique={}&table={}", self.site.server.url(), self.technique, self.name)
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
        let addr = self.site.server.addr();
        let proxy = Proxy::start(addr).await.expect("a proxy");
        let url = self.url().replace(&addr.to_string(), &proxy.addr().to_string());
        (open(&format!("{url}{options}"), ttl).await, proxy)
    }
}

pub(crate) async fn open(url: &str, ttl: Duration) -> Locks {
    Locks::builder().ttl(ttl).open(url).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// The holder is told soon.
pub(crate) async fn told(guard: &Guard) {
    tokio::time::timeout(SOON, guard.lost()).await.expect("the holder is told");
    assert!(!guard.is_held());
}
