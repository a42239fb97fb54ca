//! Giving back, once and again.

use std::sync::Arc;

use leasehold::engine::{Answer, Released, Renewal};
use leasehold::{LostReason, Mode, Outcome};

use crate::brief::times;
use crate::world::{LONG, SOON, World};

/// The engine says what a release found, and a second one finds nothing.
pub async fn the_second_one_finds_nothing(world: &World) {
    let engine = world.engine().await;
    let claim = world.claim("a", Mode::Exclusive, None, LONG);
    let release = || Arc::clone(&engine).release(Arc::clone(&claim));
    assert_eq!(release().await.expect("an answer"), Released::Absent, "never seen");
    world.granted(&engine, &claim).await;
    assert_eq!(release().await.expect("an answer"), Released::Released);
    assert_eq!(release().await.expect("an answer"), Released::Absent, "released before");
    let renewed = Arc::clone(&engine).renew(vec![claim]).await.expect("an answer");
    assert_eq!(renewed, [Renewal::Lost], "a renewal does not bring it back");
}

/// A guard that was lost says so when it is given back, and touches nobody.
pub async fn it_says_that_the_lock_was_lost(world: &World) {
    let (locks, flaky, guard) = world.expiring("a").await;
    let reason = tokio::time::timeout(SOON, guard.lost()).await.expect("the holder is told");
    assert_eq!(reason, LostReason::Expired);
    flaky.mend();
    let next = world.locks().await.mutex("a").wait(SOON).lock().await.expect("a lock");
    assert_eq!(guard.release().await.expect("an outcome"), Outcome::WasLost(LostReason::Expired));
    locks.settle().await.expect("nothing left to give back");
    assert!(world.locks().await.mutex("a").try_lock().await.expect("an answer").is_none());
    assert_eq!(next.release().await.expect("an outcome"), Outcome::Released);
}

/// A release that comes late does not end another claim on the same lock.
pub async fn it_never_touches_another_claim(world: &World) {
    let engine = world.engine().await;
    let [first, second] = [(); 2].map(|()| world.claim("a", Mode::Exclusive, None, LONG));
    world.granted(&engine, &first).await;
    Arc::clone(&engine).release(Arc::clone(&first)).await.expect("a release");
    world.granted(&engine, &second).await;
    assert_eq!(Arc::clone(&engine).release(first).await.expect("an answer"), Released::Absent);
    let renewed = Arc::clone(&engine).renew(vec![Arc::clone(&second)]).await.expect("an answer");
    assert_ne!(renewed, [Renewal::Lost]);
    assert_eq!(Arc::clone(&engine).release(second).await.expect("an answer"), Released::Released);
}

/// A claim that waits can be released, too.
pub async fn a_waiting_claim_leaves_the_queue(world: &World) {
    let engine = world.engine().await;
    let [holder, waiter] = [(); 2].map(|()| world.claim("a", Mode::Exclusive, None, LONG));
    world.granted(&engine, &holder).await;
    let answer = Arc::clone(&engine).attempt(Arc::clone(&waiter), true).await.expect("an answer");
    assert!(matches!(answer, Answer::Queued { ahead: 0, .. }), "{answer:?}");
    let release = || Arc::clone(&engine).release(Arc::clone(&waiter));
    assert_eq!(release().await.expect("an answer"), Released::LeftQueue);
    assert_eq!(release().await.expect("an answer"), Released::Absent);
    Arc::clone(&engine).release(holder).await.expect("a release");
    world.until_free("a").await;
}

/// Dropping is giving back.
pub async fn a_dropped_guard_gives_the_lock_back(world: &World) {
    let (locks, other) = (world.locks().await, world.locks().await);
    let guard = locks.mutex("a").lock().await.expect("a lock");
    let waiter = tokio::spawn(async move { other.mutex("a").wait(SOON).lock().await });
    drop(guard);
    assert_eq!(locks.held(), 0);
    drop(waiter.await.expect("no panic").expect("what was dropped is given back"));
}

/// A client that is closed has given everything back that was dropped before.
pub async fn a_closed_client_leaves_nothing(world: &World) {
    let other = world.locks().await;
    for round in 0..times(6, 20) {
        let name = world.name("closed");
        let locks = world.locks().await;
        for _ in 0..=round % 3 {
            let _dropped = locks.mutex(&name).lock().await.expect("a lock");
        }
        locks.close().await.expect("nothing left to give back");
        let next = other.mutex(&name).try_lock().await.expect("an answer");
        let next = next.expect("what was dropped before the end is given back at the end");
        let _ = next.release().await.expect("a release");
    }
}
