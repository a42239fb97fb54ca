//! Tokens rise, whatever happens between two grants.

use std::sync::Arc;

use leasehold::Mode;

use crate::protocol::{ActorCommand, LockRequest};
use crate::short_leases::repetitions;
use crate::test_context::{LONG_TTL, TEST_TIMEOUT, TestContext};

/// Every grant has a higher token than the one before, in any client, however the earlier hold
/// ended.
pub async fn rise_with_every_grant(context: &TestContext) {
    let clients = [context.open_locks().await, context.open_locks().await];
    let mut last = 0;
    for round in 0..20 {
        let mutex = clients[round % 2].mutex("a");
        let guard = mutex.timeout(TEST_TIMEOUT).lock().await.expect("a lock");
        let token = guard.token().0;
        assert!(token > last, "{token} after {last}");
        last = token;
        if round % 3 == 0 {
            drop(guard);
        } else {
            let _ = guard.release().await.expect("a release");
        }
    }
}

/// A grant after an expired lease has a higher token than that lease.
pub async fn rise_over_an_expiry(context: &TestContext) {
    let engine = context.open_engine().await;
    let expires = context.new_claim("a", Mode::Exclusive, None, context.short_ttl());
    let (before, _) = context.wait_granted(&engine, &expires).await;
    let next = context.new_claim("a", Mode::Exclusive, None, LONG_TTL);
    let (after, _) = context.wait_granted(&engine, &next).await;
    assert!(after > before, "{after} after {before}");
    Arc::clone(&engine).release(next).await.expect("a release");
}

/// A force release's fence token is above the force-released holder's token and below the next
/// one's.
pub async fn rise_over_a_force_release(context: &TestContext) {
    let (locks, other) = (context.open_locks().await, context.open_locks().await);
    let guard = locks.mutex("a").lock().await.expect("a lock");
    let claim = other.inspect("a").await.expect("a view").holders[0].claim;
    let fence = other.force_release("a", claim).await.expect("a force release").fence_token.expect("a token");
    assert!(fence > guard.token(), "{fence} fences {}", guard.token());
    let next = other.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("a lock");
    assert!(next.token() > fence, "{} after {fence}", next.token());
}

/// A grant after a crash of the holder has a higher token than the holder had.
pub async fn rise_over_a_crash(context: &TestContext) {
    let locks = context.open_locks().await;
    let mut last = 0;
    for _ in 0..repetitions(1, 3) {
        let mut actor = context.spawn_actor(context.short_ttl()).await;
        let (token, _) = actor.acquire(LockRequest::exclusive_with_retries("a")).await;
        assert!(token > last, "{token} after {last}");
        actor.process().sigkill().expect("a killed process");
        let guard = locks.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("a lock");
        assert!(guard.token().0 > token, "{} after {token}", guard.token());
        last = guard.token().0;
        let _ = guard.release().await.expect("a release");
    }
}

/// A new client continues where the last one ended, even if that one was killed.
pub async fn rise_when_the_engine_is_opened_again(context: &TestContext) {
    let mut last = 0;
    for round in 0..repetitions(3, 6) {
        let ttl = if round % 2 == 1 { context.short_ttl() } else { LONG_TTL };
        let mut actor = context.spawn_actor(ttl).await;
        let (token, _) = actor.acquire(LockRequest::exclusive_with_retries("a")).await;
        assert!(token > last, "{token} after {last}");
        last = token;
        if round % 2 == 1 {
            actor.process().sigkill().expect("a killed process");
        } else {
            assert_eq!(actor.release("a").await, "released");
            actor.send(&ActorCommand::Quit).await;
            actor.process().wait_exit(TEST_TIMEOUT).await.expect("an exit");
        }
    }
}

/// Claims that hold together have different tokens.
pub async fn differ_among_readers(context: &TestContext) {
    let locks = context.open_locks().await;
    let mut readers = Vec::new();
    for _ in 0..4 {
        readers.push(locks.rwlock("a").read().await.expect("a lock"));
    }
    assert!(readers.is_sorted_by(|a, b| a.token() < b.token()), "{readers:?}");
}

/// The inspection shows the holder's token, and no lower one as the last token.
pub async fn are_known_to_the_inspection(context: &TestContext) {
    let locks = context.open_locks().await;
    let guard = locks.mutex("a").lock().await.expect("a lock");
    let view = locks.inspect("a").await.expect("a view");
    assert_eq!(view.holders[0].token, Some(guard.token()));
    assert!(view.last_token.is_none_or(|last| last >= guard.token()), "{view:?}");
    let token = guard.token();
    let _ = guard.release().await.expect("a release");
    let last = locks.last_token("a").await.expect("a view");
    assert!(last.is_none_or(|last| last >= token), "{last:?} is known after {token}");
}
