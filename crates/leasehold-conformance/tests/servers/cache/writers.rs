//! Concurrent writers, and writers concurrent with invalidations.

use std::io::Error as Io;

use leasehold::Token;
use leasehold_cache::strategy::{Database, Strategy, WriteThrough};
use leasehold_cache::{CacheError, Row};

use crate::cache::fixture::{PausePoint, TestTable, expect_text, open_cache, open_locks, redis_command};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newer_of_two_writers_that_end_out_of_order_is_cached() {
    let (db, cache) = (TestTable::new().await, open_cache(|builder| builder).await);
    let write = |token: u64, value: &'static str| {
        let (db, cache) = (db.clone(), cache.clone());
        tokio::spawn(async move {
            let commit = |token| async move { db.store("k", value.as_bytes().to_vec(), Some(token)).await };
            cache.write_with("k", Token(token), commit).await
        })
    };
    // The first writer commits and pauses before it updates the cache. Its lock is lost, and the
    // second writer runs to completion.
    let gate = db.pause_next_at(PausePoint::Committed);
    let first = write(1, "first");
    gate.wait_reached().await;
    write(2, "second").await.expect("a writer").expect("written");
    gate.open();
    first.await.expect("a writer").expect("the write was committed, then overwritten");
    assert_eq!(expect_text(cache.get_or_load("k", || db.load("k")).await), "second");
    assert_eq!(db.stored_value().await, "second");
    // A writer with an older token that has not begun is rejected before its commit.
    let late = cache.write_with("k", Token(1), |_| async { panic!("the commit must not run") as Result<(), Io> }).await;
    assert!(matches!(late, Err(CacheError::Superseded { newest: Token(2), .. })), "{late:?}");
    // The database rejects, by token, a writer that has already begun.
    let gate = db.pause_next_at(PausePoint::Committing);
    let slow = write(3, "third");
    gate.wait_reached().await;
    write(4, "fourth").await.expect("a writer").expect("written");
    gate.open();
    let refused = slow.await.expect("a writer");
    assert!(matches!(refused, Err(CacheError::Commit(_))), "{refused:?}");
    assert_eq!(expect_text(cache.get_or_load("k", || db.load("k")).await), "fourth");
}

/// The control: each writer commits, then stores its value in the cache.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_writers_that_store_what_they_wrote_leave_the_older_value() {
    let db = TestTable::new().await;
    let write = |value: &'static str| {
        let db = db.clone();
        tokio::spawn(async move {
            db.store("k", value.as_bytes().to_vec(), None).await.expect("written");
            redis_command(&["SET", "control:writers", value]).await;
        })
    };
    let gate = db.pause_next_at(PausePoint::Committed);
    let first = write("first");
    gate.wait_reached().await;
    write("second").await.expect("a writer");
    gate.open();
    first.await.expect("a writer");
    let cached = redis_command(&["GET", "control:writers"]).await;
    assert_eq!(
        (db.stored_value().await.as_str(), cached),
        ("second", leasehold_testbed::redis::Reply::Bulk("first".into()))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalidation_during_a_write_leaves_neither_value_in_the_cache() {
    let (db, cache) = (TestTable::new().await, open_cache(|builder| builder).await);
    let gate = db.pause_next_at(PausePoint::Committed);
    let writer = tokio::spawn({
        let (db, cache) = (db.clone(), cache.clone());
        async move {
            cache
                .write_with("k", Token(1), |token| async move { db.store("k", b"mine".to_vec(), Some(token)).await })
                .await
        }
    });
    gate.wait_reached().await;
    // A writer without a lock commits later and invalidates first.
    db.write_directly("theirs").await;
    cache.invalidate("k").await.expect("invalidated");
    gate.open();
    writer.await.expect("a writer").expect("written");
    assert_eq!(expect_text(cache.get_or_load("k", || db.load("k")).await), "theirs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_written_through_needs_no_load() {
    let (db, cache, locks) = (TestTable::new().await, open_cache(|builder| builder).await, open_locks().await);
    let through = WriteThrough { cache: cache.clone(), locks: locks.clone() };
    through.write(&db, "k", b"v2".to_vec()).await.expect("written");
    assert_eq!(expect_text(through.read(&db, "k").await), "v2");
    assert_eq!(cache.stats().loads, 0);
    // A holder that lost its guard does not write.
    let guard = locks.mutex("k").lock().await.expect("a guard");
    let view = locks.inspect("k").await.expect("a view");
    locks.force_release("k", view.holders[0].claim).await.expect("a force release");
    guard.lost().await;
    let lost =
        cache.write_through("k", &guard, |_| async { panic!("the commit must not run") as Result<Row, Io> }).await;
    assert!(matches!(lost, Err(CacheError::Lost(_))), "{lost:?}");
}
