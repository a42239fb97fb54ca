//! Connections that are killed, cut, frozen, or swallow answers.

use leasehold_conformance::world::SOON;
use leasehold_testbed::eventually;

use crate::sql_faults::site::{Ahead, BOTH, Kind, LASTING, SHORT, Site, is_free, lock, lock_stubbornly, queued};

/// Killed connections cost a holder nothing: the lease is in the table, and the next statement goes over a new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_outlives_its_connections() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let ahead = Ahead::new();
        let (one, two) = (ahead.locks(&site.url(), LASTING).await, site.locks(LASTING).await);
        let guard = lock(&one, "a").await;
        for _ in 0..3 {
            site.kill_connections().await;
            assert!(!is_free(&two, "a").await, "{kind:?}");
            assert!(guard.is_held(), "{kind:?}");
        }
        // Renewed after that.
        ahead.renewed(&[&guard], LASTING).await;
        site.kill_connections().await;
        let token = guard.token();
        let _ = guard.release().await.expect("a release over a new connection");
        assert!(lock(&two, "a").await.token() > token, "{kind:?}");
    }
}

/// A waiter whose connections are killed keeps its place, and hears when its turn comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_outlives_its_connections() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let (one, two, three) = (site.locks(LASTING).await, site.locks(LASTING).await, site.locks(LASTING).await);
        let guard = lock(&one, "a").await;
        let second = tokio::spawn(async move { lock(&two, "a").await });
        queued(&one, "a", 1).await;
        let third = tokio::spawn(async move { lock(&three, "a").await });
        queued(&one, "a", 2).await;
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
async fn a_line_that_breaks_after_the_request_loses_nothing() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let (one, proxy) = site.proxied(LASTING).await;
        let two = site.locks(LASTING).await;
        drop(lock(&one, "warm").await);
        for round in 0..10 {
            proxy.cut_after_request();
            let guard = lock(&one, "a").await;
            let view = two.inspect("a").await.expect("a look");
            assert_eq!((view.holders.len(), view.waiters.len()), (1, 0), "{kind:?}, round {round}");
            assert_eq!(view.holders[0].token, Some(guard.token()), "{kind:?}");
            proxy.cut_after_request();
            let _ = guard.release().await.expect("a release");
            assert!(is_free(&two, "a").await, "{kind:?}, round {round}");
        }
    }
}

/// A frozen line: the holder lets go before anybody else gets in, and gets nothing back when it thaws.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_behind_a_frozen_line_knows_in_time() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let (one, proxy) = site.proxied(SHORT).await;
        let two = site.locks(LASTING).await;
        let guard = lock_stubbornly(&one, "a").await;
        proxy.freeze(true);
        let next = lock(&two, "a").await;
        assert!(!guard.is_held(), "{kind:?}: it must have known before another was let in");
        assert!(next.token() > guard.token());
        proxy.freeze(false);
        assert!(next.is_held(), "{kind:?}");
    }
}

/// A client that is killed while it waits leaves a place that lapses, and does not hold up those behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_waiter_is_passed_over() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let one = site.locks(LASTING).await;
        let (gone, proxy) = site.proxied(SHORT).await;
        let two = site.locks(LASTING).await;
        let guard = lock(&one, "a").await;
        // On a busy machine the database may not answer for a whole TTL: then it asks again.
        let lost = tokio::spawn(async move { while gone.mutex("a").lock().await.is_err() {} });
        queued(&one, "a", 1).await;
        let waiting = tokio::spawn(async move { lock(&two, "a").await });
        queued(&one, "a", 2).await;
        proxy.freeze(true);
        // Its place lapses.
        queued(&one, "a", 1).await;
        let _ = guard.release().await.expect("a release");
        let next = waiting.await.expect("no panic");
        assert!(next.is_held(), "{kind:?}");
        lost.abort();
    }
}

/// The connection that holds a client's bells is killed while nothing else happens: they are hung again, and whoever waits need not look all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bells_are_hung_again_by_themselves() {
    let site = Site::new(Kind::MariaDb).await;
    let (one, two) = (site.locks(LASTING).await, site.locks(LASTING).await);
    let guard = lock(&one, "a").await;
    let waiting = tokio::spawn(async move { lock(&two, "a").await });
    queued(&one, "a", 1).await;
    let claim = one.inspect("a").await.expect("a look").holders[0].claim;
    let bell = format!("leasehold:{:032x}", claim.bits());
    let keeper = heard(&site, &bell, 0).await;
    assert!(site.home.kill(keeper).await);
    heard(&site, &bell, keeper).await;
    let _ = guard.release().await.expect("a release");
    assert!(waiting.await.expect("no panic").is_held());
}

/// Waits until a connection other than this one holds a bell, and somebody waits for it: which connection.
async fn heard(site: &Site, bell: &str, not: u64) -> u64 {
    eventually(SOON, || async {
        let holder = site.ask(&format!("SELECT IS_USED_LOCK('{bell}')")).await[0][0].clone();
        let holder: u64 = holder.and_then(|id| id.parse().ok()).ok_or("nobody holds it")?;
        let all = site.connections().await;
        let waits = |query: &String| query.contains("GET_LOCK");
        let waits = all.iter().any(|one| one.id != holder && one.query.as_ref().is_some_and(waits));
        if holder != not && waits { Ok(holder) } else { Err("nobody waits for it") }
    })
    .await
}
