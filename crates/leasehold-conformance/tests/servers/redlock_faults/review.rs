//! What reading the Redlock engine's protocol found, as tests.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::{Answer, Engine, Released};
use leasehold::{ErrorKind, Locks, LostReason, Owner};
use leasehold_conformance::world::SOON;
use leasehold_testbed::redis::{Reply, Resp};
use leasehold_testbed::{Server, eventually, redis};
use tokio::time::timeout;

use crate::redlock_faults::site::{Ahead, LASTING, PATIENT, Site, claim, client};

async fn raw(server: &Server) -> Resp {
    Resp::connect(server.addr()).await.expect("a raw connection")
}

async fn number(server: &Server, words: &[&str]) -> i64 {
    match raw(server).await.command(words).await.expect("an answer") {
        Reply::Integer(number) => number,
        other => panic!("{words:?}: {other:?}"),
    }
}

pub(super) async fn locks(url: &str, ttl: Duration) -> Locks {
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
    let (stays, goes) = (claim("a", Some(owner), LASTING), claim("a", Some(owner), LASTING));
    for claim in [&stays, &goes] {
        let answer = Arc::clone(&engine).attempt(Arc::clone(claim), false).await.expect("an answer");
        assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
    }
    let _ = raw(&server).await.command(&["CONFIG", "SET", "maxmemory", "1"]).await.expect("an answer");
    assert_eq!(Arc::clone(&engine).release(goes).await.expect("a release"), Released::Released);
    let left = number(&server, &["PTTL", "leasehold:qa"]).await;
    assert!(left > LASTING.as_millis() as i64 / 2, "the record of a claim that lasts {LASTING:?} ends in {left} ms");
}

/// One owner may hold a lock many times over: what its servers do for one renewal grows with the claims, and not with their square.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_owner_holds_it_many_times() {
    let (site, ahead) = (Site::shared().await, Ahead::new());
    let (locks, owner) = (site.locks_on(&ahead).await, Owner::new());
    let mut guards = Vec::new();
    for _ in 0..150 {
        guards.push(locks.mutex("a").owner(&owner).lock().await.expect("the lock"));
    }
    ahead.renewed(&guards.iter().collect::<Vec<_>>(), LASTING).await;
}

/// A majority says that a lease is lost. What the others have of it, and have just extended, does not stay for a TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_claim_leaves_the_servers_that_still_have_it() {
    let (site, ahead) = (Site::shared().await, Ahead::new());
    let hosts = |count| (0..count).map(|at| site.server(at).addr().to_string()).collect::<Vec<_>>().join(",");
    let url = format!("redlock://{}?{}&{PATIENT}&drift=0", hosts(3), site.prefix());
    let holds = client(&url, LASTING, &ahead.clock()).await;
    let evicts = locks(&format!("redlock://{}?{}&{PATIENT}&even=allowed", hosts(2), site.prefix()), LASTING).await;
    let held = holds.mutex("a").lock().await.expect("the lock");
    let size = async || number(site.server(2), &["STRLEN", &site.key("a")]).await;
    until("the third has it, too", async || size().await > 48).await;
    let claim = eventually(SOON, || async {
        let view = evicts.inspect("a").await.map_err(|error| error.to_string())?;
        view.holders.first().map(|holder| holder.claim).ok_or("nobody holds it there".to_owned())
    });
    let claim = claim.await;
    eventually(SOON, || evicts.evict("a", claim)).await;
    ahead.jump(LASTING * 2 / 5);
    assert_eq!(timeout(SOON, held.lost()).await.expect("it is told"), LostReason::Taken);
    until("nothing is left of it", async || size().await == 48).await;
}

/// Where the drift takes all of a lease, it says so, and not that somebody else holds the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ttl_of_which_nothing_is_left_is_refused() {
    let site = Site::shared().await;
    for (drift, fits) in [("drift-fixed=3s", 7), ("drift-fixed=1900ms", 4), ("drift=0.49", 1)] {
        let locks =
            locks(&format!("redlock://{}?{drift}&{}", site.server(0).addr(), site.prefix()), Duration::from_secs(2))
                .await;
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
