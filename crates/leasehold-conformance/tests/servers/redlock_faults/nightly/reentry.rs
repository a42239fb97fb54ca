//! Several claims of one owner, and a server that restarts.

use leasehold::Owner;
use leasehold_testbed::Data;

use crate::redlock_faults::fixture::{Fixture, LASTING, NODES, ShiftedClock, lock, release};
use crate::redlock_faults::reentry::{acquire, assert_held};

/// A server is down while an owner re-enters, and then restarts: it receives the remaining claim,
/// even if the first one was released meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovered_server_receives_the_claim_that_still_holds() {
    let mut fixture = Fixture::durable().await;
    let ahead = ShiftedClock::new();
    let (locks, other) = (fixture.locks_with_clock(&ahead).await, fixture.locks_with_clock(&ahead).await);
    let owner = Owner::new();
    for dead in 0..NODES {
        let first = acquire(&locks, &owner).await;
        fixture.renew_until_claim_counts(&ahead, &[&first], "a", 1).await;
        fixture.kill(&[dead]);
        let second = acquire(&other, &owner).await;
        assert_eq!(first.token(), second.token());
        fixture.restart(&[dead], Data::Keep).await;
        release(first).await;
        ahead.renew_now(&[&second], LASTING).await;
        assert_held(&locks).await;
        fixture.renew_until_claim_counts(&ahead, &[&second], "a", 1).await;
        // Now the two other servers with the claim may die.
        let two = [(dead + 1) % NODES, (dead + 2) % NODES];
        fixture.kill(&two);
        ahead.renew_now(&[&second], LASTING).await;
        let token = second.token();
        release(second).await;
        let next = lock(&locks, "a").await;
        assert!(next.token() > token);
        release(next).await;
        fixture.restart(&two, Data::Keep).await;
    }
}
