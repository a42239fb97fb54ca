//! A guard reports "held" only while it is, and releases its lock in every case.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use leasehold::{Effect, ErrorKind, Locks, LostReason, Outcome};

use crate::library::renewal::spied;
use crate::library::spy::{Call, Play};
use crate::library::time::{DRIFT, TTL, pass, pending, quiet, still, walk};

#[tokio::test]
async fn a_guard_tells_what_it_holds() {
    let (hand, locks) = still().await;
    let guard = locks.mutex("stock:42").lock().await.unwrap();
    assert_eq!((guard.name().as_str(), guard.token().0), ("stock:42", 1));
    assert_eq!(guard.remaining(), TTL - DRIFT);
    assert_eq!(guard.deadline(), locks.clock().now().after(TTL - DRIFT));
    assert!(guard.is_held() && guard.lost_reason().is_none());
    hand.advance(Duration::from_secs(1));
    assert_eq!(guard.remaining(), TTL - DRIFT - Duration::from_secs(1));
    let shown = format!("{guard:?}");
    assert!(shown.contains("stock:42") && shown.contains("held: true"), "{shown}");
}

#[tokio::test]
async fn a_starved_runtime_does_not_make_a_guard_say_held() {
    let ttl = Duration::from_millis(80);
    let locks = Locks::builder().ttl(ttl).open("memory:").await.unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    let watch = guard.watch();
    // Meanwhile nothing else runs on this thread: neither the keeper nor any timer.
    std::thread::sleep(ttl * 2);
    assert!(!guard.is_held(), "before any await");
    assert!(!watch.is_held());
    assert_eq!((guard.remaining(), guard.lost_reason()), (Duration::ZERO, Some(LostReason::Expired)));
    quiet().await;
    assert!(!guard.is_held(), "and the keeper does not revive it");
    assert_eq!(guard.release().await.unwrap(), Outcome::WasLost(LostReason::Expired));
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
    crate::library::time::eventually("two TTLs passed", || {
        assert!(guard.is_held());
        guard.deadline() > first.after(ttl * 2)
    })
    .await;
}

/// Set on drop.
struct Flag(Arc<AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn protect_drops_its_work_when_the_lock_is_lost() {
    let (hand, locks) = still().await;
    let guard = locks.mutex("a").max_hold(TTL / 2).lock().await.unwrap();
    let dropped = Arc::new(AtomicBool::new(false));
    let task = tokio::spawn({
        let flag = Flag(Arc::clone(&dropped));
        async move {
            let work = async move {
                let _flag = flag;
                std::future::pending::<()>().await;
            };
            guard.protect(work).await
        }
    });
    pass(&hand, TTL / 2 - Duration::from_nanos(1)).await;
    assert!(!dropped.load(Ordering::SeqCst) && !task.is_finished());
    pass(&hand, Duration::from_nanos(1)).await;
    assert!(dropped.load(Ordering::SeqCst));
    let error = task.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.engine()), (ErrorKind::Lost, Some("memory")));
    assert_eq!(error.name().map(|name| name.as_str()), Some("a"));
    assert!(error.to_string().contains("max_hold"), "{error}");
}

#[tokio::test]
async fn protect_hands_the_output_over_unless_the_lock_was_lost_meanwhile() {
    let (hand, locks) = still().await;
    let guard = locks.mutex("a").lock().await.unwrap();
    assert_eq!(guard.protect(async { 7 }).await.unwrap(), 7);
    // The work never yields, so it could not be dropped: its result must still be refused.
    let starved = guard.protect(async { hand.advance(TTL) }).await;
    assert_eq!(starved.unwrap_err().kind(), ErrorKind::Lost);
    let mut begun = false;
    let error = guard.protect(async { begun = true }).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Lost && !begun, "work is not begun without the lock");
}

#[tokio::test]
async fn release_says_what_happened() {
    let (hand, locks) = still().await;
    let guard = locks.mutex("a").lock().await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Outcome::Released);
    assert!(locks.inspect("a").await.unwrap().holders.is_empty());

    let guard = locks.mutex("a").lock().await.unwrap();
    hand.advance(TTL);
    assert_eq!(guard.release().await.unwrap(), Outcome::WasLost(LostReason::Expired));

    let guard = locks.mutex("a").max_hold(TTL / 2).lock().await.unwrap();
    hand.advance(TTL / 2);
    assert_eq!(guard.release().await.unwrap(), Outcome::WasLost(LostReason::MaxHold));

    let guard = locks.mutex("a").lock().await.unwrap();
    let claim = locks.inspect("a").await.unwrap().holders[0].claim;
    locks.evict("a", claim).await.unwrap();
    // The keeper has not run since: only the engine knows of the eviction.
    assert_eq!(guard.release().now_or_never().unwrap().unwrap(), Outcome::WasLost(LostReason::Taken));
}

