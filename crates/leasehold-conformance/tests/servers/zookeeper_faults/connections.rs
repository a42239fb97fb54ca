//! Connections break, and replies are lost.

use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::{ErrorKind, ReleaseOutcome};
use leasehold_conformance::short_leases::repetitions;
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::eventually;

use crate::zookeeper_faults::fixture::{Fixture, LONG_TTL, SHORT, spawn_loss_watcher, spawn_waiter};

/// The reply to an acquire is lost with the connection: the claim finds its node again, and there
/// is only one.
#[tokio::test]
async fn a_lost_reply_to_an_acquire_leaves_one_node() {
    let fixture = Fixture::new().await;
    let (locks, proxy) = fixture.open_through_proxy(LONG_TTL).await;
    drop(locks.mutex("a").lock().await.expect("a lock, which opens the session"));
    fixture.until_nodes("a", 0).await;
    for _ in 0..repetitions(2, 5) {
        proxy.cut_after_request();
        let guard = locks.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("the lock");
        assert_eq!(fixture.nodes("a").await.len(), 1);
        assert!(guard.is_held());
        let _ = guard.release().await.expect("a release");
        fixture.until_nodes("a", 0).await;
    }
}

/// A delayed create may arrive when its claim has another node or has left. The session lives on,
/// so only the client can delete the node.
#[cfg(feature = "nightly")]
#[tokio::test]
async fn a_node_created_after_its_claim_left_is_deleted() {
    let fixture = Fixture::new().await;
    let (locks, proxy) = fixture.open_through_proxy(Duration::from_secs(12)).await;
    drop(locks.mutex("a").lock().await.expect("a lock, which opens the session"));
    fixture.until_nodes("a", 0).await;
    fixture.add_foreign_node("a").await;
    proxy.cut_after_request();
    let guard = locks.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("the lock");
    let nodes = fixture.nodes("a").await;
    let node = nodes.iter().find(|node| !node.ends_with("foreign")).expect("the claim's node");
    let (prefix, _) = node.rsplit_once('-').expect("a number at its end");
    let _ = guard.release().await.expect("a release");
    fixture.until_nodes("a", 1).await;
    let late = leasehold_zookeeper::CreateMode::EphemeralSequential.with_acls(leasehold_zookeeper::Acls::anyone_all());
    fixture.client.create(&format!("{prefix}-"), b"", &late).await.expect("a node by hand");
    fixture.until_nodes("a", 1).await;
    let free = fixture.open_locks(LONG_TTL).await.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("a free lock");
    drop(free);
}

/// The caller gives up while it is unknown whether its node exists: the client deletes it after the
/// reconnect.
#[tokio::test]
async fn a_caller_that_gives_up_leaves_no_node() {
    let fixture = Fixture::new().await;
    let (locks, proxy) = fixture.open_through_proxy(LONG_TTL).await;
    drop(locks.mutex("a").lock().await.expect("a lock"));
    fixture.until_nodes("a", 0).await;
    // A foreign node keeps the folder from being removed.
    fixture.add_foreign_node("a").await;
    proxy.drop_replies(true);
    let error = locks.mutex("a").timeout(Duration::from_millis(300)).lock().await.expect_err("no answer");
    assert!([ErrorKind::Unavailable, ErrorKind::Timeout].contains(&error.kind()), "{error}");
    fixture.until_nodes("a", 2).await;
    proxy.drop_replies(false);
    proxy.cut();
    fixture.until_nodes("a", 1).await;
    let free = fixture.open_locks(LONG_TTL).await.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("a free lock");
    drop(free);
}

/// The reply to a release is lost with the connection: the lock is released.
#[tokio::test]
async fn a_lost_reply_to_a_release_still_releases() {
    let fixture = Fixture::new().await;
    let (locks, proxy) = fixture.open_through_proxy(LONG_TTL).await;
    for _ in 0..repetitions(2, 5) {
        let guard = locks.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("a lock");
        proxy.cut_after_request();
        let _: ReleaseOutcome = guard.release().await.expect("a release");
        assert_eq!(fixture.nodes("a").await.len(), 0);
    }
}

/// Repeated short disconnections lose no lock.
#[tokio::test]
async fn a_short_disconnection_loses_no_lock() {
    let fixture = Fixture::new().await;
    let (locks, proxy) = fixture.open_through_proxy(LONG_TTL).await;
    let guard = locks.mutex("a").lock().await.expect("a lock");
    for _ in 0..repetitions(4, 16) {
        proxy.cut();
        // Acquiring another lock shows that the client has reconnected.
        let other = eventually(TEST_TIMEOUT, || async { locks.mutex("b").timeout(TEST_TIMEOUT).lock().await }).await;
        let _ = other.release().await.expect("a release");
        assert!(guard.is_held(), "lost: {:?}", guard.lost_reason());
    }
    assert_eq!(fixture.nodes("a").await.len(), 1);
}

