//! `replicas=1` with an unreachable replica, a dead master, and moving slots.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold::{Error, ErrorKind, LostReason, ReleaseOutcome};
use leasehold_testbed::eventually;
use leasehold_testbed::redis::{Cluster, SentinelSet, slot_of};

use crate::redis_deployments::deployment::{
    LONG_TTL, TEST_TIMEOUT, client, is_renewed, raw_command, text, until_answering, until_free, with_a_lease,
    within_bound,
};
use crate::redis_deployments::replicas::master_and_replica;

fn assert_names_replica_count(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_replica_no_grant_counts() {
    let (_master, mut replica, url) = master_and_replica().await;
    let (one, two) = (client(&url, LONG_TTL).await, client(&url, LONG_TTL).await);
    for dead in [false, true] {
        if dead {
            replica.kill().expect("a dead replica");
        } else {
            replica.pause().expect("a pause");
        }
        let wait = Duration::from_secs(3);
        let (a, b) = (one.mutex("a").timeout(wait), two.mutex("b").timeout(wait));
        let (first, second) = tokio::join!(a.lock(), b.lock());
        assert_names_replica_count(&first.expect_err("no replica has it"));
        assert_names_replica_count(&second.expect_err("no replica has it"));
        assert_names_replica_count(&one.mutex("c").try_lock().await.expect_err("no replica has it"));
        assert_names_replica_count(&one.multi_lock(["d", "e"]).try_lock().await.expect_err("no replica has it"));
        for name in ["a", "b", "c", "d", "e"] {
            until_free(&two, name).await;
        }
    }
}

/// Number of WAIT calls.
async fn wait_calls(addr: SocketAddr) -> u64 {
    let stats = text(raw_command(addr, &["INFO", "commandstats"]).await);
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_wait:calls=")?.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

/// A claim that waits for the replica does not delay other requests of the same client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_the_replica_does_not_delay_other_requests() {
    const MANY: u64 = 40;
    let (master, mut replica, url) = master_and_replica().await;
    let locks = client(&url, LONG_TTL).await;
    let mut guards = Vec::new();
    for number in 0..MANY {
        guards.push(locks.mutex(format!("held-{number}")).lock().await.expect("a lock"));
    }
    replica.pause().expect("a pause");
    let acquiring = tokio::spawn({
        let mutex = locks.mutex("a");
        async move { mutex.lock().await }
    });
    let blocked = eventually(TEST_TIMEOUT, || async {
        let list = text(raw_command(master.addr(), &["CLIENT", "LIST"]).await);
        list.lines().find(|line| line.contains("cmd=wait")).map(str::to_owned).ok_or(list)
    })
    .await;
    assert!(blocked.contains(" sub=0 "), "the shared connection is blocked: {blocked}");
    let before = wait_calls(master.addr()).await;
    for guard in guards {
        assert!(guard.is_held());
        assert_eq!(guard.release().await.expect("an answer"), ReleaseOutcome::Released);
    }
    let meanwhile = wait_calls(master.addr()).await - before;
    assert!(meanwhile < MANY / 2, "{meanwhile} WAIT calls for {MANY} releases: the releases were serialised");
    assert!(!acquiring.is_finished());
    replica.resume().expect("a resumed server");
    let acquired = within_bound("a lock", acquiring).await.expect("no panic").expect("a lock");
    assert_eq!(acquired.release().await.expect("an answer"), ReleaseOutcome::Released);
}

/// The master dies right after an acknowledged grant, and the grant survives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledged_grant_survives_the_masters_death() {
    let mut set = SentinelSet::start(1).await.expect("a set");
    let url = format!("{}?replicas=1", set.url());
    let (one, two) = (client(&url, LONG_TTL).await, client(&set.url(), LONG_TTL).await);
    let guard = one.mutex("a").lock().await.expect("a lock");
    let token = guard.token();
    set.kill_master().await.expect("a dead master");
    set.wait_for_failover(TEST_TIMEOUT).await.expect("a fail-over");
    let refused = eventually(TEST_TIMEOUT, || async { two.mutex("a").try_lock().await }).await;
    assert!(refused.is_none(), "{refused:?}");
    assert_eq!(two.inspect("a").await.expect("a view").holders[0].token, Some(token));
    assert!(guard.is_held());
    // The new master has no replica, so no new grant counts.
    until_answering(&one).await;
    assert_names_replica_count(&one.mutex("b").try_lock().await.expect_err("no replica has it"));
    assert_eq!(guard.release().await.expect("an answer"), ReleaseOutcome::Released);
}

/// During a migration, WAIT must go to the node that has the lock, and must not block the
/// migration.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_are_acknowledged_while_a_slot_moves() {
    with_a_lease(are_acknowledged_while_a_slot_moves).await;
}

async fn are_acknowledged_while_a_slot_moves(ttl: Duration) -> bool {
    let mut cluster = Cluster::start(3, 1).await.expect("a cluster");
    let locks = client(&format!("{}?replicas=1", cluster.url()), ttl).await;
    let slot = slot_of("a");
    let held = within_bound("a lock", locks.mutex("a").lock()).await.expect("a lock");
    let from = cluster.owner_of(slot).await.expect("an owner");
    let migration = cluster.begin_migration(slot, (from + 1) % 3).await.expect("a started migration");
    if !is_renewed(&held).await {
        return false;
    }
    let new = within_bound("a lock", locks.mutex("{a}new").lock()).await.expect("a lock");
    cluster.move_keys(&migration).await.expect("moved keys");
    if !is_renewed(&held).await || !is_renewed(&new).await {
        return false;
    }
    cluster.finish_migration(migration).await.expect("a finished migration");
    if !is_renewed(&held).await || new.lost_reason() == Some(LostReason::Expired) {
        return false;
    }
    assert_eq!(held.release().await.expect("an answer"), ReleaseOutcome::Released);
    assert_eq!(new.release().await.expect("an answer"), ReleaseOutcome::Released);
    // One connection per node calls WAIT, however many slots are used.
    for number in 0..30 {
        let guard = within_bound("a lock", locks.mutex(format!("many-{number}")).lock()).await.expect("a lock");
        assert_eq!(guard.release().await.expect("an answer"), ReleaseOutcome::Released);
    }
    for node in 0..3 {
        let list = text(raw_command(cluster.nodes()[node].addr(), &["CLIENT", "LIST"]).await);
        assert_eq!(list.lines().filter(|line| line.contains("cmd=wait")).count(), 1, "{list}");
    }
    true
}
