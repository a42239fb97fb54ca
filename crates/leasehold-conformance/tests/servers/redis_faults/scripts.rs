//! The server forgets its scripts, again and again: no client notices.

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
    let (site, hand) = (Fixture::new().await, ManualClock::running());
    let (locks, other) =
        (site.locks_with_clock(LONG_TTL, hand.clock()).await, site.locks_with_clock(LONG_TTL, hand.clock()).await);
    let flush = || async { assert_eq!(site.command_text(&["SCRIPT", "FLUSH"]).await, "OK") };
    flush().await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    flush().await;
    assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
    flush().await;
    let waits = spawn_lock(&other, "a");
    until_waiting(&other, "a", 1).await;
    flush().await;
    // A renewal, and a look of the first in line.
    pass_and_renew([&held], |by| hand.advance(by)).await;
    flush().await;
    let claim = inspect(&other, "a").await.holders[0].claim;
    flush().await;
    assert!(other.force_release("a", claim).await.expect("an eviction").contender.is_some());
    held.lost().await;
    flush().await;
    let next = await_guard(waits).await;
    release(next).await;
    flush().await;
    let all = locks.multi_lock(["x", "y", "z"]).lock().await.expect("all of them");
    flush().await;
    drop(all);
    locks.flush().await.expect("all given back");
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
    assert!(site.calls().await.of("eval") > 10, "scripts were sent as text");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_flushed_under_load_are_resent() {
    const ROUNDS: u32 = if cfg!(feature = "nightly") { 25 } else { 5 };
    let site = Arc::new(Fixture::new().await);
    let (locks, other) = (site.locks(LONG_TTL).await, site.locks(LONG_TTL).await);
    let (room, over) = (Arc::new(OverlapProbe::default()), Arc::new(AtomicBool::new(false)));
    let flusher = tokio::spawn({
        let (site, over) = (Arc::clone(&site), Arc::clone(&over));
        async move {
            while !over.load(Ordering::SeqCst) {
                site.command_text(&["SCRIPT", "FLUSH"]).await;
            }
        }
    });
    let work = |number: usize| {
        let (mutex, room) = (if number.is_multiple_of(2) { &locks } else { &other }.mutex("a"), Arc::clone(&room));
        tokio::spawn(async move {
            for _ in 0..ROUNDS {
                let guard = mutex.lock().await.expect("the lock");
                room.visit(1).await;
                release(guard).await;
            }
        })
    };
    for task in (0..20).map(work).collect::<Vec<_>>() {
        task.await.expect("no panic");
    }
    over.store(true, Ordering::SeqCst);
    flusher.await.expect("no panic");
    assert_eq!((room.max_concurrent(), room.visit_count()), (1, 20 * ROUNDS), "one at a time");
    until_empty(&locks).await;
    assert!(site.calls().await.of("eval") > 0, "scripts were forgotten in between");
}
