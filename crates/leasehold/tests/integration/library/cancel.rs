//! Dropping a request at any point leaves neither a held lock nor a position in the queue.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{ErrorKind, Locks};
use tokio::sync::Semaphore;

use crate::library::renewal::spied;
use crate::library::spy::{Call, Play};
use crate::library::time::{TTL, give_back, lasting, pass, pending, quiet, soon, still, walk};

async fn nobody(locks: &Locks) -> bool {
    let view = locks.inspect("a").await.unwrap();
    view.holders.is_empty() && view.waiters.is_empty()
}

#[tokio::test]
async fn a_request_dropped_while_its_grant_is_on_the_way_is_given_back() {
    let (_hand, spy, locks) = spied().await;
    let gate = Arc::new(Semaphore::new(0));
    spy.next(Call::Attempt, Play::Late(Arc::clone(&gate)));
    let mutex = locks.mutex("a");
    let mut request = Box::pin(mutex.lock());
    assert!(pending(&mut request).await);
    assert_eq!(locks.inspect("a").await.unwrap().holders.len(), 1, "the engine has granted it");
    drop(request);
    quiet().await;
    assert_eq!(spy.count(Call::Release), 0, "not before the call that may still grant it has ended");
    gate.add_permits(1);
    quiet().await;
    assert_eq!(spy.count(Call::Release), 1);
    assert!(nobody(&locks).await);
}

#[tokio::test]
async fn a_request_dropped_while_the_engine_is_silent_is_given_back_within_a_ttl() {
    let (hand, spy, locks) = spied().await;
    spy.next(Call::Attempt, Play::Late(Arc::new(Semaphore::new(0))));
    let mutex = locks.mutex("a");
    let mut request = Box::pin(mutex.lock());
    assert!(pending(&mut request).await);
    drop(request);
    walk(&hand, TTL / 3, Duration::from_millis(100)).await;
    assert!(nobody(&locks).await);
}

#[tokio::test]
async fn a_request_that_was_never_polled_or_never_sent_asks_the_engine_for_nothing() {
    let (_hand, spy, locks) = spied().await;
    drop(locks.mutex("a").lock());
    assert!(locks.mutex("a").ttl(Duration::ZERO).lock().await.is_err());
    quiet().await;
    assert_eq!((spy.count(Call::Attempt), spy.count(Call::Release)), (0, 0));
}

#[tokio::test]
async fn a_queued_request_leaves_the_queue_as_soon_as_it_is_dropped() {
    let (_hand, locks) = still().await;
    let _guard = locks.mutex("a").lock().await.unwrap();
    let mutex = locks.mutex("a");
    let mut request = Box::pin(mutex.lock());
    assert!(pending(&mut request).await);
    assert_eq!(locks.inspect("a").await.unwrap().waiters.len(), 1);
    drop(request);
    quiet().await;
    assert_eq!(locks.inspect("a").await.unwrap().waiters.len(), 0, "without any time passing");
}

#[tokio::test]
async fn a_dropped_writer_does_not_hold_up_readers() {
    let (_hand, locks) = still().await;
    let lock = locks.rwlock("a");
    let _reader = lock.read().await.unwrap();
    let mut writer = Box::pin(lock.write());
    assert!(pending(&mut writer).await);
    assert!(lock.try_read().await.unwrap().is_none(), "while it waits, it is not overtaken");
    drop(writer);
    quiet().await;
    assert!(lock.try_read().await.unwrap().is_some());
}

#[tokio::test]
async fn settle_after_a_dropped_request_is_quick() {
    let locks = lasting("memory:").await;
    let _guard = locks.mutex("a").lock().await.unwrap();
    let mutex = locks.mutex("a");
    let mut request = Box::pin(mutex.lock());
    assert!(pending(&mut request).await);
    drop(request);
    soon("settle", locks.settle()).await.unwrap();
    assert!(locks.inspect("a").await.unwrap().waiters.is_empty());
}

#[tokio::test]
async fn a_request_dropped_in_the_moment_of_its_grant_passes_the_lock_on() {
    let (_hand, locks) = still().await;
    let guard = locks.mutex("a").lock().await.unwrap();
    let mutex = locks.mutex("a");
    let mut second = Box::pin(mutex.lock());
    assert!(pending(&mut second).await);
    let third = tokio::spawn({
        let mutex = locks.mutex("a");
        async move { mutex.lock().await }
    });
    quiet().await;
    give_back(guard).await;
    // The engine has granted the lock to the second request by now, but it was not polled since.
    drop(second);
    quiet().await;
    assert!(third.is_finished());
    assert_eq!(third.await.unwrap().unwrap().token().0, 3);
}

#[tokio::test]
async fn a_request_that_waited_long_enough_leaves_the_queue() {
    let (hand, locks) = still().await;
    let _guard = locks.mutex("a").lock().await.unwrap();
    let wait = Duration::from_secs(20);
    let request = tokio::spawn({
        let mutex = locks.mutex("a").wait(wait);
        async move { mutex.lock().await }
    });
    walk(&hand, wait - Duration::from_millis(1), Duration::from_millis(500)).await;
    assert!(!request.is_finished(), "not before its time");
    pass(&hand, Duration::from_millis(1)).await;
    assert_eq!(request.await.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
    quiet().await;
    assert!(locks.inspect("a").await.unwrap().waiters.is_empty());
}

#[tokio::test]
async fn a_bounded_wait_is_bounded_also_when_the_engine_is_silent() {
    let (hand, spy, locks) = spied().await;
    spy.always(Call::Attempt, Play::Silence);
    let request = tokio::spawn({
        let mutex = locks.mutex("a").wait(Duration::from_secs(1));
        async move { mutex.lock().await }
    });
    walk(&hand, Duration::from_secs(2), Duration::from_millis(100)).await;
    assert!(request.is_finished(), "twice the wait is over");
    let error = request.await.unwrap().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{error}");
}

#[tokio::test]
async fn a_lost_reply_is_asked_for_again_with_the_same_claim() {
    let (hand, spy, locks) = spied().await;
    spy.next(Call::Attempt, Play::LoseReply);
    let request = tokio::spawn({
        let mutex = locks.mutex("a");
        async move { mutex.lock().await }
    });
    walk(&hand, Duration::from_secs(1), Duration::from_millis(10)).await;
    let guard = request.await.unwrap().unwrap();
    assert_eq!((guard.token().0, spy.count(Call::Attempt)), (1, 2), "granted once");
    assert_eq!(locks.inspect("a").await.unwrap().holders.len(), 1);
}
