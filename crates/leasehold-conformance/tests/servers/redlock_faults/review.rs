//! What reading the Redlock engine's protocol found, as tests.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::{Answer, Engine, Released};
use leasehold::{Claim, ErrorKind, Guard, Holder, LockName, Locks, LostReason, Mode, Owner, Terms};
use leasehold_conformance::world::{LONG, SOON};
use leasehold_testbed::redis::{Independent, Reply, Resp};
use leasehold_testbed::{Proxy, Server, eventually, redis};
use tokio::time::{Instant, timeout};

async fn raw(server: &Server) -> Resp {
    Resp::connect(server.addr()).await.expect("a raw connection")
}

async fn number(server: &Server, words: &[&str]) -> i64 {
    match raw(server).await.command(words).await.expect("an answer") {
        Reply::Integer(number) => number,
        other => panic!("{words:?}: {other:?}"),
    }
}

fn claim(name: &str, owner: Option<Owner>, ttl: Duration) -> Arc<Claim> {
    let (name, holder) = (LockName::new(name).expect("a name"), Arc::new(Holder::this_process()));
    Arc::new(Claim::new(Arc::new(Terms::new(name, Mode::Exclusive, owner, ttl, holder))))
}

async fn locks(url: &str, ttl: Duration) -> Locks {
    Locks::builder().ttl(ttl).open(url).await.expect("a client")
}

async fn until(what: &str, look: impl AsyncFn() -> bool) {
    eventually(SOON, || async { if look().await { Ok(()) } else { Err(what.to_owned()) } }).await;
}

/// A server without memory takes a give-back by writing the rest of the record anew; the other claims of this owner keep their time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_give_back_without_memory_does_not_end_the_owners_other_claims() {
    let server = redis::start().await.expect("a server");
    let url = format!("redlock://{}?retention=1s", server.addr());
    let engine: Arc<dyn Engine> = leasehold::engine::open(&url, &Clock::system()).await.expect("the engine");
    let owner = Owner::new();
    let (stays, goes) = (claim("a", Some(owner), LONG), claim("a", Some(owner), LONG));
    for claim in [&stays, &goes] {
        let answer = Arc::clone(&engine).attempt(Arc::clone(claim), false).await.expect("an answer");
        assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
    }
    let _ = raw(&server).await.command(&["CONFIG", "SET", "maxmemory", "1"]).await.expect("an answer");
    assert_eq!(Arc::clone(&engine).release(goes).await.expect("a release"), Released::Released);
    let left = number(&server, &["PTTL", "leasehold:qa"]).await;
    assert!(left > LONG.as_millis() as i64 / 2, "the record of a claim that lasts {LONG:?} ends in {left} ms");
}

/// One owner may hold a lock many times over: what its servers do for one renewal grows with the claims, and not with their square.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_owner_holds_it_many_times() {
    let servers = Independent::start(3).await.expect("servers");
    let ttl = Duration::from_secs(6);
    let (locks, owner) = (locks(&servers.url(), ttl).await, Owner::new());
    let mut guards = Vec::new();
    for _ in 0..150 {
        guards.push(locks.mutex("a").owner(&owner).wait(SOON).lock().await.expect("the lock"));
    }
    let begun = locks.clock().now();
    until("all are renewed", async || {
        assert!(guards.iter().all(Guard::is_held), "one is lost");
        guards.iter().all(|guard| guard.deadline() > begun.after(ttl))
    })
    .await;
}

/// A server that hangs does not keep those waiting for long who only look, nor those who put somebody out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_hangs_keeps_nobody_from_looking() {
    let mut servers = Independent::start(5).await.expect("servers");
    let ttl = Duration::from_secs(9);
    let (holds, looks) = (locks(&servers.url(), ttl).await, locks(&servers.url(), ttl).await);
    let (lists, evicts) = (locks(&servers.url(), ttl).await, locks(&servers.url(), ttl).await);
    let held = holds.mutex("a").lock().await.expect("the lock");
    servers.server_mut(1).pause().expect("a paused server");
    let view = looks.inspect("a").await.expect("a view");
    assert_eq!(view.holders.len(), 1, "{view:?}");
    assert_eq!(lists.list("").await.expect("a list").len(), 1);
    let evicted = evicts.evict("a", view.holders[0].claim).await.expect("an eviction");
    assert!(evicted.token > held.token());
}

