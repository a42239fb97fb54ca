//! A process stands still (SIGSTOP) for longer than its TTL, and goes on.

use crate::protocol::{LockRequest, ActorCommand};
use crate::register::Register;
use crate::test_context::{LONG_TTL, TEST_TIMEOUT, TestContext};

/// A holder that stood still knows that it lost the lock as soon as it runs, and the resource refuses its token; without
/// tokens its late write destroys the next holder's.
pub async fn a_holder_stopped_past_its_ttl_learns_of_it_and_is_fenced_off(context: &TestContext) {
    let folder = tempfile::tempdir().expect("a folder");
    let (fenced, naive) = (folder.path().join("fenced"), folder.path().join("naive"));
    let locks = context.open_locks().await;
    let mut player = context.spawn_actor(context.short_ttl()).await;
    let (stale, _) = player.acquire(LockRequest::exclusive_with_retries("a")).await;
    assert!(player.write("a", &fenced, 1, true).await);
    assert!(player.write("a", &naive, 1, false).await);

    player.process().sigstop().expect("a stopped process");
    let guard = locks.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("the lock of the one who stands still");
    assert!(guard.token().0 > stale);
    assert!(Register::open(&fenced).expect("a file").write_fenced(guard.token(), 2).expect("a write"));
    Register::open(&naive).expect("a file").write_unfenced(2).expect("a write");
    player.process().sigcont().expect("a running process");

    let (held, _) = player.query_held("a").await;
    assert!(!held, "a guard does not say that it is held after its deadline");
    assert!(!player.write("a", &fenced, 3, true).await, "a stale token is refused");
    assert!(player.write("a", &naive, 3, false).await, "nobody refuses it");
    let reason = player.wait_lost("a").await;
    assert_ne!(reason, "max-hold");
    assert_eq!(player.release("a").await, reason, "the release says what the signal said");

    assert_eq!(Register::open(&fenced).expect("a file").value().expect("a value"), 2);
    assert_eq!(Register::open(&naive).expect("a file").value().expect("a value"), 3, "the control is destroyed");
    assert!(guard.is_held(), "the late release does not touch the next holder");
}

/// A waiter that stood still does not stop the queue, and gets the lock when it is free again.
pub async fn a_waiter_stopped_past_its_ttl_requests_again(context: &TestContext) {
    let locks = context.open_locks().await;
    let mut player = context.spawn_actor(context.short_ttl()).await;
    let holder = locks.mutex("a").lock().await.expect("a lock");
    player.send(&ActorCommand::Lock(LockRequest::exclusive_with_retries("a"))).await;
    context.wait_for_waiters("a", 1).await;
    player.process().sigstop().expect("a stopped process");
    let _ = holder.release().await.expect("a release");
    let next = locks.mutex("a").ttl(LONG_TTL).timeout(TEST_TIMEOUT).lock().await.expect("the queue goes on");
    player.process().sigcont().expect("a running process");
    assert!(next.is_held());
    let token = next.token().0;
    let _ = next.release().await.expect("a release");
    let (late, _) = player.wait_granted("a").await;
    // It may have been granted while it stood still, and again when it asked again.
    assert!(late > token, "{late} after {token}");
    // Its lease is short, and nobody says how soon it comes to give it back.
    let outcome = player.release("a").await;
    let unconfirmed = outcome.contains("no answer");
    assert!(unconfirmed || ["released", "expired", "taken"].contains(&outcome.as_str()), "{outcome}");
}
