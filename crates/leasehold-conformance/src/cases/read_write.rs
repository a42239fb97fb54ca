//! Many readers or one writer.

use std::sync::Arc;

use tokio::task::JoinSet;

use crate::overlap_probe::OverlapProbe;
use crate::protocol::{ActorCommand, ActorReport, LockRequest, RequestMode};
use crate::short_leases::repetitions;
use crate::test_context::{LONG_TTL, TestContext};

/// Counts a writer as more than all readers together.
const WRITER_WEIGHT: u32 = 1000;

/// Readers of several clients hold at the same time.
pub async fn readers_hold_together(context: &TestContext) {
    let (one, other) = (context.open_locks().await, context.open_locks().await);
    let mut readers = Vec::new();
    for locks in [&one, &other, &one, &other] {
        readers.push(locks.rwlock("a").try_read().await.expect("an answer").expect("room for a reader"));
    }
    assert!(readers.iter().all(leasehold::Guard::is_held));
}

/// A writer excludes readers and other writers.
pub async fn a_writer_and_a_reader_exclude_each_other(context: &TestContext) {
    let (one, other) = (context.open_locks().await, context.open_locks().await);
    let reader = one.rwlock("a").read().await.expect("a lock");
    assert!(other.rwlock("a").try_write().await.expect("an answer").is_none());
    assert!(other.mutex("a").try_lock().await.expect("an answer").is_none(), "a mutex is a writer");
    let _ = reader.release().await.expect("a release");
    let writer = other.rwlock("a").try_write().await.expect("an answer").expect("a free lock");
    assert!(one.rwlock("a").try_read().await.expect("an answer").is_none());
    assert!(one.rwlock("a").try_write().await.expect("an answer").is_none());
    let _ = writer.release().await.expect("a release");
}

/// Readers that arrive after a waiting writer wait behind it, and are then granted together.
pub async fn readers_wait_behind_a_waiting_writer(context: &TestContext) {
    let locks = context.open_locks().await;
    let first = locks.rwlock("a").read().await.expect("a lock");
    let writer = tokio::spawn({
        let locks = locks.clone();
        async move { locks.rwlock("a").write().await }
    });
    context.wait_for_waiters("a", 1).await;
    assert!(locks.rwlock("a").try_read().await.expect("an answer").is_none(), "a late reader does not overtake");
    let mut late = JoinSet::new();
    for _ in 0..3 {
        let locks = locks.clone();
        late.spawn(async move { locks.rwlock("a").read().await.expect("a lock") });
    }
    context.wait_for_waiters("a", 4).await;
    let _ = first.release().await.expect("a release");
    let written = writer.await.expect("no panic").expect("a lock");
    assert_eq!(context.inspect("a").await.waiters.len(), 3, "the readers wait for the writer");
    let after = written.token();
    let _ = written.release().await.expect("a release");
    let readers = late.join_all().await;
    assert!(readers.iter().all(|reader| reader.is_held() && reader.token() > after), "all readers hold together");
}

/// Under contention a writer is always alone.
pub async fn readers_and_writers_never_overlap_under_contention(context: &TestContext) {
    let clients = [context.open_locks().await, context.open_locks().await];
    let probe = Arc::new(OverlapProbe::default());
    let mut tasks = JoinSet::new();
    for number in 0..12 {
        let (locks, probe) = (clients[number % 2].clone(), Arc::clone(&probe));
        tasks.spawn(async move {
            for round in 0..repetitions(5, 30) {
                let writes = (number + round as usize).is_multiple_of(4);
                let lock = locks.rwlock("a");
                let guard = if writes { lock.write().await } else { lock.read().await }.expect("a lock");
                probe.visit(if writes { WRITER_WEIGHT } else { 1 }).await;
                let _ = guard.release().await.expect("a release");
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(
        probe.max_concurrent(),
        WRITER_WEIGHT,
        "{} readers beside a writer",
        probe.max_concurrent() % WRITER_WEIGHT
    );
}

/// Readers in other processes hold together, and a writer in another process excludes them.
pub async fn processes_read_together_and_write_alone(context: &TestContext) {
    let locks = context.open_locks().await;
    let mut actor = context.spawn_actor(LONG_TTL).await;
    let read = LockRequest { mode: RequestMode::Shared, ..LockRequest::exclusive("a") };
    let write = LockRequest { guard: "write".to_owned(), wait_ms: Some(0), ..LockRequest::exclusive("a") };
    let reader = locks.rwlock("a").read().await.expect("a lock");
    actor.acquire(read).await;
    assert!(reader.is_held());
    assert!(locks.rwlock("a").try_write().await.expect("an answer").is_none());
    assert_eq!(actor.release("a").await, "released");
    actor.send(&ActorCommand::Lock(write.clone())).await;
    actor.wait_for_report("a busy report", |report| matches!(report, ActorReport::Busy { .. }).then_some(())).await;
    let _ = reader.release().await.expect("a release");
    actor.acquire(write).await;
    assert!(locks.rwlock("a").try_read().await.expect("an answer").is_none());
    assert_eq!(actor.release("write").await, "released");
}
