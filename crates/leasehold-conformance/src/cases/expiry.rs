//! A lease ends for its holder before it ends for other clients.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::{ErrorKind, LostReason, Mode, ReleaseOutcome};
use leasehold_testbed::eventually;

use crate::flaky::Method;
use crate::short_leases::repetitions;
use crate::test_context::{LONG_TTL, TEST_TIMEOUT, TestContext};

/// A maximum hold time that ends within a case.
const MAX_HOLD: Duration = Duration::from_millis(300);

/// A live holder is renewed indefinitely. A busy machine may pause for a whole TTL and lose the
/// lock; then another attempt must succeed.
pub async fn a_renewed_lease_outlives_its_ttl(context: &TestContext) {
    let (locks, other) = (context.open_locks_with_ttl(context.short_ttl()).await, context.open_locks().await);
    let clock = locks.clock();
    eventually(TEST_TIMEOUT, || async {
        let guard = locks.mutex("a").lock().await.map_err(|error| error.to_string())?;
        let first = guard.deadline();
        // This is after the end of the first lease for other clients as well.
        clock.sleep_until(first.saturating_add(context.short_ttl() / 4)).await;
        let second = other.mutex("a").try_lock().await.map_err(|error| error.to_string())?;
        let held = guard.is_held();
        assert!(second.is_none() || !held, "two holders: {guard:?}, {second:?}");
        if held { Ok(()) } else { Err(format!("lost: {:?}", guard.lost_reason())) }
    })
    .await;
}

/// A holder whose renewals do not arrive learns of its loss, and reports that it does not hold the
/// lock, before another claim is granted.
pub async fn the_holder_stops_before_another_is_granted(context: &TestContext) {
    let engine = context.open_engine().await;
    for round in 0..repetitions(1, 5) {
        let name = format!("a{round}");
        let (_locks, _flaky, guard) = context.acquire_expiring(&name).await;
        let watch = guard.watcher();
        let loss = tokio::spawn(async move { watch.lost().await });
        let next = context.new_claim(&name, Mode::Exclusive, None, LONG_TTL);
        let (token, granted) = context.wait_granted(&engine, &next).await;
        assert!(!guard.is_held(), "held by two");
        assert!(token > guard.token());
        let last = guard.deadline();
        assert!(last <= Clock::system().now());
        if let Some(granted) = granted {
            assert!(last <= granted, "the first lease ended at {last:?}, the next one began at {granted:?}");
        }
        let reason =
            tokio::time::timeout(TEST_TIMEOUT, loss).await.expect("the holder learns of the loss").expect("no panic");
        assert_eq!(reason, LostReason::Expired);
        assert_eq!(guard.release().await.expect("an outcome"), ReleaseOutcome::AlreadyLost(LostReason::Expired));
        Arc::clone(&engine).release(next).await.expect("a release");
    }
}

/// A hold of limited length ends for its holder, and the lock becomes free before its TTL.
pub async fn max_hold_ends_the_hold(context: &TestContext) {
    let (locks, other) = (context.open_locks().await, context.open_locks().await);
    // Longer than the timeout below; an engine with its own clock releases it a hundredth of the
    // TTL later.
    let ttl = TEST_TIMEOUT + TEST_TIMEOUT / 4;
    let guard = eventually(TEST_TIMEOUT, || async { locks.mutex("a").ttl(ttl).max_hold(MAX_HOLD).lock().await }).await;
    let reason = tokio::time::timeout(TEST_TIMEOUT, guard.lost()).await.expect("the holder learns of the loss");
    assert_eq!(reason, LostReason::MaxHold);
    assert!(!guard.is_held());
    let next = other.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("the lock is free");
    assert!(next.token() > guard.token());
    assert_eq!(guard.release().await.expect("an outcome"), ReleaseOutcome::AlreadyLost(LostReason::MaxHold));
    assert!(next.is_held(), "the late release does not affect the next holder");
}

/// A hold that ends before the engine has replied ends at once and is not retried, on a free lock
/// and on an awaited one.
pub async fn a_max_hold_shorter_than_a_call_ends_at_once(context: &TestContext) {
    let ((locks, flaky), other) = (context.open_flaky(LONG_TTL).await, context.open_locks().await);
    for waits in [false, true] {
        let name = context.unique_name("brief");
        let holder = if waits { Some(other.mutex(&name).lock().await.expect("a lock")) } else { None };
        let brief = locks.mutex(&name).max_hold(Duration::from_nanos(1)).timeout(TEST_TIMEOUT);
        let acquiring = tokio::spawn(async move { brief.lock().await });
        if waits && context.can_show_waiters() {
            context.wait_for_waiters(&name, 1).await;
        }
        if let Some(holder) = holder {
            let _ = holder.release().await.expect("a release");
        }
        // While the lock was held, the number of attempts depended on the time. From now on it does
        // not.
        let before = flaky.call_count(Method::Attempt);
        match acquiring.await.expect("no panic") {
            Ok(guard) => assert!(!guard.is_held()),
            Err(error) => assert_ne!(error.kind(), ErrorKind::Timeout, "the lock is free: {error}"),
        }
        let attempts = flaky.call_count(Method::Attempt) - before;
        assert!(attempts < 20, "{attempts} attempts for one hold");
        context.wait_until_free(&name).await;
    }
}

/// Protected work is dropped when the lock is lost.
pub async fn protected_work_is_dropped_at_the_loss(context: &TestContext) {
    struct Dropped<'a>(&'a std::sync::atomic::AtomicBool);
    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }

    let kept = context.open_locks().await.mutex("kept").lock().await.expect("a lock");
    assert_eq!(kept.protect(async { 7 }).await.expect("a held lock"), 7);
    let (_locks, _flaky, guard) = context.acquire_expiring("a").await;
    let dropped = std::sync::atomic::AtomicBool::new(false);
    let on_drop = Dropped(&dropped);
    let work = async move {
        let _on_drop = on_drop;
        std::future::pending::<()>().await;
    };
    let ended = tokio::time::timeout(TEST_TIMEOUT, guard.protect(work)).await.expect("the work ends");
    assert_eq!(ended.expect_err("a loss").kind(), ErrorKind::Lost);
    assert!(dropped.load(std::sync::atomic::Ordering::SeqCst));
    assert!(!guard.is_held());
    let late = guard.protect(async { 7 }).await;
    assert_eq!(late.expect_err("a loss").kind(), ErrorKind::Lost, "nothing starts on a lost lock");
}
