//! Servers shared by all tests, a table for each test, and pause points in its reads and writes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::{Locks, Token};
use leasehold_cache::strategy::{
    CacheAside, Database, DelayedDoubleDelete, DeleteAfter, DeleteFirst, InvalidateAfterCommit, LockProtected,
    Strategy, StrategyFuture, TtlOnly, WriteThrough,
};
use leasehold_cache::{Builder, CacheError, CacheStore, ReadThrough, Row, RowState};
use leasehold_conformance::test_context::{self, TEST_TIMEOUT};
use leasehold_testbed::Server;
use leasehold_testbed::redis::{Reply, RespClient};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Pool};
use tokio::sync::Semaphore;

/// Longer than any test runs, so nothing with this TTL expires.
pub(crate) const LONG_TTL: Duration = Duration::from_secs(3600);

/// Timeout for a Redis reply that is expected to arrive.
pub(crate) const REPLY_TIMEOUT: Duration = TEST_TIMEOUT;

pub(crate) async fn redis_server() -> &'static Server {
    crate::redis_faults::fixture::server().await
}

pub(crate) async fn mariadb_server() -> &'static Server {
    crate::own_tables::fixture::mariadb_server().await
}

/// A name that no other test uses.
pub(crate) fn unique_name(prefix: &str) -> String {
    static NEXT_NAME: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}_{}", NEXT_NAME.fetch_add(1, Ordering::Relaxed))
}

pub(crate) async fn connect() -> Conn {
    Conn::from_url(format!("{}?prefer_socket=false", mariadb_server().await.url())).await.expect("a connection")
}

/// Sends a raw command to Redis.
pub(crate) async fn redis_command(words: &[&str]) -> Reply {
    let mut raw = RespClient::connect(redis_server().await.addr()).await.expect("a connection");
    raw.command(words).await.expect("an answer")
}

/// A point at which a read or write can be paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PausePoint {
    /// The row was read but not yet returned.
    Loaded,
    /// The write is about to be sent.
    Committing,
    /// The write is committed and nothing else has happened.
    Committed,
}

/// Pauses the next read or write that reaches its pause point.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    reached: Arc<Semaphore>,
    open: Arc<Semaphore>,
}

impl Gate {
    pub(crate) async fn wait_reached(&self) {
        tokio::time::timeout(TEST_TIMEOUT, self.reached.acquire())
            .await
            .expect("timed out waiting for the pause point")
            .expect("an open semaphore")
            .forget();
    }

    pub(crate) fn open(&self) {
        self.open.add_permits(1);
    }
}

/// A table with one row, private to a test.
#[derive(Clone)]
pub(crate) struct TestTable {
    pool: Pool,
    pub(crate) table: String,
    gates: Arc<Mutex<VecDeque<(PausePoint, Gate)>>>,
}

pub(crate) fn loader_error(error: impl std::error::Error + Send + Sync + 'static) -> CacheError {
    CacheError::Loader(Arc::new(error))
}

impl TestTable {
    /// A table with the key `k`, whose value is `v1`.
    pub(crate) async fn new() -> Self {
        let url = format!("{}?prefer_socket=false", mariadb_server().await.url());
        let db = Self { pool: Pool::new(url.as_str()), table: unique_name("rows"), gates: Arc::default() };
        let mut conn = connect().await;
        let columns = "(id VARCHAR(50) PRIMARY KEY, value TEXT NOT NULL, token BIGINT UNSIGNED NOT NULL DEFAULT 0)";
        conn.query_drop(format!("CREATE TABLE {} {columns}", db.table)).await.expect("a table");
        conn.query_drop(format!("INSERT INTO {} (id, value) VALUES ('k', 'v1')", db.table)).await.expect("a row");
        db
    }

    /// Pauses the next read or write that reaches this point.
    pub(crate) fn pause_next_at(&self, point: PausePoint) -> Gate {
        let gate = Gate { reached: Arc::new(Semaphore::new(0)), open: Arc::new(Semaphore::new(0)) };
        self.gates.lock().unwrap_or_else(PoisonError::into_inner).push_back((point, gate.clone()));
        gate
    }

    async fn pause_if_requested(&self, point: PausePoint) {
        let gate = {
            let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
            let at = gates.iter().position(|(held, _)| *held == point);
            at.and_then(|at| gates.remove(at))
        };
        if let Some((_, gate)) = gate {
            gate.reached.add_permits(1);
            gate.open.acquire().await.expect("a gate").forget();
        }
    }

    pub(crate) async fn stored_value(&self) -> String {
        let sql = format!("SELECT value FROM {} WHERE id = 'k'", self.table);
        connect().await.query_first(sql).await.expect("an answer").expect("a row")
    }

    /// Updates the row directly, bypassing all caches.
    pub(crate) async fn write_directly(&self, value: &str) {
        connect().await.exec_drop(format!("UPDATE {} SET value = ?", self.table), (value,)).await.expect("written");
    }
}