/// Repeated short disconnections over several session timeouts lose no lock. A busy machine may
/// lose a short lease; a longer one must then last.
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
    let fixture = Fixture::new().await;
    let (locks, proxy) = fixture.open_through_proxy(ttl).await;
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
    assert_eq!(fixture.nodes("a").await.len(), 1);
    true
}

/// The connection stays down, frozen or refused: the holder's lease ends before the server grants
/// the lock to another client.
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
    let fixture = Fixture::new().await;
    let (locks, proxy) = fixture.open_through_proxy(SHORT).await;
    let guard = eventually(TEST_TIMEOUT, || async { locks.mutex("a").lock().await }).await;
    let (lost, granted) = (spawn_loss_watcher(&guard), spawn_waiter(&fixture.open_locks(LONG_TTL).await, "a"));
    if frozen {
        proxy.freeze(true);
    } else {
        proxy.refuse(true);
        proxy.cut();
    }
    let (granted_at, next) = tokio::time::timeout(TEST_TIMEOUT, granted).await.expect("a grant").expect("no panic");
    assert!(!guard.is_held() && guard.deadline() <= granted_at, "two holders (frozen: {frozen})");
    tokio::time::timeout(TEST_TIMEOUT, lost).await.expect("the holder learns of the loss").expect("no panic");
    assert!(next.token() > guard.token());
    // The reconnect finds an expired session: the engine does not acquire the lock again.
    proxy.freeze(false);
    proxy.refuse(false);
    drop(next);
    fixture.until_nodes("a", 0).await;
    // A new call acquires it on a new session.
    let again = eventually(TEST_TIMEOUT, || async { locks.mutex("a").timeout(TEST_TIMEOUT).lock().await }).await;
    assert!(again.token() > guard.token() && !guard.is_held());
}

/// A waiter is disconnected while the holder releases: it is granted the lock after the reconnect,
/// although it missed the notification.
#[tokio::test]
async fn a_waiter_disconnected_during_the_release_is_granted() {
    let fixture = Fixture::new().await;
    let (locks, proxy) = fixture.open_through_proxy(LONG_TTL).await;
    let guard = fixture.open_locks(LONG_TTL).await.mutex("a").lock().await.expect("a lock");
    let waiter = spawn_waiter(&locks, "a");
    fixture.until_nodes("a", 2).await;
    proxy.refuse(true);
    proxy.cut();
    let _ = guard.release().await.expect("a release");
    fixture.until_nodes("a", 1).await;
    proxy.refuse(false);
    let (_, next) = tokio::time::timeout(TEST_TIMEOUT, waiter).await.expect("in time").expect("no panic");
    assert!(next.is_held());
}

/// A queue request arrives twice, and then the connection breaks again at any point while the claim
/// looks for its nodes: no orphaned node stays in the queue, although the session lives.
#[tokio::test]
async fn a_duplicated_request_leaves_no_orphan_in_the_queue() {
    let fixture = Fixture::new().await;
    let (locks, proxy) = fixture.open_through_proxy(LONG_TTL).await;
    let other = fixture.open_locks(LONG_TTL).await;
    drop(locks.mutex("a").lock().await.expect("a lock, which opens the session"));
    fixture.until_nodes("a", 0).await;
    let held = other.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("the lock");
    let clock = Clock::system();
    // Each request takes 10 ms, so that each of them is hit in turn.
    proxy.delay(Duration::from_millis(5));
    for later in (0..120).step_by(repetitions(30, 4) as usize) {
        proxy.duplicate_and_cut();
        let attempt = async {
            let waited = locks.mutex("a").timeout(Duration::from_millis(250)).lock().await;
            assert!(waited.is_err(), "another claim holds the lock");
        };
        let disturb = async {
            let lost = proxy.counts().dropped_bytes;
            let reply_dropped = async {
                while proxy.counts().dropped_bytes == lost {
                    clock.sleep_until(clock.now().saturating_add(Duration::from_millis(1))).await;
                }
            };
            tokio::time::timeout(TEST_TIMEOUT, reply_dropped).await.expect("a duplicated request whose reply is lost");
            clock.sleep_until(clock.now().saturating_add(Duration::from_millis(later))).await;
            proxy.duplicate_and_cut();
        };
        tokio::join!(attempt, disturb);
        proxy.cancel_pending_cuts();
        fixture.until_nodes("a", 1).await;
    }
    assert!(held.is_held());
}
