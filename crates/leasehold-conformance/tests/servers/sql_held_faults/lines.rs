//! The line between a client and the server is cut, or goes silent.

use crate::sql_held_faults::site::{Kind, LASTING, SHORT, Site, lock, lock_stubbornly, told};

/// Cut: the holder is told long before its TTL.
async fn cut(kind: Kind) {
    for table in Site::new(kind).await.tables() {
        let ((locks, proxy), other) = (table.behind(LASTING).await, table.locks(LASTING).await);
        let guard = locks.mutex("a").lock().await.expect("a lock");
        proxy.cut();
        told(&guard).await;
        let next = lock(&other, "a").await;
        assert!(next.token() > guard.token(), "{}", table.technique);
    }
}

/// Silent: nobody can tell the holder, whose deadline is over before the server lets the next one in.
async fn silent(kind: Kind) {
    for table in Site::new(kind).await.tables() {
        let ((locks, proxy), other) = (table.behind(SHORT).await, table.locks(LASTING).await);
        let guard = lock_stubbornly(&locks, "a").await;
        proxy.freeze(true);
        let next = lock(&other, "a").await;
        assert!(!guard.is_held(), "held by two");
        assert!(next.token() > guard.token(), "{}", table.technique);
        told(&guard).await;
        proxy.freeze(false);
        assert!(next.is_held());
        let _ = next.release().await.expect("a release");
        drop(lock_stubbornly(&locks, "a").await);
    }
}

/// The reply to a give-back, and to a take, is lost: the lock does not stay with anybody.
async fn replies_are_lost(kind: Kind) {
    for table in Site::new(kind).await.tables() {
        let ((locks, proxy), other) = (table.behind(LASTING).await, table.locks(LASTING).await);
        let guard = locks.mutex("a").lock().await.expect("a lock");
        let token = guard.token();
        proxy.cut_after_request();
        // Whatever is said, it is not held any more.
        let _ = guard.release().await;
        let next = lock(&other, "a").await;
        assert!(next.token() > token);
        let token = next.token();
        let _ = next.release().await.expect("a release");
        proxy.cut_after_request();
        let again = lock(&locks, "a").await;
        assert!(again.token() > token && again.is_held(), "{}", table.technique);
        assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
        drop(again);
        drop(lock(&other, "a").await);
    }
}

crate::sql_held_faults::on_both! { cut silent replies_are_lost }
