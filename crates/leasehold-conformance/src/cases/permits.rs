//! As many as the limit allows.

use std::sync::Arc;

use leasehold::ErrorKind;
use tokio::task::JoinSet;

use crate::brief::times;
use crate::probe::Room;
use crate::protocol::{Ask, How, Order, Report};
use crate::world::{LONG, World};

/// Under contention never more permits are out than there are.
pub async fn never_more_than_the_limit(world: &World) {
    let clients = [world.locks().await, world.locks().await];
    let room = Arc::new(Room::default());
    let mut tasks = JoinSet::new();
    for number in 0..12_u32 {
        let (locks, room) = (clients[number as usize % 2].clone(), Arc::clone(&room));
        tasks.spawn(async move {
            for round in 0..times(5, 30) {
                let permits = (number + round) % 3 + 1;
                let guard = locks.semaphore("a", 4).acquire(permits).await.expect("permits");
                room.visit(permits).await;
                let _ = guard.release().await.expect("a release");
            }
        });
    }
    tasks.join_all().await;
    assert!(room.most() <= 4, "{} permits of 4 were out", room.most());
    assert!(room.most() > 1, "permits are out together");
}

/// Small requests that come later do not pass a large one that waits.
pub async fn a_large_request_is_not_overtaken(world: &World) {
    let locks = world.locks().await;
    let sem = locks.semaphore("a", 3);
    let first = sem.acquire(2).await.expect("permits");
    let large = tokio::spawn({
        let sem = sem.clone();
        async move { sem.acquire(3).await }
    });
    world.until_waiting("a", 1).await;
    assert!(sem.try_acquire(1).await.expect("an answer").is_none(), "one is free, but somebody waits");
    let small = tokio::spawn({
        let sem = sem.clone();
        async move { sem.acquire(1).await }
    });
    world.until_waiting("a", 2).await;
    let _ = first.release().await.expect("a release");
    let large = large.await.expect("no panic").expect("permits");
    assert_eq!(world.view("a").await.waiters.len(), 1, "the small request waits");
    let token = large.token();
    let _ = large.release().await.expect("a release");
    let small = small.await.expect("no panic").expect("permits");
    assert!(small.token() > token);
}

/// Two limits for one name at the same time are a mistake, and said to be; afterwards another limit is fine.
pub async fn another_limit_is_refused(world: &World) {
    let (one, other) = (world.locks().await, world.locks().await);
    let guard = one.semaphore("a", 3).acquire(1).await.expect("permits");
    for result in [other.semaphore("a", 4).try_acquire(1).await.map(|_| ()), other.semaphore("a", 2).acquire(1).await.map(|_| ())] {
        let error = result.expect_err("another limit");
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    }
    let _ = guard.release().await.expect("a release");
    drop(other.semaphore("a", 4).try_acquire(4).await.expect("an answer").expect("all permits"));
}

/// What can never be had is refused before the engine is asked.
pub async fn none_and_too_many_are_refused_before_any_call(world: &World) {
    let (locks, flaky) = world.flaky(LONG).await;
    for (permits, limit) in [(0, 3), (4, 3), (1, 0), (0, 0), (u32::MAX, 1)] {
        let error = locks.semaphore("a", limit).acquire(permits).await.expect_err("a bad number");
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{permits} of {limit}: {error}");
    }
    assert_eq!(flaky.all_calls(), 0);
}

/// A mutex on the semaphore's name waits for all permits, and keeps them out.
pub async fn an_exclusive_hold_keeps_all_permits_out(world: &World) {
    let locks = world.locks().await;
    let one = locks.semaphore("a", 3).acquire(1).await.expect("permits");
    assert!(locks.mutex("a").try_lock().await.expect("an answer").is_none());
    let _ = one.release().await.expect("a release");
    let alone = locks.mutex("a").try_lock().await.expect("an answer").expect("a free lock");
    assert!(locks.semaphore("a", 3).try_acquire(1).await.expect("an answer").is_none());
    let _ = alone.release().await.expect("a release");
}

/// The permits are one stock for all processes.
pub async fn processes_share_the_permits(world: &World) {
    let locks = world.locks().await;
    let mut player = world.player(LONG).await;
    let two = Ask { how: How::Permits(2, 3), wait_ms: Some(0), ..Ask::exclusive("a") };
    player.lock(two.clone()).await;
    assert!(locks.semaphore("a", 3).try_acquire(2).await.expect("an answer").is_none());
    let one = locks.semaphore("a", 3).try_acquire(1).await.expect("an answer").expect("one is left");
    let more = Ask { guard: "more".to_owned(), how: How::Permits(1, 3), ..two };
    player.tell(&Order::Lock(more)).await;
    player.hear("a refusal", |report| matches!(report, Report::Busy { .. }).then_some(())).await;
    assert_eq!(player.release("a").await, "released");
    drop(locks.semaphore("a", 3).try_acquire(2).await.expect("an answer").expect("two are back"));
    drop(one);
}
