//! Releases, and repeated releases.

use std::sync::Arc;

use leasehold::engine::{AcquireReply, ReleaseReply, RenewReply};
use leasehold::{LostReason, Mode, ReleaseOutcome};

use crate::short_leases::repetitions;
use crate::test_context::{LONG_TTL, TEST_TIMEOUT, TestContext};

/// The engine reports what a release found; a second one finds nothing.
pub async fn a_second_release_finds_nothing(context: &TestContext) {
    let engine = context.open_engine().await;
    let claim = context.new_claim("a", Mode::Exclusive, None, LONG_TTL);
    let release = || Arc::clone(&engine).release(Arc::clone(&claim));
    assert_eq!(release().await.expect("an answer"), ReleaseReply::Absent, "never seen");
    context.wait_granted(&engine, &claim).await;
    assert_eq!(release().await.expect("an answer"), ReleaseReply::Released);
    assert_eq!(release().await.expect("an answer"), ReleaseReply::Absent, "released before");
    let renewed = Arc::clone(&engine).renew(vec![claim]).await.expect("an answer");
    assert_eq!(renewed, [RenewReply::Lost], "a renewal does not restore it");
}

/// Releasing a lost guard reports the loss and affects no other claim.
pub async fn a_release_reports_a_lost_lock(context: &TestContext) {
    let (locks, flaky, guard) = context.acquire_expiring("a").await;
    let reason = tokio::time::timeout(TEST_TIMEOUT, guard.lost()).await.expect("the holder learns of the loss");
    assert_eq!(reason, LostReason::Expired);
    flaky.reconnect();
    let next = context.open_locks().await.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("a lock");
    assert_eq!(guard.release().await.expect("an outcome"), ReleaseOutcome::AlreadyLost(LostReason::Expired));
    locks.flush().await.expect("nothing left to release");
    assert!(context.open_locks().await.mutex("a").try_lock().await.expect("an answer").is_none());
    assert_eq!(next.release().await.expect("an outcome"), ReleaseOutcome::Released);
}

/// A late release does not end another claim on the same lock.
pub async fn a_release_never_affects_another_claim(context: &TestContext) {
    let engine = context.open_engine().await;
    let [first, second] = [(); 2].map(|()| context.new_claim("a", Mode::Exclusive, None, LONG_TTL));
    context.wait_granted(&engine, &first).await;
    Arc::clone(&engine).release(Arc::clone(&first)).await.expect("a release");
    context.wait_granted(&engine, &second).await;
    assert_eq!(Arc::clone(&engine).release(first).await.expect("an answer"), ReleaseReply::Absent);
    let renewed = Arc::clone(&engine).renew(vec![Arc::clone(&second)]).await.expect("an answer");
    assert_ne!(renewed, [RenewReply::Lost]);
    assert_eq!(Arc::clone(&engine).release(second).await.expect("an answer"), ReleaseReply::Released);
}

/// A waiting claim can be released as well.
pub async fn a_waiting_claim_leaves_the_queue(context: &TestContext) {
    let engine = context.open_engine().await;
    let [holder, waiter] = [(); 2].map(|()| context.new_claim("a", Mode::Exclusive, None, LONG_TTL));
    context.wait_granted(&engine, &holder).await;
    let answer = Arc::clone(&engine).attempt(Arc::clone(&waiter), true).await.expect("an answer");
    assert!(matches!(answer, AcquireReply::Queued { ahead: 0, .. }), "{answer:?}");
    let release = || Arc::clone(&engine).release(Arc::clone(&waiter));
    assert_eq!(release().await.expect("an answer"), ReleaseReply::LeftQueue);
    assert_eq!(release().await.expect("an answer"), ReleaseReply::Absent);
    Arc::clone(&engine).release(holder).await.expect("a release");
    context.wait_until_free("a").await;
}

/// Dropping a guard releases the lock.
pub async fn a_dropped_guard_releases_the_lock(context: &TestContext) {
    let (locks, other) = (context.open_locks().await, context.open_locks().await);
    let guard = locks.mutex("a").lock().await.expect("a lock");
    let waiter = tokio::spawn(async move { other.mutex("a").timeout(TEST_TIMEOUT).lock().await });
    drop(guard);
    assert_eq!(locks.held_count(), 0);
    drop(waiter.await.expect("no panic").expect("the dropped lock"));
}

/// Closing a client releases everything that was dropped before.
pub async fn a_closed_client_leaves_nothing(context: &TestContext) {
    let other = context.open_locks().await;
    for round in 0..repetitions(6, 20) {
        let name = context.unique_name("closed");
        let locks = context.open_locks().await;
        for _ in 0..=round % 3 {
            let _dropped = locks.mutex(&name).lock().await.expect("a lock");
        }
        locks.close().await.expect("nothing left to release");
        let next = other.mutex(&name).try_lock().await.expect("an answer");
        let next = next.expect("everything dropped before is released");
        let _ = next.release().await.expect("a release");
    }
}
