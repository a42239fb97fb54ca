//! A guard reports the lock as held only while it is, and releases it in every case.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use leasehold::{Effect, ErrorKind, Locks, LostReason, ReleaseOutcome};

use crate::library::renewal::locks_with_spy;
use crate::library::spy::{Call, ScriptedReply};
use crate::library::time::{DRIFT, TTL, advance, advance_in_steps, is_pending, locks_on_manual_clock, run_until_idle};

#[tokio::test]
async fn a_guard_reports_name_token_and_deadline() {
    let (manual_clock, locks) = locks_on_manual_clock().await;
    let guard = locks.mutex("stock:42").lock().await.unwrap();
    assert_eq!((guard.name().as_str(), guard.token().0), ("stock:42", 1));
    assert_eq!(guard.remaining(), TTL - DRIFT);
    assert_eq!(guard.deadline(), locks.clock().now().saturating_add(TTL - DRIFT));
    assert!(guard.is_held() && guard.lost_reason().is_none());
    manual_clock.advance(Duration::from_secs(1));
    assert_eq!(guard.remaining(), TTL - DRIFT - Duration::from_secs(1));
    let text = format!("{guard:?}");
    assert!(text.contains("stock:42") && text.contains("held: true"), "{text}");
}

#[tokio::test]
async fn a_starved_runtime_does_not_make_a_guard_report_held() {
    let ttl = Duration::from_millis(80);
    let locks = Locks::builder().ttl(ttl).open("memory:").await.unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    let watch = guard.watcher();
    // The test blocks the runtime's only thread: neither the keeper nor a timer runs.
    std::thread::sleep(ttl * 2);
    assert!(!guard.is_held(), "before any await");
    assert!(!watch.is_held());
    assert_eq!((guard.remaining(), guard.lost_reason()), (Duration::ZERO, Some(LostReason::Expired)));
    run_until_idle().await;
    assert!(!guard.is_held(), "and the keeper does not revive it");
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::AlreadyLost(LostReason::Expired));
    let next = locks.mutex("a").try_lock().await.unwrap();
    assert!(next.is_some_and(|next| next.token().0 == 2));
}

#[cfg(feature = "nightly")]
#[tokio::test]
async fn on_the_real_clock_a_guard_outlives_its_ttl_by_renewals() {
    let ttl = Duration::from_secs(30);
    let locks = Locks::builder().ttl(ttl).open("memory:").await.unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    let first = guard.deadline();
    crate::library::time::wait_until("two TTLs passed", || {
        assert!(guard.is_held());
        guard.deadline() > first.saturating_add(ttl * 2)
    })
    .await;
}

/// Sets its flag when it is dropped.
struct DropFlag(Arc<AtomicBool>);

impl Drop for DropFlag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn protect_drops_its_work_when_the_lock_is_lost() {
    let (manual_clock, locks) = locks_on_manual_clock().await;
    let guard = locks.mutex("a").max_hold(TTL / 2).lock().await.unwrap();
    let dropped = Arc::new(AtomicBool::new(false));
    let task = tokio::spawn({
        let flag = DropFlag(Arc::clone(&dropped));
        async move {
            let work = async move {
                let _flag = flag;
                std::future::pending::<()>().await;
            };
            guard.protect(work).await
        }
    });
    advance(&manual_clock, TTL / 2 - Duration::from_nanos(1)).await;
    assert!(!dropped.load(Ordering::SeqCst) && !task.is_finished());
    advance(&manual_clock, Duration::from_nanos(1)).await;
    assert!(dropped.load(Ordering::SeqCst));
    let error = task.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.engine()), (ErrorKind::Lost, Some("memory")));
    assert_eq!(error.name().map(|name| name.as_str()), Some("a"));
    assert!(error.to_string().contains("max_hold"), "{error}");
}

#[tokio::test]
async fn protect_returns_the_output_unless_the_lock_was_lost() {
    let (manual_clock, locks) = locks_on_manual_clock().await;
    let guard = locks.mutex("a").lock().await.unwrap();
    assert_eq!(guard.protect(async { 7 }).await.unwrap(), 7);
    // The work never yields, so it cannot be dropped: its result must be refused.
    let result = guard.protect(async { manual_clock.advance(TTL) }).await;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Lost);
    let mut begun = false;
    let error = guard.protect(async { begun = true }).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Lost && !begun, "work is not begun without the lock");
}

#[tokio::test]
async fn release_reports_its_outcome() {
    let (manual_clock, locks) = locks_on_manual_clock().await;
    let guard = locks.mutex("a").lock().await.unwrap();
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    assert!(locks.inspect("a").await.unwrap().holders.is_empty());

    let guard = locks.mutex("a").lock().await.unwrap();
    manual_clock.advance(TTL);
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::AlreadyLost(LostReason::Expired));

    let guard = locks.mutex("a").max_hold(TTL / 2).lock().await.unwrap();
    manual_clock.advance(TTL / 2);
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::AlreadyLost(LostReason::MaxHold));

    let guard = locks.mutex("a").lock().await.unwrap();
    let claim = locks.inspect("a").await.unwrap().holders[0].claim;
    locks.force_release("a", claim).await.unwrap();
    // The keeper has not run since, so only the engine knows of the force release.
    assert_eq!(guard.release().now_or_never().unwrap().unwrap(), ReleaseOutcome::AlreadyLost(LostReason::Revoked));
}

