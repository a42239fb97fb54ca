//! Several claims of one owner, and a server that comes back.

use leasehold::Owner;
use leasehold_testbed::Data;

use crate::redlock_faults::fixture::{Fixture, LASTING, NODES, ShiftedClock, lock, release};
use crate::redlock_faults::reentry::{acquire, assert_held};

/// A server is dead while an owner enters again, and comes back: it learns of the claim that goes on, also where the first one
/// was given back meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovered_server_receives_the_claim_that_still_holds() {
    let mut site = Fixture::durable().await;
    let ahead = ShiftedClock::new();
    let (locks, other) = (site.locks_with_clock(&ahead).await, site.locks_with_clock(&ahead).await);
    let owner = Owner::new();
    for away in 0..NODES {
        let first = acquire(&locks, &owner).await;
        site.renew_until_claim_counts(&ahead, &[&first], "a", 1).await;
        site.kill(&[away]);
        let second = acquire(&other, &owner).await;
        assert_eq!(first.token(), second.token());
        site.restart(&[away], Data::Keep).await;
        release(first).await;
        ahead.renew_now(&[&second], LASTING).await;
        assert_held(&locks).await;
        site.renew_until_claim_counts(&ahead, &[&second], "a", 1).await;
        // Its two others may die now.
        let two = [(away + 1) % NODES, (away + 2) % NODES];
        site.kill(&two);
        ahead.renew_now(&[&second], LASTING).await;
        let token = second.token();
        release(second).await;
        let next = lock(&locks, "a").await;
        assert!(next.token() > token);
        release(next).await;
        site.restart(&two, Data::Keep).await;
    }
}
