//! A cluster's slots move under load, and its masters fail over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::fence::Fence;
use leasehold::{Locks, LostReason, ReleaseOutcome};
use leasehold_conformance::overlap_probe::OverlapProbe;
use leasehold_testbed::eventually;
use leasehold_testbed::redis::{Cluster, Reply, slot_of};
use tokio::task::JoinSet;

use crate::redis_deployments::cluster_moves::{assert_released, lock_name_on, shared_masters};
use crate::redis_deployments::deployment::{
    LONG_TTL, TEST_TIMEOUT, WaiterQueue, client, is_renewed, numbers_up_to, raw_command, text, until_answering,
    until_listening, within_bound,
};

/// A slot moves around the cluster while its locks are in use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_moves_under_load() {
    let (mut cluster, run) = shared_masters().await;
    let slot = slot_of(&format!("load-{run}"));
    let name = |about: &str| format!("{about}{{load-{run}}}");
    let (one, two) = (client(&cluster.url(), LONG_TTL).await, client(&cluster.url(), LONG_TTL).await);
    let held = two.mutex(name("held")).lock().await.expect("a lock");
    let mut queue = WaiterQueue::default();
    for locks in [&one, &two, &one] {
        queue.add_waiter(locks, &name("held")).await;
    }
    let (stop, probes) =
        (Arc::new(AtomicBool::new(false)), Arc::new([OverlapProbe::default(), OverlapProbe::default()]));
    let mut cycles = JoinSet::new();
    for task in 0..6 {
        let (locks, probe) = ([one.clone(), two.clone()][task % 2].clone(), task / 3);
        let (stop, probes, name) = (Arc::clone(&stop), Arc::clone(&probes), name(["x", "y"][probe]));
        cycles.spawn(async move { acquire_and_release(&locks, &name, &probes[probe], &stop).await });
    }
    for turn in 0..6 {
        let from = cluster.owner_of(slot).await.expect("an owner");
        let before = probes[0].visit_count() + probes[1].visit_count();
        cluster.migrate_slot(slot, (from + 1) % 3).await.expect("a migrated slot");
        eventually(TEST_TIMEOUT, || async {
            let entered = probes[0].visit_count() + probes[1].visit_count() - before;
            if entered > 20 { Ok(()) } else { Err(format!("only {entered} grants after move {turn}")) }
        })
        .await;
    }
    stop.store(true, Ordering::SeqCst);
    let visits = within_bound("all tasks end", cycles.join_all()).await;
    assert_eq!(probes.iter().map(OverlapProbe::max_concurrent).max(), Some(1), "never two holders at once");
    assert_eq!(probes[0].visit_count() + probes[1].visit_count(), visits.iter().sum::<u32>());
    assert!(held.is_held(), "the lock is still held");
    assert_released(held).await;
    assert_eq!(queue.wait_all_served().await.0.len(), 3);
}

/// Acquires and releases the lock until stopped, and returns the number of rounds.
async fn acquire_and_release(locks: &Locks, name: &str, inside: &OverlapProbe, stop: &AtomicBool) -> u32 {
    let mut visits = 0;
    while !stop.load(Ordering::SeqCst) {
        let guard = locks.mutex(name).lock().await.expect("a lock");
        inside.visit(1).await;
        visits += 1;
        assert_released(guard).await;
    }
    visits
}

/// An observer of an election sees the next leader, wherever the slot is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_sees_the_next_leader_after_a_slot_move() {
    let (mut cluster, run) = shared_masters().await;
    let name = format!("led-{run}");
    let slot = slot_of(&name);
    let (one, two) = (client(&cluster.url(), LONG_TTL).await, client(&cluster.url(), LONG_TTL).await);
    let mut observer = two.election(&name).observe().expect("an observer");
    assert_eq!(observer.next().await.expect("an answer"), None);
    for _ in 0..3 {
        let leader = one.election(&name).campaign().await.expect("elected");
        let seen = within_bound("the leader is seen", observer.next()).await.expect("an answer").expect("a leader");
        assert_eq!(seen.token, leader.token());
        let from = cluster.owner_of(slot).await.expect("an owner");
        let migration = cluster.begin_migration(slot, (from + 1) % 3).await.expect("a started migration");
        cluster.move_keys(&migration).await.expect("moved keys");
        let round_trips = async {
            for _ in 0..20 {
                assert!(two.election(&name).leader().await.expect("an answer").is_some());
            }
        };
        tokio::select! {
            change = observer.next() => panic!("a moving slot is not a change: {change:?}"),
            () = round_trips => {}
        }
        let _ = leader.resign().await.expect("an answer");
        assert_eq!(within_bound("the resignation is seen", observer.next()).await.expect("an answer"), None);
        let leader = one.election(&name).campaign().await.expect("elected");
        let seen = within_bound("the leader is seen", observer.next()).await.expect("an answer").expect("a leader");
        assert_eq!(seen.token, leader.token());
        cluster.finish_migration(migration).await.expect("a finished migration");
        let _ = leader.resign().await.expect("an answer");
        assert_eq!(within_bound("the resignation is seen", observer.next()).await.expect("an answer"), None);
    }
}

/// Nodes that do not know their host name report only a port.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_do_not_know_their_host_names_are_reached() {
    let (mut cluster, run) = shared_masters().await;
    let prefer = async |cluster: &Cluster, kind: &str| {
        for addr in cluster.addrs() {
            let set = raw_command(addr, &["CONFIG", "SET", "cluster-preferred-endpoint-type", kind]).await;
            assert_eq!(set, Reply::Simple("OK".to_owned()));
        }
    };
    prefer(&cluster, "unknown-endpoint").await;
    let mut shown = false;
    for ttl in [10, 20, 40].map(Duration::from_secs) {
        let name = format!("nameless-{run}-{}", ttl.as_secs());
        shown = shown || is_renewed_while_its_slot_moves(&mut cluster, &name, ttl).await;
    }
    assert!(shown, "no lease was renewed");
    prefer(&cluster, "ip").await;
}

