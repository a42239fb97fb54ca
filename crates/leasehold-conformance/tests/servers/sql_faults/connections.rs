//! Connections that are killed, cut or frozen, or that lose replies.

use std::time::Duration;

use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::eventually;

use crate::sql_faults::fixture::{
    BOTH, DatabaseKind, Fixture, LASTING, SHORT, ShiftedClock, acquire, is_lock_free, lock_with_retries, until_queued,
};

/// A holder survives killed connections: the lease is in the table, and the next statement uses a
/// new connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_outlives_its_connections() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let ahead = ShiftedClock::new();
        let (one, two) = (ahead.open_locks(&fixture.url(), LASTING).await, fixture.open_locks(LASTING).await);
        let guard = acquire(&one, "a").await;
        for _ in 0..3 {
            fixture.kill_connections().await;
            assert!(!is_lock_free(&two, "a").await, "{kind:?}");
            assert!(guard.is_held(), "{kind:?}");
        }
        // Renewed after the last kill.
        ahead.renew_now(&[&guard], LASTING).await;
        fixture.kill_connections().await;
        let token = guard.token();
        let _ = guard.release().await.expect("a release over a new connection");
        assert!(acquire(&two, "a").await.token() > token, "{kind:?}");
    }
}

/// A waiter whose connections are killed keeps its position and is notified of its grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_keeps_its_position_when_its_connections_are_killed() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let (one, two, three) =
            (fixture.open_locks(LASTING).await, fixture.open_locks(LASTING).await, fixture.open_locks(LASTING).await);
        let guard = acquire(&one, "a").await;
        let second = tokio::spawn(async move { acquire(&two, "a").await });
        until_queued(&one, "a", 1).await;
        let third = tokio::spawn(async move { acquire(&three, "a").await });
        until_queued(&one, "a", 2).await;
        fixture.kill_connections().await;
        let _ = guard.release().await.expect("a release");
        let second = second.await.expect("no panic");
        assert!(!third.is_finished(), "{kind:?}: out of order");
        fixture.kill_connections().await;
        let token = second.token();
        let _ = second.release().await.expect("a release");
        assert!(third.await.expect("no panic").token() > token);
    }
}

/// The reply to an acquire or release is lost after the server handled it: one grant, one release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_an_acquire_or_release_has_one_effect() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let (one, proxy) = fixture.open_through_proxy(LASTING).await;
        let two = fixture.open_locks(LASTING).await;
        drop(acquire(&one, "warm").await);
        for round in 0..10 {
            proxy.cut_after_request();
            let guard = acquire(&one, "a").await;
            let view = two.inspect("a").await.expect("a view");
            assert_eq!((view.holders.len(), view.waiters.len()), (1, 0), "{kind:?}, round {round}");
            assert_eq!(view.holders[0].token, Some(guard.token()), "{kind:?}");
            proxy.cut_after_request();
            let _ = guard.release().await.expect("a release");
            assert!(is_lock_free(&two, "a").await, "{kind:?}, round {round}");
        }
    }
}

/// A frozen connection: the holder's lease expires before another client acquires the lock, and it
/// stays lost after the thaw.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_on_a_frozen_connection_expires_first() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let (one, proxy) = fixture.open_through_proxy(SHORT).await;
        let two = fixture.open_locks(LASTING).await;
        let guard = lock_with_retries(&one, "a").await;
        proxy.freeze(true);
        let next = acquire(&two, "a").await;
        assert!(!guard.is_held(), "{kind:?}: two holders");
        assert!(next.token() > guard.token());
        proxy.freeze(false);
        assert!(next.is_held(), "{kind:?}");
    }
}

/// A killed waiter's queue entry expires and does not block the waiters behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_waiter_is_skipped() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let one = fixture.open_locks(LASTING).await;
        let (dead, proxy) = fixture.open_through_proxy(SHORT).await;
        let two = fixture.open_locks(LASTING).await;
        let guard = acquire(&one, "a").await;
        // On a busy machine the database may not answer for a whole TTL; the client then retries.
        let lost = tokio::spawn(async move { while dead.mutex("a").lock().await.is_err() {} });
        until_queued(&one, "a", 1).await;
        let waiting = tokio::spawn(async move { acquire(&two, "a").await });
        until_queued(&one, "a", 2).await;
        proxy.freeze(true);
        // The killed waiter's queue entry expires.
        until_queued(&one, "a", 1).await;
        let _ = guard.release().await.expect("a release");
        let next = waiting.await.expect("no panic");
        assert!(next.is_held(), "{kind:?}");
        lost.abort();
    }
}

