//! Regression tests for review findings about several servers, or an unreachable one.

use std::time::Duration;

use leasehold::Locks;
use leasehold::clock::Clock;
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::redis::{Cluster, Reply, SentinelSet, slot_of};
use leasehold_testbed::{Proxy, Server, redis};

use crate::redis_deployments::review_findings::{raw_connection, wait_until};

/// The ids of a server's clients that are subscribed to an inbox.
async fn subscribed_client_ids(server: &Server) -> Vec<String> {
    let Reply::Bulk(list) = raw_connection(server).await.command(&["CLIENT", "LIST"]).await.expect("a list") else {
        panic!()
    };
    let listens = list.lines().filter(|line| line.contains(" sub=1 "));
    listens.filter_map(|line| Some(line.strip_prefix("id=")?.split(' ').next()?.to_owned())).collect()
}

/// A waiter that is unreachable from the lock's node is skipped, and gets no grant through another
/// node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_skipped_waiter_receives_no_grant_from_another_cluster_node() {
    let cluster = Cluster::start(3, 0).await.expect("a cluster");
    let owner = cluster.owner_of(slot_of("leasehold:l{a}")).await.expect("an owner");
    let node = &cluster.nodes()[owner];
    let locks = Locks::builder().ttl(LONG_TTL).open(&cluster.url()).await.expect("the engine");
    let held = locks.mutex("a").lock().await.expect("a lock");
    let before = subscribed_client_ids(node).await;
    let waiter = Locks::builder().ttl(LONG_TTL).open(&cluster.url()).await.expect("the engine");
    let waits = tokio::spawn({
        let mutex = waiter.mutex("a").timeout(LONG_TTL);
        async move { mutex.lock().await }
    });
    wait_until("a waiter is queued", async || locks.inspect("a").await.is_ok_and(|view| view.waiters.len() == 1)).await;
    // Its connection breaks, and the node accepts no new ones; connections to the other nodes stay.
    let mut raw = raw_connection(node).await;
    let mut theirs = subscribed_client_ids(node).await;
    theirs.retain(|id| !before.contains(id));
    let _ = raw.command(&["CONFIG", "SET", "maxclients", "1"]).await.expect("an answer");
    for id in &theirs {
        let killed = raw.command(&["CLIENT", "KILL", "ID", id]).await.expect("an answer");
        assert_eq!(killed, Reply::Integer(1));
    }
    let _ = held.release().await.expect("a release");
    let next = locks.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("the lock");
    assert!(!waits.is_finished(), "a skipped waiter must not hold the lock");
    let _ = raw.command(&["CONFIG", "SET", "maxclients", "1000"]).await.expect("an answer");
    wait_until("the skipped client waits again", async || {
        locks.inspect("a").await.is_ok_and(|view| view.waiters.len() == 1)
    })
    .await;
    assert!(next.is_held() && !waits.is_finished());
    let token = next.token();
    let _ = next.release().await.expect("a release");
    assert!(waits.await.expect("no panic").expect("the lock").token() > token);
}

/// Two clients that address the same master differently agree on its cool-down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cool_down_ends_although_clients_name_the_master_differently() {
    let set = SentinelSet::start(1).await.expect("a set");
    let master = set.master().await.expect("a master");
    let by_sentinel = format!("{}?strict=5s", set.url());
    let by_address = format!("{}?strict=5s", set.nodes()[master].url());
    let ttl = Duration::from_secs(5);
    let (one, two) = (
        Locks::builder().ttl(ttl).open(&by_sentinel).await.expect("the engine"),
        Locks::builder().ttl(ttl).open(&by_address).await.expect("the engine"),
    );
    let work = |locks: Locks| async move {
        for _ in 0..5 {
            let guard = locks.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("the lock");
            let _ = guard.release().await.expect("a release");
        }
    };
    tokio::join!(work(one), work(two));
}

/// Reconnects to an unreachable server back off with growing pauses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconnects_come_with_growing_pauses() {
    let server = redis::start().await.expect("a server");
    let proxy = Proxy::start(server.addr()).await.expect("a proxy");
    let locks = Locks::builder().ttl(LONG_TTL).open(&format!("redis://{}/", proxy.addr())).await.expect("the engine");
    let held = locks.mutex("a").lock().await.expect("a lock");
    let clock = Clock::system();
    let start = clock.now();
    proxy.refuse(true);
    proxy.cut();
    wait_until("eight refused connections", async || proxy.counts().refused >= 8).await;
    // At least half of 20, 40, 80, 160, 320, 640 and 1000 ms; a busy machine only takes longer.
    let took = clock.now().duration_since(start);
    assert!(took >= Duration::from_secs(1), "eight attempts within {took:?}");
    proxy.refuse(false);
    wait_until("the client is reconnected", async || locks.inspect("a").await.is_ok()).await;
    assert!(held.is_held());
}
