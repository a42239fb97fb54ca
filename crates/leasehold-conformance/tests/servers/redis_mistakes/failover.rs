//! A master dies with a lock that no replica has heard of.

use std::time::Duration;

use leasehold::Locks;
use leasehold::fence::Fence;
use leasehold_conformance::world::{LONG, SOON};
use leasehold_testbed::eventually;
use leasehold_testbed::redis::SentinelSet;

use super::story::{LOCK, Naive, Story, client, now, since};

/// The TTL of strict mode, which is what nobody new gets in for.
const TTL: Duration = Duration::from_secs(20);

/// A textbook client of the master that the Sentinels name.
async fn naive<'a>(story: &'a Story, who: &'static str, set: &SentinelSet) -> Naive<'a> {
    let mut asking = story.naive(who, set.sentinel_addrs()[0]).await;
    let named = asking.does("SENTINEL GET-MASTER-ADDR-BY-NAME mymaster").await;
    story.naive(who, named.replace(' ', ":").parse().expect("an address")).await
}

/// Two clients that use leasehold in one way.
struct Pair {
    a: Locks,
    b: Locks,
}

impl Pair {
    async fn open(url: &str, ttl: Duration) -> Self {
        Self { a: client(url, ttl).await, b: client(url, ttl).await }
    }
}

/// The default mode: there may be two for a moment; the first is told, and its token is refused.
async fn by_default(story: &Story, pair: &Pair, old: &leasehold::Guard) {
    let resource = Fence::default();
    resource.admit(LOCK, old.token()).expect("the only token so far");
    let new = story.lock("B", &pair.b).await;
    let reason = tokio::time::timeout(SOON, old.lost()).await.expect("A is told");
    story.says("A", "lost().await", reason);
    assert!(!old.is_held());
    resource.admit(LOCK, new.token()).expect("a newer token");
    story.says("B", "write with its token", "done");
    let stale = resource.admit(LOCK, old.token()).expect_err("an older token");
    story.says("A", "write with its token", format!("refused: {stale}"));
    story.so("A is told as soon as the new master is asked, and is fenced off in any case");
}

/// Strict mode: nobody new gets in before the old lease is over.
async fn strictly(story: &Story, pair: &Pair, old: &leasehold::Guard, killed: leasehold::clock::Moment) {
    // A try does not wait for a client that has yet to find the new master.
    let early = eventually(SOON, || async { pair.b.mutex(LOCK).try_lock().await }).await;
    assert!(early.is_none(), "the new master lets somebody in at once");
    story.busy("B", &pair.b).await;
    let new = pair.b.mutex(LOCK).wait(SOON).lock().await.expect("the lock, at last");
    let held = old.is_held();
    story.says("B", "lock().await", format!("token {}, {} after the master's death", new.token(), since(killed)));
    story.says("A", "is_held()", held);
    assert!(!held, "two holders in strict mode");
    assert!(new.token() > old.token());
    story.so("a server that may have forgotten leases lets nobody new in until the longest is over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fail_over_that_loses_the_lock() {
    let story = Story::begin("A fail-over that loses the lock");
    let mut set = SentinelSet::start(1).await.expect("a set");
    let loose = Pair::open(&set.url(), LONG).await;
    let strict = Pair::open(&format!("{}?strict=20s&prefix=strict:", set.url()), TTL).await;
    // A server that strict mode does not know yet may have forgotten something, too.
    drop(strict.a.mutex("warm-up").wait(SOON).lock().await.expect("a lock"));
    set.cut_replication().await.expect("a cut");

    story.part("before");
    let mut a = naive(&story, "A (the textbook)", &set).await;
    assert_eq!(a.does("SET lock A NX PX 60000").await, "OK");
    let loose_a = story.lock("A (leasehold)", &loose.a).await;
    let strict_a = story.lock("A (leasehold, ?strict=20s, TTL 20 s)", &strict.a).await;
    set.kill_master().await.expect("a dead master");
    let killed = now();
    set.resume_replicas().expect("a replica");
    story.tell("the master dies (SIGKILL) before its replica has heard of any of this");
    set.failed_over(SOON).await.expect("a new master");
    story.tell(&format!("the Sentinels make the replica the master, {} later", since(killed)));

    story.part("the textbook");
    let mut b = naive(&story, "B", &set).await;
    assert_eq!(b.does("SET lock B NX PX 60000").await, "OK");
    assert_eq!(b.does("GET lock").await, "B");
    story.so("A and B both hold it, and nobody tells A");

    story.part("leasehold");
    by_default(&story, &loose, &loose_a).await;
    story.part("leasehold, strict");
    strictly(&story, &strict, &strict_a, killed).await;
    story.end();
}
