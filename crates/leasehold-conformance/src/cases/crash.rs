//! A process dies by SIGKILL.

use std::time::Duration;

use leasehold::engine::Expiry;

use crate::protocol::{LockRequest, RequestMode, ActorCommand};
use crate::test_context::{LONG_TTL, TEST_TIMEOUT, TestContext};

/// A TTL that a dead process's place ends with: long, where the engine sees deaths.
fn ttl_until_freed(context: &TestContext) -> Duration {
    match context.capabilities().expiry {
        Expiry::LeaseOrProcessDeath => LONG_TTL,
        Expiry::Lease => context.short_ttl(),
    }
}

/// The lock of a killed holder goes to a waiter.
pub async fn a_killed_holder_is_replaced_within_its_ttl(context: &TestContext) {
    let locks = context.open_locks().await;
    let mut player = context.spawn_actor(context.short_ttl()).await;
    let (token, _) = player.acquire(LockRequest::exclusive_with_retries("a")).await;
    if let Some(early) = locks.mutex("a").try_lock().await.expect("an answer") {
        assert!(!player.query_held("a").await.0, "held by two: {early:?}");
    }
    let waiter = tokio::spawn({
        let mutex = locks.mutex("a").timeout(TEST_TIMEOUT);
        async move { mutex.lock().await }
    });
    player.process().sigkill().expect("a killed process");
    let guard = waiter.await.expect("no panic").expect("the lock of the dead");
    assert!(guard.token().0 > token);
}

/// Where the engine sees deaths, nobody waits for the TTL of the dead.
pub async fn a_killed_holder_is_replaced_at_once(context: &TestContext) {
    let locks = context.open_locks().await;
    let mut player = context.spawn_actor(LONG_TTL).await;
    player.acquire(LockRequest::exclusive("waited for")).await;
    player.acquire(LockRequest::exclusive("not waited for")).await;
    let waiter = tokio::spawn({
        let mutex = locks.mutex("waited for").timeout(TEST_TIMEOUT);
        async move { mutex.lock().await }
    });
    if context.capabilities().inspection {
        context.wait_for_waiters("waited for", 1).await;
    }
    player.process().sigkill().expect("a killed process");
    drop(waiter.await.expect("no panic").expect("the lock of the dead"));
    context.wait_until_free("not waited for").await;
}

/// A killed waiter does not stop those behind it.
pub async fn a_killed_waiter_does_not_stop_the_queue(context: &TestContext) {
    let (locks, mut player) = (context.open_locks().await, context.spawn_actor(ttl_until_freed(context)).await);
    let holder = locks.mutex("a").lock().await.expect("a lock");
    player.send(&ActorCommand::Lock(LockRequest::exclusive_with_retries("a"))).await;
    context.wait_for_waiters("a", 1).await;
    let next = tokio::spawn({
        let mutex = locks.mutex("a").timeout(TEST_TIMEOUT);
        async move { mutex.lock().await }
    });
    context.wait_for_waiters("a", 2).await;
    player.process().sigkill().expect("a killed process");
    let _ = holder.release().await.expect("a release");
    drop(next.await.expect("no panic").expect("the one behind the dead"));
}

/// What a killed process held together with others is free for others.
pub async fn shared_holds_and_permits_of_a_killed_process_are_freed(context: &TestContext) {
    let (locks, mut player) = (context.open_locks().await, context.spawn_actor(ttl_until_freed(context)).await);
    player.acquire(LockRequest { mode: RequestMode::Shared, ..LockRequest::exclusive_with_retries("read") }).await;
    player.acquire(LockRequest { mode: RequestMode::Permits(2, 3), ..LockRequest::exclusive_with_retries("permits") }).await;
    let reader = locks.rwlock("read").read().await.expect("a lock");
    let one = locks.semaphore("permits", 3).acquire(1).await.expect("a permit");
    player.process().sigkill().expect("a killed process");
    let two = locks.semaphore("permits", 3).timeout(TEST_TIMEOUT).acquire(2).await.expect("the permits of the dead");
    let _ = reader.release().await.expect("a release");
    let writer = locks.rwlock("read").timeout(TEST_TIMEOUT).write().await.expect("the reader is dead");
    drop((one, two, writer));
}

/// A death frees the dead one's locks and no others.
pub async fn a_killed_process_does_not_affect_the_others(context: &TestContext) {
    let locks = context.open_locks().await;
    let (mut dies, mut lives) = (context.spawn_actor(ttl_until_freed(context)).await, context.spawn_actor(LONG_TTL).await);
    dies.acquire(LockRequest::exclusive_with_retries("dies")).await;
    lives.acquire(LockRequest::exclusive("lives")).await;
    let own = locks.mutex("own").lock().await.expect("a lock");
    dies.process().sigkill().expect("a killed process");
    drop(locks.mutex("dies").timeout(TEST_TIMEOUT).lock().await.expect("the lock of the dead"));
    assert!(locks.mutex("lives").try_lock().await.expect("an answer").is_none());
    assert!(own.is_held());
    assert!(lives.query_held("lives").await.0);
    assert_eq!(lives.release("lives").await, "released");
}