impl Database for TestTable {
    fn load<'a>(&'a self, key: &'a str) -> StrategyFuture<'a, Option<Row>> {
        Box::pin(async move {
            let mut conn = self.pool.get_conn().await.map_err(loader_error)?;
            let sql = format!("SELECT value FROM {} WHERE id = ?", self.table);
            let value: Option<String> = conn.exec_first(sql, (key,)).await.map_err(loader_error)?;
            drop(conn);
            self.pause_if_requested(PausePoint::Loaded).await;
            Ok(value.map(Row::from))
        })
    }

    fn store<'a>(&'a self, key: &'a str, value: Vec<u8>, token: Option<Token>) -> StrategyFuture<'a, RowState> {
        Box::pin(async move {
            self.pause_if_requested(PausePoint::Committing).await;
            let mut conn = self.pool.get_conn().await.map_err(loader_error)?;
            // A token lower than the stored one changes nothing.
            let sql =
                format!("UPDATE {} SET value = ?, token = GREATEST(token, ?) WHERE id = ? AND token <= ?", self.table);
            let least = token.map_or(0, |token| token.0);
            let most = token.map_or(u64::MAX, |token| token.0);
            conn.exec_drop(sql, (&value, least, key, most)).await.map_err(loader_error)?;
            let refused = conn.affected_rows() == 0;
            drop(conn);
            self.pause_if_requested(PausePoint::Committed).await;
            if refused {
                return Err(loader_error(std::io::Error::other("an older token: nothing was changed")));
            }
            Ok(RowState::Present(Row::from(value)))
        })
    }
}

/// A cache with its own key prefix in which nothing expires during a test.
pub(crate) async fn open_cache(configure: impl FnOnce(Builder) -> Builder) -> ReadThrough {
    open_cache_at(&redis_server().await.url(), configure).await
}

pub(crate) async fn open_cache_at(url: &str, configure: impl FnOnce(Builder) -> Builder) -> ReadThrough {
    let builder = ReadThrough::builder()
        .ttl(LONG_TTL)
        .load_lease(LONG_TTL)
        .max_load_time(LONG_TTL)
        .max_write_time(LONG_TTL)
        .early_reload(0.0);
    configure(builder.timeout(REPLY_TIMEOUT))
        .open(&format!("{url}?prefix={}:", unique_name("p")))
        .await
        .expect("a cache")
}

pub(crate) async fn open_cache_aside() -> CacheAside {
    let url = format!("{}?prefix={}:", redis_server().await.url(), unique_name("p"));
    CacheAside::new(&CacheStore::open(&url, REPLY_TIMEOUT).await.expect("a store"), LONG_TTL)
}

pub(crate) async fn open_locks() -> Locks {
    let url = format!("{}?prefix={}:", redis_server().await.url(), unique_name("p"));
    Locks::builder().ttl(test_context::LONG_TTL).open(&url).await.expect("locks")
}

/// The textbook strategies, except the one under a lock.
pub(crate) async fn textbook_strategies() -> Vec<Arc<dyn Strategy>> {
    vec![
        Arc::new(TtlOnly(open_cache_aside().await)),
        Arc::new(DeleteFirst(open_cache_aside().await)),
        Arc::new(DeleteAfter(open_cache_aside().await)),
        Arc::new(DelayedDoubleDelete { cache: open_cache_aside().await, delay: LONG_TTL }),
    ]
}

pub(crate) async fn open_lock_protected() -> LockProtected {
    LockProtected { cache: open_cache_aside().await, locks: open_locks().await }
}

/// Leasehold's strategies, in strong mode.
pub(crate) async fn our_strategies() -> Vec<Arc<dyn Strategy>> {
    vec![
        Arc::new(InvalidateAfterCommit(open_cache(|builder| builder).await)),
        Arc::new(WriteThrough { cache: open_cache(|builder| builder).await, locks: open_locks().await }),
    ]
}

pub(crate) async fn read(strategy: &Arc<dyn Strategy>, db: &TestTable) -> String {
    expect_text(strategy.read(db, "k").await)
}

pub(crate) fn expect_text(data: Result<Option<Vec<u8>>, CacheError>) -> String {
    String::from_utf8(data.expect("a value").expect("a row")).expect("a text")
}

pub(crate) fn spawn_read(strategy: &Arc<dyn Strategy>, db: &TestTable) -> tokio::task::JoinHandle<String> {
    let (strategy, db) = (Arc::clone(strategy), db.clone());
    tokio::spawn(async move { read(&strategy, &db).await })
}

pub(crate) fn spawn_write(
    strategy: &Arc<dyn Strategy>,
    db: &TestTable,
    value: &str,
) -> tokio::task::JoinHandle<Result<(), CacheError>> {
    let (strategy, db, value) = (Arc::clone(strategy), db.clone(), value.as_bytes().to_vec());
    tokio::spawn(async move { strategy.write(&db, "k", value).await })
}

pub(crate) async fn write(strategy: &Arc<dyn Strategy>, db: &TestTable, value: &str) {
    strategy.write(db, "k", value.as_bytes().to_vec()).await.expect("written");
}
