//! Several claims of one owner: one token, and free after the last of them.

use leasehold::{Guard, Locks, Owner, Token};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use tokio::time::timeout;

use crate::redlock_faults::fixture::{Fixture, release};

pub(super) async fn acquire(locks: &Locks, owner: &Owner) -> Guard {
    let mutex = locks.mutex("a").owner(owner);
    timeout(TEST_TIMEOUT, mutex.lock()).await.expect("it is free soon").expect("the lock")
}

pub(super) async fn assert_held(locks: &Locks) {
    assert!(locks.mutex("a").try_lock().await.expect("an answer").is_none(), "it is held");
    let another = locks.mutex("a").owner(&Owner::new()).try_lock().await.expect("an answer");
    assert!(another.is_none(), "it is held, and that is another owner");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_owner_in_two_clients_has_one_token() {
    let site = Fixture::shared().await;
    let (locks, other, third) = (site.locks().await, site.locks().await, site.locks().await);
    let (owner, mut last) = (Owner::new(), Token(0));
    for round in 0..5 {
        let (first, second) = (acquire(&locks, &owner).await, acquire(&other, &owner).await);
        let again = acquire(&locks, &owner).await;
        assert_eq!([second.token(), again.token()], [first.token(); 2], "round {round}");
        assert!(first.token() > last, "round {round}: {} after {last}", first.token());
        last = first.token();
        site.until_claim_counts("a", 3).await;
        for guard in [first, second] {
            assert_held(&third).await;
            release(guard).await;
        }
        assert_held(&third).await;
        site.until_claim_counts("a", 1).await;
        release(again).await;
        let free = third.mutex("a").try_lock().await.expect("an answer").expect("the last one is gone");
        assert!(free.token() > last);
        last = free.token();
        release(free).await;
    }
    site.until_claim_counts("a", 0).await;
}

/// Both at once, again and again: they agree on a token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_of_one_owner_acquire_at_once() {
    let site = Fixture::shared().await;
    let (locks, other) = (site.locks().await, site.locks().await);
    let (owner, mut last) = (Owner::new(), Token(0));
    for round in 0..40 {
        let (first, second) = tokio::join!(acquire(&locks, &owner), acquire(&other, &owner));
        assert_eq!(first.token(), second.token(), "round {round}");
        assert!(first.token() > last, "round {round}: {} after {last}", first.token());
        last = first.token();
        assert_held(&locks).await;
        let (one, two) = tokio::join!(first.release(), second.release());
        for outcome in [one, two] {
            assert_eq!(outcome.expect("a release"), leasehold::ReleaseOutcome::Released, "round {round}");
        }
    }
    site.until_claim_counts("a", 0).await;
}