#[tokio::test]
async fn a_release_whose_reply_is_lost_is_asked_again_and_was_ours() {
    let (hand, spy, locks) = spied().await;
    let guard = locks.mutex("a").lock().await.unwrap();
    spy.next(Call::Release, Play::LoseReply);
    let release = tokio::spawn(guard.release());
    walk(&hand, TTL / 3, Duration::from_millis(10)).await;
    assert_eq!(release.await.unwrap().unwrap(), Outcome::Released);
    assert_eq!(spy.count(Call::Release), 2);
}

#[tokio::test]
async fn a_release_that_the_engine_never_confirms_fails_and_goes_on_in_the_background() {
    let (hand, spy, locks) = spied().await;
    let guard = locks.mutex("a").ttl(TTL * 2).lock().await.unwrap();
    let deadline = guard.deadline();
    spy.always(Call::Release, Play::Silence);
    let release = tokio::spawn(guard.release());
    while !release.is_finished() {
        walk(&hand, Duration::from_secs(1), Duration::from_millis(100)).await;
        assert!(locks.clock().now() < deadline.after(TTL), "a release ends with the lease");
    }
    let error = release.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    assert!(error.is_retryable());
    assert_eq!((error.engine(), error.name().map(|name| name.as_str())), (Some("memory"), Some("a")));
    let tried = spy.count(Call::Release);
    spy.always(Call::Release, Play::Pass);
    walk(&hand, Duration::from_secs(10), Duration::from_millis(100)).await;
    assert!(spy.count(Call::Release) > tried, "the keeper goes on with it");
}

#[tokio::test]
async fn a_dropped_guard_is_given_back_in_the_background() {
    let (_hand, spy, locks) = spied().await;
    let guard = locks.mutex("a").lock().await.unwrap();
    drop(guard);
    assert_eq!(locks.held(), 0);
    quiet().await;
    assert_eq!(spy.count(Call::Release), 1);
    assert!(locks.mutex("a").try_lock().await.unwrap().is_some());
}

#[tokio::test]
async fn a_dropped_guard_on_a_bad_line_is_given_back_when_the_line_is_good_again() {
    let (hand, spy, locks) = spied().await;
    spy.next(Call::Release, Play::Fail(true));
    spy.next(Call::Release, Play::Silence);
    drop(locks.mutex("a").lock().await.unwrap());
    walk(&hand, TTL / 3, Duration::from_millis(100)).await;
    assert_eq!(spy.count(Call::Release), 3);
    assert!(locks.mutex("a").try_lock().await.unwrap().is_some(), "long before its TTL");
}

#[tokio::test]
async fn a_release_dropped_midway_still_gives_back() {
    let (_hand, spy, locks) = spied().await;
    for polls in 0..2 {
        let guard = locks.mutex("a").lock().await.unwrap();
        let mut release = Box::pin(guard.release());
        for _ in 0..polls {
            spy.next(Call::Release, Play::Silence);
            assert!(pending(&mut release).await);
        }
        drop(release);
        quiet().await;
        assert_eq!(spy.count(Call::Release), polls + 1 + polls, "each time the keeper has done it");
        assert!(locks.inspect("a").await.unwrap().holders.is_empty(), "after {polls} polls");
    }
}

#[tokio::test]
async fn a_watch_tells_of_the_loss_and_does_not_keep_the_lock() {
    let (hand, locks) = still().await;
    let guard = locks.mutex("a").max_hold(TTL / 2).lock().await.unwrap();
    let watch = guard.watch();
    assert!(watch.is_held() && watch.deadline() == guard.deadline());
    let told = tokio::spawn({
        let watch = watch.clone();
        async move { watch.lost().await }
    });
    pass(&hand, TTL / 2).await;
    assert_eq!(told.now_or_never().unwrap().unwrap(), LostReason::MaxHold);
    drop(guard);
    pass(&hand, DRIFT).await;

    let guard = locks.mutex("a").lock().await.unwrap();
    let watch = guard.watch();
    drop(guard);
    quiet().await;
    assert!(!watch.is_held(), "given back is not held");
    assert!(locks.mutex("a").try_lock().await.unwrap().is_some());
}
