//! A process is stopped (SIGSTOP) for longer than its TTL, and resumes.

use crate::protocol::{ActorCommand, LockRequest};
use crate::register::Register;
use crate::test_context::{LONG_TTL, TEST_TIMEOUT, TestContext};

/// A resumed holder learns at once that it lost the lock, and the resource rejects its token.
/// Without tokens, its late write destroys the next holder's.
pub async fn a_holder_stopped_past_its_ttl_learns_of_it_and_is_fenced_off(context: &TestContext) {
    let folder = tempfile::tempdir().expect("a folder");
    let (fenced, naive) = (folder.path().join("fenced"), folder.path().join("naive"));
    let locks = context.open_locks().await;
    let mut actor = context.spawn_actor(context.short_ttl()).await;
    let (stale, _) = actor.acquire(LockRequest::exclusive_with_retries("a")).await;
    assert!(actor.write("a", &fenced, 1, true).await);
    assert!(actor.write("a", &naive, 1, false).await);

    actor.process().sigstop().expect("a stopped process");
    let guard = locks.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("the lock of the stopped process");
    assert!(guard.token().0 > stale);
    assert!(Register::open(&fenced).expect("a file").write_fenced(guard.token(), 2).expect("a write"));
    Register::open(&naive).expect("a file").write_unfenced(2).expect("a write");
    actor.process().sigcont().expect("a running process");

    let (held, _) = actor.query_held("a").await;
    assert!(!held, "the guard is held after its deadline");
    assert!(!actor.write("a", &fenced, 3, true).await, "a stale token is rejected");
    assert!(actor.write("a", &naive, 3, false).await, "no check");
    let reason = actor.wait_lost("a").await;
    assert_ne!(reason, "max-hold");
    assert_eq!(actor.release("a").await, reason, "the release reports the same reason");

    assert_eq!(Register::open(&fenced).expect("a file").value().expect("a value"), 2);
    assert_eq!(Register::open(&naive).expect("a file").value().expect("a value"), 3, "the control is overwritten");
    assert!(guard.is_held(), "the late release does not affect the next holder");
}

/// A stopped waiter does not block the queue, and acquires the lock when it is free again.
pub async fn a_waiter_stopped_past_its_ttl_requests_again(context: &TestContext) {
    let locks = context.open_locks().await;
    let mut actor = context.spawn_actor(context.short_ttl()).await;
    let holder = locks.mutex("a").lock().await.expect("a lock");
    actor.send(&ActorCommand::Lock(LockRequest::exclusive_with_retries("a"))).await;
    context.wait_for_waiters("a", 1).await;
    actor.process().sigstop().expect("a stopped process");
    let _ = holder.release().await.expect("a release");
    let next = locks.mutex("a").ttl(LONG_TTL).timeout(TEST_TIMEOUT).lock().await.expect("the next waiter");
    actor.process().sigcont().expect("a running process");
    assert!(next.is_held());
    let token = next.token().0;
    let _ = next.release().await.expect("a release");
    let (late, _) = actor.wait_granted("a").await;
    // It may have been granted while it was stopped, and again after its retry.
    assert!(late > token, "{late} after {token}");
    // The actor's lease is short, so the lock may already be lost when it releases.
    let outcome = actor.release("a").await;
    let unconfirmed = outcome.contains("no answer");
    assert!(unconfirmed || ["released", "expired", "revoked"].contains(&outcome.as_str()), "{outcome}");
}