/// Whoever lists the locks of servers far away does not pay a round trip for each of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_locks_are_listed_from_far_away() {
    let servers = Independent::start(3).await.expect("servers");
    let near = locks(&servers.url(), LONG).await;
    let mut guards = Vec::new();
    for number in 0..300 {
        guards.push(near.mutex(format!("n{number}")).lock().await.expect("a lock"));
    }
    let mut lines = Vec::new();
    for server in servers.servers() {
        let line = Proxy::start(server.addr()).await.expect("a proxy");
        line.delay(Duration::from_millis(15));
        lines.push(line);
    }
    let hosts: Vec<_> = lines.iter().map(|line| line.addr().to_string()).collect();
    let far = locks(&format!("redlock://{}", hosts.join(",")), LONG).await;
    assert_eq!(far.list("n").await.expect("a list").len(), guards.len());
}

/// A majority says that a lease is lost. What the others have of it, and have just extended, does not stay for a TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_claim_leaves_the_servers_that_still_have_it() {
    let servers = Independent::start(3).await.expect("servers");
    let holds = locks(&servers.url(), SOON).await;
    let two = format!("redlock://{},{}?even=allowed", servers.server(0).addr(), servers.server(1).addr());
    let evicts = locks(&two, SOON).await;
    let held = holds.mutex("a").lock().await.expect("the lock");
    let size = async || number(servers.server(2), &["STRLEN", "leasehold:qa"]).await;
    until("the third has it, too", async || size().await > 48).await;
    // One that was too slow for the claim learns of it with the first renewal.
    let claim = eventually(SOON, || async {
        let view = evicts.inspect("a").await.map_err(|error| error.to_string())?;
        view.holders.first().map(|holder| holder.claim).ok_or("nobody holds it there".to_owned())
    });
    let claim = claim.await;
    eventually(SOON, || evicts.evict("a", claim)).await;
    assert_eq!(timeout(SOON, held.lost()).await.expect("it is told"), LostReason::Taken);
    let start = Instant::now();
    until("nothing is left of it", async || size().await == 48).await;
    assert!(start.elapsed() < SOON / 2, "{:?}", start.elapsed());
}

/// Where the drift takes all of a lease, it says so, and not that somebody else holds the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ttl_of_which_nothing_is_left_is_refused() {
    let server = redis::start().await.expect("a server");
    for (drift, fits) in [("drift-fixed=3s", 7), ("drift-fixed=1900ms", 4), ("drift=0.49", 1)] {
        let locks = locks(&format!("redlock://{}?{drift}", server.addr()), Duration::from_secs(2)).await;
        let ttl = Duration::from_secs(fits);
        drop(locks.mutex("a").ttl(ttl).lock().await.expect("the lock"));
        eventually(SOON, || locks.settle()).await;
        if fits > 2 {
            let error = locks.mutex("a").try_lock().await.expect_err("nothing is left");
            assert_eq!(error.kind(), ErrorKind::InvalidOption, "{drift}: {error}");
        }
    }
}

/// No part of a password that was not written as it must be is repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_error_repeats_half_a_password() {
    for url in [
        "redlock://u:a@b/hunter2@h1,h2,h3",
        "redlock:///u:hunter2@h1,h2,h3",
        "redlock://:hunter2/b,1@h1,h2,h3",
        "redlock://u:x,hunter2@h1,h2,h3",
        "redlock://u:hunter2/x@h1,h2,h3",
        "redlock://h1,http://u:hunter2@h2,h3",
        "redis://u:a@b/hunter2@h1",
        "redis:///u:hunter2@h1",
    ] {
        let error = Locks::open(url).await.expect_err(url);
        assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{url}: {error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error}");
    }
}
