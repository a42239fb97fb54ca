//! Servers that several tests use, one after the other: each test finds them in their initial
//! state. A test that kills, pauses or configures a server starts its own.

use std::time::Duration;

use leasehold_testbed::mariadb::{self, MariaDb};
use leasehold_testbed::postgres::{self, Postgres};
use leasehold_testbed::zookeeper::ZooKeeper;
use leasehold_testbed::{Result, Server};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// A server that one test at a time may use.
type SharedServer = OnceCell<Mutex<Server>>;

/// Starts the server at the first use, and waits until no other test uses it.
async fn lock_server(
    shared: &'static SharedServer,
    start: impl Future<Output = Result<Server>>,
) -> MutexGuard<'static, Server> {
    let server = shared.get_or_init(|| async { Mutex::new(start.await.unwrap()) }).await;
    server.lock().await
}

/// A MariaDB with durable writes, without tables.
pub(crate) async fn mariadb() -> MutexGuard<'static, Server> {
    static SHARED: SharedServer = OnceCell::const_new();
    let server = lock_server(&SHARED, MariaDb::new().fsync().start()).await;
    for statement in ["DROP USER IF EXISTS poor@'%'", "CREATE OR REPLACE DATABASE test"] {
        mariadb::query(&server, statement).await.unwrap();
    }
    server
}

/// A PostgreSQL with durable writes, without tables.
pub(crate) async fn postgres() -> MutexGuard<'static, Server> {
    static SHARED: SharedServer = OnceCell::const_new();
    let server = lock_server(&SHARED, Postgres::new().fsync().start()).await;
    let clear = "DROP SCHEMA IF EXISTS ops CASCADE; DROP SCHEMA public CASCADE; DROP ROLE IF EXISTS poor;
        CREATE SCHEMA public AUTHORIZATION pg_database_owner; GRANT USAGE ON SCHEMA public TO PUBLIC";
    postgres::query(&server, clear).await.unwrap();
    server
}

/// A ZooKeeper with sessions from one second up. Data below a test's own path stays there.
pub(crate) async fn zookeeper() -> MutexGuard<'static, Server> {
    static SHARED: SharedServer = OnceCell::const_new();
    let sessions = (Duration::from_secs(1), Duration::from_secs(900));
    lock_server(&SHARED, ZooKeeper::new().fsync().session_bounds(sessions.0, sessions.1).start()).await
}

/// A correctly configured ZooKeeper that removes no empty containers, so each test has its own
/// path.
pub(crate) async fn well_configured_zookeeper() -> MutexGuard<'static, Server> {
    static SHARED: SharedServer = OnceCell::const_new();
    lock_server(&SHARED, ZooKeeper::new().fsync().container_check_interval(Duration::from_secs(3600)).start()).await
}