/// The connection that holds a client's wakeup locks is killed while nothing else happens: the
/// client acquires them again, so waiters need not poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wakeup_locks_are_acquired_again_after_a_killed_connection() {
    let fixture = Fixture::new(DatabaseKind::MariaDb).await;
    let (one, two) = (fixture.open_locks(LASTING).await, fixture.open_locks(LASTING).await);
    let guard = acquire(&one, "a").await;
    let waiting = tokio::spawn(async move { acquire(&two, "a").await });
    until_queued(&one, "a", 1).await;
    let claim = one.inspect("a").await.expect("a view").holders[0].claim;
    let wakeup_lock = format!("leasehold:{:032x}", claim.bits());
    let keeper = until_wakeup_lock_held(&fixture, &wakeup_lock, 0).await;
    assert!(fixture.database.kill_connection(keeper).await);
    until_wakeup_lock_held(&fixture, &wakeup_lock, keeper).await;
    let _ = guard.release().await.expect("a release");
    assert!(waiting.await.expect("no panic").is_held());
}

/// Waits until a connection other than `not` holds a wakeup lock that another waits for. Returns
/// that connection.
async fn until_wakeup_lock_held(fixture: &Fixture, wakeup_lock: &str, not: u64) -> u64 {
    eventually(TEST_TIMEOUT, || async {
        let holder = fixture.query_as_admin(&format!("SELECT IS_USED_LOCK('{wakeup_lock}')")).await[0][0].clone();
        let holder: u64 = holder.and_then(|id| id.parse().ok()).ok_or("no connection holds it")?;
        let all = fixture.connections().await;
        let waits = |query: &String| query.contains("GET_LOCK");
        let waits = all.iter().any(|one| one.id != holder && one.query.as_ref().is_some_and(waits));
        if holder != not && waits { Ok(holder) } else { Err("no connection waits for it") }
    })
    .await
}

/// A firewall drops the connections of a waiter without closing them: the connection that listens, or
/// that waits for a wake-up lock, is replaced when a reply is overdue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_of_a_waiter_are_replaced() {
    // A heartbeat and the end of the lease would find the grant as well, but are due later than
    // anything here.
    const HEARTBEAT_IS_FAR: Duration = Duration::from_secs(7200);
    for kind in BOTH {
        let (fixture, ahead) = (Fixture::new(kind).await, ShiftedClock::new());
        let (near, proxy) = (fixture.open_locks(HEARTBEAT_IS_FAR).await, fixture.proxy().await);
        let url = format!("{}?connect-timeout=20s", fixture.url_at(proxy.addr()));
        let far = ahead.open_locks(&url, HEARTBEAT_IS_FAR).await;
        let guard = acquire(&near, "a").await;
        let waiter = tokio::spawn(async move { far.mutex("a").timeout(HEARTBEAT_IS_FAR).lock().await });
        until_queued(&near, "a", 1).await;
        for number in 1..=proxy.counts().accepted {
            proxy.silence(number);
        }
        let _ = guard.release().await.expect("a release");
        let mut passed = Duration::ZERO;
        eventually(TEST_TIMEOUT, || {
            if !waiter.is_finished() && passed < Duration::from_secs(600) {
                ahead.advance(Duration::from_secs(1));
                passed += Duration::from_secs(1);
            }
            std::future::ready(if waiter.is_finished() { Ok(()) } else { Err("the waiter was not granted the lock") })
        })
        .await;
        assert!(waiter.await.expect("no panic").expect("a lock").is_held());
    }
}

/// After a burst of statements, the connections that it needed are closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_a_burst_are_closed() {
    for kind in BOTH {
        let (fixture, ahead) = (Fixture::new(kind).await, ShiftedClock::new());
        let locks = ahead.open_locks(&fixture.url(), LASTING).await;
        let names: Vec<String> = (0..32).map(|number| format!("burst-{number}")).collect();
        let acquired = futures_util::future::join_all(names.iter().map(|name| acquire(&locks, name))).await;
        let peak = fixture.connections().await.len();
        assert!(peak > 3, "{kind:?}: the burst took {peak} connections");
        for guard in acquired {
            let _ = guard.release().await.expect("a release");
        }
        // One in the pool, and on PostgreSQL one that listens; MariaDB has one for wake-up locks.
        ahead.advance(Duration::from_secs(30));
        eventually(TEST_TIMEOUT, || async {
            let open = fixture.connections().await.len();
            if open <= 3 { Ok(()) } else { Err(format!("{kind:?}: {open} of {peak} connections")) }
        })
        .await;
    }
}
