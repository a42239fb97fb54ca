//! One leader at a time, visible to all clients.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::Engine;
use leasehold::{Leadership, LockName, LostReason, ReleaseOutcome};
use leasehold_testbed::eventually;

use crate::flaky::Method;
use crate::test_context::{LONG_TTL, TEST_TIMEOUT, TestContext};

/// The minimum pause between two inspections of an observer.
const PAUSE: Duration = Duration::from_millis(15);
/// How many inspections an observer may make before it pauses between them.
const FIRST_INSPECTIONS: u32 = 5;

/// A leader is elected, seen, and replaced when it resigns.
pub async fn one_leader_is_visible_to_all(context: &TestContext) {
    let (one, other) = (context.open_locks().await, context.open_locks().await);
    assert_eq!(other.election("a").leader().await.expect("an answer"), None);
    let first = one.election("a").describe("one").campaign().await.expect("a leadership");
    assert!(first.is_leader());
    assert!(other.election("a").try_campaign().await.expect("an answer").is_none());
    let seen = other.election("a").leader().await.expect("an answer").expect("a leader");
    assert_eq!((&*seen.holder.description, seen.token), ("one", first.token()));
    let candidate = tokio::spawn({
        let election = other.election("a").describe("other").timeout(TEST_TIMEOUT);
        async move { election.campaign().await }
    });
    let term = first.token();
    assert_eq!(first.resign().await.expect("an outcome"), ReleaseOutcome::Released);
    let second = candidate.await.expect("no panic").expect("a leadership");
    assert!(second.token() > term);
    let seen = one.election("a").leader().await.expect("an answer").expect("a leader");
    assert_eq!(&*seen.holder.description, "other");
}

/// An observer sees no leader, then the first, then the next.
pub async fn an_observer_sees_every_leader(context: &TestContext) {
    let (locks, other) = (context.open_locks().await, context.open_locks().await);
    let mut observer = other.election("a").observe().expect("an observer");
    let mut next = async || {
        let seen = tokio::time::timeout(TEST_TIMEOUT, observer.next()).await.expect("a change").expect("an answer");
        seen.map(|leader| (leader.holder.description.to_string(), leader.token))
    };
    assert_eq!(next().await, None, "no leader at first");
    for text in ["one", "two", "three"] {
        let leadership = locks.election("a").describe(text).campaign().await.expect("a leadership");
        assert_eq!(next().await, Some((text.to_owned(), leadership.token())));
        let _ = leadership.resign().await.expect("a release");
        assert_eq!(next().await, None, "no leader after {text}");
    }
}

/// An observer that waits for a change does not poll constantly.
pub async fn an_idle_observer_sends_few_requests(context: &TestContext) {
    let ((locks, flaky), other) = (context.open_flaky(LONG_TTL).await, context.open_locks().await);
    let leadership = other.election("a").campaign().await.expect("a leadership");
    let watching = tokio::spawn(async move {
        let mut observer = locks.election("a").observe().expect("an observer");
        observer.next().await.expect("an answer").expect("a leader");
        observer.next().await
    });
    eventually(TEST_TIMEOUT, || async {
        if flaky.call_count(Method::Inspect) > 0 { Ok(()) } else { Err("no inspection so far") }
    })
    .await;
    // Round trips during which nothing changes. A client that polls constantly would poll about as
    // often.
    let clock = Clock::system();
    let start = clock.now();
    for _ in 0..100 {
        assert!(other.election("a").leader().await.expect("an answer").is_some());
    }
    let inspections = u32::try_from(flaky.call_count(Method::Inspect)).expect("a small number");
    // Pauses are never too short, however slow the machine is.
    let rested = clock.now().duration_since(start);
    assert!(
        rested >= PAUSE * inspections.saturating_sub(FIRST_INSPECTIONS),
        "{inspections} inspections while nothing changed"
    );
    assert!(!watching.is_finished(), "nothing has changed");
    let _ = leadership.resign().await.expect("a release");
    let change = tokio::time::timeout(TEST_TIMEOUT, watching).await.expect("a change").expect("no panic");
    assert_eq!(change.expect("an answer"), None);
}

/// A change between the start of a watch and its first poll ends the watch: an observer inspects in
/// between.
pub async fn a_watch_sees_every_change_since_it_began(context: &TestContext) {
    let ((locks, engine), name) = (context.open_flaky(LONG_TTL).await, LockName::new("a").expect("a name"));
    let mut leadership: Option<Leadership> = None;
    for round in 0..4 {
        let watch = Arc::clone(&engine).watch(name.clone(), LONG_TTL).await.expect("a watch");
        leadership = match leadership.take() {
            None => Some(locks.election("a").campaign().await.expect("a leadership")),
            Some(led) => {
                let _ = led.resign().await.expect("a release");
                None
            }
        };
        let seen = tokio::time::timeout(TEST_TIMEOUT, watch).await;
        seen.unwrap_or_else(|_| panic!("change {round} was missed")).expect("an answer");
    }
}

/// A leader that loses the lock learns of it.
pub async fn a_leader_learns_of_its_loss(context: &TestContext) {
    let (locks, flaky) = context.open_unrenewed().await;
    let leadership = eventually(TEST_TIMEOUT, || async { locks.election("a").campaign().await }).await;
    flaky.disconnect();
    let reason = tokio::time::timeout(TEST_TIMEOUT, leadership.lost()).await.expect("the leader learns of the loss");
    assert_eq!(reason, LostReason::Expired);
    assert!(!leadership.is_leader());
    let next = context.open_locks().await.election("a").timeout(TEST_TIMEOUT).campaign().await.expect("a leadership");
    assert!(next.token() > leadership.token());
    assert_eq!(leadership.resign().await.expect("an outcome"), ReleaseOutcome::AlreadyLost(LostReason::Expired));
}
