//! The leader dies, or a follower or leader is partitioned from the others while its clients still
//! reach it.

use std::time::Duration;

use leasehold::Guard;
use leasehold::clock::{Clock, Instant};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::eventually;
use leasehold_testbed::zookeeper::ZooKeeper;
use leasehold_zookeeper::{Acls, CreateMode};
use tokio::task::JoinHandle;

use crate::zookeeper_faults::fixture::{
    LONG_TTL, SHORT, admin_client, ensemble, open_locks, spawn_loss_watcher, spawn_waiter,
};

/// Runs a test with growing TTLs until it succeeds. `false` means that a lease expired without a
/// fault, or that an election took longer than a lease, as on a busy machine.
async fn with_a_lease(test: impl AsyncFn(Duration) -> bool) {
    for ttl in [6, 12, 24, 48].map(Duration::from_secs) {
        if test(ttl).await {
            return;
        }
    }
    panic!("no lease outlasted the fault");
}

/// Whether the lock is held during all of this time.
async fn is_held_for(guard: &Guard, waiter: Option<&JoinHandle<(Instant, Guard)>>, time: Duration) -> bool {
    let clock = Clock::system();
    let end = clock.now().saturating_add(time);
    while clock.now() < end {
        let granted = waiter.is_some_and(JoinHandle::is_finished);
        if !guard.is_held() {
            return false;
        }
        assert!(!granted, "two holders");
        clock.sleep_until(clock.now().saturating_add(Duration::from_millis(50))).await;
    }
    true
}

/// The leader is killed: sessions continue with the next one, and no lock or position is lost.
#[tokio::test]
async fn killing_the_leader_loses_no_lock_over_two_sessions() {
    with_a_lease(outlasts_the_leader).await;
}

async fn outlasts_the_leader(ttl: Duration) -> bool {
    let (mut servers, _turn) = ensemble(&ZooKeeper::new()).await;
    let url = format!("zookeeper://{}/e", servers.url());
    let (one, other) = (open_locks(&url, ttl).await, open_locks(&url, ttl).await);
    let guard = one.mutex("a").lock().await.expect("a lock");
    let waiter = spawn_waiter(&other, "a");
    let leader = servers.leader().await.expect("a leader");
    servers.server_mut(leader).kill().expect("a killed leader");
    let next = servers.leader().await.expect("another leader");
    assert_ne!(next, leader);
    // For two whole sessions.
    if !is_held_for(&guard, Some(&waiter), ttl * 2).await {
        return false;
    }
    let token = guard.token();
    let _ = guard.release().await.expect("a release");
    let (_, second) = tokio::time::timeout(TEST_TIMEOUT, waiter).await.expect("in time").expect("no panic");
    assert!(second.token() > token, "tokens rise over an election");
    true
}

/// The holder's follower is partitioned and still answers reads. The holder's lease expires before
/// the leader grants the lock to another client; a client that takes reads for a liveness check
/// does not notice.
#[tokio::test]
async fn a_holder_at_a_partitioned_follower_expires_before_the_next_grant() {
    // The follower answers until the end of the test, which is longer than a session.
    let (mut servers, _turn) = ensemble(&ZooKeeper::new().peer_timeout(LONG_TTL)).await;
    let (leader, follower) =
        (servers.leader().await.expect("a leader"), servers.followers().await.expect("followers")[0]);
    let holder = open_locks(&format!("zookeeper://{}/e", servers.addr(follower)), SHORT).await;
    let other = open_locks(&format!("zookeeper://{}/e", servers.addr(leader)), SHORT).await;
    let guard = holder.mutex("a").lock().await.expect("a lock");
    // The textbook's liveness check: does my node exist?
    let naive = leasehold_zookeeper::Client::connector()
        .with_session_timeout(SHORT)
        .connect(&servers.addr(follower).to_string())
        .await
        .expect("a client");
    let acls = Acls::anyone_all();
    naive.create("/naive", b"", &CreateMode::Ephemeral.with_acls(acls)).await.expect("a node");
    let outside = admin_client(&servers.addr(leader).to_string()).await;
    let (lost, granted) = (spawn_loss_watcher(&guard), spawn_waiter(&other, "a"));
    servers.cut_off(follower);
    let _ = tokio::time::timeout(TEST_TIMEOUT, lost).await.expect("a loss in time").expect("no panic");
    let (granted_at, second) =
        tokio::time::timeout(TEST_TIMEOUT, granted).await.expect("a grant in time").expect("no panic");
    assert!(!guard.is_held() && guard.deadline() <= granted_at, "two holders");
    assert!(second.token() > guard.token());
    // The mistake: the leader has ended that session, but the follower still has its node.
    eventually(TEST_TIMEOUT, || async {
        let there = outside.check_stat("/naive").await.expect("an answer").is_some();
        if there { Err("the leader has not ended the session yet".to_owned()) } else { Ok(()) }
    })
    .await;
    let says = tokio::time::timeout(TEST_TIMEOUT, naive.check_stat("/naive")).await.expect("an answer at once");
    assert!(says.expect("an answer").is_some(), "the partitioned follower has noticed");
}

