//! Connections that are killed, cut, frozen, or swallow answers.

use std::time::Duration;

use leasehold_conformance::world::SOON;
use leasehold_testbed::{eventually, mariadb};

use crate::sql_faults::site::{BOTH, Kind, LONG, MIDDLE, SHORT, Site, is_free, lock, queued, stay_held};

/// Killed connections cost a holder nothing: the lease is in the table, and the next statement goes over a new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_outlives_its_connections() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let (one, two) = (site.locks(MIDDLE).await, site.locks(MIDDLE).await);
        let guard = lock(&one, "a").await;
        let first = guard.deadline();
        for _ in 0..3 {
            site.kill_connections().await;
            assert!(!is_free(&two, "a").await, "{kind:?}");
            assert!(guard.is_held(), "{kind:?}");
        }
        // Renewed after that.
        eventually(SOON, || async {
            if guard.deadline() > first && guard.is_held() { Ok(()) } else { Err("not renewed") }
        })
        .await;
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
        let (one, two, three) = (site.locks(LONG).await, site.locks(LONG).await, site.locks(LONG).await);
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
        let (one, proxy) = site.proxied(LONG).await;
        let two = site.locks(LONG).await;
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
        let two = site.locks(LONG).await;
        let guard = lock(&one, "a").await;
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
        let one = site.locks(LONG).await;
        let (gone, proxy) = site.proxied(SHORT).await;
        let two = site.locks(LONG).await;
        let guard = lock(&one, "a").await;
        let lost = tokio::spawn(async move { gone.mutex("a").lock().await.map(|guard| guard.token()) });
        queued(&one, "a", 1).await;
        let waiting = tokio::spawn(async move { lock(&two, "a").await });
        queued(&one, "a", 2).await;
        proxy.freeze(true);
        // Its place lapses.
        queued(&one, "a", 1).await;
        let _ = guard.release().await.expect("a release");
        let next = tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("in time").expect("no panic");
        assert!(next.is_held(), "{kind:?}");
        lost.abort();
    }
}

/// All idle connections go silent at once: a holder's renewals do not try them one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_outlives_connections_that_went_silent() {
    let ttl = Duration::from_secs(6);
    for kind in BOTH {
        let site = Site::new(kind).await;
        let (locks, proxy) = site.proxied(ttl).await;
        let mut others = tokio::task::JoinSet::new();
        for name in 0..8 {
            let locks = locks.clone();
            others.spawn(async move { lock(&locks, &format!("other-{name}")).await });
        }
        let others = others.join_all().await;
        let guard = lock(&locks, "a").await;
        futures_util::future::join_all(others.into_iter().map(leasehold::Guard::release)).await;
        let before = proxy.counts().open;
        assert!(before > 4, "{kind:?}: {before} connections");
        proxy.silence_half(true);
        proxy.silence_half(false);
        stay_held(&[guard], ttl * 2).await;
    }
}

/// The connection that holds a client's bells is killed while nothing else happens: they are hung again, and whoever waits need not look all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bells_are_hung_again_by_themselves() {
    let site = Site::new(Kind::MariaDb).await;
    let (one, two) = (site.locks(LONG).await, site.locks(LONG).await);
    let guard = lock(&one, "a").await;
    let waiting = tokio::spawn(async move { two.mutex("a").wait(LONG).lock().await });
    queued(&one, "a", 1).await;
    let claim = one.inspect("a").await.expect("a look").holders[0].claim;
    let bell = format!("leasehold:{:032x}", claim.bits());
    let keeper = heard(&site, &bell, 0).await;
    mariadb::kill_connection(&site.server, keeper).await.expect("a kill");
    heard(&site, &bell, keeper).await;
    let _ = guard.release().await.expect("a release");
    assert!(waiting.await.expect("no panic").expect("a lock").is_held());
}

/// A server that ends statements after a while does not end a wait for a bell.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_for_a_bell_outlives_the_time_of_statements() {
    let server = mariadb::MariaDb::new().setting("max_statement_time", "1").start().await.expect("a server");
    let site = Site { kind: Kind::MariaDb, server };
    let (one, two) = (site.locks(LONG).await, site.locks(LONG).await);
    let guard = lock(&one, "a").await;
    let waiting = tokio::spawn(async move { two.mutex("a").wait(LONG).lock().await });
    eventually(SOON, || async {
        let sql = "SELECT MAX(time_ms) FROM information_schema.processlist \
             WHERE info LIKE '%GET_LOCK%' AND command <> 'Sleep' AND id <> CONNECTION_ID()";
        let longest = site.ask(sql).await[0][0].as_ref().and_then(|time| time.parse::<f64>().ok());
        if longest.is_some_and(|time| time > 2500.0) { Ok(()) } else { Err(format!("{longest:?} ms")) }
    })
    .await;
    let _ = guard.release().await.expect("a release");
    assert!(waiting.await.expect("no panic").expect("a lock").is_held());
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
