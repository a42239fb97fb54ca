//! The connection between a client and the server is cut or becomes unresponsive.

use crate::sql_session_faults::fixture::{
    DatabaseKind, Fixture, LASTING, SHORT, acquire, assert_lost, lock_with_retries,
};

/// A cut connection: the holder learns of the loss long before its TTL.
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

/// An unresponsive connection: the holder's deadline passes before the server grants the lock to
/// another client.
async fn an_unresponsive_connection_expires_first(kind: DatabaseKind) {
    for table in Fixture::new(kind).await.techniques() {
        let ((locks, proxy), other) = (table.open_through_proxy(SHORT).await, table.open_locks(LASTING).await);
        let guard = lock_with_retries(&locks, "a").await;
        proxy.freeze(true);
        let next = acquire(&other, "a").await;
        assert!(!guard.is_held(), "two holders");
        assert!(next.token() > guard.token(), "{}", table.technique);
        assert_lost(&guard).await;
        proxy.freeze(false);
        assert!(next.is_held());
        let _ = next.release().await.expect("a release");
        drop(lock_with_retries(&locks, "a").await);
    }
}

/// The reply to a release or an acquire is lost: no lock is left behind.
async fn lost_replies_leave_no_lock(kind: DatabaseKind) {
    for table in Fixture::new(kind).await.techniques() {
        let ((locks, proxy), other) = (table.open_through_proxy(LASTING).await, table.open_locks(LASTING).await);
        let guard = locks.mutex("a").lock().await.expect("a lock");
        let token = guard.token();
        proxy.cut_after_request();
        // Whatever the outcome, the lock is no longer held.
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
