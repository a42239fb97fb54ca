//! A request or a reply is lost: the outcome is unknown, and the client does not guess.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::ManualClock;
use leasehold::engine::Fairness;
use leasehold::{Effect, ErrorKind, Locks, ReleaseOutcome};
use leasehold_testbed::eventually;

use crate::flaky::{Fault, FlakyEngine, Method};
use crate::test_context::{LONG_TTL, TEST_TIMEOUT, TestContext};

/// A wait that times out within a case.
const SHORT_TIMEOUT: Duration = Duration::from_millis(300);

/// The engine granted the lock but the reply is lost: a retry gets the same grant.
pub async fn a_lost_reply_to_an_attempt_is_one_grant(context: &TestContext) {
    let ((locks, flaky), other) = (context.open_flaky(LONG_TTL).await, context.open_locks().await);
    flaky.fail_next(Method::Attempt, [Fault::LoseReply, Fault::LoseReply]);
    let guard = locks.mutex("a").lock().await.expect("a lock");
    assert_eq!(flaky.call_count(Method::Attempt), 3);
    assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
    if context.capabilities().inspection {
        let view = context.inspect("a").await;
        assert_eq!((view.holders.len(), view.waiters.len()), (1, 0), "{view:?}");
        assert_eq!(view.holders[0].token, Some(guard.token()));
    }
    assert_eq!(guard.release().await.expect("an outcome"), ReleaseOutcome::Released);
    let next = other.mutex("a").try_lock().await.expect("an answer").expect("a single hold");
    let _ = next.release().await.expect("a release");
}

/// A lost request is sent again.
pub async fn a_lost_request_is_sent_again(context: &TestContext) {
    let (locks, flaky) = context.open_flaky(LONG_TTL).await;
    flaky.fail_next(Method::Attempt, [Fault::LoseRequest, Fault::LoseRequest]);
    let guard = locks.mutex("a").lock().await.expect("a lock");
    assert_eq!(flaky.call_count(Method::Attempt), 3);
    assert_eq!(guard.release().await.expect("an outcome"), ReleaseOutcome::Released);
}

/// A try is not retried, but what it may have acquired is released.
pub async fn a_lost_reply_to_a_try_is_cleaned_up(context: &TestContext) {
    let (locks, flaky) = context.open_flaky(LONG_TTL).await;
    flaky.fail_next(Method::Attempt, [Fault::LoseReply]);
    let error = locks.mutex("a").try_lock().await.expect_err("a lost reply");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown), "{error}");
    context.wait_until_free("a").await;
}

/// What an earlier attempt may have acquired is released, although a later one failed permanently.
pub async fn a_lost_reply_before_a_final_error_is_cleaned_up(context: &TestContext) {
    let (locks, flaky) = context.open_flaky(LONG_TTL).await;
    flaky.fail_next(Method::Attempt, [Fault::LoseReply, Fault::Deny]);
    let error = locks.mutex("a").lock().await.expect_err("a final error");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    context.wait_until_free("a").await;
}

/// The reply with the grant is lost: the waiter's retry gets the same grant, and no other claim
/// overtakes it.
pub async fn a_lost_reply_while_waiting_keeps_the_position(context: &TestContext) {
    let ((locks, flaky), other) = (context.open_flaky(LONG_TTL).await, context.open_locks().await);
    let engine = context.open_engine().await;
    let holder = other.mutex("a").lock().await.expect("a lock");
    flaky.fail_next(Method::Wait, [Fault::LoseReply]);
    let first = tokio::spawn(async move { locks.mutex("a").timeout(TEST_TIMEOUT).lock().await });
    eventually(TEST_TIMEOUT, || async {
        if flaky.call_count(Method::Wait) > 0 { Ok(()) } else { Err("no wait so far") }
    })
    .await;
    let second = context.new_claim("a", leasehold::Mode::Exclusive, None, LONG_TTL);
    let answer = Arc::clone(&engine).attempt(second.clone(), true).await.expect("an answer");
    assert!(matches!(answer, leasehold::engine::AcquireReply::Queued { ahead: 1, .. }), "{answer:?}");
    let _ = holder.release().await.expect("a release");
    let first = first.await.expect("no panic").expect("the grant");
    let token = first.token();
    assert_eq!(first.release().await.expect("an outcome"), ReleaseOutcome::Released);
    let (next, _) = context.wait_granted(&engine, &second).await;
    assert!(next > token, "{next} after {token}");
    engine.release(second).await.expect("a release");
}

/// The lock was released but the reply is lost: a retry still reports the release.
pub async fn a_lost_reply_to_a_release_is_a_release(context: &TestContext) {
    let (locks, flaky) = context.open_flaky(LONG_TTL).await;
    let guard = locks.mutex("a").lock().await.expect("a lock");
    flaky.fail_next(Method::Release, [Fault::LoseReply]);
    assert_eq!(guard.release().await.expect("an outcome"), ReleaseOutcome::Released);
    context.wait_until_free("a").await;
}

/// A lost release is sent again, also for a dropped guard.
pub async fn a_lost_request_to_release_is_sent_again(context: &TestContext) {
    let (locks, flaky) = context.open_flaky(LONG_TTL).await;
    let guard = locks.mutex("a").lock().await.expect("a lock");
    flaky.fail_next(Method::Release, [Fault::LoseRequest, Fault::Refuse]);
    assert_eq!(guard.release().await.expect("an outcome"), ReleaseOutcome::Released);
    context.wait_until_free("a").await;
    let guard = locks.mutex("a").lock().await.expect("a lock");
    flaky.fail_next(Method::Release, [Fault::LoseRequest, Fault::Refuse]);
    drop(guard);
    context.wait_until_free("a").await;
}

