//! As many holders as the limit allows.

use std::sync::Arc;

use leasehold::ErrorKind;
use tokio::task::JoinSet;

use crate::overlap_probe::OverlapProbe;
use crate::protocol::{ActorCommand, ActorReport, LockRequest, RequestMode};
use crate::short_leases::repetitions;
use crate::test_context::{LONG_TTL, TestContext};

/// Under contention, the holders never exceed the limit.
pub async fn never_more_than_the_limit(context: &TestContext) {
    let clients = [context.open_locks().await, context.open_locks().await];
    let probe = Arc::new(OverlapProbe::default());
    let mut tasks = JoinSet::new();
    for number in 0..12_u32 {
        let (locks, probe) = (clients[number as usize % 2].clone(), Arc::clone(&probe));
        tasks.spawn(async move {
            for round in 0..repetitions(5, 30) {
                let permits = (number + round) % 3 + 1;
                let guard = locks.semaphore("a", 4).acquire(permits).await.expect("permits");
                probe.visit(permits).await;
                let _ = guard.release().await.expect("a release");
            }
        });
    }
    tasks.join_all().await;
    assert!(probe.max_concurrent() <= 4, "{} permits of 4 were held", probe.max_concurrent());
    assert!(probe.max_concurrent() > 1, "permits are held concurrently");
}

/// Later small requests do not overtake a waiting large one.
pub async fn a_large_request_is_not_overtaken(context: &TestContext) {
    let locks = context.open_locks().await;
    let sem = locks.semaphore("a", 3);
    let first = sem.acquire(2).await.expect("permits");
    let large = tokio::spawn({
        let sem = sem.clone();
        async move { sem.acquire(3).await }
    });
    context.wait_for_waiters("a", 1).await;
    assert!(sem.try_acquire(1).await.expect("an answer").is_none(), "one permit is free, but a claim waits");
    let small = tokio::spawn({
        let sem = sem.clone();
        async move { sem.acquire(1).await }
    });
    context.wait_for_waiters("a", 2).await;
    let _ = first.release().await.expect("a release");
    let large = large.await.expect("no panic").expect("permits");
    assert_eq!(context.inspect("a").await.waiters.len(), 1, "the small request waits");
    let token = large.token();
    let _ = large.release().await.expect("a release");
    let small = small.await.expect("no panic").expect("permits");
    assert!(small.token() > token);
}

/// Two limits for one name at the same time are an error; afterwards another limit is fine.
pub async fn another_limit_is_refused(context: &TestContext) {
    let (one, other) = (context.open_locks().await, context.open_locks().await);
    let guard = one.semaphore("a", 3).acquire(1).await.expect("permits");
    for result in
        [other.semaphore("a", 4).try_acquire(1).await.map(|_| ()), other.semaphore("a", 2).acquire(1).await.map(|_| ())]
    {
        let error = result.expect_err("another limit");
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    }
    let _ = guard.release().await.expect("a release");
    drop(other.semaphore("a", 4).try_acquire(4).await.expect("an answer").expect("all permits"));
}

/// Impossible numbers of permits are rejected without an engine call.
pub async fn zero_and_too_many_permits_are_refused_before_any_call(context: &TestContext) {
    let (locks, flaky) = context.open_flaky(LONG_TTL).await;
    for (permits, limit) in [(0, 3), (4, 3), (1, 0), (0, 0), (u32::MAX, 1)] {
        let error = locks.semaphore("a", limit).acquire(permits).await.expect_err("a bad number");
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{permits} of {limit}: {error}");
    }
    assert_eq!(flaky.total_calls(), 0);
}

/// A mutex with the semaphore's name waits for all permits and excludes them.
pub async fn an_exclusive_hold_excludes_all_permits(context: &TestContext) {
    let locks = context.open_locks().await;
    let one = locks.semaphore("a", 3).acquire(1).await.expect("permits");
    assert!(locks.mutex("a").try_lock().await.expect("an answer").is_none());
    let _ = one.release().await.expect("a release");
    let alone = locks.mutex("a").try_lock().await.expect("an answer").expect("a free lock");
    assert!(locks.semaphore("a", 3).try_acquire(1).await.expect("an answer").is_none());
    let _ = alone.release().await.expect("a release");
}

/// All processes share the permits.
pub async fn processes_share_the_permits(context: &TestContext) {
    let locks = context.open_locks().await;
    let mut actor = context.spawn_actor(LONG_TTL).await;
    let two = LockRequest { mode: RequestMode::Permits(2, 3), wait_ms: Some(0), ..LockRequest::exclusive("a") };
    actor.acquire(two.clone()).await;
    assert!(locks.semaphore("a", 3).try_acquire(2).await.expect("an answer").is_none());
    let one = locks.semaphore("a", 3).try_acquire(1).await.expect("an answer").expect("one permit is left");
    let more = LockRequest { guard: "more".to_owned(), mode: RequestMode::Permits(1, 3), ..two };
    actor.send(&ActorCommand::Lock(more)).await;
    actor.wait_for_report("a busy report", |report| matches!(report, ActorReport::Busy { .. }).then_some(())).await;
    assert_eq!(actor.release("a").await, "released");
    drop(locks.semaphore("a", 3).try_acquire(2).await.expect("an answer").expect("two permits"));
    drop(one);
}
