//! Connections that are killed, cut, frozen, or swallow answers.

use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::eventually;

use crate::sql_faults::fixture::{
    BOTH, DatabaseKind, Fixture, LASTING, SHORT, ShiftedClock, acquire, is_lock_free, lock_stubbornly, until_queued,
};

/// Killed connections cost a holder nothing: the lease is in the table, and the next statement goes over a new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_outlives_its_connections() {
    for kind in BOTH {
        let site = Fixture::new(kind).await;
        let ahead = ShiftedClock::new();
        let (one, two) = (ahead.open_locks(&site.url(), LASTING).await, site.open_locks(LASTING).await);
        let guard = acquire(&one, "a").await;
        for _ in 0..3 {
            site.kill_connections().await;
            assert!(!is_lock_free(&two, "a").await, "{kind:?}");
            assert!(guard.is_held(), "{kind:?}");
        }
        // Renewed after that.
        ahead.renew_now(&[&guard], LASTING).await;
        site.kill_connections().await;
        let token = guard.token();
        let _ = guard.release().await.expect("a release over a new connection");
        assert!(acquire(&two, "a").await.token() > token, "{kind:?}");
    }
}

/// A waiter whose connections are killed keeps its place, and hears when its turn comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_keeps_its_position_when_its_connections_are_killed() {
    for kind in BOTH {
        let site = Fixture::new(kind).await;
        let (one, two, three) =
            (site.open_locks(LASTING).await, site.open_locks(LASTING).await, site.open_locks(LASTING).await);
        let guard = acquire(&one, "a").await;
        let second = tokio::spawn(async move { acquire(&two, "a").await });
        until_queued(&one, "a", 1).await;
        let third = tokio::spawn(async move { acquire(&three, "a").await });
        until_queued(&one, "a", 2).await;
        site.kill_connections().await;
        let _ = guard.release().await.expect("a release");
        let second = second.await.expect("no panic");
        assert!(!third.is_finished(), "{kind:?}: in order");
        site.kill_connections().await;
        let token = second.token();
        let _ = second.release().await.expect("a release");
        assert!(third.await.expect("no panic").token() > token);
    }
}

/// The answer to a take, or to a release, is lost after the server did it: one grant, one release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_an_acquire_or_release_has_one_effect() {
    for kind in BOTH {
        let site = Fixture::new(kind).await;
        let (one, proxy) = site.open_through_proxy(LASTING).await;
        let two = site.open_locks(LASTING).await;
        drop(acquire(&one, "warm").await);
        for round in 0..10 {
            proxy.cut_after_request();
            let guard = acquire(&one, "a").await;
            let view = two.inspect("a").await.expect("a look");
            assert_eq!((view.holders.len(), view.waiters.len()), (1, 0), "{kind:?}, round {round}");
            assert_eq!(view.holders[0].token, Some(guard.token()), "{kind:?}");
            proxy.cut_after_request();
            let _ = guard.release().await.expect("a release");
            assert!(is_lock_free(&two, "a").await, "{kind:?}, round {round}");
        }
    }
}

/// A frozen line: the holder lets go before anybody else gets in, and gets nothing back when it thaws.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_on_a_frozen_connection_expires_first() {
    for kind in BOTH {
        let site = Fixture::new(kind).await;
        let (one, proxy) = site.open_through_proxy(SHORT).await;
        let two = site.open_locks(LASTING).await;
        let guard = lock_stubbornly(&one, "a").await;
        proxy.freeze(true);
        let next = acquire(&two, "a").await;
        assert!(!guard.is_held(), "{kind:?}: it must have known before another was let in");
        assert!(next.token() > guard.token());
        proxy.freeze(false);
        assert!(next.is_held(), "{kind:?}");
    }
}

/// A client that is killed while it waits leaves a place that lapses, and does not hold up those behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_waiter_is_skipped() {
    for kind in BOTH {
        let site = Fixture::new(kind).await;
        let one = site.open_locks(LASTING).await;
        let (gone, proxy) = site.open_through_proxy(SHORT).await;
        let two = site.open_locks(LASTING).await;
        let guard = acquire(&one, "a").await;
        // On a busy machine the database may not answer for a whole TTL: then it asks again.
        let lost = tokio::spawn(async move { while gone.mutex("a").lock().await.is_err() {} });
        until_queued(&one, "a", 1).await;
        let waiting = tokio::spawn(async move { acquire(&two, "a").await });
        until_queued(&one, "a", 2).await;
        proxy.freeze(true);
        // Its place lapses.
        until_queued(&one, "a", 1).await;
        let _ = guard.release().await.expect("a release");
        let next = waiting.await.expect("no panic");
        assert!(next.is_held(), "{kind:?}");
        lost.abort();
    }
}

/// The connection that holds a client's bells is killed while nothing else happens: they are hung again, and whoever waits need not look all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wakeup_locks_are_acquired_again_after_a_killed_connection() {
    let site = Fixture::new(DatabaseKind::MariaDb).await;
    let (one, two) = (site.open_locks(LASTING).await, site.open_locks(LASTING).await);
    let guard = acquire(&one, "a").await;
    let waiting = tokio::spawn(async move { acquire(&two, "a").await });
    until_queued(&one, "a", 1).await;
    let claim = one.inspect("a").await.expect("a look").holders[0].claim;
    let bell = format!("leasehold:{:032x}", claim.bits());
    let keeper = until_wakeup_lock_held(&site, &bell, 0).await;
    assert!(site.database.kill_connection(keeper).await);
    until_wakeup_lock_held(&site, &bell, keeper).await;
    let _ = guard.release().await.expect("a release");
    assert!(waiting.await.expect("no panic").is_held());
}

/// Waits until a connection other than this one holds a bell, and somebody waits for it: which connection.
async fn until_wakeup_lock_held(site: &Fixture, bell: &str, not: u64) -> u64 {
    eventually(TEST_TIMEOUT, || async {
        let holder = site.query_as_admin(&format!("SELECT IS_USED_LOCK('{bell}')")).await[0][0].clone();
        let holder: u64 = holder.and_then(|id| id.parse().ok()).ok_or("nobody holds it")?;
        let all = site.connections().await;
        let waits = |query: &String| query.contains("GET_LOCK");
        let waits = all.iter().any(|one| one.id != holder && one.query.as_ref().is_some_and(waits));
        if holder != not && waits { Ok(holder) } else { Err("nobody waits for it") }
    })
    .await
}
