//! Delayed double delete in real time.

use std::sync::Arc;
use std::time::Duration;

use leasehold_cache::CacheStore;
use leasehold_cache::strategy::{CacheAside, DelayedDoubleDelete, Strategy};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::eventually;
use leasehold_testbed::redis::Reply;

use crate::cache::fixture::{
    LONG_TTL, PausePoint, REPLY_TIMEOUT, TestTable, read, redis_command, redis_server, spawn_read, write,
};

/// The second delete removes a stale value, but a reader slower than the delay stores one after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delayed_second_delete_misses_a_slower_reader() {
    let url = format!("{}?prefix=twice:", redis_server().await.url());
    let aside = CacheAside::new(&CacheStore::open(&url, REPLY_TIMEOUT).await.expect("a store"), LONG_TTL);
    let twice: Arc<dyn Strategy> = Arc::new(DelayedDoubleDelete { cache: aside, delay: Duration::from_secs(20) });
    let db = TestTable::new().await;
    let gate = db.pause_next_at(PausePoint::Loaded);
    let slow = spawn_read(&twice, &db);
    gate.wait_reached().await;
    write(&twice, &db, "v2").await;
    read(&twice, &db).await;
    assert_eq!(redis_command(&["EXISTS", "twice:t{k}"]).await, Reply::Integer(1), "the second delete is still to come");
    // The delayed second delete removes the value that was just read.
    eventually(TEST_TIMEOUT, || async {
        match redis_command(&["EXISTS", "twice:t{k}"]).await {
            Reply::Integer(0) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    gate.open();
    slow.await.expect("a reader");
    assert_eq!(read(&twice, &db).await, "v1", "the control: the store came after the second delete");
}