/// Returns `false` if the lease expired before it was renewed, as on a busy machine; the caller
/// then tries a longer one.
async fn is_renewed_while_its_slot_moves(cluster: &mut Cluster, name: &str, ttl: Duration) -> bool {
    let slot = slot_of(name);
    let locks = client(&format!("redis+cluster://{}", cluster.addrs()[0]), ttl).await;
    let held = locks.mutex(name).lock().await.expect("a lock");
    let from = cluster.owner_of(slot).await.expect("an owner");
    cluster.migrate_slot(slot, (from + 1) % 3).await.expect("a migrated slot");
    let first = is_renewed(&held).await;
    let migration = cluster.begin_migration(slot, (from + 2) % 3).await.expect("a started migration");
    cluster.move_keys(&migration).await.expect("moved keys");
    let second = first && is_renewed(&held).await;
    cluster.finish_migration(migration).await.expect("a finished migration");
    match held.release().await.expect("a release") {
        ReleaseOutcome::AlreadyLost(LostReason::Expired) => false,
        outcome => {
            assert_eq!(outcome, ReleaseOutcome::Released);
            second
        }
    }
}

/// The replica has all data: holders keep their locks, and waiters are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_and_waiters_survive_the_failover_of_a_dead_master() {
    let mut cluster = Cluster::start(3, 1).await.expect("a cluster");
    let (one, two) = (client(&cluster.url(), LONG_TTL).await, client(&cluster.url(), LONG_TTL).await);
    let name = lock_name_on(&cluster, 0, "kept").await;
    let held = one.mutex(&name).lock().await.expect("a lock");
    let mut queue = WaiterQueue::default();
    for _ in 0..2 {
        queue.add_waiter(&two, &name).await;
    }
    eventually(TEST_TIMEOUT, || async {
        // Ask the replica itself: WAIT covers only the caller's writes.
        let keys = raw_command(cluster.nodes()[3].addr(), &["DBSIZE"]).await;
        let links = raw_command(cluster.nodes()[0].addr(), &["INFO", "replication"]).await;
        match (&keys, text(links).contains("lag=0")) {
            (Reply::Integer(1..), true) => Ok(()),
            seen => Err(format!("{seen:?}")),
        }
    })
    .await;
    let token = held.token();
    cluster.kill_node(0).expect("a dead master");
    let new = cluster.wait_for_failover(slot_of(&name), TEST_TIMEOUT).await.expect("a fail-over");
    // Clients find the new master without sending a request.
    until_listening(cluster.nodes()[new].addr(), 2).await;
    assert_eq!(one.inspect(&name).await.expect("a view").waiters.len(), 2);
    assert!(held.is_held() && held.token() == token);
    assert!(two.mutex(&name).try_lock().await.expect("an answer").is_none());
    assert_released(held).await;
    assert_eq!(queue.wait_all_served().await.0, numbers_up_to(2));
    let elsewhere = lock_name_on(&cluster, 1, "else").await;
    assert_released(one.mutex(elsewhere).lock().await.expect("a lock")).await;
    drop((one, two));
    assert_partitioned_master_is_abandoned(&mut cluster).await;
}

/// A partitioned master still answers clients after the others have replaced it.
async fn assert_partitioned_master_is_abandoned(cluster: &mut Cluster) {
    let name = lock_name_on(cluster, 1, "island").await;
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(client(&cluster.url(), LONG_TTL).await);
    }
    for locks in &clients {
        assert_released(locks.mutex(&name).lock().await.expect("a lock")).await;
    }
    for node in 2..6usize {
        let id = text(raw_command(cluster.nodes()[node].addr(), &["CLUSTER", "MYID"]).await);
        let removed = raw_command(cluster.nodes()[1].addr(), &["CLUSTER", "FORGET", &id]).await;
        assert_eq!(removed, Reply::Simple("OK".to_owned()));
    }
    let promoted = raw_command(cluster.nodes()[4].addr(), &["CLUSTER", "FAILOVER", "TAKEOVER"]).await;
    assert_eq!(promoted, Reply::Simple("OK".to_owned()));
    for locks in &clients {
        let guard = within_bound("the replica grants the lock", locks.mutex(&name).lock()).await;
        assert_released(guard.expect("a lock")).await;
    }
}

/// The replica missed the grant: the holder learns of the loss, and the fence rejects its writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_learns_of_a_failover_that_lost_its_grant() {
    let mut cluster = Cluster::start(3, 1).await.expect("a cluster");
    let (one, two) = (client(&cluster.url(), LONG_TTL).await, client(&cluster.url(), LONG_TTL).await);
    let name = lock_name_on(&cluster, 0, "lost").await;
    cluster.cut_replication(0).await.expect("a stopped replication");
    let first = one.mutex(&name).lock().await.expect("a lock");
    cluster.kill_node(0).expect("a dead master");
    cluster.resume_replicas().expect("a resumed replica");
    cluster.wait_for_failover(slot_of(&name), TEST_TIMEOUT).await.expect("a fail-over");
    assert_eq!(within_bound("the holder learns of the loss", first.lost()).await, LostReason::Revoked);
    until_answering(&two).await;
    let second = within_bound("a new client gets the lock", two.mutex(&name).lock()).await.expect("a lock");
    let fence = Fence::default();
    fence.admit(&name, second.token()).expect("the newest token");
    fence.admit(&name, first.token()).expect_err("a stale token");
    assert_released(second).await;
}