/// A renewal is retried before the lease ends, however it got lost. On a slow machine the lease may
/// end all the same; then another attempt must succeed.
pub async fn lost_replies_to_renewals_lose_nothing(context: &TestContext) {
    let (locks, flaky) = context.open_flaky(context.short_ttl().max(Duration::from_millis(600))).await;
    for fault in [Fault::LoseReply, Fault::LoseRequest, Fault::Refuse] {
        eventually(TEST_TIMEOUT, || async {
            let guard = locks.mutex("a").lock().await.map_err(|error| error.to_string())?;
            flaky.fail_next(Method::Renew, [fault]);
            let before = (flaky.call_count(Method::Renew), guard.deadline());
            let renewed = eventually(TEST_TIMEOUT, || async {
                let tried = flaky.call_count(Method::Renew) >= before.0 + 2;
                if !guard.is_held() {
                    return Ok(false);
                }
                if tried && guard.deadline() > before.1 { Ok(true) } else { Err("not renewed") }
            });
            if !renewed.await {
                return Err(format!("lost after {fault:?}: {:?}", guard.lost_reason()));
            }
            let _ = guard.release().await.map_err(|error| error.to_string())?;
            Ok(())
        })
        .await;
    }
}

/// A temporarily busy engine is retried while the caller waits.
pub async fn a_temporary_refusal_is_retried_within_the_timeout(context: &TestContext) {
    let (locks, flaky) = context.open_flaky(LONG_TTL).await;
    flaky.fail_next(Method::Attempt, [Fault::Refuse; 4]);
    let guard = locks.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("a lock");
    assert_eq!(flaky.call_count(Method::Attempt), 5);
    let _ = guard.release().await.expect("a release");
}

/// A bounded wait ends in time, even if the engine is unreachable.
pub async fn an_unreachable_engine_ends_the_wait_in_time(context: &TestContext) {
    let (locks, flaky) = context.open_flaky(LONG_TTL).await;
    flaky.disconnect();
    let result = tokio::time::timeout(TEST_TIMEOUT, locks.mutex("a").timeout(SHORT_TIMEOUT).lock())
        .await
        .expect("the call returns");
    let error = result.expect_err("the engine is unreachable");
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error}");
    flaky.reconnect();
    context.wait_until_free("a").await;
    drop(locks.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("the engine is reachable again"));
}

/// A bounded wait ends in time, even if the engine never responds: a manual clock passes this
/// timeout and no other.
pub async fn an_engine_that_never_responds_ends_the_wait_in_time(context: &TestContext) {
    let other = context.open_locks().await;
    // Another client holds the lock, so that the second request waits and then gets no reply.
    let holder = other.mutex("held").lock().await.expect("a lock");
    for (name, method) in [("free", Method::Attempt), ("held", Method::Wait)] {
        let (manual_clock, flaky) = (ManualClock::new(), Arc::new(FlakyEngine::new(context.open_engine().await)));
        let locks = Locks::builder().clock(manual_clock.clock()).ttl(LONG_TTL).open_engine(Arc::clone(&flaky) as _);
        flaky.fail_always(method, Fault::Hang);
        let acquiring = tokio::spawn(async move { locks.mutex(name).timeout(SHORT_TIMEOUT).lock().await });
        let queue = context.capabilities().fairness == Fairness::Fifo;
        let called = if queue { method } else { Method::Attempt };
        eventually(TEST_TIMEOUT, || async {
            if flaky.call_count(called) > 0 { Ok(()) } else { Err("no call so far") }
        })
        .await;
        manual_clock.advance(SHORT_TIMEOUT * 3);
        let error = tokio::time::timeout(TEST_TIMEOUT, acquiring)
            .await
            .expect("the call returns")
            .expect("no panic")
            .expect_err("no reply");
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error}");
        flaky.reconnect();
    }
    drop(holder);
}

/// An unlimited wait fails when the engine has been unreachable for a whole TTL.
pub async fn an_engine_unreachable_for_a_ttl_is_an_error(context: &TestContext) {
    let (locks, flaky) = context.open_flaky(context.short_ttl()).await;
    flaky.disconnect();
    let ended = tokio::time::timeout(TEST_TIMEOUT, locks.mutex("a").lock()).await.expect("the call returns");
    let error = ended.expect_err("the engine is unreachable");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.is_retryable(), "{error}");
    flaky.reconnect();
    context.wait_until_free("a").await;
}

/// A bounded wait lasts as long as its timeout: an engine that is unreachable for longer than a
/// TTL, but recovers within the timeout, grants the lock.
pub async fn a_wait_longer_than_the_ttl_covers_an_outage(context: &TestContext) {
    let (locks, flaky) = context.open_flaky(context.short_ttl()).await;
    flaky.disconnect();
    let waits = tokio::spawn(async move { locks.mutex("a").timeout(TEST_TIMEOUT).lock().await.map(drop) });
    // The TTL counts from the first failure. An attempt after it still finds the engine
    // unreachable.
    eventually(TEST_TIMEOUT, async || {
        if flaky.call_count(Method::Attempt) > 1 { Ok(()) } else { Err("no second attempt so far") }
    })
    .await;
    context.sleep(context.short_ttl() * 2).await;
    let attempts = flaky.call_count(Method::Attempt);
    eventually(TEST_TIMEOUT, async || {
        if waits.is_finished() || flaky.call_count(Method::Attempt) > attempts {
            Ok(())
        } else {
            Err("no further attempt so far")
        }
    })
    .await;
    flaky.reconnect();
    waits.await.expect("no panic").expect("a lock before the timeout");
    context.wait_until_free("a").await;
}
