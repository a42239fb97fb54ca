//! The servers that all tests share, a table for each test, and gates in its reads and writes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::cache::strategy::{
    Answer, Aside, DelayedDoubleDelete, DeleteAfter, DeleteFirst, Invalidating, LockProtected, Source, Strategy,
    TtlOnly, WritingThrough,
};
use leasehold::cache::{Builder, CacheError, Now, ReadThrough, Row, Store};
use leasehold::{Locks, Token};
use leasehold_conformance::world::{self, SOON};
use leasehold_testbed::Server;
use leasehold_testbed::redis::{Reply, Resp};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Pool};
use tokio::sync::Semaphore;

/// Longer than any test takes: what ends here does not end by itself.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// How long an answer of Redis is waited for where it comes.
pub(crate) const ANSWER: Duration = SOON;

pub(crate) async fn redis_server() -> &'static Server {
    crate::redis_faults::site::server().await
}

pub(crate) async fn mariadb_server() -> &'static Server {
    crate::own_tables::site::mariadb_server().await
}

/// A name that no other test has.
pub(crate) fn fresh(what: &str) -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    format!("{what}_{}", MADE.fetch_add(1, Ordering::Relaxed))
}

pub(crate) async fn connect() -> Conn {
    Conn::from_url(format!("{}?prefer_socket=false", mariadb_server().await.url())).await.expect("a connection")
}

/// Asks Redis by hand.
pub(crate) async fn by_hand(words: &[&str]) -> Reply {
    let mut hand = Resp::connect(redis_server().await.addr()).await.expect("a connection");
    hand.command(words).await.expect("an answer")
}

/// Where somebody can be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    /// The row was read, and is not yet handed over.
    Loaded,
    /// The write is about to be made.
    Committing,
    /// The write is committed, and nothing else has happened.
    Committed,
}

/// One who is held, or will be.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    reached: Arc<Semaphore>,
    open: Arc<Semaphore>,
}

impl Gate {
    pub(crate) async fn reached(&self) {
        tokio::time::timeout(SOON, self.reached.acquire()).await.expect("nobody came").expect("it").forget();
    }

    pub(crate) fn open(&self) {
        self.open.add_permits(1);
    }
}

/// One key's row in a table of its own.
#[derive(Clone)]
pub(crate) struct Db {
    pool: Pool,
    pub(crate) table: String,
    gates: Arc<Mutex<VecDeque<(Point, Gate)>>>,
}

pub(crate) fn failed(error: impl std::error::Error + Send + Sync + 'static) -> CacheError {
    CacheError::Loader(Arc::new(error))
}

impl Db {
    /// A table with the key `k`, whose value is `v1`.
    pub(crate) async fn new() -> Self {
        let url = format!("{}?prefer_socket=false", mariadb_server().await.url());
        let db = Self { pool: Pool::new(url.as_str()), table: fresh("rows"), gates: Arc::default() };
        let mut conn = connect().await;
        let columns = "(id VARCHAR(50) PRIMARY KEY, value TEXT NOT NULL, token BIGINT UNSIGNED NOT NULL DEFAULT 0)";
        conn.query_drop(format!("CREATE TABLE {} {columns}", db.table)).await.expect("a table");
        conn.query_drop(format!("INSERT INTO {} (id, value) VALUES ('k', 'v1')", db.table)).await.expect("a row");
        db
    }

    /// Whoever next comes to this point is held there.
    pub(crate) fn hold(&self, point: Point) -> Gate {
        let gate = Gate { reached: Arc::new(Semaphore::new(0)), open: Arc::new(Semaphore::new(0)) };
        self.gates.lock().unwrap_or_else(PoisonError::into_inner).push_back((point, gate.clone()));
        gate
    }

    async fn pass(&self, point: Point) {
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

    pub(crate) async fn value(&self) -> String {
        let sql = format!("SELECT value FROM {} WHERE id = 'k'", self.table);
        connect().await.query_first(sql).await.expect("an answer").expect("a row")
    }

    /// Writes by hand, past all caches.
    pub(crate) async fn set(&self, value: &str) {
        connect().await.exec_drop(format!("UPDATE {} SET value = ?", self.table), (value,)).await.expect("written");
    }
}

impl Source for Db {
    fn load<'a>(&'a self, key: &'a str) -> Answer<'a, Option<Row>> {
        Box::pin(async move {
            let mut conn = self.pool.get_conn().await.map_err(failed)?;
            let sql = format!("SELECT value FROM {} WHERE id = ?", self.table);
            let value: Option<String> = conn.exec_first(sql, (key,)).await.map_err(failed)?;
            drop(conn);
            self.pass(Point::Loaded).await;
            Ok(value.map(Row::from))
        })
    }

