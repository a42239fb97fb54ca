//! Many waiters on few connections, and how they are woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold_conformance::test_context::TEST_TIMEOUT;
use tokio::task::JoinSet;

use crate::sql_faults::fixture::{BOTH, DatabaseKind, Fixture, LASTING, acquire, open_locks, until_queued};

/// 500 waiters on ten connections are all served, with never more than ten connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_waiters_on_ten_connections() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let crowd = fixture.open_locks(LASTING).await;
        let other = open_locks(&format!("{}?connections=2&wake=poll", fixture.url()), LASTING).await;
        let guard = acquire(&crowd, "a").await;
        let served = Arc::new(AtomicUsize::new(0));
        let mut waiters = JoinSet::new();
        for _ in 0..500 {
            let (crowd, served) = (crowd.clone(), Arc::clone(&served));
            waiters.spawn(async move {
                let guard = acquire(&crowd, "a").await;
                served.fetch_add(1, Ordering::SeqCst);
                let _ = guard.release().await.expect("a release");
            });
        }
        until_queued(&other, "a", 500).await;
        // Ten connections of the waiting client, and two of the observing one.
        fixture.assert_at_most(12, 12).await;
        let _ = guard.release().await.expect("a release");
        while served.load(Ordering::SeqCst) < 500 {
            fixture.assert_at_most(12, 12).await;
            tokio::task::yield_now().await;
        }
        waiters.join_all().await;
    }
}

/// A release wakes a waiter in another client: its poll is due only after an hour, and its
/// heartbeat after a third of its TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_wakes_the_next_waiter_of_another_client() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let url = format!("{}?poll=1h", fixture.url());
        let (one, two) = (open_locks(&url, LASTING).await, open_locks(&url, LASTING).await);
        let observer = open_locks(&format!("{}?wake=poll", fixture.url()), LASTING).await;
        for round in 0..5 {
            let guard = acquire(&one, "a").await;
            let two = two.clone();
            let waiting = tokio::spawn(async move { acquire(&two, "a").await });
            until_queued(&observer, "a", 1).await;
            if kind == DatabaseKind::MariaDb {
                until_wakeup_lock_awaited(&fixture).await;
            }
            let _ = guard.release().await.expect("a release");
            let next = tokio::time::timeout(TEST_TIMEOUT, waiting).await;
            let next =
                next.unwrap_or_else(|_| panic!("{kind:?}, round {round}: the waiter was not woken")).expect("no panic");
            let _ = next.release().await.expect("a release");
        }
    }
}

/// Waits until a connection waits for a wakeup lock.
async fn until_wakeup_lock_awaited(fixture: &Fixture) {
    leasehold_testbed::eventually(TEST_TIMEOUT, || async {
        let all = fixture.connections().await;
        let listens = all.iter().any(|one| one.query.as_ref().is_some_and(|query| query.contains("GET_LOCK")));
        if listens { Ok(()) } else { Err(format!("{all:?}")) }
    })
    .await;
}

/// A sleeping waiter sends next to nothing until it is woken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sleeping_waiters_send_no_statements() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let (one, two) = (fixture.open_locks(LASTING).await, fixture.open_locks(LASTING).await);
        let guard = acquire(&one, "a").await;
        let mut waiters = JoinSet::new();
        for _ in 0..50 {
            let two = two.clone();
            waiters.spawn(async move { drop(acquire(&two, "a").await) });
        }
        until_queued(&one, "a", 50).await;
        if kind == DatabaseKind::MariaDb {
            until_wakeup_lock_awaited(&fixture).await;
        }
        let before = row_version(&fixture).await;
        // Gives them time: another lock is acquired and released repeatedly.
        for _ in 0..100 {
            let _ = acquire(&one, "b").await.release().await.expect("a release");
        }
        let after = row_version(&fixture).await;
        assert!(after - before <= 2, "{kind:?}: {} writes while all waiters slept", after - before);
        let _ = guard.release().await.expect("a release");
        waiters.join_all().await;
    }
}

/// The row's version, which rises by one with each write.
async fn row_version(fixture: &Fixture) -> u64 {
    fixture.number(&format!("SELECT version FROM {} WHERE name = 'a'", fixture.table())).await
}
