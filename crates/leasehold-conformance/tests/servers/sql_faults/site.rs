//! Servers of both kinds, clients, and SQL by hand.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold::{Guard, Locks};
use leasehold_conformance::world::SOON;
use leasehold_testbed::mariadb::Connection;
use leasehold_testbed::{Data, Proxy, Server, WallClock, eventually, mariadb, postgres};
use mysql_async::prelude::Queryable;

/// A TTL that a test outlives.
pub(crate) const SHORT: Duration = Duration::from_secs(1);
/// One that outlives a stall of the machine.
pub(crate) const MIDDLE: Duration = Duration::from_secs(4);
/// A TTL that no test outlives.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Which database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    MariaDb,
    Postgres,
}

pub(crate) const BOTH: [Kind; 2] = [Kind::MariaDb, Kind::Postgres];

/// A server of its own.
pub(crate) struct Site {
    pub(crate) kind: Kind,
    pub(crate) server: Server,
}

impl Site {
    pub(crate) async fn new(kind: Kind) -> Self {
        let server = match kind {
            Kind::MariaDb => mariadb::start().await,
            Kind::Postgres => postgres::start().await,
        };
        Self { kind, server: server.expect("a server") }
    }

    /// One whose clock can be moved.
    pub(crate) async fn with_clock(kind: Kind, clock: &WallClock) -> Self {
        let server = match kind {
            Kind::MariaDb => mariadb::MariaDb::new().clock(clock).start().await,
            Kind::Postgres => postgres::Postgres::new().clock(clock).start().await,
        };
        Self { kind, server: server.expect("a server") }
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    /// The same server through another door.
    pub(crate) fn url_at(&self, addr: SocketAddr) -> String {
        self.url().replace(&self.server.addr().to_string(), &addr.to_string())
    }

    pub(crate) async fn locks(&self, ttl: Duration) -> Locks {
        locks(&self.url(), ttl).await
    }

    /// A client whose line can be tampered with.
    pub(crate) async fn proxied(&self, ttl: Duration) -> (Locks, Proxy) {
        let proxy = Proxy::start(self.server.addr()).await.expect("a proxy");
        (locks(&self.url_at(proxy.addr()), ttl).await, proxy)
    }

    pub(crate) async fn ask(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        let rows = match self.kind {
            Kind::MariaDb => mariadb::ask(&self.server, sql).await,
            Kind::Postgres => postgres::ask(&self.server, sql).await,
        };
        rows.expect("an answer")
    }

    /// Our table, as a statement of the one who may do everything names it.
    pub(crate) fn table(&self) -> &'static str {
        match self.kind {
            Kind::MariaDb => "test.leasehold",
            Kind::Postgres => "leasehold",
        }
    }

    pub(crate) async fn connections(&self) -> Vec<Connection> {
        let all = match self.kind {
            Kind::MariaDb => mariadb::connections(&self.server).await,
            Kind::Postgres => postgres::connections(&self.server).await,
        };
        all.expect("a list")
    }

    /// No more than so many statements are under way, and no more connections are there; but one that has said good-bye may be seen for a moment
    /// yet, beside the one in its place. How many are under way.
    pub(crate) async fn at_most(&self, at_work: usize, connections: usize) -> usize {
        let busy = |one: &&Connection| ["active", "Query", "Execute"].contains(&one.state.as_str());
        eventually(Duration::from_secs(2), || async {
            let all = self.connections().await;
            let busy = all.iter().filter(busy).count();
            assert!(busy <= at_work, "{:?}: {all:?}", self.kind);
            if all.len() <= connections { Ok(busy) } else { Err(format!("{:?}: {all:?}", self.kind)) }
        })
        .await
    }

    /// Ends all our connections from the server's side.
    pub(crate) async fn kill_connections(&self) {
        for connection in self.connections().await {
            // It may have ended by itself.
            let _ = match self.kind {
                Kind::MariaDb => mariadb::kill_connection(&self.server, connection.id).await,
                Kind::Postgres => postgres::kill_connection(&self.server, connection.id).await,
            };
        }
    }

    /// `kill -9`, and up again with what was written.
    pub(crate) async fn crash(&mut self) {
        self.server.kill().expect("a kill");
        self.server.restart(Data::Keep).await.expect("a restart");
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
        match site.kind {
            Kind::MariaDb => {
                let opts = mysql_async::Opts::from_url(&site.url()).expect("a URL");
                let mut hand = mysql_async::Conn::new(opts).await.expect("a connection");
                hand.query_drop("BEGIN").await.expect("a transaction");
                hand.query_drop(sql).await.expect("rows");
                Self::MariaDb(hand)
            }
            Kind::Postgres => {
                let (hand, line) =
                    tokio_postgres::connect(&site.url(), tokio_postgres::NoTls).await.expect("a connection");
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

pub(crate) async fn locks(url: &str, ttl: Duration) -> Locks {
    Locks::builder().ttl(ttl).open(url).await.expect("locks")
}

pub(crate) async fn lock(locks: &Locks, name: &str) -> Guard {
    locks.mutex(name).wait(SOON).lock().await.expect("a lock")
}

/// None of them is lost for so long.
pub(crate) async fn stay_held(guards: &[Guard], time: Duration) {
    let lost = futures_util::future::select_all(guards.iter().map(|guard| Box::pin(guard.lost())));
    let lost = tokio::time::timeout(time, lost).await;
    assert!(lost.is_err() && guards.iter().all(Guard::is_held), "one was lost");
}

pub(crate) async fn is_free(locks: &Locks, name: &str) -> bool {
    locks.mutex(name).try_lock().await.expect("an answer").is_some()
}

/// Waits until somebody waits for a lock.
pub(crate) async fn queued(locks: &Locks, name: &str, waiters: usize) {
    eventually(SOON, || async {
        let view = locks.inspect(name).await.map_err(|error| error.to_string())?;
        if view.waiters.len() == waiters { Ok(()) } else { Err(format!("{} wait", view.waiters.len())) }
    })
    .await;
}
