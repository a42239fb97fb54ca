//! Timeouts of waits, and options that are rejected without an engine call.

use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::{ErrorKind, MAX_DESCRIPTION};
use leasehold_testbed::eventually;

use crate::flaky::Method;
use crate::short_leases::expect_not_granted;
use crate::test_context::{LONG_TTL, TEST_TIMEOUT, TestContext};

/// A wait that times out within a case.
const SHORT_TIMEOUT: Duration = Duration::from_millis(300);

/// The minimum pause between two requests of a waiter.
const PAUSE: Duration = Duration::from_millis(15);
/// How many requests a waiter may send before it pauses between them.
const FIRST_REQUESTS: u32 = 10;

/// A try returns while the lock is held, and leaves nothing in the queue.
pub async fn a_try_returns_without_waiting(context: &TestContext) {
    let ((locks, flaky), other) = (context.open_flaky(LONG_TTL).await, context.open_locks().await);
    let guard = other.mutex("a").lock().await.expect("a lock");
    let answer = tokio::time::timeout(TEST_TIMEOUT, locks.mutex("a").try_lock()).await.expect("an answer at once");
    assert!(answer.expect("an answer").is_none());
    assert_eq!((flaky.call_count(Method::Attempt), flaky.call_count(Method::Wait)), (1, 0), "one request");
    if context.capabilities().inspection {
        assert!(context.inspect("a").await.waiters.is_empty());
    }
    drop(guard);
}

/// A bounded wait ends after its timeout, not before, and leaves nothing in the queue.
pub async fn a_bounded_wait_ends_in_a_timeout(context: &TestContext) {
    let (locks, other) = (context.open_locks().await, context.open_locks().await);
    let guard = other.mutex("a").lock().await.expect("a lock");
    let mut start = locks.clock().now();
    let error = expect_not_granted(|| {
        start = locks.clock().now();
        async { locks.mutex("a").timeout(SHORT_TIMEOUT).lock().await }
    })
    .await;
    let waited = locks.clock().now().duration_since(start);
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert_eq!(error.name().map(leasehold::LockName::as_str), Some("a"));
    assert!(waited >= SHORT_TIMEOUT, "{waited:?}");
    assert!(guard.is_held());
    if context.capabilities().inspection {
        context.wait_for_waiters("a", 0).await;
    }
    let _ = guard.release().await.expect("a release");
    context.wait_until_free("a").await;
}

/// An unlimited wait ends when the lock is free.
pub async fn an_unbounded_wait_ends_with_the_grant(context: &TestContext) {
    let ttl = context.short_ttl();
    let ((locks, flaky), other) = (context.open_flaky(ttl).await, context.open_locks().await);
    let guard = other.mutex("a").lock().await.expect("a lock");
    let (clock, began) = (locks.clock().clone(), locks.clock().now());
    // On a slow machine the engine may not reply within so short a TTL; the client then retries.
    let waiter =
        tokio::spawn(async move { eventually(TEST_TIMEOUT, || async { locks.mutex("a").lock().await }).await });
    // The waiter's TTL is over: it has sent several heartbeats and kept its position.
    eventually(TEST_TIMEOUT, || async {
        let requests = flaky.call_count(Method::Attempt) + flaky.call_count(Method::Wait);
        let is_over = clock.now() > began.saturating_add(ttl);
        if is_over && requests > 5 { Ok(()) } else { Err(format!("{requests} requests")) }
    })
    .await;
    assert!(!waiter.is_finished(), "the lock is held");
    let _ = guard.release().await.expect("a release");
    drop(tokio::time::timeout(TEST_TIMEOUT, waiter).await.expect("a grant").expect("no panic"));
}

/// A zero timeout is a try that fails with `Timeout`.
pub async fn a_zero_timeout_still_acquires_a_free_lock(context: &TestContext) {
    let locks = context.open_locks().await;
    // An engine's first call may do more, such as creating its table.
    drop(locks.mutex("before").lock().await.expect("a lock"));
    let guard = eventually(TEST_TIMEOUT, || async { locks.mutex("a").timeout(Duration::ZERO).lock().await }).await;
    let error = expect_not_granted(|| async { locks.mutex("a").timeout(Duration::ZERO).lock().await }).await;
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    drop(guard);
}

/// A TTL that the engine cannot keep is rejected without an engine call.
pub async fn a_ttl_out_of_bounds_is_refused_before_any_call(context: &TestContext) {
    let (locks, flaky) = context.open_flaky(LONG_TTL).await;
    let can = context.capabilities();
    let tick = Duration::from_nanos(1);
    for ttl in [Duration::ZERO, can.min_ttl - tick, can.max_ttl + tick, Duration::MAX] {
        let error = locks.mutex("a").ttl(ttl).lock().await.expect_err("a bad TTL");
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{ttl:?}: {error}");
    }
    let error = locks.mutex("a").max_hold(Duration::ZERO).lock().await.expect_err("a bad max_hold");
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert_eq!(flaky.total_calls(), 0);
    for ttl in [can.min_ttl, can.max_ttl] {
        drop(
            eventually(TEST_TIMEOUT, || async { locks.mutex(context.unique_name("ttl")).ttl(ttl).lock().await }).await,
        );
    }
}

/// A description that is too long or has control characters is rejected without an engine call.
pub async fn a_bad_description_is_refused_before_any_call(context: &TestContext) {
    let (locks, flaky) = context.open_flaky(LONG_TTL).await;
    for text in ["a\nb", "\0", &"x".repeat(MAX_DESCRIPTION + 1)] {
        let error = locks.mutex("a").describe(text).lock().await.expect_err("a bad description");
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    }
    assert_eq!(flaky.total_calls(), 0);
    let longest = "\u{e9}".repeat(MAX_DESCRIPTION / 2);
    let guard = locks.mutex("a").describe(&longest).lock().await.expect("a lock");
    if context.capabilities().inspection {
        assert_eq!(&*context.inspect("a").await.holders[0].holder.description, longest);
    }
    drop(guard);
}

/// A waiter is notified or backs off; it does not poll constantly.
pub async fn waiting_sends_few_requests(context: &TestContext) {
    let ((locks, flaky), other) = (context.open_flaky(LONG_TTL).await, context.open_locks().await);
    let guard = other.mutex("a").lock().await.expect("a lock");
    let calls = || flaky.call_count(Method::Attempt) + flaky.call_count(Method::Wait);
    let clock = Clock::system();
    let start = clock.now();
    let waiter = tokio::spawn(async move { locks.mutex("a").lock().await });
    eventually(TEST_TIMEOUT, || async { if calls() > 0 { Ok(()) } else { Err("no request so far") } }).await;
    // Round trips during which nothing changes. A waiter that polls constantly would poll about as
    // often.
    for _ in 0..100 {
        assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
        tokio::task::yield_now().await;
    }
    let requests = u32::try_from(calls()).expect("a small number");
    // Pauses are never too short, however slow the machine is.
    let rested = clock.now().duration_since(start);
    assert!(rested >= PAUSE * requests.saturating_sub(FIRST_REQUESTS), "{requests} requests in {rested:?}");
    assert!(!waiter.is_finished(), "the lock is held");
    let _ = guard.release().await.expect("a release");
    drop(tokio::time::timeout(TEST_TIMEOUT, waiter).await.expect("a grant").expect("no panic").expect("a lock"));
}
