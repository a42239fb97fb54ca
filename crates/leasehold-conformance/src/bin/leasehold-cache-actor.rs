//! A process that reads and writes through a cache, and reports in JSON lines:
//! - `read REDIS MARIADB TABLE COUNT HOW`
//! - `write REDIS MARIADB TABLE HOW`
//!
//! HOW is `ours`, or `naive`, which commits and then deletes.
//!
//! `run_reader` starts COUNT concurrent reads of the key `k`, and reports when all of them either
//! load or wait. No load ends before an input line arrives. `run_writer` commits a new value
//! through the cache, and never returns after its commit.

use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::Token;
use leasehold_cache::strategy::{CacheAside, Database, DeleteAfter, InvalidateAfterCommit, Strategy, StrategyFuture};
use leasehold_cache::{CacheError, CacheStore, ReadThrough, Row, RowState};
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::{Mutex, Semaphore};

type BoxError = Box<dyn Error + Send + Sync>;

fn print_report(line: &Value) {
    // This fails only when the test has ended.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// The row, read through one connection.
struct GatedTable {
    conn: Mutex<Conn>,
    name: String,
    loads: AtomicU64,
    gate: Semaphore,
}

impl Database for GatedTable {
    fn load<'a>(&'a self, key: &'a str) -> StrategyFuture<'a, Option<Row>> {
        Box::pin(async move {
            self.loads.fetch_add(1, Ordering::SeqCst);
            let failed = |error: mysql_async::Error| CacheError::Loader(Arc::new(error));
            let _open = self.gate.acquire().await;
            let sql = format!("SELECT value FROM {} WHERE id = ?", self.name);
            let value: Option<String> = self.conn.lock().await.exec_first(sql, (key,)).await.map_err(failed)?;
            Ok(value.map(Row::from))
        })
    }

    /// Never returns.
    fn store<'a>(&'a self, key: &'a str, value: Vec<u8>, _: Option<Token>) -> StrategyFuture<'a, RowState> {
        Box::pin(async move {
            let failed = |error: mysql_async::Error| CacheError::Loader(Arc::new(error));
            let sql = format!("UPDATE {} SET value = ? WHERE id = ?", self.name);
            self.conn.lock().await.exec_drop(sql, (value, key)).await.map_err(failed)?;
            print_report(&json!({ "committed": true }));
            std::future::pending().await
        })
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), BoxError> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["read", redis, mariadb, table, count, how] => {
            run_reader(redis, mariadb, table, count.parse()?, how == "ours").await
        }
        ["write", redis, mariadb, table, how] => run_writer(redis, mariadb, table, how == "ours").await,
        _ => Err("read REDIS MARIADB TABLE COUNT ours|naive, or write REDIS MARIADB TABLE ours|naive".into()),
    }
}

async fn open_table(mariadb: &str, name: &str) -> Result<Arc<GatedTable>, BoxError> {
    let conn = Mutex::new(Conn::from_url(mariadb).await?);
    Ok(Arc::new(GatedTable { conn, name: name.to_owned(), loads: AtomicU64::new(0), gate: Semaphore::new(0) }))
}

async fn open_naive(redis: &str) -> Result<DeleteAfter, BoxError> {
    let store = CacheStore::open(redis, Duration::from_secs(20)).await?;
    Ok(DeleteAfter(CacheAside::new(&store, Duration::from_secs(60))))
}

async fn run_reader(redis: &str, mariadb: &str, table: &str, count: u64, use_leasehold: bool) -> Result<(), BoxError> {
    let table = open_table(mariadb, table).await?;
    let cache =
        ReadThrough::builder().load_lease(Duration::from_secs(60)).timeout(Duration::from_secs(20)).open(redis).await?;
    let strategy: Arc<dyn Strategy> =
        if use_leasehold { Arc::new(InvalidateAfterCommit(cache.clone())) } else { Arc::new(open_naive(redis).await?) };
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    print_report(&json!({ "ready": true }));
    lines.next_line().await?;
    let reads: Vec<_> = (0..count)
        .map(|_| {
            let (strategy, table) = (Arc::clone(&strategy), Arc::clone(&table));
            tokio::spawn(async move { strategy.read(&*table, "k").await })
        })
        .collect();
    // All reads have started, and none has ended.
    while table.loads.load(Ordering::SeqCst) + cache.stats().waits < count {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    print_report(&json!({ "waiting": count }));
    lines.next_line().await?;
    table.gate.add_permits(count as usize);
    let mut right = 0;
    for read in reads {
        right += u64::from(read.await??.as_deref() == Some(b"v1"));
    }
    print_report(&json!({ "right": right, "loads": table.loads.load(Ordering::SeqCst) }));
    Ok(())
}

async fn run_writer(redis: &str, mariadb: &str, table: &str, use_leasehold: bool) -> Result<(), BoxError> {
    let (table, value) = (open_table(mariadb, table).await?, b"v2".to_vec());
    if !use_leasehold {
        return Ok(open_naive(redis).await?.write(&*table, "k", value).await?);
    }
    // The first step waits for the connection, on a machine that may be busy.
    let builder = ReadThrough::builder().max_write_time(Duration::from_secs(2)).timeout(Duration::from_secs(20));
    let cache = builder.open(redis).await?;
    Ok(cache.write_with("k", Token(1), |_| table.store("k", value, None)).await?)
}
