//! `strict`, as time passes by itself: who waits, who goes on, and what fail-overs forget.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold::{ErrorKind, Guard, Locks, LostReason, Owner, ReleaseOutcome, Token};
use leasehold_testbed::redis::{Cluster, Redis, Reply, SentinelSet, slot_of};
use leasehold_testbed::{Data, eventually};

use crate::redis_deployments::deployment::{
    TEST_TIMEOUT, WaiterQueue, client, numbers_up_to, raw_command, text, until_answering, until_waiting, within_bound,
};

/// The longest lease, and the one that is used.
const LONGEST_LEASE: Duration = Duration::from_secs(8);
const TTL: Duration = Duration::from_secs(8);

fn strict_url(url: &str) -> String {
    strict_url_for(url, LONGEST_LEASE)
}

fn strict_url_for(url: &str, longest: Duration) -> String {
    format!("{url}?strict={}s", longest.as_secs())
}

/// Runs a test of what happens during a cool-down, with one longest lease after the other until a try shows it. `false`: on a busy
/// machine the cool-down, or a lease, was over before. A longer one has to show the same.
async fn with_a_cool_down(test: impl AsyncFn(Duration) -> bool) {
    for longest in [8, 16, 32].map(Duration::from_secs) {
        if test(longest).await {
            return;
        }
    }
    panic!("no cool-down lasted until the test had looked");
}

/// The server's time, in microseconds, as tokens are.
async fn server_time_us(addr: SocketAddr) -> u64 {
    let Reply::Array(parts) = raw_command(addr, &["TIME"]).await else { panic!("no time") };
    let mut numbers = parts.into_iter().map(|part| text(part).parse::<u64>().expect("a number"));
    let (seconds, micros) = (numbers.next().expect("seconds"), numbers.next().expect("microseconds"));
    seconds * 1_000_000 + micros
}

/// Since when a server is known to forget nothing; in a cluster, in this slot.
async fn epoch_start(addr: SocketAddr, slot: Option<u16>) -> u64 {
    let tag = slot.and_then(|slot| (0..).find(|number: &u32| slot_of(&number.to_string()) == slot));
    let key = tag.map_or("leasehold:e".to_owned(), |tag| format!("leasehold:e{{{tag}}}"));
    text(raw_command(addr, &["GET", &key]).await)[..16].parse().expect("a number")
}

/// When the first new lease may begin.
async fn cool_down_end(addr: SocketAddr, slot: Option<u16>) -> Token {
    cool_down_end_for(addr, slot, LONGEST_LEASE).await
}

async fn cool_down_end_for(addr: SocketAddr, slot: Option<u16>, longest: Duration) -> Token {
    Token(epoch_start(addr, slot).await + longest.as_micros() as u64)
}

async fn is_cooling_down(addr: SocketAddr, longest: Duration) -> bool {
    Token(server_time_us(addr).await) < cool_down_end_for(addr, None, longest).await
}

/// A server that took another's place was waited for, since it did.
async fn assert_cool_down_waited(guard: &Guard, addr: SocketAddr, slot: Option<u16>, died: u64) {
    let since = epoch_start(addr, slot).await;
    assert!(since > died, "it was not noticed that it had missed something: {since}, {died}");
    assert!(guard.token() >= cool_down_end(addr, slot).await, "granted too early: {guard:?}, {since}");
}

