//! Any two of five servers die at any moment: nobody notices.

use std::time::Duration;

use leasehold_conformance::world::SOON;
use leasehold_testbed::{Data, eventually};

use crate::redlock_faults::site::{NODES, Site, give_back, guard, held_beyond, lock, spawn_lock};

const TTL: Duration = Duration::from_secs(4);

/// Two die: before a lock is taken, while one is held, and just before one is given back.
async fn two_die(site: &mut Site, pair: [usize; 2]) {
    let (locks, other) = (site.locks(TTL).await, site.locks(TTL).await);
    let (held, given) = (lock(&locks, "held").await, lock(&locks, "given").await);
    let waits = spawn_lock(&other, "held");
    site.kill(&pair);
    let start = locks.clock().now();
    let taken = lock(&locks, "taken").await;
    let token = given.token();
    give_back(given).await;
    let next = lock(&other, "given").await;
    assert!(next.token() > token, "{} after {token}", next.token());
    give_back(next).await;
    for guard in [&held, &taken] {
        held_beyond(guard, start.after(TTL * 4 / 3)).await;
    }
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
        site.until_claims(name, 1, SOON).await;
    }
    give_back(held).await;
    give_back(taken).await;
    for name in ["held", "taken", "given"] {
        site.until_claims(name, 0, TTL / 2).await;
    }
}

async fn pairs(first: impl Fn(usize) -> bool) {
    let mut site = Site::new().await;
    for a in 0..NODES {
        for b in a + 1..NODES {
            if first(a) {
                two_die(&mut site, [a, b]).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_two_may_die_the_first_among_them() {
    pairs(|a| a == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_two_may_die_the_first_not_among_them() {
    pairs(|a| a > 0).await;
}
