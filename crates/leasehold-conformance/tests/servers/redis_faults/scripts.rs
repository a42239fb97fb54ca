//! The server's script cache is flushed repeatedly: no client is affected.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold::Owner;
use leasehold::clock::ManualClock;
use leasehold_conformance::overlap_probe::OverlapProbe;
use leasehold_conformance::test_context::LONG_TTL;

use crate::redis_faults::fixture::{Fixture, await_guard, inspect, release, spawn_lock, until_empty, until_waiting};
use crate::redis_faults::manual_time::pass_and_renew;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_flushed_between_any_two_operations_are_resent() {
    let (fixture, manual_clock) = (Fixture::new().await, ManualClock::running());
    let (locks, other) = (
        fixture.locks_with_clock(LONG_TTL, manual_clock.clock()).await,
        fixture.locks_with_clock(LONG_TTL, manual_clock.clock()).await,
    );
    let flush = || async { assert_eq!(fixture.command_text(&["SCRIPT", "FLUSH"]).await, "OK") };
    flush().await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    flush().await;
    assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
    flush().await;
    let waits = spawn_lock(&other, "a");
    until_waiting(&other, "a", 1).await;
    flush().await;
    // A renewal, and a heartbeat of the first waiter.
    pass_and_renew([&held], |by| manual_clock.advance(by)).await;
    flush().await;
    let claim = inspect(&other, "a").await.holders[0].claim;
    flush().await;
    assert!(other.force_release("a", claim).await.expect("a force release").contender.is_some());
    held.lost().await;
    flush().await;
    let next = await_guard(waits).await;
    release(next).await;
    flush().await;
    let all = locks.multi_lock(["x", "y", "z"]).lock().await.expect("all locks");
    flush().await;
    drop(all);
    locks.flush().await.expect("all released");
    flush().await;
    let owner = Owner::new();
    let read = locks.rwlock("r").owner(&owner).read().await.expect("a lock");
    flush().await;
    let again = locks.rwlock("r").owner(&owner).read().await.expect("the same owner");
    assert_eq!(read.token(), again.token());
    flush().await;
    release(read).await;
    flush().await;
    release(again).await;
    flush().await;
    release(locks.semaphore("s", 2).acquire(2).await.expect("permits")).await;
    until_empty(&other).await;
    assert!(fixture.calls().await.of("eval") > 10, "scripts were sent as text");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_flushed_under_load_are_resent() {
    const ROUNDS: u32 = if cfg!(feature = "nightly") { 25 } else { 5 };
    let fixture = Arc::new(Fixture::new().await);
    let (locks, other) = (fixture.locks(LONG_TTL).await, fixture.locks(LONG_TTL).await);
    let (probe, over) = (Arc::new(OverlapProbe::default()), Arc::new(AtomicBool::new(false)));
    let flusher = tokio::spawn({
        let (fixture, over) = (Arc::clone(&fixture), Arc::clone(&over));
        async move {
            while !over.load(Ordering::SeqCst) {
                fixture.command_text(&["SCRIPT", "FLUSH"]).await;
            }
        }
    });
    let work = |number: usize| {
        let (mutex, probe) = (if number.is_multiple_of(2) { &locks } else { &other }.mutex("a"), Arc::clone(&probe));
        tokio::spawn(async move {
            for _ in 0..ROUNDS {
                let guard = mutex.lock().await.expect("the lock");
                probe.visit(1).await;
                release(guard).await;
            }
        })
    };
    for task in (0..20).map(work).collect::<Vec<_>>() {
        task.await.expect("no panic");
    }
    over.store(true, Ordering::SeqCst);
    flusher.await.expect("no panic");
    assert_eq!((probe.max_concurrent(), probe.visit_count()), (1, 20 * ROUNDS), "one at a time");
    until_empty(&locks).await;
    assert!(fixture.calls().await.of("eval") > 0, "scripts were flushed in between");
}
