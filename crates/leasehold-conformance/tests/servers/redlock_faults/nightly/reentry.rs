//! Several claims of one owner, and a server that comes back.

use leasehold::Owner;
use leasehold_testbed::Data;

use crate::redlock_faults::reentry::{enter, is_taken};
use crate::redlock_faults::site::{Ahead, LASTING, NODES, Site, give_back, lock};

/// A server is dead while an owner enters again, and comes back: it learns of the claim that goes on, also where the first one
/// was given back meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_away_learns_of_the_claim_that_goes_on() {
    let mut site = Site::durable().await;
    let ahead = Ahead::new();
    let (locks, other) = (site.locks_on(&ahead).await, site.locks_on(&ahead).await);
    let owner = Owner::new();
    for away in 0..NODES {
        let first = enter(&locks, &owner).await;
        site.until_told(&ahead, &[&first], "a", 1).await;
        site.kill(&[away]);
        let second = enter(&other, &owner).await;
        assert_eq!(first.token(), second.token());
        site.restart(&[away], Data::Keep).await;
        give_back(first).await;
        ahead.renewed(&[&second], LASTING).await;
        is_taken(&locks).await;
        site.until_told(&ahead, &[&second], "a", 1).await;
        // Its two others may die now.
        let two = [(away + 1) % NODES, (away + 2) % NODES];
        site.kill(&two);
        ahead.renewed(&[&second], LASTING).await;
        let token = second.token();
        give_back(second).await;
        let next = lock(&locks, "a").await;
        assert!(next.token() > token);
        give_back(next).await;
        site.restart(&two, Data::Keep).await;
    }
}
