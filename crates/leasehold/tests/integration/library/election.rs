//! One leader at a time, visible to all clients.

use std::time::Duration;

use leasehold::{ErrorKind, LostReason, Outcome};

use crate::library::renewal::spied;
use crate::library::spy::{Call, Play};
use crate::library::time::{DRIFT, TTL, pass, pending, quiet, soon, still, walk};

#[tokio::test]
async fn one_leads_and_the_next_follows_with_a_higher_term() {
    let (_hand, locks) = still().await;
    let election = locks.election("boss");
    assert!(election.leader().await.unwrap().is_none());
    let first = election.clone().describe("10.0.0.1").campaign().await.unwrap();
    assert!(first.is_leader());
    let leader = election.leader().await.unwrap().unwrap();
    assert_eq!((&*leader.holder.text, leader.token), ("10.0.0.1", first.token()));
    assert_eq!(leader.holder.pid, std::process::id());
    assert!(election.try_campaign().await.unwrap().is_none());
    let second = tokio::spawn({
        let election = election.clone().describe("10.0.0.2");
        async move { election.campaign().await }
    });
    quiet().await;
    let term = first.token();
    assert_eq!(first.resign().await.unwrap(), Outcome::Released);
    let second = soon("the second leads", second).await.unwrap().unwrap();
    assert!(second.token() > term);
    assert_eq!(&*election.leader().await.unwrap().unwrap().holder.text, "10.0.0.2");
    drop(second);
    quiet().await;
    assert!(election.leader().await.unwrap().is_none(), "dropping resigns");
}

#[tokio::test]
async fn a_lost_leadership_is_told() {
    let (hand, locks) = still().await;
    let leadership = locks.election("boss").max_hold(TTL / 2).campaign().await.unwrap();
    let watch = leadership.guard().watch();
    let told = tokio::spawn(async move { leadership.lost().await });
    pass(&hand, TTL / 2).await;
    assert_eq!(soon("lost", told).await.unwrap(), LostReason::MaxHold);
    assert!(!watch.is_held());
    pass(&hand, DRIFT).await;
    assert!(locks.election("boss").try_campaign().await.unwrap().is_some());
}

#[tokio::test]
async fn an_observer_sees_each_leader() {
    let (_hand, locks) = still().await;
    let election = locks.election("boss");
    let mut observer = election.observe().unwrap();
    assert_eq!(soon("nobody", observer.next()).await.unwrap(), None);
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let watching = tokio::spawn(async move {
        loop {
            tell.send(observer.next().await.unwrap().map(|leader| leader.token.0)).unwrap();
        }
    });
    quiet().await;
    assert!(told.try_recv().is_err(), "nothing has changed");
    let first = election.campaign().await.unwrap();
    assert_eq!(soon("first", told.recv()).await, Some(Some(first.token().0)));
    assert_eq!(first.resign().await.unwrap(), Outcome::Released);
    assert_eq!(soon("nobody", told.recv()).await, Some(None));
    let second = election.campaign().await.unwrap();
    assert_eq!(soon("second", told.recv()).await, Some(Some(second.token().0)));
    quiet().await;
    assert!(told.try_recv().is_err(), "each is told once");
    watching.abort();
}

#[tokio::test]
async fn an_observer_sees_a_leader_whose_lease_ends_without_a_word() {
    let (hand, spy, locks) = spied().await;
    // As if its process had died: no renewal and no release.
    spy.always(Call::Renew, Play::Silence);
    spy.always(Call::Release, Play::Silence);
    let _leadership = locks.election("boss").campaign().await.unwrap();
    let mut observer = locks.election("boss").observe().unwrap();
    assert!(soon("leader", observer.next()).await.unwrap().is_some());
    let told = tokio::spawn(async move { observer.next().await });
    walk(&hand, TTL - Duration::from_millis(1), Duration::from_millis(500)).await;
    assert!(!told.is_finished(), "the engine has not let it go yet");
    pass(&hand, Duration::from_millis(1)).await;
    assert!(soon("nobody", told).await.unwrap().unwrap().is_none());
}

#[tokio::test]
async fn an_observer_rests_while_nothing_changes() {
    let (_hand, spy, locks) = spied().await;
    let _leadership = locks.election("boss").campaign().await.unwrap();
    let mut observer = locks.election("boss").observe().unwrap();
    soon("leader", observer.next()).await.unwrap();
    let before = spy.count(Call::Inspect);
    let mut next = Box::pin(observer.next());
    // With this many polls, an observer that spins would call the engine each time.
    for _ in 0..100 {
        assert!(pending(&mut next).await);
        tokio::task::yield_now().await;
    }
    let asked = spy.count(Call::Inspect) - before;
    assert!(asked <= 2, "asked {asked} times though nothing changed");
}

#[tokio::test]
async fn bad_input_is_refused_when_it_is_used() {
    let (_hand, locks) = still().await;
    let election = locks.election("");
    assert_eq!(election.observe().unwrap_err().kind(), ErrorKind::InvalidName);
    assert_eq!(election.leader().await.unwrap_err().kind(), ErrorKind::InvalidName);
    assert_eq!(election.campaign().await.unwrap_err().kind(), ErrorKind::InvalidName);
    let election = locks.election("boss").ttl(Duration::from_nanos(1));
    assert_eq!(election.try_campaign().await.unwrap_err().kind(), ErrorKind::InvalidOption);
}
