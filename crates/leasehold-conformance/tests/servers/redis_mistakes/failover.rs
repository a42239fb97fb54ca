//! A master dies before it replicated a lock.

use std::time::Duration;

use leasehold::Locks;
use leasehold::fence::Fence;
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::eventually;
use leasehold_testbed::redis::SentinelSet;

use super::timeline::{LOCK, TextbookClient, Timeline, client, elapsed_text, now};

/// The TTL in strict mode, and the length of the cool-down.
const TTL: Duration = Duration::from_secs(20);

/// A textbook client of the master that the Sentinels report.
async fn textbook_client_of_master<'a>(
    steps: &'a Timeline,
    who: &'static str,
    set: &SentinelSet,
) -> TextbookClient<'a> {
    let mut sentinel = steps.textbook_client(who, set.sentinel_addrs()[0]).await;
    let named = sentinel.run("SENTINEL GET-MASTER-ADDR-BY-NAME mymaster").await;
    steps.textbook_client(who, named.replace(' ', ":").parse().expect("an address")).await
}

/// Two clients with the same options.
struct TwoClients {
    a: Locks,
    b: Locks,
}

impl TwoClients {
    async fn open(url: &str, ttl: Duration) -> Self {
        Self { a: client(url, ttl).await, b: client(url, ttl).await }
    }
}

/// Default mode: there may be two holders for a moment. The first learns of its loss, and the fence
/// rejects its token.
async fn show_default_mode(steps: &Timeline, pair: &TwoClients, old: &leasehold::Guard) {
    let resource = Fence::default();
    resource.admit(LOCK, old.token()).expect("the only token so far");
    let new = steps.lock_here("B", &pair.b).await;
    let reason = tokio::time::timeout(TEST_TIMEOUT, old.lost()).await.expect("A learns that it lost the lock");
    steps.record_call("A", "lost().await", reason);
    assert!(!old.is_held());
    resource.admit(LOCK, new.token()).expect("a newer token");
    steps.record_call("B", "write with its token", "done");
    let stale = resource.admit(LOCK, old.token()).expect_err("an older token");
    steps.record_call("A", "write with its token", format!("refused: {stale}"));
    steps.record_conclusion(
        "A learns of the loss at its next request to the new master; the fence rejects its token anyway",
    );
}

/// Strict mode: no new holder before the old lease is over.
async fn show_strict_mode(
    steps: &Timeline,
    pair: &TwoClients,
    old: &leasehold::Guard,
    killed: leasehold::clock::Instant,
) {
    // `try_lock` does not wait for a client that has yet to find the new master.
    let refused = eventually(TEST_TIMEOUT, || async {
        match pair.b.mutex(LOCK).try_lock().await {
            Err(error) if error.to_string().contains("cools down") => Ok(error),
            Err(error) => Err(error.to_string()),
            Ok(answer) => panic!("the new master answers during its cool-down: {answer:?}"),
        }
    })
    .await;
    steps.record_call("B", "try_lock().await", format!("{:?}: it cools down (strict)", refused.kind()));
    let new = pair.b.mutex(LOCK).timeout(TEST_TIMEOUT).lock().await.expect("the lock after the cool-down");
    let held = old.is_held();
    steps.record_call(
        "B",
        "lock().await",
        format!("token {}, {} after the master's death", new.token(), elapsed_text(killed)),
    );
    steps.record_call("A", "is_held()", held);
    assert!(!held, "two holders in strict mode");
    assert!(new.token() > old.token());
    steps.record_conclusion(
        "a server that may have lost leases grants no new lock until the longest of them has expired",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fail_over_that_loses_the_lock() {
    let steps = Timeline::start("A fail-over that loses the lock");
    let mut set = SentinelSet::start(1).await.expect("a set");
    let loose = TwoClients::open(&set.url(), LONG_TTL).await;
    let strict = TwoClients::open(&format!("{}?strict=20s&prefix=strict:", set.url()), TTL).await;
    // Strict mode also cools down on a server that it sees for the first time.
    drop(strict.a.mutex("warm-up").timeout(TEST_TIMEOUT).lock().await.expect("a lock"));
    set.cut_replication().await.expect("a stopped replication");

    steps.begin_section("before");
    let mut a = textbook_client_of_master(&steps, "A (the textbook)", &set).await;
    assert_eq!(a.run("SET lock A NX PX 60000").await, "OK");
    let loose_a = steps.lock_here("A (leasehold)", &loose.a).await;
    let strict_a = steps.lock_here("A (leasehold, ?strict=20s, TTL 20 s)", &strict.a).await;
    set.kill_master().await.expect("a dead master");
    let killed = now();
    set.resume_replicas().expect("a replica");
    steps.record_event("the master dies (SIGKILL) before its replica has received any of these writes");
    set.wait_for_failover(TEST_TIMEOUT).await.expect("a new master");
    steps.record_event(&format!("the Sentinels promote the replica, {} later", elapsed_text(killed)));

    steps.begin_section("the textbook");
    let mut b = textbook_client_of_master(&steps, "B", &set).await;
    assert_eq!(b.run("SET lock B NX PX 60000").await, "OK");
    assert_eq!(b.run("GET lock").await, "B");
    steps.record_conclusion("A and B both hold the lock, and A does not learn of it");

    steps.begin_section("leasehold");
    show_default_mode(&steps, &loose, &loose_a).await;
    steps.begin_section("leasehold, strict");
    show_strict_mode(&steps, &strict, &strict_a, killed).await;
    steps.finish();
}