/// The holder's leader is partitioned: the others elect a new leader, and the holder's lease
/// expires first.
#[tokio::test]
async fn a_holder_at_a_partitioned_leader_expires_before_the_next_grant() {
    let (mut servers, _turn) = ensemble(&ZooKeeper::new().peer_timeout(Duration::from_secs(2))).await;
    let leader = servers.leader().await.expect("a leader");
    let rest: Vec<String> =
        servers.followers().await.expect("followers").iter().map(|at| servers.addr(*at).to_string()).collect();
    let holder = open_locks(&format!("zookeeper://{}/e", servers.addr(leader)), SHORT).await;
    let other = open_locks(&format!("zookeeper://{}/e", rest.join(",")), Duration::from_secs(20)).await;
    let guard = holder.mutex("a").lock().await.expect("a lock");
    let (lost, granted) = (spawn_loss_watcher(&guard), spawn_waiter(&other, "a"));
    servers.cut_off(leader);
    let _ = tokio::time::timeout(TEST_TIMEOUT, lost).await.expect("a loss in time").expect("no panic");
    let (granted_at, second) = tokio::time::timeout(TEST_TIMEOUT, granted).await.expect("a grant").expect("no panic");
    assert!(!guard.is_held() && guard.deadline() <= granted_at, "two holders");
    assert!(second.token() > guard.token());
}

/// A follower dies, and its clients reconnect to another server: no lock is lost, and waiters keep
/// their positions.
#[tokio::test]
async fn clients_of_a_dead_follower_reconnect_elsewhere() {
    with_a_lease(outlasts_a_follower).await;
}

async fn outlasts_a_follower(ttl: Duration) -> bool {
    let (mut servers, _turn) = ensemble(&ZooKeeper::new()).await;
    let follower = servers.followers().await.expect("followers")[0];
    let leader = servers.leader().await.expect("a leader");
    // The URL names only these two, and a client picks one at random: with several clients, some
    // use the follower.
    let url = format!("zookeeper://{},{}/e", servers.addr(follower), servers.addr(leader));
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(open_locks(&url, ttl).await);
    }
    let guard = clients[0].mutex("a").lock().await.expect("a lock");
    let mut waiters = Vec::new();
    for (at, client) in clients.iter().enumerate().skip(1) {
        waiters.push(spawn_waiter(client, "a"));
        eventually(TEST_TIMEOUT, || async {
            let waiting = clients[0].inspect("a").await.expect("a view").waiters.len();
            if waiting == at { Ok(()) } else { Err(format!("{waiting} wait")) }
        })
        .await;
    }
    servers.server_mut(follower).kill().expect("a killed follower");
    if !is_held_for(&guard, None, ttl + ttl / 2).await {
        return false;
    }
    let mut last = guard.token();
    let _ = guard.release().await.expect("a release");
    for waiter in waiters {
        let (_, next) =
            tokio::time::timeout(TEST_TIMEOUT, waiter).await.expect("the waiter gets the lock").expect("no panic");
        assert!(next.token() > last, "in the order of arrival");
        last = next.token();
        let _ = next.release().await.expect("a release");
    }
    true
}
