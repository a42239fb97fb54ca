//! Any two of five servers die at any moment: nobody notices.

use leasehold_conformance::world::SOON;
use leasehold_testbed::{Data, eventually};

use crate::redlock_faults::site::{Ahead, LASTING, NODES, Site, give_back, guard, lock, spawn_lock};

/// Two die: before a lock is taken, while one is held, and just before one is given back.
async fn two_die(site: &mut Site, pair: [usize; 2]) {
    let ahead = Ahead::new();
    let (locks, other) = (site.locks_on(&ahead).await, site.locks().await);
    let (held, given) = (lock(&locks, "held").await, lock(&locks, "given").await);
    let waits = spawn_lock(&other, "held");
    site.kill(&pair);
    let taken = lock(&locks, "taken").await;
    let token = given.token();
    give_back(given).await;
    let next = lock(&other, "given").await;
    assert!(next.token() > token, "{} after {token}", next.token());
    give_back(next).await;
    ahead.renewed(&[&held, &taken], LASTING).await;
    assert!(!waits.is_finished(), "{pair:?}: somebody else got it");
    eventually(SOON, || async {
        match other.mutex("taken").try_lock().await {
            Ok(None) => Ok(()),
            Ok(Some(_)) => panic!("{pair:?}: two hold it"),
            Err(error) => Err(error),
        }
    })
    .await;
    let tokens = (held.token(), taken.token());
    give_back(held).await;
    give_back(taken).await;
    let (held, taken) = (guard(waits).await, lock(&other, "taken").await);
    assert!(held.token() > tokens.0 && taken.token() > tokens.1, "{pair:?}: {tokens:?}");
    site.restart(&pair, Data::Wipe).await;
    // Those who are back take part again, and learn of who holds.
    for name in ["held", "taken"] {
        site.until_claims(name, 1).await;
    }
    give_back(held).await;
    give_back(taken).await;
    for name in ["held", "taken", "given"] {
        site.until_claims(name, 0).await;
    }
}

/// One pair after the other.
pub(super) async fn pairs(which: impl Fn(usize, usize) -> bool) {
    let mut site = Site::new().await;
    for a in 0..NODES {
        for b in a + 1..NODES {
            if which(a, b) {
                two_die(&mut site, [a, b]).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_may_die() {
    pairs(|a, b| (a, b) == (0, 3)).await;
}
