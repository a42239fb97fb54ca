//! Many waiters, few connections; and what wakes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold_conformance::test_context::TEST_TIMEOUT;
use tokio::task::JoinSet;

use crate::sql_faults::fixture::{BOTH, DatabaseKind, Fixture, LASTING, acquire, open_locks, until_queued};

/// 500 waiters on ten connections all get their turn, and there are never more than ten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_waiters_on_ten_connections() {
    for kind in BOTH {
        let site = Fixture::new(kind).await;
        let crowd = site.open_locks(LASTING).await;
        let other = open_locks(&format!("{}?connections=2&wake=poll", site.url()), LASTING).await;
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
        // Ten of the crowd's, two of the one who looks.
        site.assert_at_most(12, 12).await;
        let _ = guard.release().await.expect("a release");
        while served.load(Ordering::SeqCst) < 500 {
            site.assert_at_most(12, 12).await;
            tokio::task::yield_now().await;
        }
        waiters.join_all().await;
    }
}

/// A waiter in another client is woken by the release, not by its own look: it would look only after an hour, and show that it is alive after a third of its TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_wakes_the_next_waiter_of_another_client() {
    for kind in BOTH {
        let site = Fixture::new(kind).await;
        let url = format!("{}?poll=1h", site.url());
        let (one, two) = (open_locks(&url, LASTING).await, open_locks(&url, LASTING).await);
        let looker = open_locks(&format!("{}?wake=poll", site.url()), LASTING).await;
        for round in 0..5 {
            let guard = acquire(&one, "a").await;
            let two = two.clone();
            let waiting = tokio::spawn(async move { acquire(&two, "a").await });
            until_queued(&looker, "a", 1).await;
            if kind == DatabaseKind::MariaDb {
                until_wakeup_lock_awaited(&site).await;
            }
            let _ = guard.release().await.expect("a release");
            let next = tokio::time::timeout(TEST_TIMEOUT, waiting).await;
            let next = next.unwrap_or_else(|_| panic!("{kind:?}, round {round}: nobody woke it")).expect("no panic");
            let _ = next.release().await.expect("a release");
        }
    }
}

/// Waits until somebody listens for a bell.
async fn until_wakeup_lock_awaited(site: &Fixture) {
    leasehold_testbed::eventually(TEST_TIMEOUT, || async {
        let all = site.connections().await;
        let listens = all.iter().any(|one| one.query.as_ref().is_some_and(|query| query.contains("GET_LOCK")));
        if listens { Ok(()) } else { Err(format!("{all:?}")) }
    })
    .await;
}

/// A waiter that sleeps asks next to nothing: it is woken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sleeping_waiters_send_no_statements() {
    for kind in BOTH {
        let site = Fixture::new(kind).await;
        let (one, two) = (site.open_locks(LASTING).await, site.open_locks(LASTING).await);
        let guard = acquire(&one, "a").await;
        let mut waiters = JoinSet::new();
        for _ in 0..50 {
            let two = two.clone();
            waiters.spawn(async move { drop(acquire(&two, "a").await) });
        }
        until_queued(&one, "a", 50).await;
        if kind == DatabaseKind::MariaDb {
            until_wakeup_lock_awaited(&site).await;
        }
        let before = row_version(&site).await;
        // They have the time for it: another lock is taken and given back over and over.
        for _ in 0..100 {
            let _ = acquire(&one, "b").await.release().await.expect("a release");
        }
        let after = row_version(&site).await;
        assert!(after - before <= 2, "{kind:?}: {} writes while nothing happened", after - before);
        let _ = guard.release().await.expect("a release");
        waiters.join_all().await;
    }
}

/// How often the row was written: its version rises by one each time.
async fn row_version(site: &Fixture) -> u64 {
    site.number(&format!("SELECT version FROM {} WHERE name = 'a'", site.table())).await
}
