//! Many leases on `redis:` are renewed in bundles: they last, and whatever happens to one of them is noticed.
#![allow(clippy::expect_used, reason = "a test: what fails here is the finding")]

use std::time::Duration;

use leasehold::{Guard, Locks, LostReason, Outcome};
use leasehold_conformance::world::SOON;
use leasehold_testbed::redis::{Reply, Resp};
use leasehold_testbed::{Data, Server, eventually, redis};

const TTL: Duration = Duration::from_millis(1500);
const LEASES: usize = 400;

async fn open(server: &Server) -> Locks {
    Locks::builder().ttl(TTL).open(&server.url()).await.expect("the engine")
}

async fn raw(server: &Server) -> Resp {
    Resp::connect(server.addr()).await.expect("a raw connection")
}

async fn hold(locks: &Locks) -> Vec<Guard> {
    // At once, so that they are due together: a few that are due alone are too few for a bundle.
    let taking = (0..LEASES).map(|number| {
        let mutex = locks.mutex(format!("lock {number}"));
        async move { mutex.lock().await.expect("a lock") }
    });
    futures_util::future::join_all(taking).await
}

/// How many bundles the server has.
async fn bundles(server: &Server) -> usize {
    match raw(server).await.command(&["KEYS", "leasehold:b*"]).await.expect("an answer") {
        Reply::Array(keys) => keys.len(),
        other => panic!("{other:?}"),
    }
}

/// Waits until the leases are in bundles.
async fn bundled(server: &Server) {
    eventually(SOON, || async { if bundles(server).await > 0 { Ok(()) } else { Err("no bundle so far".to_owned()) } })
        .await;
}

/// How many fields of locks the server has written.
async fn writes(server: &Server) -> u64 {
    let stats = raw(server).await.command(&["INFO", "commandstats"]).await.expect("an answer");
    let Reply::Bulk(stats) = stats else { panic!("no statistics") };
    let calls = |line: &str| line.strip_prefix("cmdstat_hset:calls=")?.split(',').next()?.parse().ok();
    stats.lines().find_map(calls).unwrap_or(0)
}

/// Waits until every lease has been renewed for so many TTLs more.
async fn renewed(guards: &[Guard], ttls: u32) {
    let first: Vec<_> = guards.iter().map(Guard::deadline).collect();
    eventually(SOON, || async {
        let late = guards.iter().zip(&first).find(|(guard, first)| guard.deadline() < first.after(TTL * ttls));
        late.map_or(Ok(()), |(guard, _)| Err(format!("{guard:?}")))
    })
    .await;
    assert!(guards.iter().all(Guard::is_held), "all are held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_outlast_many_ttls_with_few_scripts_and_can_be_given_back() {
    let server = redis::start().await.expect("a server");
    let locks = open(&server).await;
    let guards = hold(&locks).await;
    bundled(&server).await;
    // Until all of them are in bundles, some are still written by themselves.
    renewed(&guards, 1).await;
    let before = writes(&server).await;
    renewed(&guards, 4).await;
    let wrote = writes(&server).await - before;
    // By themselves they would have been written 12 times each.
    assert!(wrote < LEASES as u64, "{wrote} writes in four TTLs");
    let view = locks.inspect("lock 7").await.expect("a view");
    assert_eq!(view.holders[0].token, Some(guards[7].token()));
    assert!(view.holders[0].left > Duration::ZERO && view.holders[0].left <= TTL, "{view:?}");
    assert_eq!(locks.list("").await.expect("a list").len(), LEASES);
    for guard in guards {
        assert_eq!(guard.release().await.expect("a release"), Outcome::Released);
    }
    assert!(locks.list("").await.expect("a list").is_empty());
    assert!(locks.mutex("lock 7").try_lock().await.expect("an answer").is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_waited_for_leaves_its_bundle_and_is_handed_over() {
    let server = redis::start().await.expect("a server");
    let (locks, other) = (open(&server).await, open(&server).await);
    let mut guards = hold(&locks).await;
    bundled(&server).await;
    let waiter = tokio::spawn({
        let mutex = other.mutex("lock 3").wait(SOON);
        async move { mutex.lock().await }
    });
    eventually(SOON, || async {
        let view = other.inspect("lock 3").await.map_err(|error| error.to_string())?;
        if view.waiters.len() == 1 { Ok(()) } else { Err(format!("{view:?}")) }
    })
    .await;
    // Those in the bundle, and the one that left it.
    renewed(&guards, 2).await;
    assert!(other.mutex("lock 4").try_lock().await.expect("an answer").is_none(), "still another's");
    let token = guards[3].token();
    assert_eq!(guards.remove(3).release().await.expect("a release"), Outcome::Released);
    let next = waiter.await.expect("no panic").expect("a lock");
    assert!(next.token() > token);
    renewed(&guards, 2).await;
    assert!(next.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_evicted_lease_and_a_deleted_key_are_noticed_and_the_others_last() {
    let server = redis::start().await.expect("a server");
    let (locks, other) = (open(&server).await, open(&server).await);
    let mut guards = hold(&locks).await;
    bundled(&server).await;
    let claim = other.inspect("lock 5").await.expect("a view").holders[0].claim;
    let evicted = other.evict("lock 5", claim).await.expect("an eviction");
    assert!(evicted.party.is_some());
    let reason = tokio::time::timeout(SOON, guards[5].lost()).await.expect("it is told");
    assert_eq!(reason, LostReason::Taken);
    let deleted = raw(&server).await.command(&["DEL", "leasehold:l{lock 9}"]).await.expect("an answer");
    assert_eq!(deleted, Reply::Integer(1));
    let reason = tokio::time::timeout(TTL * 3, guards[9].lost()).await.expect("it is found out");
    assert_eq!(reason, LostReason::Taken);
    drop((guards.remove(9), guards.remove(5)));
    // The others are not touched.
    renewed(&guards, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_connection_and_forgotten_scripts_lose_nothing_and_a_forgetful_server_is_noticed() {
    let mut server = redis::start().await.expect("a server");
    let locks = open(&server).await;
    let guards = hold(&locks).await;
    bundled(&server).await;
    for _ in 0..3 {
        let mut raw = raw(&server).await;
        raw.command(&["SCRIPT", "FLUSH"]).await.expect("an answer");
        raw.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await.expect("an answer");
        renewed(&guards, 1).await;
    }
    server.kill().expect("a kill");
    server.restart(Data::Wipe).await.expect("a restart");
    for guard in &guards {
        tokio::time::timeout(SOON, guard.lost()).await.expect("all are told");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releases_in_any_order_keep_the_rest_of_a_bundle() {
    let server = redis::start().await.expect("a server");
    let locks = open(&server).await;
    let mut guards = hold(&locks).await;
    bundled(&server).await;
    while guards.len() > 20 {
        let at = guards.len() * 7 / 13;
        assert_eq!(guards.swap_remove(at).release().await.expect("a release"), Outcome::Released);
        if guards.len() % 30 == 0 {
            renewed(&guards, 1).await;
        }
    }
    drop(guards);
    eventually(SOON, || async {
        let left = locks.list("").await.map_err(|error| error.to_string())?;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}
