//! A claim is force-released by another client.

use leasehold::{ClaimId, ErrorKind, Guard, Locks, LostReason, Owner, ReleaseOutcome};
use leasehold_testbed::eventually;

use crate::actor_process::ActorProcess;
use crate::protocol::LockRequest;
use crate::test_context::{LONG_TTL, TEST_TIMEOUT, TestContext};

/// The holder is notified, the next waiter is granted, and the fence token separates them: long
/// before a renewal is due.
pub async fn the_holder_is_notified_and_the_next_waiter_granted(context: &TestContext) {
    let (locks, other) = (context.open_locks().await, context.open_locks().await);
    eventually(TEST_TIMEOUT, || async {
        let message = |error: leasehold::Error| error.to_string();
        let guard = locks.mutex("a").describe("force-released").lock().await.map_err(message)?;
        let next = tokio::spawn({
            let mutex = other.mutex("a").timeout(TEST_TIMEOUT);
            async move { mutex.lock().await }
        });
        let view = other.inspect("a").await.map_err(message)?;
        let ours = view.holders.iter().find(|holder| holder.token == Some(guard.token()));
        let claim = ours.ok_or_else(|| format!("lost before: {view:?}"))?.claim;
        let force_released = other.force_release("a", claim).await.map_err(message)?;
        let contender = force_released.contender.as_ref().ok_or("lost before the force release")?;
        assert_eq!((contender.claim, &*contender.holder.description), (claim, "force-released"));
        let reason = guard.lost().await;
        assert!(!guard.is_held());
        let next = next.await.expect("no panic").expect("a lock");
        // None only if the tokens are adjacent: in ZooKeeper the waiter may have the very next one.
        let between = |fence| guard.token() < fence && fence < next.token();
        let adjacent = guard.token().0 + 1 == next.token().0;
        assert!(force_released.fence_token.map_or(adjacent, between), "{guard:?} {force_released:?} {next:?}");
        assert_eq!(guard.release().await.expect("an outcome"), ReleaseOutcome::AlreadyLost(reason));
        assert!(next.is_held(), "the late release does not affect the next holder");
        let _ = next.release().await.map_err(message)?;
        if reason == LostReason::Revoked { Ok(()) } else { Err(format!("lost for another reason: {reason}")) }
    })
    .await;
}

/// A force-released waiter does not block the waiters behind it.
pub async fn a_force_released_waiter_leaves_the_queue(context: &TestContext) {
    let locks = context.open_locks().await;
    let holder = locks.mutex("a").lock().await.expect("a lock");
    let mut waiters = Vec::new();
    for place in 1..=2 {
        let mutex = locks.mutex("a").timeout(TEST_TIMEOUT);
        waiters.push(tokio::spawn(async move { mutex.lock().await }));
        context.wait_for_waiters("a", place).await;
    }
    let before = locks.inspect("a").await.expect("a view").waiters;
    let force_released = locks.force_release("a", before[0].claim).await.expect("a force release");
    assert_eq!(force_released.contender.expect("the force-released waiter").token, None, "the waiter had no token");
    assert_eq!(force_released.fence_token, None, "no token to reject, and the holder stays");
    let after = locks.inspect("a").await.expect("a view").waiters;
    assert_eq!(after[0].claim, before[1].claim, "the second waiter is next");
    assert!(holder.is_held());
    let _ = holder.release().await.expect("a release");
    let second = waiters.pop().expect("two wait").await.expect("no panic").expect("a lock");
    waiters.pop().expect("one waiter is left").abort();
    drop(second);
}

