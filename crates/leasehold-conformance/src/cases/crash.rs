//! A process dies by SIGKILL.

use std::time::Duration;

use leasehold::engine::Expiry;

use crate::protocol::{Ask, How, Order};
use crate::world::{LONG, SOON, World};

/// A TTL that a dead process's place ends with: long, where the engine sees deaths.
fn ttl(world: &World) -> Duration {
    match world.capabilities().expiry {
        Expiry::LeaseOrDeath => LONG,
        Expiry::Lease => world.short(),
    }
}

/// The lock of a killed holder goes to a waiter.
pub async fn a_killed_holder_is_replaced_within_its_ttl(world: &World) {
    let locks = world.locks().await;
    let mut player = world.player(world.short()).await;
    let (token, _) = player.lock(Ask::stubborn("a")).await;
    if let Some(early) = locks.mutex("a").try_lock().await.expect("an answer") {
        assert!(!player.held("a").await.0, "held by two: {early:?}");
    }
    let waiter = tokio::spawn({
        let mutex = locks.mutex("a").wait(SOON);
        async move { mutex.lock().await }
    });
    player.process().sigkill().expect("a killed process");
    let guard = waiter.await.expect("no panic").expect("the lock of the dead");
    assert!(guard.token().0 > token);
}

/// Where the engine sees deaths, nobody waits for the TTL of the dead.
pub async fn a_killed_holder_is_replaced_at_once(world: &World) {
    let locks = world.locks().await;
    let mut player = world.player(LONG).await;
    player.lock(Ask::exclusive("waited for")).await;
    player.lock(Ask::exclusive("not waited for")).await;
    let waiter = tokio::spawn({
        let mutex = locks.mutex("waited for").wait(SOON);
        async move { mutex.lock().await }
    });
    if world.capabilities().inspection {
        world.until_waiting("waited for", 1).await;
    }
    player.process().sigkill().expect("a killed process");
    drop(waiter.await.expect("no panic").expect("the lock of the dead"));
    world.until_free("not waited for").await;
}

/// A killed waiter does not stop those behind it.
pub async fn a_killed_waiter_does_not_stop_the_queue(world: &World) {
    let (locks, mut player) = (world.locks().await, world.player(ttl(world)).await);
    let holder = locks.mutex("a").lock().await.expect("a lock");
    player.tell(&Order::Lock(Ask::stubborn("a"))).await;
    world.until_waiting("a", 1).await;
    let next = tokio::spawn({
        let mutex = locks.mutex("a").wait(SOON);
        async move { mutex.lock().await }
    });
    world.until_waiting("a", 2).await;
    player.process().sigkill().expect("a killed process");
    let _ = holder.release().await.expect("a release");
    drop(next.await.expect("no panic").expect("the one behind the dead"));
}

/// What a killed process held together with others is free for others.
pub async fn killed_readers_and_permits_make_room(world: &World) {
    let (locks, mut player) = (world.locks().await, world.player(ttl(world)).await);
    player.lock(Ask { how: How::Shared, ..Ask::stubborn("read") }).await;
    player.lock(Ask { how: How::Permits(2, 3), ..Ask::stubborn("permits") }).await;
    let reader = locks.rwlock("read").read().await.expect("a lock");
    let one = locks.semaphore("permits", 3).acquire(1).await.expect("a permit");
    player.process().sigkill().expect("a killed process");
    let two = locks.semaphore("permits", 3).wait(SOON).acquire(2).await.expect("the permits of the dead");
    let _ = reader.release().await.expect("a release");
    let writer = locks.rwlock("read").wait(SOON).write().await.expect("the reader is dead");
    drop((one, two, writer));
}

/// A death frees the dead one's locks and no others.
pub async fn one_killed_process_leaves_the_others_alone(world: &World) {
    let locks = world.locks().await;
    let (mut dies, mut lives) = (world.player(ttl(world)).await, world.player(LONG).await);
    dies.lock(Ask::stubborn("dies")).await;
    lives.lock(Ask::exclusive("lives")).await;
    let own = locks.mutex("own").lock().await.expect("a lock");
    dies.process().sigkill().expect("a killed process");
    drop(locks.mutex("dies").wait(SOON).lock().await.expect("the lock of the dead"));
    assert!(locks.mutex("lives").try_lock().await.expect("an answer").is_none());
    assert!(own.is_held());
    assert!(lives.held("lives").await.0);
    assert_eq!(lives.release("lives").await, "released");
}
