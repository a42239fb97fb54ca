//! `strict` in real time: waiters, holders, and fail-overs that lose data.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold::{ErrorKind, Guard, Locks, LostReason, Owner, ReleaseOutcome, Token};
use leasehold_testbed::redis::{Cluster, Redis, Reply, SentinelSet, slot_of};
use leasehold_testbed::{Data, eventually};

use crate::redis_deployments::deployment::{
    TEST_TIMEOUT, WaiterQueue, client, numbers_up_to, raw_command, stored_epoch, text, until_answering, until_waiting,
    within_bound,
};

/// The longest lease that any client may have: the length of the cool-down.
const LONGEST_LEASE: Duration = Duration::from_secs(8);
const TTL: Duration = Duration::from_secs(8);

fn strict_url(url: &str) -> String {
    strict_url_for(url, LONGEST_LEASE)
}

fn strict_url_for(url: &str, longest: Duration) -> String {
    format!("{url}?strict={}s", longest.as_secs())
}

/// Runs a cool-down test with growing longest leases until it succeeds. `false` means that the
/// cool-down or a lease ended too early, as on a busy machine.
async fn with_a_cool_down(test: impl AsyncFn(Duration) -> bool) {
    for longest in [8, 16, 32].map(Duration::from_secs) {
        if test(longest).await {
            return;
        }
    }
    panic!("no cool-down lasted until the test had checked it");
}

/// The server's time in microseconds, as in tokens.
async fn server_time_us(addr: SocketAddr) -> u64 {
    let Reply::Array(parts) = raw_command(addr, &["TIME"]).await else { panic!("no time") };
    let mut numbers = parts.into_iter().map(|part| text(part).parse::<u64>().expect("a number"));
    let (seconds, micros) = (numbers.next().expect("seconds"), numbers.next().expect("microseconds"));
    seconds * 1_000_000 + micros
}

/// The time since when a server is known to have lost no data; in a cluster, for this slot.
async fn epoch_start(addr: SocketAddr, slot: Option<u16>) -> u64 {
    let tag = slot.and_then(|slot| (0..).find(|number: &u32| slot_of(&number.to_string()) == slot));
    let key = tag.map_or("leasehold:e".to_owned(), |tag| format!("leasehold:e{{{tag}}}"));
    stored_epoch(addr, &key).await.start
}

/// The earliest start of a new lease.
async fn cool_down_end(addr: SocketAddr, slot: Option<u16>) -> Token {
    cool_down_end_for(addr, slot, LONGEST_LEASE).await
}

async fn cool_down_end_for(addr: SocketAddr, slot: Option<u16>, longest: Duration) -> Token {
    Token(epoch_start(addr, slot).await + longest.as_micros() as u64)
}

async fn is_cooling_down(addr: SocketAddr, longest: Duration) -> bool {
    Token(server_time_us(addr).await) < cool_down_end_for(addr, None, longest).await
}

/// Asserts that the grant waited for the cool-down of a server that replaced another.
async fn assert_cool_down_waited(guard: &Guard, addr: SocketAddr, slot: Option<u16>, died: u64) {
    let since = epoch_start(addr, slot).await;
    assert!(since > died, "the data loss was not detected: {since}, {died}");
    assert!(guard.token() >= cool_down_end(addr, slot).await, "granted too early: {guard:?}, {since}");
}

/// Acquires the lock, retrying through a fail-over: a waiter whose engine is unreachable for a TTL
/// gets a retryable error.
async fn acquire(locks: &Locks, name: &str) -> Guard {
    let retries = async {
        loop {
            match locks.mutex(name).lock().await {
                Err(error) if error.kind() == ErrorKind::Unavailable && error.is_retryable() => {}
                answer => break answer.expect("a lock"),
            }
        }
    };
    within_bound("the lock is granted", retries).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lossy_failover_never_makes_two_holders() {
    let mut set = SentinelSet::start(1).await.expect("a set");
    let url = strict_url(&set.url());
    let (one, two) = (client(&url, TTL).await, client(&url, TTL).await);
    set.cut_replication().await.expect("a stopped replication");
    let first = acquire(&one, "a").await;
    // The second client waits from before the fail-over until after it.
    let waiting = tokio::spawn(async move {
        let guard = acquire(&two, "a").await;
        (two, guard)
    });
    until_waiting(&one, "a", 1).await;
    let killed = server_time_us(set.nodes()[0].addr()).await;
    set.kill_master().await.expect("a dead master");
    set.resume_replicas().expect("a resumed replica");
    let new = set.wait_for_failover(TEST_TIMEOUT).await.expect("a fail-over");
    let (_two, second) = within_bound("the waiter gets the lock", waiting).await.expect("no panic");
    assert!(!first.is_held(), "two holders: {first:?} {second:?}");
    assert_cool_down_waited(&second, set.nodes()[new].addr(), None, killed).await;
    assert_eq!(second.release().await.expect("an answer"), ReleaseOutcome::Released);
}

/// The restart kept the data, but the clients cannot know. Holders keep their locks; no new claim
/// is granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_keeps_its_lock_through_the_cool_down() {
    with_a_cool_down(keeps_its_lock_through_the_cool_down).await;
}