/// A force-released waiter gets an error and does not queue again.
pub async fn a_force_released_waiter_gets_an_error(context: &TestContext) {
    let (locks, other) = (context.open_locks().await, context.open_locks().await);
    let holder = locks.mutex("a").lock().await.expect("a lock");
    let waits = tokio::spawn({
        let mutex = other.mutex("a").timeout(LONG_TTL);
        async move { mutex.lock().await }
    });
    context.wait_for_waiters("a", 1).await;
    let claim = locks.inspect("a").await.expect("a view").waiters[0].claim;
    assert!(locks.force_release("a", claim).await.expect("a force release").contender.is_some());
    let ended = tokio::time::timeout(TEST_TIMEOUT, waits)
        .await
        .expect("the waiter learns of the force release")
        .expect("no panic");
    let error = ended.expect_err("the waiter was force-released");
    assert_eq!(error.kind(), ErrorKind::ForceReleased, "{error}");
    let view = locks.inspect("a").await.expect("a view");
    assert_eq!((view.holders.len(), view.waiters.len()), (1, 0), "{view:?}");
    assert_eq!(holder.release().await.expect("a release"), ReleaseOutcome::Released);
}

/// A waiter is granted while its future is not polled, and then force-released: it never holds
/// beside the next holder.
pub async fn an_unpolled_grant_ends_with_its_force_release(context: &TestContext) {
    let (locks, other) = (context.open_locks().await, context.open_locks().await);
    let holder = locks.mutex("a").lock().await.expect("a lock");
    let mutex = other.mutex("a").timeout(LONG_TTL);
    let mut waits = std::pin::pin!(mutex.lock());
    tokio::select! {
        biased;
        early = &mut waits => panic!("the lock is held: {early:?}"),
        () = context.wait_for_waiters("a", 1) => {}
    }
    assert_eq!(holder.release().await.expect("a release"), ReleaseOutcome::Released);
    eventually(TEST_TIMEOUT, || async {
        let view = locks.inspect("a").await.map_err(|error| error.to_string())?;
        if view.holders.len() == 1 { Ok(()) } else { Err(format!("{view:?}")) }
    })
    .await;
    let claim = locks.inspect("a").await.expect("a view").holders[0].claim;
    assert!(locks.force_release("a", claim).await.expect("a force release").contender.is_some());
    let next = locks.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("a lock");
    // All earlier messages to the other client have arrived.
    other.inspect("a").await.expect("a view");
    match tokio::time::timeout(TEST_TIMEOUT, waits).await.expect("the waiter learns of the force release") {
        Err(error) => assert_eq!(error.kind(), ErrorKind::ForceReleased, "{error}"),
        Ok(late) => drop(tokio::time::timeout(TEST_TIMEOUT, late.lost()).await.expect("the holder learns of the loss")),
    }
    assert!(next.is_held());
    assert_eq!(next.release().await.expect("a release"), ReleaseOutcome::Released);
}

/// Force-releasing an unknown claim force-releases nothing and leaves the holder alone.
pub async fn an_unknown_claim_force_releases_none(context: &TestContext) {
    let locks = context.open_locks().await;
    let force_released = locks.force_release("free", ClaimId::random()).await.expect("a force release");
    assert_eq!((force_released.contender, force_released.fence_token), (None, None));
    let guard = locks.mutex("a").lock().await.expect("a lock");
    let force_released = locks.force_release("a", ClaimId::random()).await.expect("a force release");
    assert_eq!(
        (force_released.contender, force_released.fence_token),
        (None, None),
        "a fence token would reject the holder"
    );
    assert!(guard.is_held());
    assert_eq!(guard.release().await.expect("an outcome"), ReleaseOutcome::Released);
}

