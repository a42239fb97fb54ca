//! How long is waited, and what is refused before anything is asked.

use std::time::Duration;

use leasehold::{ErrorKind, MAX_DESCRIPTION};
use leasehold_testbed::eventually;

use crate::brief::not_granted;
use crate::flaky::Method;
use crate::world::{LONG, SOON, World};

/// A wait that ends within a case.
const WAIT: Duration = Duration::from_millis(300);

/// A try answers while the lock is held, and leaves nothing in the queue.
pub async fn a_try_answers_without_waiting(world: &World) {
    let ((locks, flaky), other) = (world.flaky(LONG).await, world.locks().await);
    let guard = other.mutex("a").lock().await.expect("a lock");
    let answer = tokio::time::timeout(SOON, locks.mutex("a").try_lock()).await.expect("an answer at once");
    assert!(answer.expect("an answer").is_none());
    assert_eq!((flaky.calls(Method::Attempt), flaky.calls(Method::Wait)), (1, 0), "one question");
    if world.capabilities().inspection {
        assert!(world.view("a").await.waiters.is_empty());
    }
    drop(guard);
}

/// A bounded wait ends after its time, not before; then nothing is left in the queue.
pub async fn a_bounded_wait_ends_in_a_timeout(world: &World) {
    let (locks, other) = (world.locks().await, world.locks().await);
    let guard = other.mutex("a").lock().await.expect("a lock");
    let mut start = locks.clock().now();
    let error = not_granted(|| {
        start = locks.clock().now();
        async { locks.mutex("a").wait(WAIT).lock().await }
    })
    .await;
    let waited = locks.clock().now().since(start);
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert_eq!(error.name().map(leasehold::LockName::as_str), Some("a"));
    assert!(waited >= WAIT, "{waited:?}");
    assert!(guard.is_held());
    if world.capabilities().inspection {
        world.until_waiting("a", 0).await;
    }
    let _ = guard.release().await.expect("a release");
    world.until_free("a").await;
}

/// A request without a bound waits until the lock is free.
pub async fn an_unbounded_wait_ends_with_the_grant(world: &World) {
    let ttl = world.short();
    let ((locks, flaky), other) = (world.flaky(ttl).await, world.locks().await);
    let guard = other.mutex("a").lock().await.expect("a lock");
    let (clock, began) = (locks.clock().clone(), locks.clock().now());
    // On a slow machine the engine may not answer for so short a TTL: then it asks again.
    let waiter = tokio::spawn(async move { eventually(SOON, || async { locks.mutex("a").lock().await }).await });
    // The waiter's TTL is over: it has shown that it lives, three times in each, and keeps its place.
    eventually(SOON, || async {
        let asked = flaky.calls(Method::Attempt) + flaky.calls(Method::Wait);
        let is_over = clock.now() > began.after(ttl);
        if is_over && asked > 5 { Ok(()) } else { Err(format!("{asked} questions")) }
    })
    .await;
    assert!(!waiter.is_finished(), "it is held");
    let _ = guard.release().await.expect("a release");
    drop(tokio::time::timeout(SOON, waiter).await.expect("a grant").expect("no panic"));
}

/// Waiting for no time is a try that says `Timeout`.
pub async fn a_wait_of_nothing_still_takes_a_free_lock(world: &World) {
    let locks = world.locks().await;
    // What an engine does at its first call only, such as making its table, is not part of it.
    drop(locks.mutex("before").lock().await.expect("a lock"));
    let guard = eventually(SOON, || async { locks.mutex("a").wait(Duration::ZERO).lock().await }).await;
    let error = not_granted(|| async { locks.mutex("a").wait(Duration::ZERO).lock().await }).await;
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    drop(guard);
}

/// A TTL that the engine cannot keep is refused before it is asked.
pub async fn a_ttl_out_of_bounds_is_refused_before_any_call(world: &World) {
    let (locks, flaky) = world.flaky(LONG).await;
    let can = world.capabilities();
    let tick = Duration::from_nanos(1);
    for ttl in [Duration::ZERO, can.min_ttl - tick, can.max_ttl + tick, Duration::MAX] {
        let error = locks.mutex("a").ttl(ttl).lock().await.expect_err("a bad TTL");
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{ttl:?}: {error}");
    }
    let error = locks.mutex("a").max_hold(Duration::ZERO).lock().await.expect_err("a bad max_hold");
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert_eq!(flaky.all_calls(), 0);
    for ttl in [can.min_ttl, can.max_ttl] {
        drop(eventually(SOON, || async { locks.mutex(world.name("ttl")).ttl(ttl).lock().await }).await);
    }
}

/// A description that is too long, or has control characters, is refused before the engine is asked.
pub async fn a_bad_description_is_refused_before_any_call(world: &World) {
    let (locks, flaky) = world.flaky(LONG).await;
    for text in ["a\nb", "\0", &"x".repeat(MAX_DESCRIPTION + 1)] {
        let error = locks.mutex("a").describe(text).lock().await.expect_err("a bad description");
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    }
    assert_eq!(flaky.all_calls(), 0);
    let longest = "\u{e9}".repeat(MAX_DESCRIPTION / 2);
    let guard = locks.mutex("a").describe(&longest).lock().await.expect("a lock");
    if world.capabilities().inspection {
        assert_eq!(&*world.view("a").await.holders[0].holder.text, longest);
    }
    drop(guard);
}

/// A waiter is woken, or backs off; it does not ask all the time.
pub async fn waiting_does_not_hammer_the_engine(world: &World) {
    let ((locks, flaky), other) = (world.flaky(LONG).await, world.locks().await);
    let guard = other.mutex("a").lock().await.expect("a lock");
    let calls = || flaky.calls(Method::Attempt) + flaky.calls(Method::Wait);
    let mut before = calls();
    let error = not_granted(|| {
        before = calls();
        async { locks.mutex("a").wait(WAIT * 2).lock().await }
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    let asked = calls() - before;
    assert!(asked < 20, "{asked} questions in {:?}", WAIT * 2);
    drop(guard);
}
