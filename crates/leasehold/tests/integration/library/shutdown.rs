//! `flush` and `close` wait until every dropped guard and request is released.

use std::time::Duration;

use leasehold::ErrorKind;

use crate::TEST_TIMEOUT;
use crate::library::renewal::locks_with_spy;
use crate::library::spy::{Call, ScriptedReply};
use crate::library::time::{
    advance_in_steps, locks_on_manual_clock, open_with_long_ttl, release_held, run_until_idle, within_timeout,
};

#[tokio::test]
async fn flush_waits_until_dropped_guards_are_released() {
    let (_manual_clock, spy, locks) = locks_with_spy().await;
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    spy.reply_next(Call::Release, ScriptedReply::AfterGate(gate.clone()));
    drop(locks.mutex("a").lock().await.unwrap());
    let flush = tokio::spawn({
        let locks = locks.clone();
        async move { locks.flush().await }
    });
    run_until_idle().await;
    assert!(!flush.is_finished());
    gate.add_permits(1);
    within_timeout("flush", flush).await.unwrap().unwrap();
    within_timeout("flush without pending releases", locks.flush()).await.unwrap();
}

#[tokio::test]
async fn flush_times_out_when_the_engine_does_not_respond() {
    let (manual_clock, spy, locks) = locks_with_spy().await;
    spy.reply_always(Call::Release, ScriptedReply::NoResponse);
    drop(locks.mutex("a").lock().await.unwrap());
    let flush = tokio::spawn({
        let locks = locks.clone();
        async move { locks.flush().await }
    });
    advance_in_steps(&manual_clock, Duration::from_secs(6), Duration::from_millis(100)).await;
    let error = within_timeout("flush times out", flush).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.engine()), (ErrorKind::Unavailable, Some("memory")));
}

#[tokio::test]
async fn a_closed_locks_refuses_further_requests_and_keeps_its_guards() {
    let (manual_clock, locks) = locks_on_manual_clock().await;
    let (clone, mutex) = (locks.clone(), locks.mutex("b"));
    let guard = locks.mutex("a").lock().await.unwrap();
    within_timeout("closed", locks.close()).await.unwrap();
    assert_eq!(clone.mutex("c").lock().await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(mutex.try_lock().await.unwrap_err().kind(), ErrorKind::Closed);
    advance_in_steps(&manual_clock, crate::library::time::TTL * 2, Duration::from_millis(500)).await;
    assert!(guard.is_held(), "still renewed");
    drop(guard);
    run_until_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guards_dropped_with_the_last_locks_are_released() {
    let watcher = open_with_long_ttl("memory:ending-rs").await;
    for round in 0..2000 {
        let locks = open_with_long_ttl("memory:ending-rs").await;
        let guard = locks.mutex("a").try_lock().await.unwrap();
        let guard = guard.unwrap_or_else(|| panic!("round {round}: the guard before was not released"));
        // Meanwhile the keeper of these locks wakes on another thread, because of the new lease.
        drop(guard);
        drop(locks);
        let next = watcher.mutex("a").timeout(TEST_TIMEOUT).lock().await;
        let next = next.unwrap_or_else(|error| panic!("round {round}: {error}"));
        release_held(next).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flush_never_completes_too_early() {
    let locks = open_with_long_ttl("memory:ending-rs-2").await;
    let watcher = open_with_long_ttl("memory:ending-rs-2").await;
    for round in 0..5000 {
        drop(locks.mutex("a").lock().await.unwrap());
        locks.flush().await.unwrap();
        assert!(watcher.inspect("a").await.unwrap().holders.is_empty(), "round {round}: flushed, but still held");
    }
}