/// Two claims hold together and one is force-released: a suggested fence token rejects that one and
/// admits the other.
pub async fn the_fence_token_admits_remaining_holders(context: &TestContext) {
    let locks = context.open_locks().await;
    let first = locks.semaphore("a", 2).acquire(1).await.expect("a permit");
    let second = locks.semaphore("a", 2).acquire(1).await.expect("a permit");
    let third = tokio::spawn({
        let semaphore = locks.semaphore("a", 2).timeout(TEST_TIMEOUT);
        async move { semaphore.acquire(1).await }
    });
    context.wait_for_waiters("a", 1).await;
    let holders = locks.inspect("a").await.expect("a view").holders;
    let claim =
        |guard: &Guard| holders.iter().find(|holder| holder.token == Some(guard.token())).expect("a holder").claim;
    // Force-release the later one first: the other's token is below every fence token.
    let force_released = locks.force_release("a", claim(&second)).await.expect("a force release");
    assert_eq!((force_released.contender.is_some(), force_released.fence_token), (true, None), "{force_released:?}");
    let third = third.await.expect("no panic").expect("a permit");
    let force_released = locks.force_release("a", claim(&first)).await.expect("a force release");
    if let Some(fence) = force_released.fence_token {
        assert!(first.token() < fence && fence < third.token(), "{first:?} {fence} {third:?}");
    } else {
        assert_eq!(first.token().0 + 1, third.token().0, "a token lies between them");
    }
    for force_released in [first, second] {
        tokio::time::timeout(TEST_TIMEOUT, force_released.lost()).await.expect("the holder learns of the loss");
    }
    assert!(third.is_held());
    assert_eq!(third.release().await.expect("a release"), ReleaseOutcome::Released);
}

/// An owner holds twice, and one of its claims is force-released: that guard learns of it, and the
/// other stays held.
pub async fn force_releasing_one_of_an_owners_claims_keeps_the_other(context: &TestContext) {
    let (locks, other) = (context.open_locks().await, context.open_locks().await);
    let owner = Owner::new();
    let outer = locks.mutex("a").ttl(LONG_TTL).owner(&owner).lock().await.expect("a lock");
    let inner = locks.mutex("a").ttl(LONG_TTL).owner(&owner).lock().await.expect("a re-entry");
    assert!(other.force_release("a", inner.claim_id()).await.expect("a force release").contender.is_some());
    assert_eq!(
        tokio::time::timeout(TEST_TIMEOUT, inner.lost()).await.expect("the holder learns of the loss"),
        LostReason::Revoked
    );
    // All earlier messages to the outer claim's client have arrived.
    locks.inspect("a").await.expect("a view");
    assert!(outer.is_held());
    assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
    assert_eq!(outer.release().await.expect("an outcome"), ReleaseOutcome::Released);
}

/// A holder in another process is notified as well.
pub async fn a_holder_in_another_process_is_notified(context: &TestContext) {
    let (locks, mut actor) = (context.open_locks().await, context.spawn_actor(LONG_TTL).await);
    let deadline = locks.clock().now().saturating_add(TEST_TIMEOUT);
    while !is_notified(context, &locks, &mut actor).await {
        assert!(locks.clock().now() < deadline, "the holder was never notified");
    }
}

/// Whether the process learned of its force release; `false` if its lease expired before.
async fn is_notified(context: &TestContext, locks: &Locks, actor: &mut ActorProcess) -> bool {
    let guard = context.unique_name("guard");
    let (token, _) =
        actor.acquire(LockRequest { guard: guard.clone(), ..LockRequest::exclusive_with_retries("a") }).await;
    let view = locks.inspect("a").await.expect("a view");
    let Some(holder) = view.holders.first() else { return false };
    let force_released = locks.force_release("a", holder.claim).await.expect("a force release");
    let Some(contender) = force_released.contender else { return false };
    assert_eq!(contender.holder.pid, actor.pid());
    let next = locks.mutex("a").try_lock().await.expect("an answer").expect("a free lock");
    let fence = force_released.fence_token.expect("a token");
    assert!(token < fence.0 && fence < next.token());
    let reason = actor.wait_lost(&guard).await;
    assert!(!actor.query_held(&guard).await.0);
    assert_eq!(actor.release(&guard).await, reason);
    assert!(next.is_held());
    let _ = next.release().await.expect("a release");
    reason == "revoked"
}
