//! One leader at a time, visible to all clients.

use std::time::Duration;

use leasehold::{ErrorKind, LostReason, ReleaseOutcome};

use crate::library::renewal::locks_with_spy;
use crate::library::spy::{Call, ScriptedReply};
use crate::library::time::{
    DRIFT, TTL, advance, advance_in_steps, is_pending, locks_on_manual_clock, run_until_idle, within_timeout,
};

#[tokio::test]
async fn the_next_leader_has_a_higher_term() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let election = locks.election("boss");
    assert!(election.leader().await.unwrap().is_none());
    let first = election.clone().describe("10.0.0.1").campaign().await.unwrap();
    assert!(first.is_leader());
    let leader = election.leader().await.unwrap().unwrap();
    assert_eq!((&*leader.holder.description, leader.token), ("10.0.0.1", first.token()));
    assert_eq!(leader.holder.pid, std::process::id());
    assert!(election.try_campaign().await.unwrap().is_none());
    let second = tokio::spawn({
        let election = election.clone().describe("10.0.0.2");
        async move { election.campaign().await }
    });
    run_until_idle().await;
    let term = first.token();
    assert_eq!(first.resign().await.unwrap(), ReleaseOutcome::Released);
    let second = within_timeout("the second leads", second).await.unwrap().unwrap();
    assert!(second.token() > term);
    assert_eq!(&*election.leader().await.unwrap().unwrap().holder.description, "10.0.0.2");
    drop(second);
    run_until_idle().await;
    assert!(election.leader().await.unwrap().is_none(), "dropping resigns");
}

#[tokio::test]
async fn a_lost_leadership_is_signalled() {
    let (manual_clock, locks) = locks_on_manual_clock().await;
    let leadership = locks.election("boss").max_hold(TTL / 2).campaign().await.unwrap();
    let watch = leadership.guard().watcher();
    let loss = tokio::spawn(async move { leadership.lost().await });
    advance(&manual_clock, TTL / 2).await;
    assert_eq!(within_timeout("lost", loss).await.unwrap(), LostReason::MaxHold);
    assert!(!watch.is_held());
    advance(&manual_clock, DRIFT).await;
    assert!(locks.election("boss").try_campaign().await.unwrap().is_some());
}

#[tokio::test]
async fn an_observer_sees_each_leader() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let election = locks.election("boss");
    let mut observer = election.observe().unwrap();
    assert_eq!(within_timeout("no leader", observer.next()).await.unwrap(), None);
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let watching = tokio::spawn(async move {
        loop {
            sender.send(observer.next().await.unwrap().map(|leader| leader.token.0)).unwrap();
        }
    });
    run_until_idle().await;
    assert!(receiver.try_recv().is_err(), "no change to report yet");
    let first = election.campaign().await.unwrap();
    assert_eq!(within_timeout("first", receiver.recv()).await, Some(Some(first.token().0)));
    assert_eq!(first.resign().await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(within_timeout("no leader", receiver.recv()).await, Some(None));
    let second = election.campaign().await.unwrap();
    assert_eq!(within_timeout("second", receiver.recv()).await, Some(Some(second.token().0)));
    run_until_idle().await;
    assert!(receiver.try_recv().is_err(), "each leader is reported once");
    watching.abort();
}

#[tokio::test]
async fn an_observer_sees_the_end_of_a_leader_whose_lease_expires() {
    let (manual_clock, spy, locks) = locks_with_spy().await;
    // As if its process had died: no renewal and no release.
    spy.reply_always(Call::Renew, ScriptedReply::NoResponse);
    spy.reply_always(Call::Release, ScriptedReply::NoResponse);
    let _leadership = locks.election("boss").campaign().await.unwrap();
    let mut observer = locks.election("boss").observe().unwrap();
    assert!(within_timeout("leader", observer.next()).await.unwrap().is_some());
    let next_leader = tokio::spawn(async move { observer.next().await });
    advance_in_steps(&manual_clock, TTL - Duration::from_millis(1), Duration::from_millis(500)).await;
    assert!(!next_leader.is_finished(), "the engine has not expired it yet");
    advance(&manual_clock, Duration::from_millis(1)).await;
    assert!(within_timeout("no leader", next_leader).await.unwrap().unwrap().is_none());
}

#[tokio::test]
async fn an_observer_does_not_poll_without_a_change() {
    let (_manual_clock, spy, locks) = locks_with_spy().await;
    let _leadership = locks.election("boss").campaign().await.unwrap();
    let mut observer = locks.election("boss").observe().unwrap();
    within_timeout("leader", observer.next()).await.unwrap();
    let before = spy.count(Call::Inspect);
    let mut next = Box::pin(observer.next());
    // With this many polls, an observer that spins would call the engine each time.
    for _ in 0..100 {
        assert!(is_pending(&mut next).await);
        tokio::task::yield_now().await;
    }
    let inspections = spy.count(Call::Inspect) - before;
    assert!(inspections <= 2, "inspected {inspections} times without a change");
}

#[tokio::test]
async fn invalid_options_are_refused_when_they_are_used() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let election = locks.election("");
    assert_eq!(election.observe().unwrap_err().kind(), ErrorKind::InvalidName);
    assert_eq!(election.leader().await.unwrap_err().kind(), ErrorKind::InvalidName);
    assert_eq!(election.campaign().await.unwrap_err().kind(), ErrorKind::InvalidName);
    let election = locks.election("boss").ttl(Duration::from_nanos(1));
    assert_eq!(election.try_campaign().await.unwrap_err().kind(), ErrorKind::InvalidOption);
}
