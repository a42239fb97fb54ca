//! The same owner re-enters.

use leasehold::engine::AcquireReply;
use leasehold::{ErrorKind, Mode, Owner};
use leasehold_testbed::eventually;
use tokio::time::timeout;

use crate::protocol::{ActorCommand, LockRequest};
use crate::test_context::{LONG_TTL, TEST_TIMEOUT, TestContext};

/// Nested requests of one owner, also through another client, are granted at once with the same
/// token.
pub async fn the_same_owner_re_enters_with_the_same_token(context: &TestContext) {
    let (one, other) = (context.open_locks().await, context.open_locks().await);
    let owner = Owner::new();
    let outer = one.mutex("a").owner(&owner).lock().await.expect("a lock");
    let inner = one.mutex("a").owner(&owner).try_lock().await.expect("an answer").expect("re-entry");
    let third = other.mutex("a").owner(&owner).try_lock().await.expect("an answer").expect("re-entry");
    assert_eq!(outer.token(), inner.token());
    assert_eq!(outer.token(), third.token());
    for guard in [outer, inner, third] {
        let _ = guard.release().await.expect("a release");
    }
    let again = one.mutex("a").owner(&owner).lock().await.expect("a lock");
    drop(again);
}

/// Another owner has to wait.
pub async fn another_owner_waits(context: &TestContext) {
    let locks = context.open_locks().await;
    let guard = locks.mutex("a").owner(&Owner::named("one")).lock().await.expect("a lock");
    let other = locks.mutex("a").owner(&Owner::named("other"));
    assert!(other.try_lock().await.expect("an answer").is_none());
    let unowned = locks.mutex("a");
    assert!(unowned.try_lock().await.expect("an answer").is_none());
    let token = guard.token();
    let _ = guard.release().await.expect("a release");
    let guard = other.lock().await.expect("a lock");
    assert!(guard.token() > token, "another owner has another token");
}

/// One release grants the lock to all waiters of one owner that are next, long before any of them
/// sends a heartbeat.
pub async fn two_waiters_of_one_owner_are_granted_together(context: &TestContext) {
    let (locks, other) = (context.open_locks().await, context.open_locks().await);
    let (first, owner) = (locks.mutex("a").lock().await.expect("a lock"), Owner::new());
    let mut waiting = Vec::new();
    for client in [&other, &locks] {
        let mutex = client.mutex("a").owner(&owner);
        waiting.push(tokio::spawn(async move { mutex.lock().await.expect("a lock") }));
        context.wait_for_waiters("a", waiting.len()).await;
    }
    let _ = first.release().await.expect("a release");
    let mut guards = Vec::new();
    for task in waiting {
        guards.push(timeout(TEST_TIMEOUT, task).await.expect("a grant without a heartbeat").expect("no panic"));
    }
    assert_eq!(guards[0].token(), guards[1].token());
}

/// Two requests without an owner are two contenders, even in one task.
pub async fn without_an_owner_there_is_no_re_entry(context: &TestContext) {
    let locks = context.open_locks().await;
    let guard = locks.mutex("a").lock().await.expect("a lock");
    assert!(locks.mutex("a").try_lock().await.expect("an answer").is_none());
    drop(guard);
}

/// The lock is free after the last release, whichever hold that is.
pub async fn the_lock_is_free_after_the_last_release(context: &TestContext) {
    let (one, other) = (context.open_locks().await, context.open_locks().await);
    for outer_first in [true, false] {
        let owner = Owner::new();
        let outer = one.mutex("a").owner(&owner).lock().await.expect("a lock");
        let inner = one.mutex("a").owner(&owner).lock().await.expect("re-entry");
        let (first, last) = if outer_first { (outer, inner) } else { (inner, outer) };
        let _ = first.release().await.expect("a release");
        assert!(other.mutex("a").try_lock().await.expect("an answer").is_none(), "one hold is left");
        assert!(last.is_held());
        let _ = last.release().await.expect("a release");
        let next = other.mutex("a").try_lock().await.expect("an answer").expect("a free lock");
        let _ = next.release().await.expect("a release");
    }
}