#[tokio::test]
async fn a_release_with_a_lost_reply_is_repeated_and_counts_as_released() {
    let (manual_clock, spy, locks) = locks_with_spy().await;
    let guard = locks.mutex("a").lock().await.unwrap();
    spy.reply_next(Call::Release, ScriptedReply::LoseReply);
    let release = tokio::spawn(guard.release());
    advance_in_steps(&manual_clock, TTL / 3, Duration::from_millis(10)).await;
    assert_eq!(release.await.unwrap().unwrap(), ReleaseOutcome::Released);
    assert_eq!(spy.count(Call::Release), 2);
}

#[tokio::test]
async fn an_unconfirmed_release_fails_and_continues_in_the_background() {
    let (manual_clock, spy, locks) = locks_with_spy().await;
    let guard = locks.mutex("a").ttl(TTL * 2).lock().await.unwrap();
    let deadline = guard.deadline();
    spy.reply_always(Call::Release, ScriptedReply::NoResponse);
    let release = tokio::spawn(guard.release());
    while !release.is_finished() {
        advance_in_steps(&manual_clock, Duration::from_secs(1), Duration::from_millis(100)).await;
        assert!(locks.clock().now() < deadline.saturating_add(TTL), "a release ends with the lease");
    }
    let error = release.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    assert!(error.is_retryable());
    assert_eq!((error.engine(), error.name().map(|name| name.as_str())), (Some("memory"), Some("a")));
    let tried = spy.count(Call::Release);
    spy.reply_always(Call::Release, ScriptedReply::Forward);
    advance_in_steps(&manual_clock, Duration::from_secs(10), Duration::from_millis(100)).await;
    assert!(spy.count(Call::Release) > tried, "the keeper continues it");
}

#[tokio::test]
async fn a_dropped_guard_is_released_in_the_background() {
    let (_manual_clock, spy, locks) = locks_with_spy().await;
    let guard = locks.mutex("a").lock().await.unwrap();
    drop(guard);
    assert_eq!(locks.held_count(), 0);
    run_until_idle().await;
    assert_eq!(spy.count(Call::Release), 1);
    assert!(locks.mutex("a").try_lock().await.unwrap().is_some());
}

#[tokio::test]
async fn a_dropped_guard_is_released_once_the_engine_is_reachable_again() {
    let (manual_clock, spy, locks) = locks_with_spy().await;
    spy.reply_next(Call::Release, ScriptedReply::Fail(true));
    spy.reply_next(Call::Release, ScriptedReply::NoResponse);
    drop(locks.mutex("a").lock().await.unwrap());
    advance_in_steps(&manual_clock, TTL / 3, Duration::from_millis(100)).await;
    assert_eq!(spy.count(Call::Release), 3);
    assert!(locks.mutex("a").try_lock().await.unwrap().is_some(), "long before its TTL");
}

#[tokio::test]
async fn a_dropped_release_future_still_releases() {
    let (_manual_clock, spy, locks) = locks_with_spy().await;
    for polls in 0..2 {
        let guard = locks.mutex("a").lock().await.unwrap();
        let mut release = Box::pin(guard.release());
        for _ in 0..polls {
            spy.reply_next(Call::Release, ScriptedReply::NoResponse);
            assert!(is_pending(&mut release).await);
        }
        drop(release);
        run_until_idle().await;
        assert_eq!(spy.count(Call::Release), polls + 1 + polls, "each time the keeper has done it");
        assert!(locks.inspect("a").await.unwrap().holders.is_empty(), "after {polls} polls");
    }
}

#[tokio::test]
async fn a_watcher_signals_the_loss_and_does_not_keep_the_lock() {
    let (manual_clock, locks) = locks_on_manual_clock().await;
    let guard = locks.mutex("a").max_hold(TTL / 2).lock().await.unwrap();
    let watch = guard.watcher();
    assert!(watch.is_held() && watch.deadline() == guard.deadline());
    let loss = tokio::spawn({
        let watch = watch.clone();
        async move { watch.lost().await }
    });
    advance(&manual_clock, TTL / 2).await;
    assert_eq!(loss.now_or_never().unwrap().unwrap(), LostReason::MaxHold);
    drop(guard);
    advance(&manual_clock, DRIFT).await;

    let guard = locks.mutex("a").lock().await.unwrap();
    let watch = guard.watcher();
    drop(guard);
    run_until_idle().await;
    assert!(!watch.is_held(), "released");
    assert!(locks.mutex("a").try_lock().await.unwrap().is_some());
}
