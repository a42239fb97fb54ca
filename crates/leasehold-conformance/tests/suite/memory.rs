//! The suite on `memory:`, and tests that need a manual clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::clock::ManualClock;
use leasehold::{Locks, LostReason};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_conformance::{FlakyEngine, Instance, Subject, suite};

/// Each instance has a name, so that several clients can open it.
struct Memory;

impl Subject for Memory {
    async fn instance(&self) -> Instance {
        static NEXT_INSTANCE: AtomicU32 = AtomicU32::new(0);
        Instance::with_url(format!("memory:conformance-{}", NEXT_INSTANCE.fetch_add(1, Ordering::Relaxed)))
    }
}

suite!(memory, Memory);

/// On a manual clock, the order is exact: the holder learns of the loss at its deadline, and the
/// next grant comes after the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_holder_learns_of_the_loss_before_the_lease_ends_for_others() {
    let manual_clock = ManualClock::new();
    let engine = leasehold::registry::open("memory:", &manual_clock.clock()).await.expect("the engine");
    let flaky = Arc::new(FlakyEngine::new(Arc::clone(&engine)));
    let ttl = Duration::from_secs(30);
    let locks = Locks::builder().clock(manual_clock.clock()).ttl(ttl).open_engine(Arc::clone(&flaky) as _);
    let other = Locks::builder().clock(manual_clock.clock()).ttl(ttl).open_engine(engine);
    let guard = locks.mutex("a").lock().await.expect("a lock");
    flaky.disconnect();
    let deadline = guard.deadline();
    let now = || manual_clock.clock().now();
    manual_clock.advance(deadline.duration_since(now()) - Duration::from_nanos(1));
    assert!(guard.is_held(), "before the deadline");
    manual_clock.advance(Duration::from_nanos(1));
    assert!(!guard.is_held(), "at the deadline");
    let reason =
        tokio::time::timeout(TEST_TIMEOUT, guard.lost()).await.expect("the holder learns of the loss at its deadline");
    assert_eq!(reason, LostReason::Expired);
    assert!(other.mutex("a").try_lock().await.expect("an answer").is_none(), "not granted before the lease ends");
    manual_clock.advance(Duration::from_secs(1));
    let next = other.mutex("a").try_lock().await.expect("an answer").expect("the lease has ended");
    assert!(next.token() > guard.token());
}

/// The engine notifies every force-released holder, however fast the force releases follow each
/// other; none waits for a renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_force_released_holder_is_notified() {
    let locks = Locks::builder().ttl(LONG_TTL).open("memory:").await.expect("the engine");
    let mut guards = Vec::new();
    for number in 0..200 {
        guards.push(locks.mutex(format!("force-released-{number}")).lock().await.expect("a lock"));
    }
    for view in locks.list("").await.expect("a list") {
        let force_released = locks.force_release(view.name, view.holders[0].claim).await.expect("a force release");
        assert!(force_released.contender.is_some());
    }
    for guard in guards {
        let reason = tokio::time::timeout(TEST_TIMEOUT, guard.lost()).await;
        assert_eq!(reason.unwrap_or_else(|_| panic!("{} was not notified", guard.name())), LostReason::Revoked);
    }
}
