//! Many readers or one writer.

use std::sync::Arc;

use tokio::task::JoinSet;

use crate::brief::times;
use crate::probe::Room;
use crate::protocol::{Ask, How, Order, Report};
use crate::world::{LONG, World};

/// A writer counts as more than all readers can.
const WRITER: u32 = 1000;

/// Readers of several clients hold at the same time.
pub async fn readers_hold_together(world: &World) {
    let (one, other) = (world.locks().await, world.locks().await);
    let mut readers = Vec::new();
    for locks in [&one, &other, &one, &other] {
        readers.push(locks.rwlock("a").try_read().await.expect("an answer").expect("room for a reader"));
    }
    assert!(readers.iter().all(leasehold::Guard::is_held));
}

/// No writer beside a reader, no reader beside a writer, no two writers.
pub async fn a_writer_and_a_reader_exclude_each_other(world: &World) {
    let (one, other) = (world.locks().await, world.locks().await);
    let reader = one.rwlock("a").read().await.expect("a lock");
    assert!(other.rwlock("a").try_write().await.expect("an answer").is_none());
    assert!(other.mutex("a").try_lock().await.expect("an answer").is_none(), "a mutex is a writer");
    let _ = reader.release().await.expect("a release");
    let writer = other.rwlock("a").try_write().await.expect("an answer").expect("a free lock");
    assert!(one.rwlock("a").try_read().await.expect("an answer").is_none());
    assert!(one.rwlock("a").try_write().await.expect("an answer").is_none());
    let _ = writer.release().await.expect("a release");
}

/// Readers that come after a waiting writer wait behind it, and then enter together.
pub async fn readers_wait_behind_a_waiting_writer(world: &World) {
    let locks = world.locks().await;
    let first = locks.rwlock("a").read().await.expect("a lock");
    let writer = tokio::spawn({
        let locks = locks.clone();
        async move { locks.rwlock("a").write().await }
    });
    world.until_waiting("a", 1).await;
    assert!(locks.rwlock("a").try_read().await.expect("an answer").is_none(), "a late reader does not pass");
    let mut late = JoinSet::new();
    for _ in 0..3 {
        let locks = locks.clone();
        late.spawn(async move { locks.rwlock("a").read().await.expect("a lock") });
    }
    world.until_waiting("a", 4).await;
    let _ = first.release().await.expect("a release");
    let written = writer.await.expect("no panic").expect("a lock");
    assert_eq!(world.view("a").await.waiters.len(), 3, "the readers wait for the writer");
    let after = written.token();
    let _ = written.release().await.expect("a release");
    let readers = late.join_all().await;
    assert!(readers.iter().all(|reader| reader.is_held() && reader.token() > after), "all are in together");
}

/// Under contention a writer is always alone.
pub async fn a_storm_of_readers_and_writers_never_mixes(world: &World) {
    let clients = [world.locks().await, world.locks().await];
    let room = Arc::new(Room::default());
    let mut tasks = JoinSet::new();
    for number in 0..12 {
        let (locks, room) = (clients[number % 2].clone(), Arc::clone(&room));
        tasks.spawn(async move {
            for round in 0..times(5, 30) {
                let writes = (number + round as usize).is_multiple_of(4);
                let lock = locks.rwlock("a");
                let guard = if writes { lock.write().await } else { lock.read().await }.expect("a lock");
                room.visit(if writes { WRITER } else { 1 }).await;
                let _ = guard.release().await.expect("a release");
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(room.most(), WRITER, "{} readers beside a writer", room.most() % WRITER);
}

/// As among tasks, so among processes.
pub async fn processes_read_together_and_write_alone(world: &World) {
    let locks = world.locks().await;
    let mut player = world.player(LONG).await;
    let read = Ask { how: How::Shared, ..Ask::exclusive("a") };
    let write = Ask { guard: "write".to_owned(), wait_ms: Some(0), ..Ask::exclusive("a") };
    let reader = locks.rwlock("a").read().await.expect("a lock");
    player.lock(read).await;
    assert!(reader.is_held());
    assert!(locks.rwlock("a").try_write().await.expect("an answer").is_none());
    assert_eq!(player.release("a").await, "released");
    player.tell(&Order::Lock(write.clone())).await;
    player.hear("a refusal", |report| matches!(report, Report::Busy { .. }).then_some(())).await;
    let _ = reader.release().await.expect("a release");
    player.lock(write).await;
    assert!(locks.rwlock("a").try_read().await.expect("an answer").is_none());
    assert_eq!(player.release("write").await, "released");
}
