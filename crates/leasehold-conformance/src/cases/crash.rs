//! A process dies by SIGKILL.

use std::time::Duration;

use leasehold::engine::Expiry;

use crate::protocol::{ActorCommand, LockRequest, RequestMode};
use crate::test_context::{LONG_TTL, TEST_TIMEOUT, TestContext};

/// A TTL after which a dead process's claims are gone: a long one if the engine detects process
/// deaths.
fn ttl_until_freed(context: &TestContext) -> Duration {
    match context.capabilities().expiry {
        Expiry::LeaseOrProcessDeath => LONG_TTL,
        Expiry::Lease => context.short_ttl(),
    }
}

/// A waiter acquires the lock of a killed holder.
pub async fn a_killed_holder_is_replaced_within_its_ttl(context: &TestContext) {
    let locks = context.open_locks().await;
    let mut actor = context.spawn_actor(context.short_ttl()).await;
    let (token, _) = actor.acquire(LockRequest::exclusive_with_retries("a")).await;
    if let Some(early) = locks.mutex("a").try_lock().await.expect("an answer") {
        assert!(!actor.query_held("a").await.0, "two holders: {early:?}");
    }
    let waiter = tokio::spawn({
        let mutex = locks.mutex("a").timeout(TEST_TIMEOUT);
        async move { mutex.lock().await }
    });
    actor.process().sigkill().expect("a killed process");
    let guard = waiter.await.expect("no panic").expect("the lock of the killed process");
    assert!(guard.token().0 > token);
}

/// If the engine detects process deaths, a waiter does not wait for the dead holder's TTL.
pub async fn a_killed_holder_is_replaced_at_once(context: &TestContext) {
    let locks = context.open_locks().await;
    let mut actor = context.spawn_actor(LONG_TTL).await;
    actor.acquire(LockRequest::exclusive("awaited")).await;
    actor.acquire(LockRequest::exclusive("not awaited")).await;
    let waiter = tokio::spawn({
        let mutex = locks.mutex("awaited").timeout(TEST_TIMEOUT);
        async move { mutex.lock().await }
    });
    if context.capabilities().inspection {
        context.wait_for_waiters("awaited", 1).await;
    }
    actor.process().sigkill().expect("a killed process");
    drop(waiter.await.expect("no panic").expect("the lock of the killed process"));
    context.wait_until_free("not awaited").await;
}

/// A killed waiter does not block the waiters behind it.
pub async fn a_killed_waiter_does_not_stop_the_queue(context: &TestContext) {
    let (locks, mut actor) = (context.open_locks().await, context.spawn_actor(ttl_until_freed(context)).await);
    let holder = locks.mutex("a").lock().await.expect("a lock");
    actor.send(&ActorCommand::Lock(LockRequest::exclusive_with_retries("a"))).await;
    context.wait_for_waiters("a", 1).await;
    let next = tokio::spawn({
        let mutex = locks.mutex("a").timeout(TEST_TIMEOUT);
        async move { mutex.lock().await }
    });
    context.wait_for_waiters("a", 2).await;
    actor.process().sigkill().expect("a killed process");
    let _ = holder.release().await.expect("a release");
    drop(next.await.expect("no panic").expect("the waiter behind the killed one"));
}

/// A killed process's shared holds and permits become free.
pub async fn shared_holds_and_permits_of_a_killed_process_are_freed(context: &TestContext) {
    let (locks, mut actor) = (context.open_locks().await, context.spawn_actor(ttl_until_freed(context)).await);
    actor.acquire(LockRequest { mode: RequestMode::Shared, ..LockRequest::exclusive_with_retries("read") }).await;
    actor
        .acquire(LockRequest { mode: RequestMode::Permits(2, 3), ..LockRequest::exclusive_with_retries("permits") })
        .await;
    let reader = locks.rwlock("read").read().await.expect("a lock");
    let one = locks.semaphore("permits", 3).acquire(1).await.expect("a permit");
    actor.process().sigkill().expect("a killed process");
    let two = locks
        .semaphore("permits", 3)
        .timeout(TEST_TIMEOUT)
        .acquire(2)
        .await
        .expect("the permits of the killed process");
    let _ = reader.release().await.expect("a release");
    let writer = locks.rwlock("read").timeout(TEST_TIMEOUT).write().await.expect("the reader is dead");
    drop((one, two, writer));
}

/// A death frees the dead process's locks and no others.
pub async fn a_killed_process_does_not_affect_the_others(context: &TestContext) {
    let locks = context.open_locks().await;
    let (mut dies, mut lives) =
        (context.spawn_actor(ttl_until_freed(context)).await, context.spawn_actor(LONG_TTL).await);
    dies.acquire(LockRequest::exclusive_with_retries("dies")).await;
    lives.acquire(LockRequest::exclusive("lives")).await;
    let own = locks.mutex("own").lock().await.expect("a lock");
    dies.process().sigkill().expect("a killed process");
    drop(locks.mutex("dies").timeout(TEST_TIMEOUT).lock().await.expect("the lock of the killed process"));
    assert!(locks.mutex("lives").try_lock().await.expect("an answer").is_none());
    assert!(own.is_held());
    assert!(lives.query_held("lives").await.0);
    assert_eq!(lives.release("lives").await, "released");
}
