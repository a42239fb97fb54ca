//! The line breaks, and answers are lost.

use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::{ErrorKind, Outcome};
use leasehold_conformance::brief::times;
use leasehold_conformance::world::SOON;
use leasehold_testbed::eventually;

use crate::zookeeper_faults::site::{LONG, SHORT, Site, contender, mourner};

/// The answer to a take is lost with the line: the claim finds its node again, and there is only one.
#[tokio::test]
async fn a_lost_answer_to_a_take_makes_one_node() {
    let site = Site::new().await;
    let (locks, proxy) = site.proxied(LONG).await;
    drop(locks.mutex("a").lock().await.expect("a lock, so that the session is there"));
    site.until_nodes("a", 0).await;
    for _ in 0..times(2, 5) {
        proxy.cut_after_request();
        let guard = locks.mutex("a").wait(SOON).lock().await.expect("the lock");
        assert_eq!(site.nodes("a").await.len(), 1);
        assert!(guard.is_held());
        let _ = guard.release().await.expect("a release");
        site.until_nodes("a", 0).await;
    }
}

/// A request for a node that was held back may arrive when its claim has another, or has left: its session lives, and nobody else would take it out.
#[cfg(feature = "nightly")]
#[tokio::test]
async fn a_node_that_comes_after_its_claim_has_left_is_taken_out() {
    let site = Site::new().await;
    let (locks, proxy) = site.proxied(Duration::from_secs(12)).await;
    drop(locks.mutex("a").lock().await.expect("a lock, so that the session is there"));
    site.until_nodes("a", 0).await;
    site.keep_folder("a").await;
    proxy.cut_after_request();
    let guard = locks.mutex("a").wait(SOON).lock().await.expect("the lock");
    let nodes = site.nodes("a").await;
    let node = nodes.iter().find(|node| !node.ends_with("stranger")).expect("its node");
    let (prefix, _) = node.rsplit_once('-').expect("a number at its end");
    let _ = guard.release().await.expect("a release");
    site.until_nodes("a", 1).await;
    let late = leasehold_zookeeper::CreateMode::EphemeralSequential.with_acls(leasehold_zookeeper::Acls::anyone_all());
    site.client.create(&format!("{prefix}-"), b"", &late).await.expect("a node by hand");
    site.until_nodes("a", 1).await;
    let free = site.locks(LONG).await.mutex("a").wait(SOON).lock().await.expect("a free lock");
    drop(free);
}

/// The caller gives up while nobody knows whether there is a node: it is deleted when the line is back.
#[tokio::test]
async fn a_caller_who_gives_up_leaves_nothing() {
    let site = Site::new().await;
    let (locks, proxy) = site.proxied(LONG).await;
    drop(locks.mutex("a").lock().await.expect("a lock"));
    site.until_nodes("a", 0).await;
    // A stranger in the folder keeps it from vanishing meanwhile.
    site.keep_folder("a").await;
    proxy.drop_replies(true);
    let error = locks.mutex("a").wait(Duration::from_millis(300)).lock().await.expect_err("no answer");
    assert!([ErrorKind::Unavailable, ErrorKind::Timeout].contains(&error.kind()), "{error}");
    site.until_nodes("a", 2).await;
    proxy.drop_replies(false);
    proxy.cut();
    site.until_nodes("a", 1).await;
    let free = site.locks(LONG).await.mutex("a").wait(SOON).lock().await.expect("a free lock");
    drop(free);
}

/// The answer to a give-back is lost with the line: it is a give-back.
#[tokio::test]
async fn a_lost_answer_to_a_give_back_is_a_give_back() {
    let site = Site::new().await;
    let (locks, proxy) = site.proxied(LONG).await;
    for _ in 0..times(2, 5) {
        let guard = locks.mutex("a").wait(SOON).lock().await.expect("a lock");
        proxy.cut_after_request();
        let _: Outcome = guard.release().await.expect("a release");
        assert_eq!(site.nodes("a").await.len(), 0);
    }
}

/// The line breaks for a moment, again and again: the lock stays.
#[tokio::test]
async fn a_broken_line_that_comes_back_loses_nothing() {
    let site = Site::new().await;
    let (locks, proxy) = site.proxied(LONG).await;
    let guard = locks.mutex("a").lock().await.expect("a lock");
    for _ in 0..times(4, 16) {
        proxy.cut();
        // The line is back when another lock was taken by it.
        let other = eventually(SOON, || async { locks.mutex("b").wait(SOON).lock().await }).await;
        let _ = other.release().await.expect("a release");
        assert!(guard.is_held(), "lost: {:?}", guard.lost_reason());
    }
    assert_eq!(site.nodes("a").await.len(), 1);
}

