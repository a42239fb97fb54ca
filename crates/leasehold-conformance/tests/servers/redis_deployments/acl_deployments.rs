//! The ACL rules in docs/redis-acl.md for hand-offs, URL options, Sentinels and clusters.

use std::time::Duration;

use leasehold::Locks;
use leasehold_testbed::redis;
use leasehold_testbed::redis::{Cluster, SentinelSet, slot_of};

use crate::redis_deployments::acl::{
    acl_rules, assert_denied, assert_released, hand_off, set_user, url_as_user, url_without, use_every_lock_kind,
};
use crate::redis_deployments::deployment::{
    LONG_TTL, TEST_TIMEOUT, WaiterQueue, client, numbers_up_to, until_answering, within_bound,
};

/// Without these permissions no waiter can be notified: the hand-off fails, and the lease expires.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permissions_that_a_hand_off_needs() {
    let server = redis::start().await.expect("a server");
    for missing in ["+publish", "+pubsub|numsub"] {
        let restricted = client(&url_without(&server, missing).await, Duration::from_secs(10)).await;
        set_user(server.addr(), "app", &acl_rules("app", true)).await;
        let other = client(&url_as_user(&server.url(), "app"), LONG_TTL).await;
        use_every_lock_kind(&restricted, &restricted).await;
        let held = restricted.mutex("a").lock().await.expect("a lock");
        let mut queue = WaiterQueue::default();
        queue.add_waiter(&other, "a").await;
        assert_denied(&held.release().await.expect_err("a client waits"), &missing[1..]);
        assert_eq!(queue.wait_all_served().await.0, numbers_up_to(1), "served when the lease expires");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permissions_that_url_options_need() {
    let server = redis::start().await.expect("a server");
    let _replica = redis::replica_of(&server).start().await.expect("a replica");
    let with = async |more: &[&str]| {
        set_user(server.addr(), "app", &[acl_rules("app", true), more.to_vec()].concat()).await;
        url_as_user(&server.url(), "app")
    };
    let plain = with(&[]).await;
    assert_denied(&Locks::open(&format!("{plain}?db=1")).await.expect_err("no SELECT"), "'select'");
    let locks = client(&format!("{plain}?replicas=1"), LONG_TTL).await;
    assert_denied(&locks.mutex("a").lock().await.expect_err("no WAIT"), "'wait'");
    let unsure = locks.records().expect("records").compare_and_set("a", 0, "x").await.expect_err("no WAIT");
    assert_denied(&unsure, "'wait'");
    assert!(unsure.to_string().contains("record \"a\"") && unsure.to_string().contains("written"), "{unsure}");
    let more = with(&["+select", "+wait"]).await;
    let locks = client(&format!("{more}?strict=5s&db=1&replicas=1"), Duration::from_secs(5)).await;
    assert_released(within_bound("a lock", locks.mutex("b").lock()).await.expect("a lock")).await;
    let written = locks.records().expect("records").compare_and_set("b", 0, "x").await;
    assert!(written.expect("a write that the replica has").is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permissions_that_sentinels_need() {
    let mut set = SentinelSet::start(1).await.expect("a set");
    let url = url_as_user(&set.url(), "app") + "?sentinel-user=watch&sentinel-password=secret";
    for node in set.nodes() {
        set_user(node.addr(), "app", &acl_rules("app", true)).await;
    }
    for sentinel in set.sentinel_addrs() {
        set_user(sentinel, "watch", &acl_rules("watch", true)).await;
    }
    assert_denied(&Locks::open(&url).await.expect_err("no ROLE"), "'role'");
    for node in set.nodes() {
        set_user(node.addr(), "app", &[acl_rules("app", true), vec!["+role"]].concat()).await;
    }
    let (one, two) = (client(&url, LONG_TTL).await, client(&url, LONG_TTL).await);
    use_every_lock_kind(&one, &two).await;
    set.kill_master().await.expect("a dead master");
    set.wait_for_failover(TEST_TIMEOUT).await.expect("a fail-over");
    until_answering(&one).await;
    until_answering(&two).await;
    hand_off(&client(&set.url(), LONG_TTL).await, &one, &two, "f").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permissions_that_a_cluster_needs() {
    let mut cluster = Cluster::start(3, 0).await.expect("a cluster");
    let url = url_as_user(&cluster.url(), "app");
    let with = async |cluster: &Cluster, more: &[&str]| {
        for addr in cluster.addrs() {
            set_user(addr, "app", &[acl_rules("app", true), more.to_vec()].concat()).await;
        }
    };
    with(&cluster, &[]).await;
    assert_denied(&Locks::open(&url).await.expect_err("no CLUSTER SLOTS"), "'cluster|slots'");
    with(&cluster, &["+cluster|slots"]).await;
    let (one, two) = (client(&url, LONG_TTL).await, client(&url, LONG_TTL).await);
    use_every_lock_kind(&one, &two).await;
    assert!(one.list("").await.expect("a list").is_empty());
    let slot = slot_of("moving");
    let from = cluster.owner_of(slot).await.expect("an owner");
    let migration = cluster.begin_migration(slot, (from + 1) % 3).await.expect("a started migration");
    assert_denied(&one.mutex("moving").lock().await.expect_err("no ASKING"), "'asking'");
    with(&cluster, &["+cluster|slots", "+cluster|info", "+asking"]).await;
    let admin = client(&cluster.url(), LONG_TTL).await;
    hand_off(&admin, &one, &two, "moving").await;
    cluster.finish_migration(migration).await.expect("a finished migration");
    hand_off(&admin, &one, &two, "moving").await;
}
