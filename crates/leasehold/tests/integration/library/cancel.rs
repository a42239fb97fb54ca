//! A request that is dropped at any point leaves neither a held lock nor a position in the queue.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{ErrorKind, Locks};
use tokio::sync::Semaphore;

use crate::library::renewal::locks_with_spy;
use crate::library::spy::{Call, ScriptedReply};
use crate::library::time::{
    TTL, advance, advance_in_steps, is_pending, locks_on_manual_clock, open_with_long_ttl, release_held,
    run_until_idle, within_timeout,
};

/// Whether the lock `a` has no holders and no waiters.
async fn is_free(locks: &Locks) -> bool {
    let view = locks.inspect("a").await.unwrap();
    view.holders.is_empty() && view.waiters.is_empty()
}

#[tokio::test]
async fn a_request_dropped_while_its_grant_is_in_flight_is_released() {
    let (_manual_clock, spy, locks) = locks_with_spy().await;
    let gate = Arc::new(Semaphore::new(0));
    spy.reply_next(Call::Attempt, ScriptedReply::AfterGate(Arc::clone(&gate)));
    let mutex = locks.mutex("a");
    let mut request = Box::pin(mutex.lock());
    assert!(is_pending(&mut request).await);
    assert_eq!(locks.inspect("a").await.unwrap().holders.len(), 1, "the engine has granted it");
    drop(request);
    run_until_idle().await;
    assert_eq!(spy.count(Call::Release), 0, "not before the call that may still grant it has ended");
    gate.add_permits(1);
    run_until_idle().await;
    assert_eq!(spy.count(Call::Release), 1);
    assert!(is_free(&locks).await);
}

#[tokio::test]
async fn a_request_dropped_while_the_engine_does_not_respond_is_released_within_a_ttl() {
    let (manual_clock, spy, locks) = locks_with_spy().await;
    spy.reply_next(Call::Attempt, ScriptedReply::AfterGate(Arc::new(Semaphore::new(0))));
    let mutex = locks.mutex("a");
    let mut request = Box::pin(mutex.lock());
    assert!(is_pending(&mut request).await);
    drop(request);
    advance_in_steps(&manual_clock, TTL / 3, Duration::from_millis(100)).await;
    assert!(is_free(&locks).await);
}

#[tokio::test]
async fn a_request_that_was_never_polled_or_never_sent_makes_no_engine_call() {
    let (_manual_clock, spy, locks) = locks_with_spy().await;
    drop(locks.mutex("a").lock());
    assert!(locks.mutex("a").ttl(Duration::ZERO).lock().await.is_err());
    run_until_idle().await;
    assert_eq!((spy.count(Call::Attempt), spy.count(Call::Release)), (0, 0));
}

#[tokio::test]
async fn a_queued_request_leaves_the_queue_as_soon_as_it_is_dropped() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let _guard = locks.mutex("a").lock().await.unwrap();
    let mutex = locks.mutex("a");
    let mut request = Box::pin(mutex.lock());
    assert!(is_pending(&mut request).await);
    assert_eq!(locks.inspect("a").await.unwrap().waiters.len(), 1);
    drop(request);
    run_until_idle().await;
    assert_eq!(locks.inspect("a").await.unwrap().waiters.len(), 0, "although no time has passed");
}

#[tokio::test]
async fn a_dropped_writer_does_not_delay_readers() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let lock = locks.rwlock("a");
    let _reader = lock.read().await.unwrap();
    let mut writer = Box::pin(lock.write());
    assert!(is_pending(&mut writer).await);
    assert!(lock.try_read().await.unwrap().is_none(), "a waiting writer is not overtaken");
    drop(writer);
    run_until_idle().await;
    assert!(lock.try_read().await.unwrap().is_some());
}

#[tokio::test]
async fn flush_after_a_dropped_request_is_quick() {
    let locks = open_with_long_ttl("memory:").await;
    let _guard = locks.mutex("a").lock().await.unwrap();
    let mutex = locks.mutex("a");
    let mut request = Box::pin(mutex.lock());
    assert!(is_pending(&mut request).await);
    drop(request);
    within_timeout("flush", locks.flush()).await.unwrap();
    assert!(locks.inspect("a").await.unwrap().waiters.is_empty());
}

#[tokio::test]
async fn a_request_dropped_at_its_grant_hands_the_lock_off() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let guard = locks.mutex("a").lock().await.unwrap();
    let mutex = locks.mutex("a");
    let mut second = Box::pin(mutex.lock());
    assert!(is_pending(&mut second).await);
    let third = tokio::spawn({
        let mutex = locks.mutex("a");
        async move { mutex.lock().await }
    });
    run_until_idle().await;
    release_held(guard).await;
    // The engine has granted the lock to the second request by now, but it was not polled since.
    drop(second);
    run_until_idle().await;
    assert!(third.is_finished());
    assert_eq!(third.await.unwrap().unwrap().token().0, 3);
}

#[tokio::test]
async fn a_request_that_times_out_leaves_the_queue() {
    let (manual_clock, locks) = locks_on_manual_clock().await;
    let _guard = locks.mutex("a").lock().await.unwrap();
    let wait = Duration::from_secs(20);
    let request = tokio::spawn({
        let mutex = locks.mutex("a").timeout(wait);
        async move { mutex.lock().await }
    });
    advance_in_steps(&manual_clock, wait - Duration::from_millis(1), Duration::from_millis(500)).await;
    assert!(!request.is_finished(), "not before its timeout");
    advance(&manual_clock, Duration::from_millis(1)).await;
    assert_eq!(request.await.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
    run_until_idle().await;
    assert!(locks.inspect("a").await.unwrap().waiters.is_empty());
}

#[tokio::test]
async fn a_bounded_wait_is_bounded_even_if_the_engine_does_not_respond() {
    let (manual_clock, spy, locks) = locks_with_spy().await;
    spy.reply_always(Call::Attempt, ScriptedReply::NoResponse);
    let request = tokio::spawn({
        let mutex = locks.mutex("a").timeout(Duration::from_secs(1));
        async move { mutex.lock().await }
    });
    advance_in_steps(&manual_clock, Duration::from_secs(2), Duration::from_millis(100)).await;
    assert!(request.is_finished(), "twice its timeout has passed");
    let error = request.await.unwrap().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{error}");
}

#[tokio::test]
async fn an_attempt_with_a_lost_reply_is_repeated_with_the_same_claim() {
    let (manual_clock, spy, locks) = locks_with_spy().await;
    spy.reply_next(Call::Attempt, ScriptedReply::LoseReply);
    let request = tokio::spawn({
        let mutex = locks.mutex("a");
        async move { mutex.lock().await }
    });
    advance_in_steps(&manual_clock, Duration::from_secs(1), Duration::from_millis(10)).await;
    let guard = request.await.unwrap().unwrap();
    assert_eq!((guard.token().0, spy.count(Call::Attempt)), (1, 2), "granted once");
    assert_eq!(locks.inspect("a").await.unwrap().holders.len(), 1);
}