/// The same over several sessions' timeouts.
#[cfg(feature = "nightly")]
#[tokio::test]
async fn a_broken_line_that_comes_back_loses_nothing_over_two_sessions() {
    let site = Site::new().await;
    let ttl = Duration::from_secs(8);
    let (locks, proxy) = site.proxied(ttl).await;
    let guard = locks.mutex("a").lock().await.expect("a lock");
    let clock = Clock::system();
    for _ in 0..16 {
        proxy.cut();
        let end = clock.now().after(ttl / 8);
        while clock.now() < end {
            assert!(guard.is_held(), "lost: {:?}", guard.lost_reason());
            clock.sleep_until(clock.now().after(Duration::from_millis(20))).await;
        }
    }
    assert_eq!(site.nodes("a").await.len(), 1);
}

/// The line stays down: the holder stops before the server lets another in, whichever way it is down.
#[tokio::test]
async fn a_line_that_stays_down_ends_the_lock_before_another_is_let_in() {
    stays_down(true).await;
}

#[cfg(feature = "nightly")]
#[tokio::test]
async fn a_line_that_is_cut_and_refused_ends_the_lock_before_another_is_let_in() {
    stays_down(false).await;
}

async fn stays_down(frozen: bool) {
    let site = Site::new().await;
    let (locks, proxy) = site.proxied(SHORT).await;
    let guard = eventually(SOON, || async { locks.mutex("a").lock().await }).await;
    let (lost, granted) = (mourner(&guard), contender(&site.locks(LONG).await, "a"));
    if frozen {
        proxy.freeze(true);
    } else {
        proxy.refuse(true);
        proxy.cut();
    }
    let (granted_at, next) = tokio::time::timeout(SOON, granted).await.expect("a grant").expect("a contender");
    assert!(!guard.is_held() && guard.deadline() <= granted_at, "two at once (frozen: {frozen})");
    tokio::time::timeout(SOON, lost).await.expect("the holder is told").expect("a mourner");
    assert!(next.token() > guard.token());
    // The line comes back, to an ended session: nothing is taken again by itself.
    proxy.freeze(false);
    proxy.refuse(false);
    drop(next);
    site.until_nodes("a", 0).await;
    // A new session takes it again, when asked.
    let again = eventually(SOON, || async { locks.mutex("a").wait(SOON).lock().await }).await;
    assert!(again.token() > guard.token() && !guard.is_held());
}

/// A waiter's line breaks while the holder gives back: it is granted when the line is back, though nobody told it.
#[tokio::test]
async fn a_waiter_whose_line_was_down_at_the_give_back_is_granted() {
    let site = Site::new().await;
    let (locks, proxy) = site.proxied(LONG).await;
    let guard = site.locks(LONG).await.mutex("a").lock().await.expect("a lock");
    let waiter = contender(&locks, "a");
    site.until_nodes("a", 2).await;
    proxy.refuse(true);
    proxy.cut();
    let _ = guard.release().await.expect("a release");
    site.until_nodes("a", 1).await;
    proxy.refuse(false);
    let (_, next) = tokio::time::timeout(SOON, waiter).await.expect("in time").expect("a contender");
    assert!(next.is_held());
}

/// A request to be let in arrives twice, and then the line breaks once more, at any time while the claim looks for what there is of it: nobody stands in
/// line who does not know it, though the session lives.
#[tokio::test]
async fn what_arrives_twice_leaves_nobody_in_line() {
    let site = Site::new().await;
    let (locks, proxy) = site.proxied(LONG).await;
    let other = site.locks(LONG).await;
    drop(locks.mutex("a").lock().await.expect("a lock, so that the session is there"));
    site.until_nodes("a", 0).await;
    let held = other.mutex("a").wait(SOON).lock().await.expect("the lock");
    let clock = Clock::system();
    // Each request takes 10 ms: one is hit after the other.
    proxy.delay(Duration::from_millis(5));
    for later in (0..120).step_by(times(30, 4) as usize) {
        proxy.double_and_cut();
        let ask = async {
            let waited = locks.mutex("a").wait(Duration::from_millis(250)).lock().await;
            assert!(waited.is_err(), "somebody else has it");
        };
        let disturb = async {
            let lost = proxy.counts().swallowed_bytes;
            let swallowed = async {
                while proxy.counts().swallowed_bytes == lost {
                    clock.sleep_until(clock.now().after(Duration::from_millis(1))).await;
                }
            };
            tokio::time::timeout(SOON, swallowed).await.expect("a request that is doubled, and its answer lost");
            clock.sleep_until(clock.now().after(Duration::from_millis(later))).await;
            proxy.double_and_cut();
        };
        tokio::join!(ask, disturb);
        proxy.disarm();
        site.until_nodes("a", 1).await;
    }
    assert!(held.is_held());
}
