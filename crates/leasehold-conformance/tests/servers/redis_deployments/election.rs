//! The server notifies an election's observer, which misses no change.

use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::{Leader, Observer};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};

use crate::redis_faults::fixture::Fixture;

async fn next_leader(observer: &mut Observer, what: &str) -> Option<Leader> {
    // Without a notification the observer checks after a third of the TTL, which is later than this
    // timeout.
    let seen = tokio::time::timeout(TEST_TIMEOUT, observer.next()).await;
    seen.unwrap_or_else(|_| panic!("missed: {what}")).expect("an answer")
}

/// Lets a little time pass without sleeping.
async fn yield_for(time: Duration) {
    let until = Clock::system().now().saturating_add(time);
    while Clock::system().now() < until {
        tokio::task::yield_now().await;
    }
}

/// The change happens before, while and after the observer subscribes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_sees_every_change_at_any_time() {
    let fixture = Fixture::shared().await;
    let (one, two) = (fixture.locks(LONG_TTL).await, fixture.locks(LONG_TTL).await);
    let mut observer = two.election("a").observe().expect("an observer");
    assert_eq!(next_leader(&mut observer, "the beginning").await, None);
    for round in 0..300 {
        let (election, pause) = (one.election("a"), Duration::from_micros(round * 7 % 1500));
        let elected = tokio::spawn(async move {
            yield_for(pause).await;
            election.campaign().await.expect("elected")
        });
        let seen = next_leader(&mut observer, &format!("the leader of round {round}")).await.expect("a leader");
        let leader = elected.await.expect("no panic");
        assert_eq!(seen.token, leader.token());
        let resigned = tokio::spawn(async move {
            yield_for(pause).await;
            leader.resign().await.expect("an answer")
        });
        assert_eq!(next_leader(&mut observer, &format!("the resignation in round {round}")).await, None);
        let _ = resigned.await.expect("no panic");
    }
}