async fn keeps_its_lock_through_the_cool_down(longest: Duration) -> bool {
    let mut server = Redis::new().args(&["--appendonly", "yes", "--appendfsync", "always"]).start().await.expect("one");
    let addr = server.addr();
    let url = strict_url_for(&server.url(), longest);
    let (one, two) = (client(&url, longest).await, client(&url, longest).await);
    let owner = Owner::new();
    let first = within_bound("a lock", one.mutex("a").owner(&owner).lock()).await.expect("a lock");
    let kept = acquire(&one, "b").await;
    let mut queue = WaiterQueue::default();
    let is_lost = || [&first, &kept].iter().any(|guard| guard.lost_reason() == Some(LostReason::Expired));
    let waits = queue.try_add_waiter(&two, "a").await;
    if is_lost() {
        return false;
    }
    assert!(waits, "granted while the lock was held");
    let before = epoch_start(addr, None).await;
    server.kill().expect("a dead server");
    server.restart(Data::Keep).await.expect("the same data");
    until_answering(&one).await;
    until_answering(&two).await;
    let waits = queue.try_add_waiter(&two, "a").await;
    if is_lost() {
        return false;
    }
    assert!(waits, "granted while the lock was held");
    // Possible as soon as the held lease is renewed.
    let again = eventually(TEST_TIMEOUT, || async {
        let again = one.mutex("a").owner(&owner).try_lock().await.map_err(|error| error.to_string())?;
        if again.is_some() || is_lost() { Ok(again) } else { Err("the owner cannot re-enter".to_owned()) }
    })
    .await;
    let another = two.mutex("c").try_lock().await;
    if !is_cooling_down(addr, longest).await || is_lost() {
        return false;
    }
    let again = again.expect("the owner re-enters before any other client");
    assert_eq!(again.token(), first.token());
    assert!(another.is_err_and(|error| error.to_string().contains("cools down")), "a new claim");
    assert_eq!(again.release().await.expect("an answer"), ReleaseOutcome::Released);
    assert_eq!(first.release().await.expect("an answer"), ReleaseOutcome::Released);
    // The lock is free now, but the cool-down still delays the waiters.
    let (order, tokens) = queue.wait_all_served().await;
    let cool_down_end = cool_down_end_for(addr, None, longest).await;
    assert!(cool_down_end.0 > before + longest.as_micros() as u64, "the new run restarts the cool-down");
    assert_eq!(order, numbers_up_to(2));
    assert!(tokens[0] >= cool_down_end, "{tokens:?} {cool_down_end:?}");
    match kept.release().await.expect("an answer") {
        ReleaseOutcome::AlreadyLost(LostReason::Expired) => false,
        outcome => {
            assert_eq!(outcome, ReleaseOutcome::Released, "renewed all the time");
            true
        }
    }
}

/// A master hangs and is replaced; the new master dies, and the old one is reinstated. It is the
/// same run of the same server, which missed everything in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reinstated_master_cools_down_too() {
    let mut set = SentinelSet::start(1).await.expect("a set");
    let url = strict_url(&set.url());
    let (one, two) = (client(&url, TTL).await, client(&url, TTL).await);
    let before = acquire(&one, "a").await;
    assert_eq!(before.release().await.expect("an answer"), ReleaseOutcome::Released);
    set.nodes_mut()[0].pause().expect("a pause");
    assert_eq!(set.wait_for_failover(TEST_TIMEOUT).await.expect("a fail-over"), 1);
    let held = acquire(&one, "a").await;
    let killed = server_time_us(set.nodes()[1].addr()).await;
    assert_eq!(set.kill_master().await.expect("a dead master"), 1);
    set.nodes_mut()[0].resume().expect("a resumed server");
    assert_eq!(set.wait_for_failover(TEST_TIMEOUT).await.expect("a fail-over"), 0);
    let next = acquire(&two, "a").await;
    assert!(!held.is_held(), "two holders: {held:?} {next:?}");
    assert_cool_down_waited(&next, set.nodes()[0].addr(), None, killed).await;
}

/// A fail-over of a cluster's master that loses data never makes two holders: each slot has its own
/// epoch record, written before the first lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lossy_cluster_failover_never_makes_two_holders() {
    let mut cluster = Cluster::start(3, 1).await.expect("a cluster");
    let (slot, key_count) = (slot_of("a"), async |addr| raw_command(addr, &["DBSIZE"]).await);
    let old = cluster.owner_of(slot).await.expect("an owner");
    let url = strict_url(&cluster.url());
    let (one, two) = (client(&url, TTL).await, client(&url, TTL).await);
    let refused = one.mutex("a").try_lock().await.expect_err("a cool-down");
    assert!(refused.to_string().contains("cools down"), "{refused}");
    assert_eq!(acquire(&one, "a").await.release().await.expect("an answer"), ReleaseOutcome::Released);
    cluster.cut_replication(old).await.expect("a stopped replication");
    let first = acquire(&one, "a").await;
    let killed = server_time_us(cluster.nodes()[old].addr()).await;
    cluster.kill_node(old).expect("a dead master");
    cluster.resume_replicas().expect("a resumed replica");
    let new = cluster.wait_for_failover(slot, TEST_TIMEOUT).await.expect("a fail-over");
    let second = acquire(&two, "a").await;
    assert!(!first.is_held(), "two holders: {first:?} {second:?}");
    assert_cool_down_waited(&second, cluster.nodes()[new].addr(), Some(slot), killed).await;
    let known = key_count(cluster.nodes()[new].addr()).await;
    assert!(matches!(known, Reply::Integer(5000..)), "the cool-down of every slot has begun: {known:?}");
    assert_eq!(second.release().await.expect("an answer"), ReleaseOutcome::Released);
}
