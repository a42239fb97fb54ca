//! Writers that die between their commit and what they owe the cache.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold::cache::strategy::{Aside, DeleteAfter, Invalidating, Source, Strategy};
use leasehold::cache::{ReadThrough, Store};
use leasehold_conformance::world::SOON;
use leasehold_testbed::{Actor, eventually};

use crate::cache::site::{
    ANSWER, Db, LONG, Point, aside, cache, mariadb_server, read, redis_server, spawn_write, text,
};

/// A writer is gone just after its commit. What does the next reader get?
async fn gone_after_the_commit(strategy: &Arc<dyn Strategy>, db: &Db) -> String {
    assert_eq!(read(strategy, db).await, "v1");
    let gate = db.hold(Point::Committed);
    let writer = spawn_write(strategy, db, "v2");
    gate.reached().await;
    writer.abort();
    assert!(writer.await.is_err(), "it is gone");
    assert_eq!(db.value().await, "v2");
    read(strategy, db).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_mark_the_ttl_is_the_bound() {
    let control: Arc<dyn Strategy> = Arc::new(DeleteAfter(aside().await));
    assert_eq!(gone_after_the_commit(&control, &Db::new().await).await, "v1", "the control");
    let ttl = Duration::from_secs(1);
    let ours: Arc<dyn Strategy> = Arc::new(Invalidating(cache(|builder| builder.ttl(ttl)).await));
    let db = Db::new().await;
    gone_after_the_commit(&ours, &db).await;
    eventually(SOON, || async {
        match read(&ours, &db).await.as_str() {
            "v2" => Ok(()),
            other => Err(other.to_owned()),
        }
    })
    .await;
}

/// A process that writes like this is killed just after its commit.
async fn killed_after_its_commit(redis: &str, db: &Db, how: &str) {
    let mariadb = format!("{}?prefer_socket=false", mariadb_server().await.url());
    let exe = Path::new(env!("CARGO_BIN_EXE_leasehold-cache-actor"));
    let mut writer = Actor::spawn(exe, &["write", redis, &mariadb, &db.table, how], &[]).expect("a process");
    writer.expect(|line| line["committed"] == true, SOON).await.expect("a commit");
    writer.sigkill().expect("killed");
    assert_eq!(db.value().await, "v2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_writer_that_had_announced_itself_leaves_nothing_stale() {
    let db = Db::new().await;
    let redis = format!("{}?prefix=killed:", redis_server().await.url());
    let cache = ReadThrough::builder().timeout(ANSWER).open(&redis).await.expect("a cache");
    let get = async || text(cache.get_or_load("k", || db.load("k")).await);
    assert_eq!(get().await, "v1");
    killed_after_its_commit(&redis, &db, "ours").await;
    // At once, while its mark stands, and until the value is in the cache again.
    assert_eq!(get().await, "v2");
    eventually(SOON, || async {
        let before = cache.stats().hits;
        assert_eq!(get().await, "v2");
        if cache.stats().hits > before { Ok(()) } else { Err("the mark still stands") }
    })
    .await;
}

/// The control: whoever was to delete what is in the cache is dead, and it stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_writer_that_was_to_delete_leaves_what_was() {
    let db = Db::new().await;
    let redis = format!("{}?prefix=killed-naive:", redis_server().await.url());
    let store = Store::open(&redis, ANSWER).await.expect("a store");
    let naive: Arc<dyn Strategy> = Arc::new(DeleteAfter(Aside::new(&store, LONG)));
    assert_eq!(read(&naive, &db).await, "v1");
    killed_after_its_commit(&redis, &db, "naive").await;
    assert_eq!(read(&naive, &db).await, "v1", "the control");
}