    fn store<'a>(&'a self, key: &'a str, value: Vec<u8>, token: Option<Token>) -> Answer<'a, Now> {
        Box::pin(async move {
            self.pass(Point::Committing).await;
            let mut conn = self.pool.get_conn().await.map_err(failed)?;
            // A lower token than was seen changes nothing.
            let sql =
                format!("UPDATE {} SET value = ?, token = GREATEST(token, ?) WHERE id = ? AND token <= ?", self.table);
            let least = token.map_or(0, |token| token.0);
            let most = token.map_or(u64::MAX, |token| token.0);
            conn.exec_drop(sql, (&value, least, key, most)).await.map_err(failed)?;
            let refused = conn.affected_rows() == 0;
            drop(conn);
            self.pass(Point::Committed).await;
            if refused {
                return Err(failed(std::io::Error::other("an older token: nothing was changed")));
            }
            Ok(Now::Is(Row::from(value)))
        })
    }
}

/// A cache that nothing ends by itself in, with keys of its own.
pub(crate) async fn cache(set: impl FnOnce(Builder) -> Builder) -> ReadThrough {
    cache_at(&redis_server().await.url(), set).await
}

pub(crate) async fn cache_at(url: &str, set: impl FnOnce(Builder) -> Builder) -> ReadThrough {
    let builder = ReadThrough::builder().ttl(LONG).lease(LONG).longest_load(LONG).longest_write(LONG).early(0.0);
    set(builder.timeout(ANSWER)).open(&format!("{url}?prefix={}:", fresh("p"))).await.expect("a cache")
}

pub(crate) async fn aside() -> Aside {
    let url = format!("{}?prefix={}:", redis_server().await.url(), fresh("p"));
    Aside::new(&Store::open(&url, ANSWER).await.expect("a store"), LONG)
}

pub(crate) async fn locks() -> Locks {
    let url = format!("{}?prefix={}:", redis_server().await.url(), fresh("p"));
    Locks::builder().ttl(world::LONG).open(&url).await.expect("locks")
}

/// The textbook's, without the one under a lock.
pub(crate) async fn textbook() -> Vec<Arc<dyn Strategy>> {
    vec![
        Arc::new(TtlOnly(aside().await)),
        Arc::new(DeleteFirst(aside().await)),
        Arc::new(DeleteAfter(aside().await)),
        Arc::new(DelayedDoubleDelete { aside: aside().await, delay: LONG }),
    ]
}

pub(crate) async fn lock_protected() -> LockProtected {
    LockProtected { aside: aside().await, locks: locks().await }
}

/// Ours, strong.
pub(crate) async fn ours() -> Vec<Arc<dyn Strategy>> {
    vec![
        Arc::new(Invalidating(cache(|builder| builder).await)),
        Arc::new(WritingThrough { cache: cache(|builder| builder).await, locks: locks().await }),
    ]
}

pub(crate) async fn read(strategy: &Arc<dyn Strategy>, db: &Db) -> String {
    text(strategy.read(db, "k").await)
}

pub(crate) fn text(data: Result<Option<Vec<u8>>, CacheError>) -> String {
    String::from_utf8(data.expect("a value").expect("a row")).expect("a text")
}

pub(crate) fn spawn_read(strategy: &Arc<dyn Strategy>, db: &Db) -> tokio::task::JoinHandle<String> {
    let (strategy, db) = (Arc::clone(strategy), db.clone());
    tokio::spawn(async move { read(&strategy, &db).await })
}

pub(crate) fn spawn_write(
    strategy: &Arc<dyn Strategy>,
    db: &Db,
    value: &str,
) -> tokio::task::JoinHandle<Result<(), CacheError>> {
    let (strategy, db, value) = (Arc::clone(strategy), db.clone(), value.as_bytes().to_vec());
    tokio::spawn(async move { strategy.write(&db, "k", value).await })
}

pub(crate) async fn write(strategy: &Arc<dyn Strategy>, db: &Db, value: &str) {
    strategy.write(db, "k", value.as_bytes().to_vec()).await.expect("written");
}
