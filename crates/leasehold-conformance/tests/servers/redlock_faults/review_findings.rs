//! Regression tests for findings of a review of the Redlock engine's protocol.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::{AcquireReply, Engine, ReleaseReply};
use leasehold::{ClaimId, ErrorKind, Locks, LostReason, Owner, Token};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_internals::redis::{Rest, Stored};
use leasehold_internals::redlock::wire::NodeLock;
use leasehold_testbed::redis::{Reply, RespClient};
use leasehold_testbed::{Server, eventually, redis};
use tokio::time::timeout;

use crate::redlock_faults::fixture::{Fixture, LASTING, PATIENT, ShiftedClock, claim, connected_client};

async fn raw_connection(server: &Server) -> RespClient {
    RespClient::connect(server.addr()).await.expect("a raw connection")
}

async fn command_number(server: &Server, words: &[&str]) -> i64 {
    match raw_connection(server).await.command(words).await.expect("an answer") {
        Reply::Integer(number) => number,
        other => panic!("{words:?}: {other:?}"),
    }
}

pub(super) async fn open_locks(url: &str, ttl: Duration) -> Locks {
    Locks::builder().ttl(ttl).open(url).await.expect("a client")
}

async fn wait_until(what: &str, condition: impl AsyncFn() -> bool) {
    eventually(TEST_TIMEOUT, || async { if condition().await { Ok(()) } else { Err(what.to_owned()) } }).await;
}

/// A server without free memory handles a release by rewriting the record; the owner's other claims
/// keep their leases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_without_memory_does_not_end_the_owners_other_claims() {
    let server = redis::start().await.expect("a server");
    let url = format!("redlock://{}?retention=1s", server.addr());
    let engine: Arc<dyn Engine> = leasehold::registry::open(&url, &Clock::system()).await.expect("the engine");
    let owner = Owner::new();
    let (stays, goes) = (claim("a", Some(owner), LASTING), claim("a", Some(owner), LASTING));
    for claim in [&stays, &goes] {
        let answer = Arc::clone(&engine).attempt(Arc::clone(claim), false).await.expect("an answer");
        assert!(matches!(answer, AcquireReply::Granted(_)), "{answer:?}");
    }
    let _ = raw_connection(&server).await.command(&["CONFIG", "SET", "maxmemory", "1"]).await.expect("an answer");
    assert_eq!(Arc::clone(&engine).release(goes).await.expect("a release"), ReleaseReply::Released);
    let left = command_number(&server, &["PTTL", "leasehold:qa"]).await;
    assert!(left > LASTING.as_millis() as i64 / 2, "the record of a claim that lasts {LASTING:?} ends in {left} ms");
}

/// More claims of one owner than one renewal request names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_claims_of_one_owner_are_renewed() {
    let (fixture, ahead) = (Fixture::shared().await, ShiftedClock::new());
    let (locks, owner) = (fixture.locks_with_clock(&ahead).await, Owner::new());
    let mut guards = Vec::new();
    for _ in 0..150 {
        guards.push(locks.mutex("a").owner(&owner).lock().await.expect("the lock"));
    }
    ahead.renew_now(&guards.iter().collect::<Vec<_>>(), LASTING).await;
}

/// A majority reports a lost lease. The claim on the remaining server, which just extended it, does
/// not stay for a TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_claim_is_released_on_the_servers_that_still_have_it() {
    let fixture = Fixture::shared().await;
    let hosts = |count| (0..count).map(|at| fixture.server(at).addr().to_string()).collect::<Vec<_>>().join(",");
    let url = format!("redlock://{}?{}&{PATIENT}&drift=0", hosts(3), fixture.prefix_option());
    let holds = connected_client(&url, LASTING, &Clock::system()).await;
    let force_releases =
        open_locks(&format!("redlock://{}?{}&{PATIENT}&even=allowed", hosts(2), fixture.prefix_option()), LASTING)
            .await;
    let held = holds.mutex("a").lock().await.expect("the lock");
    let size = async || command_number(fixture.server(2), &["STRLEN", &fixture.key("a")]).await;
    let lock = NodeLock {
        ended_token: Token(0),
        released_token: Token(0),
        released_by: ClaimId::from_bits(0),
        votes: Rest::default(),
    };
    let empty = lock.write().len() as i64;
    wait_until("the third server has the claim", async || size().await > empty).await;
    let claim = eventually(TEST_TIMEOUT, || async {
        let view = force_releases.inspect("a").await.map_err(|error| error.to_string())?;
        view.holders.first().map(|holder| holder.claim).ok_or("no holder there".to_owned())
    });
    let claim = claim.await;
    eventually(TEST_TIMEOUT, || force_releases.force_release("a", claim)).await;
    // The two servers notify the holder, which renews its lease on all three.
    assert_eq!(timeout(TEST_TIMEOUT, held.lost()).await.expect("the holder learns of the loss"), LostReason::Revoked);
    wait_until("the claim is gone", async || size().await == empty).await;
}

/// If the drift consumes the whole lease, the error says so, and does not claim another holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ttl_shorter_than_the_drift_is_refused() {
    let fixture = Fixture::shared().await;
    for (drift, fits) in [("drift-fixed=3s", 7), ("drift-fixed=1900ms", 4), ("drift=0.49", 1)] {
        let locks = open_locks(
            &format!("redlock://{}?{drift}&{}", fixture.server(0).addr(), fixture.prefix_option()),
            Duration::from_secs(2),
        )
        .await;
        let ttl = Duration::from_secs(fits);
        drop(eventually(TEST_TIMEOUT, || async { locks.mutex("a").ttl(ttl).lock().await }).await);
        eventually(TEST_TIMEOUT, || locks.flush()).await;
        if fits > 2 {
            let error = locks.mutex("a").try_lock().await.expect_err("the drift leaves no lease");
            assert_eq!(error.kind(), ErrorKind::InvalidOption, "{drift}: {error}");
        }
    }
}

/// No error repeats part of a password that was not escaped.
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
