//! Mutex, read/write lock, semaphore, owners and descriptions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::{ErrorKind, Holder, Locks, MAX_DESCRIPTION, Mode, Owner, ReleaseOutcome};

use crate::library::time::{
    TTL, advance_in_steps, locks_on_manual_clock, open_with_long_ttl, release_held, run_until_idle, within_timeout,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_tasks_exclude_each_other_and_tokens_rise() {
    let locks = open_with_long_ttl("memory:").await;
    let inside = Arc::new(AtomicU32::new(0));
    let last_token = Arc::new(std::sync::Mutex::new(0));
    let work = (0..16).map(|_| {
        let (mutex, inside, last_token) = (locks.mutex("a"), Arc::clone(&inside), Arc::clone(&last_token));
        tokio::spawn(async move {
            for _ in 0..50 {
                let guard = mutex.lock().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                let before = std::mem::replace(&mut *last_token.lock().unwrap(), guard.token().0);
                assert!(before < guard.token().0);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
            }
        })
    });
    for task in work.collect::<Vec<_>>() {
        within_timeout("every task gets its turns", task).await.unwrap();
    }
    assert!(locks.list("").await.unwrap().is_empty());
}

#[tokio::test]
async fn waiters_are_served_in_order() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let guard = locks.mutex("a").lock().await.unwrap();
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    for index in 0..10 {
        let (mutex, sender) = (locks.mutex("a"), sender.clone());
        tokio::spawn(async move {
            let guard = mutex.lock().await.unwrap();
            sender.send(index).unwrap();
            release_held(guard).await;
        });
        run_until_idle().await;
    }
    release_held(guard).await;
    for index in 0..10 {
        assert_eq!(within_timeout("the next", receiver.recv()).await, Some(index));
    }
}

#[tokio::test]
async fn a_waiter_keeps_its_position_while_it_waits() {
    let (manual_clock, locks) = locks_on_manual_clock().await;
    let guard = locks.mutex("a").lock().await.unwrap();
    let waiter = tokio::spawn({
        let mutex = locks.mutex("a");
        async move { mutex.lock().await }
    });
    advance_in_steps(&manual_clock, TTL * 4, Duration::from_millis(500)).await;
    assert!(!waiter.is_finished());
    assert_eq!(locks.inspect("a").await.unwrap().waiters.len(), 1);
    release_held(guard).await;
    assert_eq!(within_timeout("its turn", waiter).await.unwrap().unwrap().token().0, 2);
}

#[tokio::test]
async fn readers_share_and_a_writer_is_alone() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let lock = locks.rwlock("a");
    let readers = [lock.read().await.unwrap(), lock.try_read().await.unwrap().unwrap()];
    assert!(lock.try_write().await.unwrap().is_none());
    let writer = tokio::spawn({
        let lock = lock.clone();
        async move { lock.write().await }
    });
    run_until_idle().await;
    assert!(lock.try_read().await.unwrap().is_none(), "behind the waiting writer");
    drop(readers);
    let writer = within_timeout("the writer", writer).await.unwrap().unwrap();
    assert!(lock.try_read().await.unwrap().is_none() && lock.try_write().await.unwrap().is_none());
    release_held(writer).await;
    assert!(lock.try_write().await.unwrap().is_some());
}

#[tokio::test]
async fn permits_are_counted_and_a_large_request_is_not_overtaken() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let semaphore = locks.semaphore("a", 3);
    let two = semaphore.acquire(2).await.unwrap();
    let one = semaphore.try_acquire(1).await.unwrap().unwrap();
    assert!(semaphore.try_acquire(1).await.unwrap().is_none());
    let large = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire(3).await }
    });
    run_until_idle().await;
    release_held(two).await;
    run_until_idle().await;
    assert!(semaphore.try_acquire(1).await.unwrap().is_none(), "two are free, but a request for three waits first");
    release_held(one).await;
    let large = within_timeout("three permits", large).await.unwrap().unwrap();
    assert_eq!(locks.inspect("a").await.unwrap().holders[0].mode, Mode::Permits { n: 3, limit: 3 });
    drop(large);
}

#[tokio::test]
async fn permits_that_can_never_be_granted_are_refused() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    for (limit, permits) in [(0, 1), (3, 0), (3, 4)] {
        let error = locks.semaphore("a", limit).acquire(permits).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{permits} of {limit}: {error}");
    }
    let _guard = locks.semaphore("a", 3).acquire(1).await.unwrap();
    let error = locks.semaphore("a", 4).acquire(1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains('3') && error.to_string().contains('4'), "{error}");
}

#[tokio::test]
async fn the_same_owner_re_enters_with_the_same_token_until_its_last_release() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let owner = Owner::new();
    let mutex = locks.mutex("a").owner(&owner);
    let outer = mutex.lock().await.unwrap();
    let inner = mutex.try_lock().await.unwrap().unwrap();
    assert_eq!(outer.token(), inner.token());
    assert!(locks.mutex("a").owner(&Owner::new()).try_lock().await.unwrap().is_none(), "another owner");
    assert!(locks.mutex("a").try_lock().await.unwrap().is_none(), "a request without an owner");
    assert_eq!(outer.release().await.unwrap(), ReleaseOutcome::Released);
    assert!(inner.is_held() && locks.mutex("a").try_lock().await.unwrap().is_none(), "not free yet");
    assert_eq!(inner.release().await.unwrap(), ReleaseOutcome::Released);
    assert!(locks.mutex("a").try_lock().await.unwrap().is_some());
}

#[tokio::test]
async fn an_owner_that_would_wait_for_itself_is_refused() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let owner = Owner::new();
    let lock = locks.rwlock("a").owner(&owner);
    let _reader = lock.read().await.unwrap();
    let error = lock.write().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert_eq!(locks.inspect("a").await.unwrap().waiters.len(), 0);
}

#[tokio::test]
async fn inspection_shows_holders_and_waiters() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let _guard = locks.mutex("a").describe("nightly run").lock().await.unwrap();
    let view = locks.inspect("a").await.unwrap();
    let holder = &view.holders[0];
    assert_eq!((&*holder.holder.description, holder.holder.pid), ("nightly run", std::process::id()));
    assert!(!holder.holder.host.is_empty() && holder.holder.program.contains("integration"), "{holder:?}");
    assert_eq!((holder.mode, holder.remaining, holder.token.map(|token| token.0)), (Mode::Exclusive, TTL, Some(1)));
    let named = Locks::builder().holder(Holder::new("h", 7, "p", "")).open("memory:").await.unwrap();
    let _guard = named.mutex("a").describe("x").lock().await.unwrap();
    assert_eq!(named.inspect("a").await.unwrap().holders[0].holder, Holder::new("h", 7, "p", "x"));
}

#[tokio::test]
async fn a_too_long_description_is_refused() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let longest = "é".repeat(MAX_DESCRIPTION / 2);
    assert!(locks.mutex("a").describe(&longest).try_lock().await.unwrap().is_some());
    run_until_idle().await;
    for text in [&format!("{longest}x"), "two\nlines"] {
        let error = locks.mutex("a").describe(text).try_lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    }
    assert!(
        locks.mutex("a").describe("a\tb").describe("fine").try_lock().await.unwrap().is_some(),
        "the last description counts"
    );
}

#[tokio::test]
async fn the_last_token_of_a_name_lies_between_its_last_grant_and_its_next() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let first = locks.mutex("a").lock().await.unwrap();
    let last = locks.last_token("a").await.unwrap().unwrap();
    assert!(first.token() <= last);
    release_held(first).await;
    assert!(last < locks.mutex("a").lock().await.unwrap().token());
}
