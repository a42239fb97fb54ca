//! `strict`, as time passes by itself: who waits, who goes on, and what fail-overs forget.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold::{ErrorKind, Guard, Locks, Outcome, Owner, Token};
use leasehold_testbed::redis::{Cluster, Redis, Reply, SentinelSet, slot_of};
use leasehold_testbed::{Data, eventually, redis};

use crate::redis_deployments::deployment::{
    BOUND, Line, client, in_order, raw, soon, text, until_answering, until_waiting,
};

/// The longest lease, and the one that is used.
const MOST: Duration = Duration::from_secs(8);
const TTL: Duration = Duration::from_secs(8);

fn strict(url: &str) -> String {
    format!("{url}?strict={}s", MOST.as_secs())
}

/// The server's time, in microseconds, as tokens are.
async fn time(addr: SocketAddr) -> u64 {
    let Reply::Array(parts) = raw(addr, &["TIME"]).await else { panic!("no time") };
    let mut numbers = parts.into_iter().map(|part| text(part).parse::<u64>().expect("a number"));
    let (seconds, micros) = (numbers.next().expect("seconds"), numbers.next().expect("microseconds"));
    seconds * 1_000_000 + micros
}

/// Since when a server is known to forget nothing; in a cluster, in this slot.
async fn known_since(addr: SocketAddr, slot: Option<u16>) -> u64 {
    let tag = slot.and_then(|slot| (0..).find(|number: &u32| slot_of(&number.to_string()) == slot));
    let key = tag.map_or("leasehold:e".to_owned(), |tag| format!("leasehold:e{{{tag}}}"));
    text(raw(addr, &["GET", &key]).await)[..16].parse().expect("a number")
}

/// When the first new lease may begin.
async fn thaws(addr: SocketAddr, slot: Option<u16>) -> Token {
    Token(known_since(addr, slot).await + MOST.as_micros() as u64)
}

/// A server that took another's place was waited for, since it did.
async fn waited_for(guard: &Guard, addr: SocketAddr, slot: Option<u16>, died: u64) {
    let since = known_since(addr, slot).await;
    assert!(since > died, "it was not noticed that it had missed something: {since}, {died}");
    assert!(guard.token() >= thaws(addr, slot).await, "granted too early: {guard:?}, {since}");
}

/// Takes the lock, however long a fail-over takes: after a TTL of silence whoever waits is told so, and comes again.
async fn take(locks: &Locks, name: &str) -> Guard {
    let come_again = async {
        loop {
            match locks.mutex(name).lock().await {
                Err(error) if error.kind() == ErrorKind::Unavailable && error.is_retryable() => {}
                answer => break answer.expect("a lock"),
            }
        }
    };
    soon("the lock is granted", come_again).await
}

