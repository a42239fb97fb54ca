//! Several claims of one owner: one token, and free after the last of them.

use std::time::Duration;

use leasehold::{Guard, Locks, Owner, Token};
use leasehold_conformance::world::{LONG, SOON};
use leasehold_testbed::Data;

use crate::redlock_faults::site::{NODES, Site, give_back, held_beyond, lock};

const TTL: Duration = Duration::from_secs(4);

async fn enter(locks: &Locks, owner: &Owner) -> Guard {
    locks.mutex("a").owner(owner).wait(SOON).lock().await.expect("the lock")
}

async fn is_taken(locks: &Locks) {
    assert!(locks.mutex("a").try_lock().await.expect("an answer").is_none(), "it is held");
    let another = locks.mutex("a").owner(&Owner::new()).try_lock().await.expect("an answer");
    assert!(another.is_none(), "it is held, and that is another owner");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_owner_in_two_clients_has_one_token() {
    let site = Site::new().await;
    let (locks, other, third) = (site.locks(LONG).await, site.locks(LONG).await, site.locks(LONG).await);
    let (owner, mut last) = (Owner::new(), Token(0));
    for round in 0..5 {
        let (first, second) = (enter(&locks, &owner).await, enter(&other, &owner).await);
        let again = enter(&locks, &owner).await;
        assert_eq!([second.token(), again.token()], [first.token(); 2], "round {round}");
        assert!(first.token() > last, "round {round}: {} after {last}", first.token());
        last = first.token();
        site.until_claims("a", 3, LONG / 3 + SOON).await;
        for guard in [first, second] {
            is_taken(&third).await;
            give_back(guard).await;
        }
        is_taken(&third).await;
        site.until_claims("a", 1, LONG / 3 + SOON).await;
        give_back(again).await;
        let free = third.mutex("a").try_lock().await.expect("an answer").expect("the last one is gone");
        assert!(free.token() > last);
        last = free.token();
        give_back(free).await;
    }
    site.until_claims("a", 0, SOON).await;
}

/// Both at once, again and again: they agree on a token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_of_one_owner_enter_at_once() {
    let site = Site::new().await;
    let (locks, other) = (site.locks(LONG).await, site.locks(LONG).await);
    let (owner, mut last) = (Owner::new(), Token(0));
    for round in 0..40 {
        let (first, second) = tokio::join!(enter(&locks, &owner), enter(&other, &owner));
        assert_eq!(first.token(), second.token(), "round {round}");
        assert!(first.token() > last, "round {round}: {} after {last}", first.token());
        last = first.token();
        is_taken(&locks).await;
        let (one, two) = tokio::join!(first.release(), second.release());
        for outcome in [one, two] {
            assert_eq!(outcome.expect("a release"), leasehold::Outcome::Released, "round {round}");
        }
    }
    site.until_claims("a", 0, SOON).await;
}

/// A server is dead while an owner enters again, and comes back: it learns of the claim that goes on, also where the first one
/// was given back meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_away_learns_of_the_claim_that_goes_on() {
    let mut site = Site::durable().await;
    let (locks, other) = (site.locks(TTL).await, site.locks(TTL).await);
    let owner = Owner::new();
    for away in 0..NODES {
        let first = enter(&locks, &owner).await;
        site.until_claims("a", 1, SOON).await;
        site.kill(&[away]);
        let second = enter(&other, &owner).await;
        assert_eq!(first.token(), second.token());
        site.restart(&[away], Data::Keep).await;
        give_back(first).await;
        held_beyond(&second, other.clock().now().after(TTL * 4 / 3)).await;
        is_taken(&locks).await;
        site.until_claims("a", 1, SOON).await;
        // Its two others may die now.
        let two = [(away + 1) % NODES, (away + 2) % NODES];
        site.kill(&two);
        held_beyond(&second, other.clock().now().after(TTL * 4 / 3)).await;
        let token = second.token();
        give_back(second).await;
        let next = lock(&locks, "a").await;
        assert!(next.token() > token);
        give_back(next).await;
        site.restart(&two, Data::Keep).await;
    }
}
