//! Several locks at once.

use std::sync::Arc;
use std::time::Duration;

use leasehold::engine::Fairness;
use leasehold::{ErrorKind, LockSpec, LostReason, Mode};
use leasehold_testbed::eventually;
use tokio::task::JoinSet;

use crate::overlap_probe::OverlapProbe;
use crate::short_leases::{expect_not_granted, repetitions};
use crate::test_context::{LONG_TTL, TEST_TIMEOUT, TestContext};

/// Callers that name the locks in different orders neither deadlock nor overlap.
pub async fn opposite_orders_do_not_deadlock(context: &TestContext) {
    let clients = [context.open_locks().await, context.open_locks().await];
    let probe = Arc::new(OverlapProbe::default());
    let mut tasks = JoinSet::new();
    for number in 0..6 {
        let (locks, probe) = (clients[number % 2].clone(), Arc::clone(&probe));
        tasks.spawn(async move {
            let mut names = ["a", "b", "c"];
            names.rotate_left(number % 3);
            if number % 2 == 0 {
                names.reverse();
            }
            for _ in 0..repetitions(4, 20) {
                let guard = locks.multi_lock(names).timeout(TEST_TIMEOUT).lock().await.expect("all three locks");
                probe.visit(1).await;
                assert_eq!(guard.release().await.expect("a release").len(), 3);
            }
        });
    }
    tasks.join_all().await;
    assert_eq!((probe.max_concurrent(), probe.visit_count()), (1, 6 * repetitions(4, 20)));
}

/// If one lock cannot be acquired, none is kept.
pub async fn all_or_none_are_acquired(context: &TestContext) {
    let (locks, other) = (context.open_locks().await, context.open_locks().await);
    let held = other.mutex("b").lock().await.expect("a lock");
    assert!(locks.multi_lock(["a", "b", "c"]).try_lock().await.expect("an answer").is_none());
    for name in ["a", "c"] {
        let free = other.mutex(name).try_lock().await.expect("an answer").expect("a free lock");
        let _ = free.release().await.expect("a release");
    }
    let error = expect_not_granted(|| async {
        locks.multi_lock(["a", "b", "c"]).timeout(Duration::from_millis(500)).lock().await
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert_eq!(error.name().map(leasehold::LockName::as_str), Some("b"), "{error}");
    context.wait_until_free("a").await;
    context.wait_until_free("c").await;
    let _ = held.release().await.expect("a release");
    let all = locks.multi_lock(["a", "b", "c"]).try_lock().await.expect("an answer").expect("all locks are free");
    assert!(all.is_held() && all.guards().len() == 3);
    assert!(all.token("b") > Some(leasehold::Token(0)) && all.token("d").is_none());
}

/// One timeout covers all locks: time spent on one is not available to the next. On engines with a
/// queue, the wait requested for the second lock shows this.
pub async fn one_timeout_covers_all_locks(context: &TestContext) {
    let ((locks, flaky), other) = (context.open_flaky(LONG_TTL).await, context.open_locks().await);
    let queue = context.capabilities().fairness == Fairness::Fifo;
    let wait = Duration::from_millis(600);
    eventually(TEST_TIMEOUT, || async {
        let (a, b) = (context.unique_name("a"), context.unique_name("b"));
        let first = other.mutex(&a).lock().await.expect("a lock");
        let second = other.mutex(&b).lock().await.expect("a lock");
        let (begun, calls) = (locks.clock().now(), flaky.total_calls());
        let acquiring = tokio::spawn({
            let all = locks.multi_lock([b.as_str(), a.as_str()]).timeout(wait);
            async move { all.lock().await }
        });
        eventually(TEST_TIMEOUT, || async { if flaky.total_calls() > calls { Ok(()) } else { Err("no call so far") } })
            .await;
        let start = locks.clock().now();
        context.sleep(wait / 2).await;
        let spent = locks.clock().now().duration_since(start);
        // On a slow machine no time is left, and the client requests a zero wait.
        let left = wait.saturating_sub(spent);
        drop(first);
        let error = acquiring.await.expect("no panic").expect_err("one lock is held");
        assert!(locks.clock().now().duration_since(begun) >= wait, "{error}");
        drop(second);
        // On a slow machine there was no time for the second lock, or no reply.
        let waits = flaky.wait_timeouts(&b);
        if error.kind() != ErrorKind::Timeout || (queue && waits.is_empty()) {
            return Err(error);
        }
        assert!(waits.iter().all(|one| *one <= left), "{left:?} of {wait:?} were left: {waits:?}");
        Ok(())
    })
    .await;
}

/// A name given twice is one lock, held in the stronger mode.
pub async fn a_name_given_twice_is_acquired_once(context: &TestContext) {
    let locks = context.open_locks().await;
    let guard =
        locks.multi_lock(["a", "b", "a"]).try_lock().await.expect("an answer").expect("no wait for its own lock");
    assert_eq!(guard.guards().len(), 2);
    let _ = guard.release().await.expect("a release");
    let none = locks.multi_lock::<[&str; 0]>([]).lock().await.expect("an empty multi-lock");
    assert!(none.is_held());
}

/// Readers, writers and permits can be acquired together; two conflicting modes of one lock cannot.
pub async fn modes_can_be_mixed(context: &TestContext) {
    let (locks, other) = (context.open_locks().await, context.open_locks().await);
    let wanted =
        || [locks.rwlock("a").read_spec(), locks.semaphore("b", 3).permits_spec(2), LockSpec::from(&locks.mutex("c"))];
    let guard = locks.multi_lock(wanted()).lock().await.expect("all three locks");
    assert!(other.rwlock("a").try_read().await.expect("an answer").is_some());
    assert!(other.semaphore("b", 3).try_acquire(2).await.expect("an answer").is_none());
    assert!(other.semaphore("b", 3).try_acquire(1).await.expect("an answer").is_some());
    assert!(other.mutex("c").try_lock().await.expect("an answer").is_none());
    let _ = guard.release().await.expect("a release");
    other.flush().await.expect("nothing left to release");
    let both = locks.multi_lock([("a", Mode::Shared), ("a", Mode::Exclusive)]).lock().await.expect("the stronger mode");
    assert!(other.rwlock("a").try_read().await.expect("an answer").is_none());
    drop(both);
    let error = locks.multi_lock([("a", Mode::Shared), ("a", Mode::Permits { n: 1, limit: 2 })]).lock().await;
    assert_eq!(error.expect_err("conflicting modes").kind(), ErrorKind::Conflict);
}

/// A multi-lock is lost as a whole.
pub async fn all_are_lost_when_one_is_lost(context: &TestContext) {
    let (locks, flaky) = context.open_unrenewed().await;
    let guard = eventually(TEST_TIMEOUT, || async { locks.multi_lock(["a", "b"]).lock().await }).await;
    flaky.disconnect();
    let (_, reason) = tokio::time::timeout(TEST_TIMEOUT, guard.lost()).await.expect("the holder learns of the loss");
    assert_eq!(reason, LostReason::Expired);
    assert!(!guard.is_held());
    flaky.reconnect();
    // Locks of the set that are not lost yet are renewed until they are released.
    drop(guard);
    drop(
        context
            .open_locks_with_ttl(LONG_TTL)
            .await
            .multi_lock(["b", "a"])
            .timeout(TEST_TIMEOUT)
            .lock()
            .await
            .expect("both locks"),
    );
}
