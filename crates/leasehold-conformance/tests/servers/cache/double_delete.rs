//! Delayed double delete, as time passes by itself.

use std::sync::Arc;
use std::time::Duration;

use leasehold::cache::Store;
use leasehold::cache::strategy::{Aside, DelayedDoubleDelete, Strategy};
use leasehold_conformance::world::SOON;
use leasehold_testbed::eventually;
use leasehold_testbed::redis::Reply;

use crate::cache::site::{ANSWER, Db, LONG, Point, by_hand, read, redis_server, spawn_read, write};

/// Delayed double delete mends itself when the delay is over; but one that is slower than the delay comes after that, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_delete_only_comes_later() {
    let url = format!("{}?prefix=twice:", redis_server().await.url());
    let aside = Aside::new(&Store::open(&url, ANSWER).await.expect("a store"), LONG);
    let twice: Arc<dyn Strategy> = Arc::new(DelayedDoubleDelete { aside, delay: Duration::from_secs(20) });
    let db = Db::new().await;
    let gate = db.hold(Point::Loaded);
    let slow = spawn_read(&twice, &db);
    gate.reached().await;
    write(&twice, &db, "v2").await;
    read(&twice, &db).await;
    assert_eq!(by_hand(&["EXISTS", "twice:t{k}"]).await, Reply::Integer(1), "the second delete is still to come");
    // What was read just now is deleted once more.
    eventually(SOON, || async {
        match by_hand(&["EXISTS", "twice:t{k}"]).await {
            Reply::Integer(0) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    gate.open();
    slow.await.expect("a reader");
    assert_eq!(read(&twice, &db).await, "v1", "the control: too late for the second delete");
}
