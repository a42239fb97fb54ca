//! One leader at a time, whom all can see.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::Engine;
use leasehold::{Leadership, LockName, LostReason, Outcome};
use leasehold_testbed::eventually;

use crate::flaky::Method;
use crate::world::{LONG, SOON, World};

/// An observer pauses at least for so long between two looks.
const PAUSE: Duration = Duration::from_millis(15);
/// How many looks it takes until it rests.
const BEGIN: u32 = 5;

/// A leader is elected, seen, and replaced when it resigns.
pub async fn one_leads_and_all_can_see_it(world: &World) {
    let (one, other) = (world.locks().await, world.locks().await);
    assert_eq!(other.election("a").leader().await.expect("an answer"), None);
    let first = one.election("a").describe("one").campaign().await.expect("a leadership");
    assert!(first.is_leader());
    assert!(other.election("a").try_campaign().await.expect("an answer").is_none());
    let seen = other.election("a").leader().await.expect("an answer").expect("a leader");
    assert_eq!((&*seen.holder.text, seen.token), ("one", first.token()));
    let candidate = tokio::spawn({
        let election = other.election("a").describe("other").wait(SOON);
        async move { election.campaign().await }
    });
    let term = first.token();
    assert_eq!(first.resign().await.expect("an outcome"), Outcome::Released);
    let second = candidate.await.expect("no panic").expect("a leadership");
    assert!(second.token() > term);
    let seen = one.election("a").leader().await.expect("an answer").expect("a leader");
    assert_eq!(&*seen.holder.text, "other");
}

/// An observer sees nobody, then the first, then the next.
pub async fn an_observer_sees_every_leader(world: &World) {
    let (locks, other) = (world.locks().await, world.locks().await);
    let mut observer = other.election("a").observe().expect("an observer");
    let mut next = async || {
        let seen = tokio::time::timeout(SOON, observer.next()).await.expect("news").expect("an answer");
        seen.map(|leader| (leader.holder.text.to_string(), leader.token))
    };
    assert_eq!(next().await, None, "nobody, at first");
    for text in ["one", "two", "three"] {
        let leadership = locks.election("a").describe(text).campaign().await.expect("a leadership");
        assert_eq!(next().await, Some((text.to_owned(), leadership.token())));
        let _ = leadership.resign().await.expect("a release");
        assert_eq!(next().await, None, "nobody, after {text}");
    }
}

/// An observer that waits for news does not ask for them all the time.
pub async fn an_observer_at_rest_asks_for_nothing(world: &World) {
    let ((locks, flaky), other) = (world.flaky(LONG).await, world.locks().await);
    let leadership = other.election("a").campaign().await.expect("a leadership");
    let watching = tokio::spawn(async move {
        let mut observer = locks.election("a").observe().expect("an observer");
        observer.next().await.expect("an answer").expect("a leader");
        observer.next().await
    });
    eventually(SOON, || async {
        if flaky.calls(Method::Inspect) > 0 { Ok(()) } else { Err("it has not looked yet") }
    })
    .await;
    // Round trips during which nothing changes. Who asks for news all the time asks about as often.
    let clock = Clock::system();
    let start = clock.now();
    for _ in 0..100 {
        assert!(other.election("a").leader().await.expect("an answer").is_some());
    }
    let asked = u32::try_from(flaky.calls(Method::Inspect)).expect("a small number");
    // However slow the machine is, pauses are not shorter than they should be.
    let rested = clock.now().since(start);
    assert!(rested >= PAUSE * asked.saturating_sub(BEGIN), "{asked} questions while nothing changed");
    assert!(!watching.is_finished(), "nothing has changed");
    let _ = leadership.resign().await.expect("a release");
    let news = tokio::time::timeout(SOON, watching).await.expect("news").expect("no panic");
    assert_eq!(news.expect("an answer"), None);
}

/// A change between the beginning of a watch and its first poll ends the watch: an observer looks in between.
pub async fn a_watch_sees_every_change_since_it_began(world: &World) {
    let ((locks, engine), name) = (world.flaky(LONG).await, LockName::new("a").expect("a name"));
    let mut leadership: Option<Leadership> = None;
    for round in 0..4 {
        let watch = Arc::clone(&engine).watch(name.clone(), LONG).await.expect("a watch");
        leadership = match leadership.take() {
            None => Some(locks.election("a").campaign().await.expect("a leadership")),
            Some(led) => {
                let _ = led.resign().await.expect("a release");
                None
            }
        };
        let seen = tokio::time::timeout(SOON, watch).await;
        seen.unwrap_or_else(|_| panic!("change {round} was missed")).expect("an answer");
    }
}

/// A leader that loses the lock is told.
pub async fn a_lost_leadership_is_told(world: &World) {
    let (locks, flaky) = world.unrenewed().await;
    let leadership = eventually(SOON, || async { locks.election("a").campaign().await }).await;
    flaky.cut();
    let reason = tokio::time::timeout(SOON, leadership.lost()).await.expect("the leader is told");
    assert_eq!(reason, LostReason::Expired);
    assert!(!leadership.is_leader());
    let next = world.locks().await.election("a").wait(SOON).campaign().await.expect("a leadership");
    assert!(next.token() > leadership.token());
    assert_eq!(leadership.resign().await.expect("an outcome"), Outcome::WasLost(LostReason::Expired));
}
