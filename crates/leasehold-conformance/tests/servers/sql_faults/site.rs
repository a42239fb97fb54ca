//! Databases of both kinds, clients, and what is done to them.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold::{Guard, Locks};
use leasehold_conformance::world::SOON;
use leasehold_testbed::mariadb::Connection;
use leasehold_testbed::{Proxy, Server, WallClock, eventually, mariadb, postgres};

pub(crate) use super::ahead::Ahead;
pub(crate) use super::hand::Hand;
pub(crate) use super::shared::{BOTH, Home, Kind, lock_stubbornly};

/// A TTL whose end a test waits for.
pub(crate) const SHORT: Duration = Duration::from_secs(1);
/// A TTL that no test outlives.
pub(crate) const LASTING: Duration = Duration::from_secs(600);

/// A database, and our table in it.
pub(crate) struct Site {
    pub(crate) kind: Kind,
    pub(crate) home: Home,
}

impl Site {
    /// On the server that all share.
    pub(crate) async fn new(kind: Kind) -> Self {
        Self { kind, home: Home::shared(kind).await }
    }

    /// On a server of its own, to be killed.
    pub(crate) async fn alone(kind: Kind) -> Self {
        let server = match kind {
            Kind::MariaDb => mariadb::start().await,
            Kind::Postgres => postgres::start().await,
        };
        Self::of(kind, server.expect("a server"))
    }

    /// On a server whose clock can be moved.
    pub(crate) async fn with_clock(kind: Kind, clock: &WallClock) -> Self {
        let server = match kind {
            Kind::MariaDb => mariadb::MariaDb::new().clock(clock).start().await,
            Kind::Postgres => postgres::Postgres::new().clock(clock).start().await,
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

    pub(crate) fn url(&self) -> String {
        self.home.url()
    }

    /// The same server through another door.
    pub(crate) fn url_at(&self, addr: SocketAddr) -> String {
        self.url().replace(&self.server().addr().to_string(), &addr.to_string())
    }

    pub(crate) async fn locks(&self, ttl: Duration) -> Locks {
        locks(&self.url(), ttl).await
    }

    pub(crate) async fn proxy(&self) -> Proxy {
        Proxy::start(self.server().addr()).await.expect("a proxy")
    }

    /// A client whose line can be tampered with.
    pub(crate) async fn proxied(&self, ttl: Duration) -> (Locks, Proxy) {
        let proxy = self.proxy().await;
        (locks(&self.url_at(proxy.addr()), ttl).await, proxy)
    }

    pub(crate) async fn ask(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.home.ask(sql).await
    }

    /// The only number that a statement gives.
    pub(crate) async fn number(&self, sql: &str) -> u64 {
        self.ask(sql).await[0][0].as_ref().expect("a value").parse().expect("a number")
    }

    /// What is ours in this database, as a statement of the one who may do everything names it.
    pub(crate) fn named(&self, what: &str) -> String {
        match self.kind {
            Kind::MariaDb => format!("{}.{what}", self.home.database),
            Kind::Postgres => what.to_owned(),
        }
    }

    /// Our table.
    pub(crate) fn table(&self) -> String {
        self.named("leasehold")
    }

    pub(crate) async fn connections(&self) -> Vec<Connection> {
        self.home.connections().await
    }

    /// No more than so many statements are under way, and no more connections are there; but one that has said good-bye may be seen for a moment
    /// yet, beside the one in its place. How many are under way.
    pub(crate) async fn at_most(&self, at_work: usize, connections: usize) -> usize {
        let busy = |one: &&Connection| ["active", "Query", "Execute"].contains(&one.state.as_str());
        eventually(SOON, || async {
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
            let _ = self.home.kill(connection.id).await;
        }
    }
}

pub(crate) async fn locks(url: &str, ttl: Duration) -> Locks {
    Locks::builder().ttl(ttl).open(url).await.expect("locks")
}

/// Takes a lock, however long that takes on the client's clock.
pub(crate) async fn lock(locks: &Locks, name: &str) -> Guard {
    let mutex = locks.mutex(name);
    tokio::time::timeout(SOON, mutex.lock()).await.expect("it is free soon").expect("a lock")
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
