//! The line breaks, and answers are lost.

use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::{ErrorKind, ReleaseOutcome};
use leasehold_conformance::short_leases::repetitions;
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::eventually;

use crate::zookeeper_faults::fixture::{Fixture, LONG_TTL, SHORT, spawn_loss_watcher, spawn_waiter};

/// The answer to a take is lost with the line: the claim finds its node again, and there is only one.
#[tokio::test]
async fn a_lost_reply_to_an_acquire_leaves_one_node() {
    let site = Fixture::new().await;
    let (locks, proxy) = site.open_through_proxy(LONG_TTL).await;
    drop(locks.mutex("a").lock().await.expect("a lock, so that the session is there"));
    site.until_nodes("a", 0).await;
    for _ in 0..repetitions(2, 5) {
        proxy.cut_after_request();
        let guard = locks.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("the lock");
        assert_eq!(site.nodes("a").await.len(), 1);
        assert!(guard.is_held());
        let _ = guard.release().await.expect("a release");
        site.until_nodes("a", 0).await;
    }
}

/// A request for a node that was held back may arrive when its claim has another, or has left: its session lives, and nobody else would take it out.
#[cfg(feature = "nightly")]
#[tokio::test]
async fn a_node_created_after_its_claim_left_is_deleted() {
    let site = Fixture::new().await;
    let (locks, proxy) = site.open_through_proxy(Duration::from_secs(12)).await;
    drop(locks.mutex("a").lock().await.expect("a lock, so that the session is there"));
    site.until_nodes("a", 0).await;
    site.add_foreign_node("a").await;
    proxy.cut_after_request();
    let guard = locks.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("the lock");
    let nodes = site.nodes("a").await;
    let node = nodes.iter().find(|node| !node.ends_with("stranger")).expect("its node");
    let (prefix, _) = node.rsplit_once('-').expect("a number at its end");
    let _ = guard.release().await.expect("a release");
    site.until_nodes("a", 1).await;
    let late = leasehold_zookeeper::CreateMode::EphemeralSequential.with_acls(leasehold_zookeeper::Acls::anyone_all());
    site.client.create(&format!("{prefix}-"), b"", &late).await.expect("a node by hand");
    site.until_nodes("a", 1).await;
    let free = site.open_locks(LONG_TTL).await.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("a free lock");
    drop(free);
}

/// The caller gives up while nobody knows whether there is a node: it is deleted when the line is back.
#[tokio::test]
async fn a_caller_that_gives_up_leaves_no_node() {
    let site = Fixture::new().await;
    let (locks, proxy) = site.open_through_proxy(LONG_TTL).await;
    drop(locks.mutex("a").lock().await.expect("a lock"));
    site.until_nodes("a", 0).await;
    // A stranger in the folder keeps it from vanishing meanwhile.
    site.add_foreign_node("a").await;
    proxy.drop_replies(true);
    let error = locks.mutex("a").timeout(Duration::from_millis(300)).lock().await.expect_err("no answer");
    assert!([ErrorKind::Unavailable, ErrorKind::Timeout].contains(&error.kind()), "{error}");
    site.until_nodes("a", 2).await;
    proxy.drop_replies(false);
    proxy.cut();
    site.until_nodes("a", 1).await;
    let free = site.open_locks(LONG_TTL).await.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("a free lock");
    drop(free);
}

/// The answer to a give-back is lost with the line: it is a give-back.
#[tokio::test]
async fn a_lost_reply_to_a_release_still_releases() {
    let site = Fixture::new().await;
    let (locks, proxy) = site.open_through_proxy(LONG_TTL).await;
    for _ in 0..repetitions(2, 5) {
        let guard = locks.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("a lock");
        proxy.cut_after_request();
        let _: ReleaseOutcome = guard.release().await.expect("a release");
        assert_eq!(site.nodes("a").await.len(), 0);
    }
}

/// The line breaks for a moment, again and again: the lock stays.
#[tokio::test]
async fn a_short_disconnection_loses_no_lock() {
    let site = Fixture::new().await;
    let (locks, proxy) = site.open_through_proxy(LONG_TTL).await;
    let guard = locks.mutex("a").lock().await.expect("a lock");
    for _ in 0..repetitions(4, 16) {
        proxy.cut();
        // The line is back when another lock was taken by it.
        let other = eventually(TEST_TIMEOUT, || async { locks.mutex("b").timeout(TEST_TIMEOUT).lock().await }).await;
        let _ = other.release().await.expect("a release");
        assert!(guard.is_held(), "lost: {:?}", guard.lost_reason());
    }
    assert_eq!(site.nodes("a").await.len(), 1);
}

/// The same over several sessions' timeouts. A busy machine may lose a short lease: then a longer one has to last.
#[cfg(feature = "nightly")]
#[tokio::test]
async fn short_disconnections_lose_no_lock_over_two_sessions() {
    for ttl in [8, 16, 32].map(Duration::from_secs) {
        if outlasts_disconnections(ttl).await {
            return;
        }
    }
    panic!("no lease outlasted the disconnections");
}

