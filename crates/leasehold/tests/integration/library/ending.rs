//! Settling and closing leave nothing behind.

use std::time::Duration;

use leasehold::ErrorKind;

use crate::BOUND;
use crate::library::renewal::spied;
use crate::library::spy::{Call, Play};
use crate::library::time::{give_back, lasting, quiet, soon, still, walk};

#[tokio::test]
async fn settle_waits_until_what_was_dropped_is_given_back() {
    let (_hand, spy, locks) = spied().await;
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    spy.next(Call::Release, Play::Late(gate.clone()));
    drop(locks.mutex("a").lock().await.unwrap());
    let settled = tokio::spawn({
        let locks = locks.clone();
        async move { locks.settle().await }
    });
    quiet().await;
    assert!(!settled.is_finished());
    gate.add_permits(1);
    soon("settled", settled).await.unwrap().unwrap();
    soon("settled already", locks.settle()).await.unwrap();
}

#[tokio::test]
async fn settle_gives_up_when_the_engine_is_silent() {
    let (hand, spy, locks) = spied().await;
    spy.always(Call::Release, Play::Silence);
    drop(locks.mutex("a").lock().await.unwrap());
    let settled = tokio::spawn({
        let locks = locks.clone();
        async move { locks.settle().await }
    });
    walk(&hand, Duration::from_secs(6), Duration::from_millis(100)).await;
    let error = soon("settle has a bound", settled).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.engine()), (ErrorKind::Unavailable, Some("memory")));
}

#[tokio::test]
async fn a_closed_locks_refuses_further_requests_and_keeps_its_guards() {
    let (hand, locks) = still().await;
    let (clone, mutex) = (locks.clone(), locks.mutex("b"));
    let guard = locks.mutex("a").lock().await.unwrap();
    soon("closed", locks.close()).await.unwrap();
    assert_eq!(clone.mutex("c").lock().await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(mutex.try_lock().await.unwrap_err().kind(), ErrorKind::Closed);
    walk(&hand, crate::library::time::TTL * 2, Duration::from_millis(500)).await;
    assert!(guard.is_held(), "still renewed");
    drop(guard);
    quiet().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_dropped_together_with_the_last_locks_is_given_back() {
    let watcher = lasting("memory:ending-rs").await;
    for round in 0..2000 {
        let locks = lasting("memory:ending-rs").await;
        let guard = locks.mutex("a").try_lock().await.unwrap();
        let guard = guard.unwrap_or_else(|| panic!("round {round}: left behind"));
        // On another thread, the new lease is just waking the keeper of these locks.
        drop(guard);
        drop(locks);
        let next = watcher.mutex("a").wait(BOUND).lock().await;
        let next = next.unwrap_or_else(|error| panic!("round {round}: {error}"));
        give_back(next).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settle_never_says_so_too_early() {
    let locks = lasting("memory:ending-rs-2").await;
    let watcher = lasting("memory:ending-rs-2").await;
    for round in 0..5000 {
        drop(locks.mutex("a").lock().await.unwrap());
        locks.settle().await.unwrap();
        assert!(watcher.inspect("a").await.unwrap().holders.is_empty(), "round {round}: settled, but still held");
    }
}
