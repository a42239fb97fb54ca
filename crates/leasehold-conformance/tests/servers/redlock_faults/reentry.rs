//! Several claims of one owner share a token, and the lock is free after the last release.

use leasehold::{Guard, Locks, Owner, Token};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use tokio::time::timeout;

use crate::redlock_faults::fixture::{Fixture, ShiftedClock, release};

pub(super) async fn acquire(locks: &Locks, owner: &Owner) -> Guard {
    let mutex = locks.mutex("a").owner(owner);
    timeout(TEST_TIMEOUT, mutex.lock()).await.expect("the lock becomes free").expect("the lock")
}

pub(super) async fn assert_held(locks: &Locks) {
    assert!(locks.mutex("a").try_lock().await.expect("an answer").is_none(), "the lock is held");
    let another = locks.mutex("a").owner(&Owner::new()).try_lock().await.expect("an answer");
    assert!(another.is_none(), "another owner cannot re-enter");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_owner_in_two_clients_has_one_token() {
    let fixture = Fixture::shared().await;
    let ahead = ShiftedClock::new();
    let (locks, other) = (fixture.locks_with_clock(&ahead).await, fixture.locks_with_clock(&ahead).await);
    let third = fixture.locks().await;
    let (owner, mut last) = (Owner::new(), Token(0));
    for round in 0..5 {
        let (first, second) = (acquire(&locks, &owner).await, acquire(&other, &owner).await);
        let again = acquire(&locks, &owner).await;
        assert_eq!([second.token(), again.token()], [first.token(); 2], "round {round}");
        assert!(first.token() > last, "round {round}: {} after {last}", first.token());
        last = first.token();
        // A node that was too slow for a claim gets it with a renewal.
        fixture.renew_until_claim_counts(&ahead, &[&first, &second, &again], "a", 3).await;
        for guard in [first, second] {
            assert_held(&third).await;
            release(guard).await;
        }
        assert_held(&third).await;
        fixture.until_claim_counts("a", 1).await;
        release(again).await;
        let free =
            third.mutex("a").try_lock().await.expect("an answer").expect("the lock is free after the last release");
        assert!(free.token() > last);
        last = free.token();
        release(free).await;
    }
    fixture.until_claim_counts("a", 0).await;
}

/// Both clients acquire at the same time, repeatedly, and agree on a token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_of_one_owner_acquire_at_once() {
    let fixture = Fixture::shared().await;
    let (locks, other) = (fixture.locks().await, fixture.locks().await);
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
    fixture.until_claim_counts("a", 0).await;
}
