//! Several locks at once.

use std::sync::Arc;
use std::time::Duration;

use leasehold::engine::Fairness;
use leasehold::{ErrorKind, LostReason, Mode, Wanted};
use leasehold_testbed::eventually;
use tokio::task::JoinSet;

use crate::brief::{not_granted, times};
use crate::probe::Room;
use crate::world::{LONG, SOON, World};

/// Callers that name the locks in different order neither deadlock nor are inside together.
pub async fn opposite_orders_do_not_deadlock(world: &World) {
    let clients = [world.locks().await, world.locks().await];
    let room = Arc::new(Room::default());
    let mut tasks = JoinSet::new();
    for number in 0..6 {
        let (locks, room) = (clients[number % 2].clone(), Arc::clone(&room));
        tasks.spawn(async move {
            let mut names = ["a", "b", "c"];
            names.rotate_left(number % 3);
            if number % 2 == 0 {
                names.reverse();
            }
            for _ in 0..times(4, 20) {
                let guard = locks.all(names).wait(SOON).lock().await.expect("all three");
                room.visit(1).await;
                assert_eq!(guard.release().await.expect("a release").len(), 3);
            }
        });
    }
    tasks.join_all().await;
    assert_eq!((room.most(), room.entered()), (1, 6 * times(4, 20)));
}

/// If one cannot be had, none is kept.
pub async fn it_is_all_or_nothing(world: &World) {
    let (locks, other) = (world.locks().await, world.locks().await);
    let held = other.mutex("b").lock().await.expect("a lock");
    assert!(locks.all(["a", "b", "c"]).try_lock().await.expect("an answer").is_none());
    for name in ["a", "c"] {
        let free = other.mutex(name).try_lock().await.expect("an answer").expect("none is kept");
        let _ = free.release().await.expect("a release");
    }
    let error = not_granted(|| async { locks.all(["a", "b", "c"]).wait(Duration::from_millis(500)).lock().await }).await;
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert_eq!(error.name().map(leasehold::LockName::as_str), Some("b"), "{error}");
    world.until_free("a").await;
    world.until_free("c").await;
    let _ = held.release().await.expect("a release");
    let all = locks.all(["a", "b", "c"]).try_lock().await.expect("an answer").expect("all are free");
    assert!(all.is_held() && all.guards().len() == 3);
    assert!(all.token("b") > Some(leasehold::Token(0)) && all.token("d").is_none());
}

/// The wait is for all of them together: time that one took is not given again to the next. It is seen by how long the engine is
/// asked to wait for the second, where it has a queue.
pub async fn there_is_one_deadline(world: &World) {
    let ((locks, flaky), other) = (world.flaky(LONG).await, world.locks().await);
    let queue = world.capabilities().fairness == Fairness::Fifo;
    let wait = Duration::from_millis(600);
    eventually(SOON, || async {
        let (a, b) = (world.name("a"), world.name("b"));
        let first = other.mutex(&a).lock().await.expect("a lock");
        let second = other.mutex(&b).lock().await.expect("a lock");
        let (begun, calls) = (locks.clock().now(), flaky.all_calls());
        let asking = tokio::spawn({
            let all = locks.all([b.as_str(), a.as_str()]).wait(wait);
            async move { all.lock().await }
        });
        eventually(SOON, || async { if flaky.all_calls() > calls { Ok(()) } else { Err("it has not asked yet") } }).await;
        let start = locks.clock().now();
        world.pass(wait / 2).await;
        let spent = locks.clock().now().since(start);
        // On a slow machine nothing is left, and it asks for no time.
        let left = wait.saturating_sub(spent);
        drop(first);
        let error = asking.await.expect("no panic").expect_err("one is held");
        assert!(locks.clock().now().since(begun) >= wait, "{error}");
        drop(second);
        // On a slow machine it had no time for the second, or no answer.
        let patience = flaky.patience(&b);
        if error.kind() != ErrorKind::Timeout || (queue && patience.is_empty()) {
            return Err(error);
        }
        assert!(patience.iter().all(|one| *one <= left), "{left:?} of {wait:?} were left: {patience:?}");
        Ok(())
    })
    .await;
}

/// A name that is wanted twice is one lock, held in the stronger mode.
pub async fn a_name_wanted_twice_is_taken_once(world: &World) {
    let locks = world.locks().await;
    let guard = locks.all(["a", "b", "a"]).try_lock().await.expect("an answer").expect("no wait for itself");
    assert_eq!(guard.guards().len(), 2);
    let _ = guard.release().await.expect("a release");
    let none = locks.all::<[&str; 0]>([]).lock().await.expect("nothing is easily had");
    assert!(none.is_held());
}

/// Readers, writers and permits can be taken together; two modes that exclude each other cannot.
pub async fn modes_can_be_mixed(world: &World) {
    let (locks, other) = (world.locks().await, world.locks().await);
    let wanted =
        || [locks.rwlock("a").reading(), locks.semaphore("b", 3).permits(2), Wanted::from(&locks.mutex("c"))];
    let guard = locks.all(wanted()).lock().await.expect("all three");
    assert!(other.rwlock("a").try_read().await.expect("an answer").is_some());
    assert!(other.semaphore("b", 3).try_acquire(2).await.expect("an answer").is_none());
    assert!(other.semaphore("b", 3).try_acquire(1).await.expect("an answer").is_some());
    assert!(other.mutex("c").try_lock().await.expect("an answer").is_none());
    let _ = guard.release().await.expect("a release");
    other.settle().await.expect("nothing left to give back");
    let both = locks.all([("a", Mode::Shared), ("a", Mode::Exclusive)]).lock().await.expect("the stronger one");
    assert!(other.rwlock("a").try_read().await.expect("an answer").is_none());
    drop(both);
    let error = locks.all([("a", Mode::Shared), ("a", Mode::Permits { n: 1, limit: 2 })]).lock().await;
    assert_eq!(error.expect_err("they exclude each other").kind(), ErrorKind::Conflict);
}

/// Several locks end as one.
pub async fn it_is_lost_when_one_is_lost(world: &World) {
    let (locks, flaky) = world.unrenewed().await;
    let guard = eventually(SOON, || async { locks.all(["a", "b"]).lock().await }).await;
    flaky.cut();
    let (_, reason) = tokio::time::timeout(SOON, guard.lost()).await.expect("the holder is told");
    assert_eq!(reason, LostReason::Expired);
    assert!(!guard.is_held());
    flaky.mend();
    // Whichever of them is not lost yet is renewed again, until it is given back.
    drop(guard);
    drop(world.locks_for(LONG).await.all(["b", "a"]).wait(SOON).lock().await.expect("both are free"));
}