/// A reader that re-enters does not wait behind a waiting writer.
pub async fn a_nested_reader_passes_a_waiting_writer(context: &TestContext) {
    let locks = context.open_locks().await;
    let owner = Owner::new();
    let outer = locks.rwlock("a").owner(&owner).read().await.expect("a lock");
    let writer = tokio::spawn({
        let locks = locks.clone();
        async move { locks.rwlock("a").write().await }
    });
    context.wait_for_waiters("a", 1).await;
    let inner = locks.rwlock("a").owner(&owner).try_read().await.expect("an answer").expect("re-entry");
    assert_eq!(outer.token(), inner.token());
    assert!(locks.rwlock("a").try_read().await.expect("an answer").is_none(), "other readers wait");
    drop((outer, inner));
    let written = writer.await.expect("no panic").expect("a lock");
    let _ = written.release().await.expect("a release");
}

/// A reader that requests a write lock would wait for itself, and gets an error.
pub async fn an_upgrade_is_refused(context: &TestContext) {
    let locks = context.open_locks().await;
    let owner = Owner::new();
    let reader = locks.rwlock("a").owner(&owner).read().await.expect("a lock");
    let error = locks.rwlock("a").owner(&owner).write().await.expect_err("an upgrade");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(reader.is_held(), "the hold is unaffected");
    let _ = reader.release().await.expect("a release");
    let writer = locks.rwlock("a").owner(&owner).write().await.expect("a lock");
    let reader = locks.rwlock("a").owner(&owner).read().await.expect("a writer may read");
    assert_eq!(writer.token(), reader.token());
}

/// A nested request uses the outer one's permits; after a release, the largest remaining hold
/// counts.
pub async fn nested_permits_count_once_and_with_the_largest(context: &TestContext) {
    let locks = context.open_locks().await;
    let owner = Owner::new();
    let mine = locks.semaphore("a", 3).owner(&owner);
    let others = locks.semaphore("a", 3);
    let outer = mine.acquire(3).await.expect("permits");
    let small = mine.try_acquire(1).await.expect("an answer").expect("re-entry");
    let large = mine.try_acquire(3).await.expect("an answer").expect("re-entry");
    let _ = outer.release().await.expect("a release");
    let exceeded = others.try_acquire(1).await.expect("an answer");
    assert!(exceeded.is_none(), "a nested hold of all permits remains");
    let _ = large.release().await.expect("a release");
    let rest = others.try_acquire(2).await.expect("an answer").expect("two permits are free");
    assert!(others.try_acquire(1).await.expect("an answer").is_none(), "the nested hold of one permit remains");
    drop((rest, small));
}

/// An owner is a value that can be passed to another process.
pub async fn the_same_owner_re_enters_from_another_process(context: &TestContext) {
    let locks = context.open_locks().await;
    let mut actor = context.spawn_actor(LONG_TTL).await;
    let outer = locks.mutex("a").owner(&Owner::named("job")).lock().await.expect("a lock");
    let other_owner = LockRequest { guard: "other-owner".to_owned(), wait_ms: Some(0), ..LockRequest::exclusive("a") };
    actor.send(&ActorCommand::Lock(other_owner)).await;
    actor
        .wait_for_report("a busy report", |report| {
            matches!(report, crate::protocol::ActorReport::Busy { .. }).then_some(())
        })
        .await;
    let inner = LockRequest { owner: Some("job".to_owned()), wait_ms: Some(0), ..LockRequest::exclusive("a") };
    let (token, _) = actor.acquire(inner).await;
    assert_eq!(token, outer.token().0);
    let _ = outer.release().await.expect("a release");
    assert!(locks.mutex("a").try_lock().await.expect("an answer").is_none(), "the other process's hold remains");
    assert_eq!(actor.release("a").await, "released");
    drop(locks.mutex("a").try_lock().await.expect("an answer").expect("a free lock"));
}

/// An expired hold allows no re-entry.
pub async fn an_expired_hold_allows_no_re_entry(context: &TestContext) {
    let engine = context.open_engine().await;
    let owner = Some(Owner::new());
    let outer = context.new_claim("a", Mode::Exclusive, owner, context.short_ttl());
    eventually(TEST_TIMEOUT, || engine.clone().attempt(outer.clone(), false)).await;
    let other = context.new_claim("a", Mode::Exclusive, None, LONG_TTL);
    context.wait_granted(&engine, &other).await;
    let inner = context.new_claim("a", Mode::Exclusive, owner, LONG_TTL);
    let answer = engine.clone().attempt(inner, false).await;
    assert!(matches!(answer, Ok(AcquireReply::Busy { .. })), "{answer:?}");
    engine.release(other).await.expect("a release");
}
