//! The line between a client and the server is cut, or goes silent.

use std::time::Duration;

use leasehold::Guard;
use leasehold::clock::Clock;
use leasehold::engine::Renewal;
use leasehold_conformance::world::{SOON, granted};
use leasehold_testbed::{Proxy, eventually};

use crate::sql_held_faults::site::{Kind, LONG, SHORT, Site, told};

/// A TTL of which a busy machine may miss some renewals.
const MIDDLE: Duration = Duration::from_secs(4);

/// Cut: the holder is told long before its TTL.
async fn cut(kind: Kind) {
    for table in Site::new(kind).await.tables() {
        let ((locks, proxy), other) = (table.behind(LONG).await, table.locks(LONG).await);
        let guard = locks.mutex("a").lock().await.expect("a lock");
        proxy.cut();
        told(&guard).await;
        let next = other.mutex("a").wait(SOON).lock().await.expect("it is free");
        assert!(next.token() > guard.token(), "{}", table.technique);
    }
}

/// Silent: nobody can tell the holder, whose deadline is over before the server lets the next one in.
async fn silent(kind: Kind) {
    for table in Site::new(kind).await.tables() {
        let ((locks, proxy), other) = (table.behind(SHORT).await, table.locks(LONG).await);
        let guard = locks.mutex("a").lock().await.expect("a lock");
        proxy.freeze(true);
        let next = other.mutex("a").wait(SOON).lock().await.expect("the idle time ends the session");
        assert!(!guard.is_held(), "held by two");
        assert!(next.token() > guard.token(), "{}", table.technique);
        told(&guard).await;
        proxy.freeze(false);
        assert!(next.is_held());
        let _ = next.release().await.expect("a release");
        drop(locks.mutex("a").wait(SOON).lock().await.expect("the line is back"));
    }
}

/// The reply to a give-back, and to a take, is lost: the lock does not stay with anybody.
async fn replies_are_lost(kind: Kind) {
    for table in Site::new(kind).await.tables() {
        let ((locks, proxy), other) = (table.behind(LONG).await, table.locks(LONG).await);
        let guard = locks.mutex("a").lock().await.expect("a lock");
        let token = guard.token();
        proxy.cut_after_request();
        // Whatever is said, it is not held any more.
        let _ = guard.release().await;
        let next = other.mutex("a").wait(SOON).lock().await.expect("it is free");
        assert!(next.token() > token);
        let token = next.token();
        let _ = next.release().await.expect("a release");
        proxy.cut_after_request();
        let again = locks.mutex("a").wait(SOON).lock().await.expect("asked again");
        assert!(again.token() > token && again.is_held(), "{}", table.technique);
        assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
        drop(again);
        drop(other.mutex("a").wait(SOON).lock().await.expect("given back"));
    }
}

/// One session goes silent: its own lock is lost in time, and the others of that client are not.
async fn one_of_several_is_silent(kind: Kind) {
    for table in Site::new(kind).await.tables() {
        let (locks, proxy) = table.behind_with("&connections=24", MIDDLE).await;
        let mut kept = Vec::new();
        // So many that some are renewed together with the one.
        for name in 0..20 {
            kept.push(locks.mutex(format!("kept-{name}")).lock().await.expect("a lock"));
        }
        // The first connection that is made for this one is its session.
        let session = proxy.counts().accepted + 1;
        let guard = locks.mutex("a").lock().await.expect("a lock");
        proxy.silence(session);
        told(&guard).await;
        stay_held(&kept, MIDDLE * 2).await;
    }
}

/// The same as the keeper asks: whoever is renewed together with the silent one is answered in the time that the keeper waits.
async fn a_renewal_waits_for_no_other(kind: Kind) {
    let ttl = Duration::from_secs(15);
    for table in Site::new(kind).await.tables() {
        let proxy = Proxy::start(table.site.server.addr()).await.expect("a proxy");
        let url = table.url().replace(&table.site.server.addr().to_string(), &proxy.addr().to_string());
        let engine = leasehold::engine::open(&url, &Clock::system()).await.expect("an engine");
        let kept = granted(&engine, "b", ttl).await;
        let session = proxy.counts().accepted + 1;
        let silent = granted(&engine, "a", ttl).await;
        proxy.silence(session);
        let renewals = tokio::time::timeout(ttl / 3, engine.renew(vec![silent, kept])).await;
        let renewals = renewals.expect("in time").expect("answers");
        assert!(matches!(renewals[..], [Renewal::Unknown, Renewal::Renewed(_)]), "{}: {renewals:?}", table.technique);
    }
}

/// None of them is lost for so long.
async fn stay_held(guards: &[Guard], time: Duration) {
    let lost = futures_util::future::select_all(guards.iter().map(|guard| Box::pin(guard.lost())));
    let lost = tokio::time::timeout(time, lost).await;
    assert!(lost.is_err() && guards.iter().all(Guard::is_held), "one was lost");
}

/// The connection for counters and looks goes silent: locks are taken all the same, and a holder whose session is ended is told.
async fn what_stands_beside_is_silent(kind: Kind) {
    for table in Site::new(kind).await.tables() {
        let (locks, proxy) = table.behind_with("&connect-timeout=2s", LONG).await;
        let first = locks.mutex("a").lock().await.expect("a lock");
        eventually(SOON, || async {
            let open = proxy.counts().open;
            if open == 2 { Ok(()) } else { Err(format!("{open} connections")) }
        })
        .await;
        // The older one: the session was made after it.
        proxy.silence_half(true);
        let second = locks.mutex("b").wait(SOON).lock().await.expect("another lock");
        assert!(first.is_held() && second.is_held(), "{}", table.technique);
        assert!(table.site.end(|_| true).await > 0);
        told(&first).await;
        told(&second).await;
    }
}

crate::sql_held_faults::on_both! { cut silent replies_are_lost one_of_several_is_silent a_renewal_waits_for_no_other what_stands_beside_is_silent }
