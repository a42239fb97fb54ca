//! The line between a client and the server is cut, or goes silent.

use leasehold_conformance::world::SOON;

use crate::site::{Kind, LONG, SHORT, Site, told};

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

crate::on_both! { cut silent replies_are_lost }
