//! An observer of an election is told by the server, and misses nothing.

use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::{Leader, Observer};
use leasehold_conformance::world::{LONG, SOON};

use crate::redis_faults::site::Site;

async fn next(observer: &mut Observer, what: &str) -> Option<Leader> {
    // An observer that was not told looks by itself after a third of the TTL, which is later.
    let seen = tokio::time::timeout(SOON, observer.next()).await;
    seen.unwrap_or_else(|_| panic!("missed: {what}")).expect("an answer")
}

/// Lets a little time pass, without sleeping.
async fn linger(time: Duration) {
    let until = Clock::system().now().after(time);
    while Clock::system().now() < until {
        tokio::task::yield_now().await;
    }
}

/// The change falls before, into and after the moment in which the server is asked to tell of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_change_is_told_whenever_it_comes() {
    let site = Site::shared().await;
    let (one, two) = (site.locks(LONG).await, site.locks(LONG).await);
    let mut observer = two.election("a").observe().expect("an observer");
    assert_eq!(next(&mut observer, "the beginning").await, None);
    for round in 0..300 {
        let (election, pause) = (one.election("a"), Duration::from_micros(round * 7 % 1500));
        let elected = tokio::spawn(async move {
            linger(pause).await;
            election.campaign().await.expect("elected")
        });
        let seen = next(&mut observer, &format!("the leader of round {round}")).await.expect("a leader");
        let leader = elected.await.expect("no panic");
        assert_eq!(seen.token, leader.token());
        let resigned = tokio::spawn(async move {
            linger(pause).await;
            leader.resign().await.expect("an answer")
        });
        assert_eq!(next(&mut observer, &format!("the resignation in round {round}")).await, None);
        let _ = resigned.await.expect("no panic");
    }
}
