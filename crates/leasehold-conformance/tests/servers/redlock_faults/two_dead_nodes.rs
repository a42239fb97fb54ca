//! Any two of five servers die at any time without an effect on clients.

use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::{Data, eventually};

use crate::redlock_faults::fixture::{Fixture, LASTING, NODES, ShiftedClock, await_guard, lock, release, spawn_lock};

/// Two servers die before an acquire, while a lock is held, and just before a release.
async fn assert_survives_two_deaths(fixture: &mut Fixture, pair: [usize; 2]) {
    let ahead = ShiftedClock::new();
    let (locks, other) = (fixture.locks_with_clock(&ahead).await, fixture.locks().await);
    let (held, released) = (lock(&locks, "held").await, lock(&locks, "given").await);
    let waits = spawn_lock(&other, "held");
    fixture.kill(&pair);
    let taken = lock(&locks, "taken").await;
    let token = released.token();
    release(released).await;
    let next = lock(&other, "given").await;
    assert!(next.token() > token, "{} after {token}", next.token());
    release(next).await;
    ahead.renew_now(&[&held, &taken], LASTING).await;
    assert!(!waits.is_finished(), "{pair:?}: the waiter acquired a held lock");
    eventually(TEST_TIMEOUT, || async {
        match other.mutex("taken").try_lock().await {
            Ok(None) => Ok(()),
            Ok(Some(_)) => panic!("{pair:?}: two holders"),
            Err(error) => Err(error),
        }
    })
    .await;
    let tokens = (held.token(), taken.token());
    release(held).await;
    release(taken).await;
    let (held, taken) = (await_guard(waits).await, lock(&other, "taken").await);
    assert!(held.token() > tokens.0 && taken.token() > tokens.1, "{pair:?}: {tokens:?}");
    fixture.restart(&pair, Data::Wipe).await;
    // The restarted servers vote again and learn of the holders.
    for name in ["held", "taken"] {
        fixture.until_claim_counts(name, 1).await;
    }
    release(held).await;
    release(taken).await;
    for name in ["held", "taken", "given"] {
        fixture.until_claim_counts(name, 0).await;
    }
}

/// Runs the test for one pair after another.
pub(super) async fn assert_survives_pairs(which: impl Fn(usize, usize) -> bool) {
    let mut fixture = Fixture::new().await;
    for a in 0..NODES {
        for b in a + 1..NODES {
            if which(a, b) {
                assert_survives_two_deaths(&mut fixture, [a, b]).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_dead_nodes_are_tolerated() {
    assert_survives_pairs(|a, b| (a, b) == (0, 3)).await;
}