/// Takes the lock, however long a fail-over takes: after a TTL of silence whoever waits is told so, and comes again.
async fn acquire(locks: &Locks, name: &str) -> Guard {
    let come_again = async {
        loop {
            match locks.mutex(name).lock().await {
                Err(error) if error.kind() == ErrorKind::Unavailable && error.is_retryable() => {}
                answer => break answer.expect("a lock"),
            }
        }
    };
    within_bound("the lock is granted", come_again).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lossy_failover_never_makes_two_holders() {
    let mut set = SentinelSet::start(1).await.expect("a set");
    let url = strict_url(&set.url());
    let (one, two) = (client(&url, TTL).await, client(&url, TTL).await);
    set.cut_replication().await.expect("a cut");
    let first = acquire(&one, "a").await;
    // It waits from before the fail-over until after it.
    let waiting = tokio::spawn(async move {
        let guard = acquire(&two, "a").await;
        (two, guard)
    });
    until_waiting(&one, "a", 1).await;
    let killed = server_time_us(set.nodes()[0].addr()).await;
    set.kill_master().await.expect("a dead master");
    set.resume_replicas().expect("a replica that goes on");
    let new = set.wait_for_failover(TEST_TIMEOUT).await.expect("a fail-over");
    let (_two, second) = within_bound("the one who waited", waiting).await.expect("no panic");
    assert!(!first.is_held(), "two hold it: {first:?} {second:?}");
    assert_cool_down_waited(&second, set.nodes()[new].addr(), None, killed).await;
    assert_eq!(second.release().await.expect("an answer"), ReleaseOutcome::Released);
}

/// The data survived the restart, but nobody can know that. Whoever holds goes on; nobody new comes in.
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
    let mut line = WaiterQueue::default();
    let is_lost = || [&first, &kept].iter().any(|guard| guard.lost_reason() == Some(LostReason::Expired));
    let waits = line.try_add_waiter(&two, "a").await;
    if is_lost() {
        return false;
    }
    assert!(waits, "granted while it was held");
    let before = epoch_start(addr, None).await;
    server.kill().expect("a dead server");
    server.restart(Data::Keep).await.expect("the same data");
    until_answering(&one).await;
    until_answering(&two).await;
    let waits = line.try_add_waiter(&two, "a").await;
    if is_lost() {
        return false;
    }
    assert!(waits, "granted while it was held");
    // As soon as what it has was renewed.
    let again = eventually(TEST_TIMEOUT, || async {
        let again = one.mutex("a").owner(&owner).try_lock().await.map_err(|error| error.to_string())?;
        if again.is_some() || is_lost() { Ok(again) } else { Err("its owner does not come in".to_owned()) }
    })
    .await;
    let another = two.mutex("c").try_lock().await;
    if !is_cooling_down(addr, longest).await || is_lost() {
        return false;
    }
    let again = again.expect("the owner comes in before anybody else");
    assert_eq!(again.token(), first.token());
    assert!(another.is_err_and(|error| error.to_string().contains("cools down")), "a new claim");
    assert_eq!(again.release().await.expect("an answer"), ReleaseOutcome::Released);
    assert_eq!(first.release().await.expect("an answer"), ReleaseOutcome::Released);
    // It is free now, and they wait nevertheless.
    let (order, tokens) = line.wait_all_served().await;
    let thaws = cool_down_end_for(addr, None, longest).await;
    assert!(thaws.0 > before + longest.as_micros() as u64, "the new run began to count anew");
    assert_eq!(order, numbers_up_to(2));
    assert!(tokens[0] >= thaws, "{tokens:?} {thaws:?}");
    match kept.release().await.expect("an answer") {
        ReleaseOutcome::AlreadyLost(LostReason::Expired) => false,
        outcome => {
            assert_eq!(outcome, ReleaseOutcome::Released, "renewed all the time");
            true
        }
    }
}

/// A master hangs and is replaced; its successor dies, and it is the master again: the same run of the same server, which
/// knows nothing of what happened meanwhile.
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
    set.nodes_mut()[0].resume().expect("it goes on");
    assert_eq!(set.wait_for_failover(TEST_TIMEOUT).await.expect("a fail-over"), 0);
    let next = acquire(&two, "a").await;
    assert!(!held.is_held(), "two hold it: {held:?} {next:?}");
    assert_cool_down_waited(&next, set.nodes()[0].addr(), None, killed).await;
}

/// The same in a cluster: each slot has its own word on it, and it is there before the first lock is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lossy_cluster_failover_never_makes_two_holders() {
    let mut cluster = Cluster::start(3, 1).await.expect("a cluster");
    let (slot, words) = (slot_of("a"), async |addr| raw_command(addr, &["DBSIZE"]).await);
    let old = cluster.owner_of(slot).await.expect("an owner");
    let url = strict_url(&cluster.url());
    let (one, two) = (client(&url, TTL).await, client(&url, TTL).await);
    let refused = one.mutex("a").try_lock().await.expect_err("a cool-down");
    assert!(refused.to_string().contains("cools down"), "{refused}");
    assert_eq!(acquire(&one, "a").await.release().await.expect("an answer"), ReleaseOutcome::Released);
    cluster.cut_replication(old).await.expect("a cut");
    let first = acquire(&one, "a").await;
    let killed = server_time_us(cluster.nodes()[old].addr()).await;
    cluster.kill_node(old).expect("a dead master");
    cluster.resume_replicas().expect("a replica that goes on");
    let new = cluster.wait_for_failover(slot, TEST_TIMEOUT).await.expect("a fail-over");
    let second = acquire(&two, "a").await;
    assert!(!first.is_held(), "two hold it: {first:?} {second:?}");
    assert_cool_down_waited(&second, cluster.nodes()[new].addr(), Some(slot), killed).await;
    let known = words(cluster.nodes()[new].addr()).await;
    assert!(matches!(known, Reply::Integer(5000..)), "every slot's wait has begun, not only this one's: {known:?}");
    assert_eq!(second.release().await.expect("an answer"), ReleaseOutcome::Released);
}
