//! A lease ends for its holder before it ends for the others.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::{ErrorKind, LostReason, Mode, Outcome};

use crate::flaky::{Fault, Method};
use crate::world::{LONG, SOON, World};

/// A holder that lives is renewed, for as long as it likes.
pub async fn a_kept_lease_outlives_its_ttl(world: &World) {
    let ttl = world.short().max(Duration::from_secs(5));
    let (locks, other) = (world.locks_for(ttl).await, world.locks().await);
    let guard = locks.mutex("a").lock().await.expect("a lock");
    world.pass(ttl * 5 / 4).await;
    assert!(guard.is_held());
    assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
    assert_eq!(guard.release().await.expect("a release"), Outcome::Released);
}

/// A holder whose renewals do not arrive is told, and says that it does not hold, before another is granted.
pub async fn the_holder_stops_before_another_is_granted(world: &World) {
    let ttl = world.short();
    let (locks, flaky) = world.flaky(ttl).await;
    let engine = world.engine().await;
    for name in ["a", "b", "c"] {
        flaky.mend();
        let guard = locks.mutex(name).lock().await.expect("a lock");
        flaky.cut();
        let watch = guard.watch();
        let told = tokio::spawn(async move { watch.lost().await });
        let next = world.claim(name, Mode::Exclusive, None, LONG);
        let (token, end) = world.granted(&engine, &next).await;
        assert!(!guard.is_held(), "held by two");
        assert!(token > guard.token());
        let last = guard.deadline();
        assert!(last <= Clock::system().now());
        if let Some(end) = end {
            // The engine reads our clock, so that its grant has a moment: a TTL before its end.
            let granted = end.before(LONG);
            assert!(last <= granted, "ours ended at {last:?}, the next one began at {granted:?}");
        }
        let reason = tokio::time::timeout(SOON, told).await.expect("the holder is told").expect("no panic");
        assert_eq!(reason, LostReason::Expired);
        assert_eq!(guard.release().await.expect("an outcome"), Outcome::WasLost(LostReason::Expired));
        Arc::clone(&engine).release(next).await.expect("a release");
    }
}

/// A hold of limited length ends for its holder, and is free for others although its TTL is not over.
pub async fn max_hold_ends_it(world: &World) {
    let (locks, other) = (world.locks().await, world.locks().await);
    let guard = locks.mutex("a").max_hold(Duration::from_secs(2)).lock().await.expect("a lock");
    assert!(guard.is_held());
    let reason = tokio::time::timeout(SOON, guard.lost()).await.expect("the holder is told");
    assert_eq!(reason, LostReason::MaxHold);
    assert!(!guard.is_held());
    let next = other.mutex("a").wait(SOON).lock().await.expect("the lock is free");
    assert!(next.token() > guard.token());
    assert_eq!(guard.release().await.expect("an outcome"), Outcome::WasLost(LostReason::MaxHold));
    assert!(next.is_held(), "the late release does not touch the next holder");
}

/// A hold that is over before the engine has answered ends at once, and is not asked for again and again: on a free lock
/// and on one that is waited for.
pub async fn a_max_hold_shorter_than_a_call_ends_at_once(world: &World) {
    let ((locks, flaky), other) = (world.flaky(LONG).await, world.locks().await);
    for waits in [false, true] {
        let name = world.name("brief");
        let holder = if waits { Some(other.mutex(&name).lock().await.expect("a lock")) } else { None };
        let brief = locks.mutex(&name).max_hold(Duration::from_nanos(1)).wait(Duration::from_secs(5));
        let asking = tokio::spawn(async move { brief.lock().await });
        if waits && world.shows_waiters() {
            world.until_waiting(&name, 1).await;
        }
        drop(holder);
        match asking.await.expect("no panic") {
            Ok(guard) => assert!(!guard.is_held()),
            Err(error) => assert_ne!(error.kind(), ErrorKind::Timeout, "nobody else holds it: {error}"),
        }
        assert!(flaky.calls(Method::Attempt) < 40, "{} attempts for one hold", flaky.calls(Method::Attempt));
        world.until_free(&name).await;
    }
}

/// Work that the lock protects is dropped when the lock is lost.
pub async fn protected_work_is_dropped_at_the_loss(world: &World) {
    struct Dropped<'a>(&'a std::sync::atomic::AtomicBool);
    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }

    let (locks, flaky) = world.flaky(world.short()).await;
    let guard = locks.mutex("a").lock().await.expect("a lock");
    assert_eq!(guard.protect(async { 7 }).await.expect("a held lock"), 7);
    let dropped = std::sync::atomic::AtomicBool::new(false);
    let work = async {
        let _here = Dropped(&dropped);
        flaky.always(Method::Renew, Fault::LoseRequest);
        std::future::pending::<()>().await;
    };
    let ended = tokio::time::timeout(SOON, guard.protect(work)).await.expect("the work ends");
    assert_eq!(ended.expect_err("a loss").kind(), ErrorKind::Lost);
    assert!(dropped.load(std::sync::atomic::Ordering::SeqCst));
    assert!(!guard.is_held());
    let late = guard.protect(async { 7 }).await;
    assert_eq!(late.expect_err("a loss").kind(), ErrorKind::Lost, "nothing starts on a lost lock");
}
