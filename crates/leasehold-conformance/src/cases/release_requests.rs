//! An operator requests a release, and the holder decides when.

use std::time::Duration;

use leasehold::{ClaimId, Locks, LostReason, ReleaseOutcome, Token};
use leasehold_testbed::eventually;

use crate::test_context::{LONG_TTL, TEST_TIMEOUT, TestContext};

/// A TTL that the case waits out.
const SHORT_TTL: Duration = Duration::from_secs(3);

/// The claim that holds `a` with this token, as other clients see it, if it still does.
async fn holder_claim(locks: &Locks, token: Token) -> Option<ClaimId> {
    let view = locks.inspect("a").await.expect("a view");
    view.holders.iter().find(|holder| holder.token == Some(token)).map(|holder| holder.claim)
}

/// The holder learns of the request and still holds the lock. The waiter is granted after the
/// holder's release.
pub async fn the_holder_is_notified_and_keeps_the_lock_until_it_releases(context: &TestContext) {
    let (locks, other) = (context.open_locks().await, context.open_locks().await);
    let guard = locks.mutex("a").ttl(LONG_TTL).describe("holder").lock().await.expect("a lock");
    let next = tokio::spawn({
        let mutex = other.mutex("a").timeout(TEST_TIMEOUT);
        async move { mutex.lock().await }
    });
    let claim = holder_claim(&other, guard.token()).await.expect("the holder");
    let contender = other.request_release("a", claim, "maintenance").await.expect("a request").expect("the holder");
    assert_eq!(
        (contender.claim, contender.token, &*contender.holder.description),
        (claim, Some(guard.token()), "holder")
    );
    tokio::time::timeout(TEST_TIMEOUT, guard.release_requested()).await.expect("the holder learns of the request");
    assert!(guard.is_release_requested() && guard.watcher().is_release_requested());
    // No other claim is granted before the release.
    assert_eq!(holder_claim(&other, guard.token()).await, Some(claim));
    assert!(!next.is_finished());
    assert_eq!((guard.is_held(), guard.lost_reason()), (true, None));
    let token = guard.token();
    assert_eq!(guard.release().await.expect("an outcome"), ReleaseOutcome::Released);
    let next = next.await.expect("no panic").expect("a lock");
    assert!(token < next.token(), "{next:?}");
    assert!(!next.is_release_requested(), "the request was for the previous claim");
    assert_eq!(next.release().await.expect("an outcome"), ReleaseOutcome::Released);
}

/// A former waiter gets a release request just after its grant, which its client may still be
/// recording.
pub async fn a_request_may_arrive_during_the_grant(context: &TestContext) {
    let (locks, other) = (context.open_locks().await, context.open_locks().await);
    let first = locks.mutex("a").ttl(LONG_TTL).lock().await.expect("a lock");
    let waits = tokio::spawn({
        let mutex = other.mutex("a").ttl(LONG_TTL).timeout(TEST_TIMEOUT);
        async move { mutex.lock().await }
    });
    context.wait_for_waiters("a", 1).await;
    assert_eq!(first.release().await.expect("an outcome"), ReleaseOutcome::Released);
    let guard = waits.await.expect("no panic").expect("a lock");
    assert!(locks.request_release("a", guard.claim_id(), "").await.expect("a request").is_some());
    tokio::time::timeout(TEST_TIMEOUT, guard.release_requested()).await.expect("the holder learns of the request");
    assert_eq!(guard.release().await.expect("an outcome"), ReleaseOutcome::Released);
}

/// A holder that ignores the request loses the lock at its deadline: its lease is no longer
/// renewed.
pub async fn an_ignored_request_ends_the_hold_at_its_deadline(context: &TestContext) {
    let (locks, other) = (context.open_locks().await, context.open_locks().await);
    eventually(TEST_TIMEOUT, || async {
        let guard = locks.mutex("a").ttl(SHORT_TTL).lock().await.map_err(|error| error.to_string())?;
        let Some(claim) = holder_claim(&other, guard.token()).await else {
            return Err("lost before the request".into());
        };
        other.request_release("a", claim, "").await.map_err(|error| error.to_string())?;
        // Far longer than a TTL: without the request it would be renewed all the time.
        let reason = tokio::time::timeout(TEST_TIMEOUT, guard.lost()).await.expect("the hold ends");
        let next = other.mutex("a").timeout(TEST_TIMEOUT).lock().await.map_err(|error| error.to_string())?;
        assert!(guard.token() < next.token());
        assert_eq!(guard.release().await.expect("an outcome"), ReleaseOutcome::AlreadyLost(reason));
        if reason == LostReason::ReleaseRequested { Ok(()) } else { Err(format!("lost for another reason: {reason}")) }
    })
    .await;
}

/// A holder that ignores the request can still be force-released, and learns of it.
pub async fn a_holder_with_a_release_request_may_be_force_released(context: &TestContext) {
    let (locks, other) = (context.open_locks().await, context.open_locks().await);
    let guard = locks.mutex("a").ttl(LONG_TTL).lock().await.expect("a lock");
    let claim = holder_claim(&other, guard.token()).await.expect("the holder");
    assert!(other.request_release("a", claim, "").await.expect("a request").is_some());
    tokio::time::timeout(TEST_TIMEOUT, guard.release_requested()).await.expect("the holder learns of the request");
    assert!(other.force_release("a", claim).await.expect("a force release").contender.is_some());
    assert_eq!(
        tokio::time::timeout(TEST_TIMEOUT, guard.lost()).await.expect("the holder learns of the loss"),
        LostReason::Revoked
    );
}

/// A claim that holds nothing gets no request, and nothing changes.
pub async fn a_claim_that_is_not_held_gets_no_request(context: &TestContext) {
    let locks = context.open_locks().await;
    assert_eq!(locks.request_release("a", ClaimId::random(), "").await.expect("an answer"), None);
    let guard = locks.mutex("a").ttl(LONG_TTL).lock().await.expect("a lock");
    assert_eq!(locks.request_release("a", ClaimId::random(), "").await.expect("an answer"), None);
    assert!(!guard.is_release_requested());
    assert_eq!(guard.release().await.expect("an outcome"), ReleaseOutcome::Released);
}
