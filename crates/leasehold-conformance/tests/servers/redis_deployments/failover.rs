//! Sentinels put a replica in the master's place, on real servers: what holders, waiters and newcomers see.

use leasehold::fence::Fence;
use leasehold::{LostReason, Outcome};
use leasehold_testbed::redis::SentinelSet;

use crate::redis_deployments::deployment::{BOUND, LONG, client, soon};

/// A set with one replica.
pub(super) async fn set() -> SentinelSet {
    SentinelSet::start(1).await.expect("a set")
}

/// Kills the master after its replica was cut off, so that what was written since is lost for sure.
pub(super) async fn fail_over_and_forget(set: &mut SentinelSet) {
    set.kill_master().await.expect("a dead master");
    set.resume_replicas().expect("a replica that goes on");
    set.failed_over(BOUND).await.expect("a fail-over");
}

/// Ours, as it is by default: there may be two for a moment, but the first is told, and its writes are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_holder_is_told_and_fenced() {
    let mut set = set().await;
    let (old, new) = (client(&set.url(), LONG).await, client(&set.url(), LONG).await);
    set.cut_replication().await.expect("a cut");
    let first = old.mutex("a").lock().await.expect("a lock");
    let fence = Fence::default();
    fence.admit("a", first.token()).expect("the only one so far");
    fail_over_and_forget(&mut set).await;
    let reason = soon("the forgotten holder is told", first.lost()).await;
    assert_eq!(reason, LostReason::Taken, "long before its deadline");
    let second = soon("a newcomer gets it", new.mutex("a").lock()).await.expect("a lock");
    assert!(second.token() > first.token());
    fence.admit("a", second.token()).expect("the newest");
    fence.admit("a", first.token()).expect_err("a stale one");
    assert_eq!(first.release().await.expect("an answer"), Outcome::WasLost(LostReason::Taken));
    assert_eq!(second.release().await.expect("an answer"), Outcome::Released);
}
