//! Writers that die between their commit and their cache invalidation.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold_cache::strategy::{CacheAside, Database, DeleteAfter, InvalidateAfterCommit, Strategy};
use leasehold_cache::{CacheStore, ReadThrough};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::{Actor, eventually};

use crate::cache::fixture::{
    LONG_TTL, PausePoint, REPLY_TIMEOUT, TestTable, expect_text, mariadb_server, open_cache, open_cache_aside, read,
    redis_server, spawn_write,
};

/// Aborts a writer just after its commit and returns what the next reader gets.
async fn read_after_writer_abort(strategy: &Arc<dyn Strategy>, db: &TestTable) -> String {
    assert_eq!(read(strategy, db).await, "v1");
    let gate = db.pause_next_at(PausePoint::Committed);
    let writer = spawn_write(strategy, db, "v2");
    gate.wait_reached().await;
    writer.abort();
    assert!(writer.await.is_err(), "the writer is aborted");
    assert_eq!(db.stored_value().await, "v2");
    read(strategy, db).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_mark_the_ttl_limits_staleness() {
    let control: Arc<dyn Strategy> = Arc::new(DeleteAfter(open_cache_aside().await));
    assert_eq!(read_after_writer_abort(&control, &TestTable::new().await).await, "v1", "the control");
    let ttl = Duration::from_secs(1);
    let ours: Arc<dyn Strategy> = Arc::new(InvalidateAfterCommit(open_cache(|builder| builder.ttl(ttl)).await));
    let db = TestTable::new().await;
    read_after_writer_abort(&ours, &db).await;
    eventually(TEST_TIMEOUT, || async {
        match read(&ours, &db).await.as_str() {
            "v2" => Ok(()),
            other => Err(other.to_owned()),
        }
    })
    .await;
}

/// Kills a writer process just after its commit.
async fn kill_writer_after_commit(redis: &str, db: &TestTable, mode: &str) {
    let mariadb = format!("{}?prefer_socket=false", mariadb_server().await.url());
    let exe = Path::new(env!("CARGO_BIN_EXE_leasehold-cache-actor"));
    let mut writer = Actor::spawn(exe, &["write", redis, &mariadb, &db.table, mode], &[]).expect("a process");
    writer.recv_matching(|line| line["committed"] == true, TEST_TIMEOUT).await.expect("a commit");
    writer.sigkill().expect("killed");
    assert_eq!(db.stored_value().await, "v2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_writer_that_had_set_its_mark_leaves_nothing_stale() {
    let db = TestTable::new().await;
    let redis = format!("{}?prefix=killed:", redis_server().await.url());
    let cache = ReadThrough::builder().timeout(REPLY_TIMEOUT).open(&redis).await.expect("a cache");
    let get = async || expect_text(cache.get_or_load("k", || db.load("k")).await);
    assert_eq!(get().await, "v1");
    kill_writer_after_commit(&redis, &db, "ours").await;
    // At once, while the mark stands, and until the value is cached again.
    assert_eq!(get().await, "v2");
    eventually(TEST_TIMEOUT, || async {
        let before = cache.stats().hits;
        assert_eq!(get().await, "v2");
        if cache.stats().hits > before { Ok(()) } else { Err("the mark still stands") }
    })
    .await;
}

/// The control: the writer died before it deleted the cached value, so the value stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_writer_without_a_mark_leaves_the_old_value() {
    let db = TestTable::new().await;
    let redis = format!("{}?prefix=killed-naive:", redis_server().await.url());
    let store = CacheStore::open(&redis, REPLY_TIMEOUT).await.expect("a store");
    let naive: Arc<dyn Strategy> = Arc::new(DeleteAfter(CacheAside::new(&store, LONG_TTL)));
    assert_eq!(read(&naive, &db).await, "v1");
    kill_writer_after_commit(&redis, &db, "naive").await;
    assert_eq!(read(&naive, &db).await, "v1", "the control");
}
