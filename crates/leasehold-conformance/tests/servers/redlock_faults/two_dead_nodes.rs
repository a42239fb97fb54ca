//! Any two of five servers die at any moment: nobody notices.

use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::{Data, eventually};

use crate::redlock_faults::fixture::{Fixture, LASTING, NODES, ShiftedClock, await_guard, lock, release, spawn_lock};

/// Two die: before a lock is taken, while one is held, and just before one is given back.
async fn assert_survives_two_deaths(site: &mut Fixture, pair: [usize; 2]) {
    let ahead = ShiftedClock::new();
    let (locks, other) = (site.locks_with_clock(&ahead).await, site.locks().await);
    let (held, given) = (lock(&locks, "held").await, lock(&locks, "given").await);
    let waits = spawn_lock(&other, "held");
    site.kill(&pair);
    let taken = lock(&locks, "taken").await;
    let token = given.token();
    release(given).await;
    let next = lock(&other, "given").await;
    assert!(next.token() > token, "{} after {token}", next.token());
    release(next).await;
    ahead.renew_now(&[&held, &taken], LASTING).await;
    assert!(!waits.is_finished(), "{pair:?}: somebody else got it");
    eventually(TEST_TIMEOUT, || async {
        match other.mutex("taken").try_lock().await {
            Ok(None) => Ok(()),
            Ok(Some(_)) => panic!("{pair:?}: two hold it"),
            Err(error) => Err(error),
        }
    })
    .await;
    let tokens = (held.token(), taken.token());
    release(held).await;
    release(taken).await;
    let (held, taken) = (await_guard(waits).await, lock(&other, "taken").await);
    assert!(held.token() > tokens.0 && taken.token() > tokens.1, "{pair:?}: {tokens:?}");
    site.restart(&pair, Data::Wipe).await;
    // Those who are back take part again, and learn of who holds.
    for name in ["held", "taken"] {
        site.until_claim_counts(name, 1).await;
    }
    release(held).await;
    release(taken).await;
    for name in ["held", "taken", "given"] {
        site.until_claim_counts(name, 0).await;
    }
}

/// One pair after the other.
pub(super) async fn assert_survives_pairs(which: impl Fn(usize, usize) -> bool) {
    let mut site = Fixture::new().await;
    for a in 0..NODES {
        for b in a + 1..NODES {
            if which(a, b) {
                assert_survives_two_deaths(&mut site, [a, b]).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_may_die() {
    assert_survives_pairs(|a, b| (a, b) == (0, 3)).await;
}
