//! The line between a client and the server is cut, or goes silent.

use crate::sql_session_faults::fixture::{
    DatabaseKind, Fixture, LASTING, SHORT, acquire, assert_lost, lock_stubbornly,
};

/// Cut: the holder is told long before its TTL.
async fn a_cut_connection_is_a_loss(kind: DatabaseKind) {
    for table in Fixture::new(kind).await.techniques() {
        let ((locks, proxy), other) = (table.open_through_proxy(LASTING).await, table.open_locks(LASTING).await);
        let guard = locks.mutex("a").lock().await.expect("a lock");
        proxy.cut();
        assert_lost(&guard).await;
        let next = acquire(&other, "a").await;
        assert!(next.token() > guard.token(), "{}", table.technique);
    }
}

/// Silent: nobody can tell the holder, whose deadline is over before the server lets the next one in.
async fn an_unresponsive_connection_expires_first(kind: DatabaseKind) {
    for table in Fixture::new(kind).await.techniques() {
        let ((locks, proxy), other) = (table.open_through_proxy(SHORT).await, table.open_locks(LASTING).await);
        let guard = lock_stubbornly(&locks, "a").await;
        proxy.freeze(true);
        let next = acquire(&other, "a").await;
        assert!(!guard.is_held(), "held by two");
        assert!(next.token() > guard.token(), "{}", table.technique);
        assert_lost(&guard).await;
        proxy.freeze(false);
        assert!(next.is_held());
        let _ = next.release().await.expect("a release");
        drop(lock_stubbornly(&locks, "a").await);
    }
}

/// The reply to a give-back, and to a take, is lost: the lock does not stay with anybody.
async fn lost_replies_leave_no_lock(kind: DatabaseKind) {
    for table in Fixture::new(kind).await.techniques() {
        let ((locks, proxy), other) = (table.open_through_proxy(LASTING).await, table.open_locks(LASTING).await);
        let guard = locks.mutex("a").lock().await.expect("a lock");
        let token = guard.token();
        proxy.cut_after_request();
        // Whatever is said, it is not held any more.
        let _ = guard.release().await;
        let next = acquire(&other, "a").await;
        assert!(next.token() > token);
        let token = next.token();
        let _ = next.release().await.expect("a release");
        proxy.cut_after_request();
        let again = acquire(&locks, "a").await;
        assert!(again.token() > token && again.is_held(), "{}", table.technique);
        assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
        drop(again);
        drop(acquire(&other, "a").await);
    }
}

crate::sql_session_faults::on_both! { a_cut_connection_is_a_loss an_unresponsive_connection_expires_first lost_replies_leave_no_lock }