/// Somebody else gets the lock when the old holder does not rely on it any more, and not before the time is over.
async fn taken_over(locks: &Locks, old: &Guard, addr: SocketAddr) -> Guard {
    let new = take(locks, old.name().as_str()).await;
    assert!(!old.is_held(), "two hold it: {old:?} {new:?}");
    assert!(new.token() >= thaws(addr, None).await, "granted too early: {new:?}");
    assert!(new.token() > old.token());
    new
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_let_in_at_first() {
    let server = redis::start().await.expect("a server");
    let locks = client(&strict(&server.url()), TTL).await;
    assert!(locks.mutex("a").try_lock().await.expect("an answer").is_none(), "who knows what was here before?");
    assert!(locks.all(["a", "b"]).try_lock().await.expect("an answer").is_none());
    let mut line = Line::default();
    for _ in 0..3 {
        line.join(&locks, "a").await;
    }
    let (order, tokens) = line.served().await;
    assert_eq!(order, in_order(3), "those who came meanwhile are served in their order");
    assert!(tokens[0] >= thaws(server.addr(), None).await, "{tokens:?}");
    // From now on there is nothing to wait for, for whoever comes.
    let other = client(&strict(&server.url()), TTL).await;
    let guard = other.mutex("b").try_lock().await.expect("an answer").expect("a free lock");
    assert_eq!(guard.release().await.expect("an answer"), Outcome::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_empty_or_is_emptied_lets_nobody_in() {
    let mut server = redis::start().await.expect("a server");
    let addr = server.addr();
    let (one, two) = (client(&strict(&server.url()), TTL).await, client(&strict(&server.url()), TTL).await);
    let first = take(&one, "a").await;
    server.kill().expect("a dead server");
    server.restart(Data::Wipe).await.expect("an empty one");
    let second = taken_over(&two, &first, addr).await;
    assert_eq!(raw(addr, &["FLUSHALL"]).await, Reply::Simple("OK".to_owned()));
    let third = taken_over(&one, &second, addr).await;
    assert_eq!(third.release().await.expect("an answer"), Outcome::Released);
}

/// A replica may have missed that a lock was given back, and to whom it went then: its owner does not come in again by what is written there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_does_not_come_in_again_by_what_is_out_of_date() {
    let mut server = Redis::new().args(&["--appendonly", "yes", "--appendfsync", "always"]).start().await.expect("one");
    let url = strict(&server.url());
    let (ours, theirs) = (client(&url, TTL).await, client(&url, TTL).await);
    let owner = Owner::named("p");
    let first = soon("the lock", ours.mutex("a").owner(&owner).lock()).await.expect("a lock");
    let key = "leasehold:l{a}";
    assert_eq!(raw(server.addr(), &["COPY", key, "old"]).await, Reply::Integer(1), "the record is under another key");
    assert_eq!(first.release().await.expect("a release"), Outcome::Released);
    let held = soon("the lock", theirs.mutex("a").lock()).await.expect("a lock");
    server.kill().expect("killed");
    server.restart(Data::Keep).await.expect("back");
    assert_eq!(raw(server.addr(), &["COPY", "old", key, "REPLACE"]).await, Reply::Integer(1));
    until_answering(&ours).await;
    let again = ours.mutex("a").owner(&owner).try_lock().await.expect("an answer");
    let now = Token(time(server.addr()).await);
    assert!(now < thaws(server.addr(), None).await, "too late to show anything");
    assert!(again.is_none(), "it came in by a hold that it had given back, while another held it: {again:?} {held:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_that_forgets_never_makes_two_holders() {
    let mut set = SentinelSet::start(1).await.expect("a set");
    let url = strict(&set.url());
    let (one, two) = (client(&url, TTL).await, client(&url, TTL).await);
    set.cut_replication().await.expect("a cut");
    let first = take(&one, "a").await;
    // It waits from before the fail-over until after it.
    let waiting = tokio::spawn(async move {
        let guard = take(&two, "a").await;
        (two, guard)
    });
    until_waiting(&one, "a", 1).await;
    let killed = time(set.nodes()[0].addr()).await;
    set.kill_master().await.expect("a dead master");
    set.resume_replicas().expect("a replica that goes on");
    let new = set.failed_over(BOUND).await.expect("a fail-over");
    let (_two, second) = soon("the one who waited", waiting).await.expect("no panic");
    assert!(!first.is_held(), "two hold it: {first:?} {second:?}");
    waited_for(&second, set.nodes()[new].addr(), None, killed).await;
    assert_eq!(second.release().await.expect("an answer"), Outcome::Released);
}

/// The data survived the restart, but nobody can know that. Whoever holds goes on; nobody new comes in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_holds_goes_on_through_it() {
    let mut server = Redis::new().args(&["--appendonly", "yes", "--appendfsync", "always"]).start().await.expect("one");
    let addr = server.addr();
    let (one, two) = (client(&strict(&server.url()), TTL).await, client(&strict(&server.url()), TTL).await);
    let owner = Owner::new();
    let first = soon("a lock", one.mutex("a").owner(&owner).lock()).await.expect("a lock");
    let kept = take(&one, "b").await;
    let mut line = Line::default();
    line.join(&two, "a").await;
    let before = known_since(addr, None).await;
    server.kill().expect("a dead server");
    server.restart(Data::Keep).await.expect("the same data");
    until_answering(&one).await;
    until_answering(&two).await;
    line.join(&two, "a").await;
    // As soon as what it has was renewed.
    let again = eventually(BOUND, || async {
        let again = one.mutex("a").owner(&owner).try_lock().await.map_err(|error| error.to_string())?;
        again.ok_or_else(|| "its owner does not come in".to_owned())
    })
    .await;
    assert!(time(addr).await < thaws(addr, None).await.0, "before anybody else");
    assert_eq!(again.token(), first.token());
    assert!(two.mutex("c").try_lock().await.expect("an answer").is_none(), "nobody new");
    assert_eq!(again.release().await.expect("an answer"), Outcome::Released);
    assert_eq!(first.release().await.expect("an answer"), Outcome::Released);
    // It is free now, and they wait nevertheless.
    let (order, tokens) = line.served().await;
    let thaws = thaws(addr, None).await;
    assert!(thaws.0 > before + MOST.as_micros() as u64, "the new run began to count anew");
    assert_eq!(order, in_order(2));
    assert!(tokens[0] >= thaws, "{tokens:?} {thaws:?}");
    assert!(kept.is_held(), "renewed all the time");
    assert_eq!(kept.release().await.expect("an answer"), Outcome::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_longer_than_the_longest_is_refused() {
    let server = redis::start().await.expect("a server");
    let locks = client(&strict(&server.url()), TTL).await;
    let refused = locks.mutex("a").ttl(MOST + Duration::from_millis(1)).lock().await.expect_err("too long");
    assert_eq!(refused.kind(), ErrorKind::InvalidOption, "{refused}");
    assert!(refused.to_string().contains("8s"), "it says what is allowed: {refused}");
    // The longest of all that were ever named counts for everybody.
    let guard = take(&locks, "a").await;
    let longer = client(&format!("{}?strict=60s", server.url()), TTL).await;
    assert!(longer.mutex("b").try_lock().await.expect("an answer").is_none(), "its leases may have been forgotten");
    assert!(locks.mutex("b").try_lock().await.expect("an answer").is_none(), "for others, too");
    assert!(guard.is_held());
    assert_eq!(guard.release().await.expect("an answer"), Outcome::Released);
}

/// A master hangs and is replaced; its successor dies, and it is the master again: the same run of the same server, which
/// knows nothing of what happened meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_called_back_has_forgotten_too() {
    let mut set = SentinelSet::start(1).await.expect("a set");
    let url = strict(&set.url());
    let (one, two) = (client(&url, TTL).await, client(&url, TTL).await);
    let before = take(&one, "a").await;
    assert_eq!(before.release().await.expect("an answer"), Outcome::Released);
    set.nodes_mut()[0].pause().expect("a pause");
    assert_eq!(set.failed_over(BOUND).await.expect("a fail-over"), 1);
    let held = take(&one, "a").await;
    let killed = time(set.nodes()[1].addr()).await;
    assert_eq!(set.kill_master().await.expect("a dead master"), 1);
    set.nodes_mut()[0].resume().expect("it goes on");
    assert_eq!(set.failed_over(BOUND).await.expect("a fail-over"), 0);
    let next = take(&two, "a").await;
    assert!(!held.is_held(), "two hold it: {held:?} {next:?}");
    waited_for(&next, set.nodes()[0].addr(), None, killed).await;
}

/// The same in a cluster: each slot has its own word on it, and it is there before the first lock is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_forgets_never_makes_two_holders() {
    let mut cluster = Cluster::start(3, 1).await.expect("a cluster");
    let (slot, words) = (slot_of("a"), async |addr| raw(addr, &["DBSIZE"]).await);
    let old = cluster.owner_of(slot).await.expect("an owner");
    let url = strict(&cluster.url());
    let (one, two) = (client(&url, TTL).await, client(&url, TTL).await);
    assert!(one.mutex("a").try_lock().await.expect("an answer").is_none(), "who knows what was here before?");
    assert_eq!(take(&one, "a").await.release().await.expect("an answer"), Outcome::Released);
    cluster.cut_replication(old).await.expect("a cut");
    let first = take(&one, "a").await;
    let killed = time(cluster.nodes()[old].addr()).await;
    cluster.kill_node(old).expect("a dead master");
    cluster.resume_replicas().expect("a replica that goes on");
    let new = cluster.failed_over(slot, BOUND).await.expect("a fail-over");
    let second = take(&two, "a").await;
    assert!(!first.is_held(), "two hold it: {first:?} {second:?}");
    waited_for(&second, cluster.nodes()[new].addr(), Some(slot), killed).await;
    let known = words(cluster.nodes()[new].addr()).await;
    assert!(matches!(known, Reply::Integer(5000..)), "every slot's wait has begun, not only this one's: {known:?}");
    assert_eq!(second.release().await.expect("an answer"), Outcome::Released);
}
