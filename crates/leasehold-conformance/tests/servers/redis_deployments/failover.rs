//! Sentinels fail over to a replica on real servers while locks are held and awaited.

use leasehold::fence::Fence;
use leasehold::{LostReason, ReleaseOutcome};
use leasehold_testbed::redis::SentinelSet;

use crate::redis_deployments::deployment::{LONG_TTL, TEST_TIMEOUT, client, within_bound};

/// A set with one replica.
pub(super) async fn sentinel_set() -> SentinelSet {
    SentinelSet::start(1).await.expect("a set")
}

/// Kills the master, whose replica was cut off: writes since then are lost.
pub(super) async fn fail_over_losing_writes(set: &mut SentinelSet) {
    set.kill_master().await.expect("a dead master");
    set.resume_replicas().expect("a resumed replica");
    set.wait_for_failover(TEST_TIMEOUT).await.expect("a fail-over");
}

/// Default mode: there may be two holders for a moment, but the first learns of its loss, and the
/// fence rejects its writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_lost_in_a_failover_learns_of_it_and_is_fenced() {
    let mut set = sentinel_set().await;
    let (old, new) = (client(&set.url(), LONG_TTL).await, client(&set.url(), LONG_TTL).await);
    set.cut_replication().await.expect("a stopped replication");
    let first = old.mutex("a").lock().await.expect("a lock");
    let fence = Fence::default();
    fence.admit("a", first.token()).expect("the only token so far");
    fail_over_losing_writes(&mut set).await;
    let reason = within_bound("the holder learns of the loss", first.lost()).await;
    assert_eq!(reason, LostReason::Revoked, "long before its deadline");
    let second = within_bound("a new client gets the lock", new.mutex("a").lock()).await.expect("a lock");
    assert!(second.token() > first.token());
    fence.admit("a", second.token()).expect("the newest token");
    fence.admit("a", first.token()).expect_err("a stale token");
    assert_eq!(first.release().await.expect("an answer"), ReleaseOutcome::AlreadyLost(LostReason::Revoked));
    assert_eq!(second.release().await.expect("an answer"), ReleaseOutcome::Released);
}