#[cfg(feature = "nightly")]
async fn outlasts_disconnections(ttl: Duration) -> bool {
    let site = Fixture::new().await;
    let (locks, proxy) = site.open_through_proxy(ttl).await;
    let guard = locks.mutex("a").lock().await.expect("a lock");
    let clock = Clock::system();
    for _ in 0..16 {
        proxy.cut();
        let end = clock.now().saturating_add(ttl / 8);
        while clock.now() < end {
            if !guard.is_held() {
                return false;
            }
            clock.sleep_until(clock.now().saturating_add(Duration::from_millis(20))).await;
        }
    }
    assert_eq!(site.nodes("a").await.len(), 1);
    true
}

/// The line stays down: the holder stops before the server lets another in, whichever way it is down.
#[tokio::test]
async fn a_frozen_connection_ends_the_hold_before_the_next_grant() {
    check_lasting_disconnection(true).await;
}

#[cfg(feature = "nightly")]
#[tokio::test]
async fn a_refused_connection_ends_the_hold_before_the_next_grant() {
    check_lasting_disconnection(false).await;
}

async fn check_lasting_disconnection(frozen: bool) {
    let site = Fixture::new().await;
    let (locks, proxy) = site.open_through_proxy(SHORT).await;
    let guard = eventually(TEST_TIMEOUT, || async { locks.mutex("a").lock().await }).await;
    let (lost, granted) = (spawn_loss_watcher(&guard), spawn_waiter(&site.open_locks(LONG_TTL).await, "a"));
    if frozen {
        proxy.freeze(true);
    } else {
        proxy.refuse(true);
        proxy.cut();
    }
    let (granted_at, next) = tokio::time::timeout(TEST_TIMEOUT, granted).await.expect("a grant").expect("a contender");
    assert!(!guard.is_held() && guard.deadline() <= granted_at, "two at once (frozen: {frozen})");
    tokio::time::timeout(TEST_TIMEOUT, lost).await.expect("the holder is told").expect("a mourner");
    assert!(next.token() > guard.token());
    // The line comes back, to an ended session: nothing is taken again by itself.
    proxy.freeze(false);
    proxy.refuse(false);
    drop(next);
    site.until_nodes("a", 0).await;
    // A new session takes it again, when asked.
    let again = eventually(TEST_TIMEOUT, || async { locks.mutex("a").timeout(TEST_TIMEOUT).lock().await }).await;
    assert!(again.token() > guard.token() && !guard.is_held());
}

/// A waiter's line breaks while the holder gives back: it is granted when the line is back, though nobody told it.
#[tokio::test]
async fn a_waiter_disconnected_during_the_release_is_granted() {
    let site = Fixture::new().await;
    let (locks, proxy) = site.open_through_proxy(LONG_TTL).await;
    let guard = site.open_locks(LONG_TTL).await.mutex("a").lock().await.expect("a lock");
    let waiter = spawn_waiter(&locks, "a");
    site.until_nodes("a", 2).await;
    proxy.refuse(true);
    proxy.cut();
    let _ = guard.release().await.expect("a release");
    site.until_nodes("a", 1).await;
    proxy.refuse(false);
    let (_, next) = tokio::time::timeout(TEST_TIMEOUT, waiter).await.expect("in time").expect("a contender");
    assert!(next.is_held());
}

/// A request to be let in arrives twice, and then the line breaks once more, at any time while the claim looks for what there is of it: nobody stands in
/// line who does not know it, though the session lives.
#[tokio::test]
async fn a_duplicated_request_leaves_no_orphan_in_the_queue() {
    let site = Fixture::new().await;
    let (locks, proxy) = site.open_through_proxy(LONG_TTL).await;
    let other = site.open_locks(LONG_TTL).await;
    drop(locks.mutex("a").lock().await.expect("a lock, so that the session is there"));
    site.until_nodes("a", 0).await;
    let held = other.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("the lock");
    let clock = Clock::system();
    // Each request takes 10 ms: one is hit after the other.
    proxy.delay(Duration::from_millis(5));
    for later in (0..120).step_by(repetitions(30, 4) as usize) {
        proxy.duplicate_and_cut();
        let ask = async {
            let waited = locks.mutex("a").timeout(Duration::from_millis(250)).lock().await;
            assert!(waited.is_err(), "somebody else has it");
        };
        let disturb = async {
            let lost = proxy.counts().dropped_bytes;
            let swallowed = async {
                while proxy.counts().dropped_bytes == lost {
                    clock.sleep_until(clock.now().saturating_add(Duration::from_millis(1))).await;
                }
            };
            tokio::time::timeout(TEST_TIMEOUT, swallowed)
                .await
                .expect("a request that is doubled, and its answer lost");
            clock.sleep_until(clock.now().saturating_add(Duration::from_millis(later))).await;
            proxy.duplicate_and_cut();
        };
        tokio::join!(ask, disturb);
        proxy.cancel_pending_cuts();
        site.until_nodes("a", 1).await;
    }
    assert!(held.is_held());
}
