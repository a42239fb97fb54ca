//! A server restarts empty. Two majorities then share a node that lost its votes: there are two
//! holders, and only the fence protects the data. With `strict` or durable nodes there is one
//! holder.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Claim;
use leasehold::engine::{Engine, ReleaseReply};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_internals::logic::fence::{FenceState, admits};
use leasehold_testbed::redis::Redis;
use leasehold_testbed::{Data, WallClock, eventually};

use crate::redlock_faults::fixture::{
    Fixture, LASTING, PATIENT, attempt, attempt_until_answered, claim, until_granted,
};

/// A weakness of Redlock without `strict`, as docs/redlock.md describes it: nodes that restart
/// empty vote again, so a second client gets a majority.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_strict_an_empty_restart_makes_two_holders_with_rising_tokens() {
    let mut fixture = Fixture::new().await;
    fixture.kill(&[3, 4]);
    let a = fixture.engine(PATIENT).await;
    let (first, end) = attempt_until_answered(&a, &claim("a", None, LASTING)).await.expect("the lock");
    assert_eq!(fixture.claim_counts("a").await, [1, 1, 1]);
    fixture.kill(&[2]);
    fixture.restart(&[2, 3, 4], Data::Wipe).await;
    let b = fixture.engine(PATIENT).await;
    let (second, second_end) = until_granted(&b, &claim("a", None, LASTING)).await;
    assert!(second_end < end, "the violation: two holders");
    assert_eq!(fixture.claim_counts("a").await, [1, 1, 1, 1, 1], "A holds on two nodes, B on three");
    assert!(second > first, "{second} after {first}");
    let seen = FenceState { token: second, owner: None };
    assert!(!admits(seen, first, None), "data written by B rejects A's token");
    assert!(admits(FenceState { token: first, owner: None }, second, None));
}

/// Nodes 4 and 5 are cut off from A, and a durable node restarts. B does not get a majority from
/// them before A releases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_durable_node_makes_no_second_holder_after_a_restart() {
    let mut fixture = Fixture::durable().await;
    let (a, _proxies) = fixture.engine_without(&[3, 4], PATIENT).await;
    let claim_a = claim("a", None, LASTING);
    let (token, _) = attempt_until_answered(&a, &claim_a).await.expect("the lock");
    fixture.kill(&[2]);
    fixture.restart(&[2], Data::Keep).await;
    let b = fixture.engine(PATIENT).await;
    let claim_b = claim("a", None, LASTING);
    for _ in 0..5 {
        assert!(attempt_until_answered(&b, &claim_b).await.is_none(), "A holds the lock");
    }
    // A may detect only now that the killed node closed its connection.
    let _ = eventually(TEST_TIMEOUT, || async { Arc::clone(&a).renew(vec![Arc::clone(&claim_a)]).await }).await;
    assert_eq!(Arc::clone(&a).release(claim_a).await.expect("a release"), ReleaseReply::Released);
    let (second, _) = until_granted(&b, &claim_b).await;
    assert!(second > token, "{second} after {token}");
}

/// Retries until enough nodes answer that the error reports the cool-down.
async fn wait_cooling_down(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) {
    eventually(TEST_TIMEOUT, || async {
        match attempt(engine, claim).await {
            Ok(Some(_)) => panic!("granted during the cool-down"),
            Ok(None) => Err("no reason given".to_owned()),
            Err(error) if error.to_string().contains("cools down") => Ok(()),
            Err(error) => Err(format!("no reason given: {error}")),
        }
    })
    .await;
}

/// A node restarts empty under `strict`, and there is no second holder. The test controls the clock
/// of all servers: a new or restarted node cools down for the longest lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strict_grants_nothing_before_the_lost_lease_is_over() {
    let clock = WallClock::new().expect("a clock");
    let mut fixture = Fixture::with_config(&Redis::new().clock(&clock)).await;
    let options = format!("strict=600s&{PATIENT}");
    let (a, _proxies) = fixture.engine_without(&[3, 4], &options).await;
    let claim_a = claim("a", None, LASTING);
    wait_cooling_down(&a, &claim_a).await;
    clock.set_offset(700).expect("a moved clock");
    let (token, _) = until_granted(&a, &claim_a).await;
    fixture.kill(&[2]);
    fixture.restart(&[2], Data::Wipe).await;
    let b = fixture.engine(&options).await;
    let claim_b = claim("a", None, LASTING);
    for later in [0, 300] {
        clock.set_offset(700 + later).expect("a moved clock");
        wait_cooling_down(&b, &claim_b).await;
    }
    clock.set_offset(700 + 601).expect("a moved clock");
    let (second, _) = until_granted(&b, &claim_b).await;
    assert!(second > token, "{second} after {token}");
}

/// Strict mode rejects a TTL beyond the cool-down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strict_refuses_leases_longer_than_the_cool_down() {
    let fixture = Fixture::shared().await;
    let locks = fixture.locks_with(LASTING * 2, "strict=600s&node-timeout=60s").await;
    let error = locks.mutex("a").try_lock().await.expect_err("too long");
    assert!(error.to_string().contains("600s"), "{error}");
    // A TTL equal to the cool-down is accepted.
    assert_cool_down_error(&locks.mutex("a").ttl(LASTING).try_lock().await.expect_err("all nodes cool down"));
}

/// No claim is granted during a cool-down, and the error gives the reason.
fn assert_cool_down_error(error: &leasehold::Error) {
    let text = error.to_string();
    assert!(text.contains("cools down") && text.contains("restarted or were replaced"), "{text}");
    assert!(!text.contains("holds it"), "the error claims a holder: {text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn try_lock_reports_the_cool_down() {
    let fixture = Fixture::shared().await;
    let locks = fixture.locks_with(LASTING, "strict=600s&node-timeout=60s").await;
    assert_cool_down_error(&locks.mutex("a").try_lock().await.expect_err("all nodes cool down"));
    fixture.until_claim_counts("a", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_lock_reports_the_cool_down() {
    let fixture = Fixture::shared().await;
    let locks = fixture.locks_with(LASTING, "strict=600s&node-timeout=60s").await;
    // A wait that ends before enough nodes have answered cannot report the cool-down.
    let error = eventually(TEST_TIMEOUT, || async {
        let error = locks.mutex("a").timeout(Duration::from_secs(1)).lock().await.expect_err("all nodes cool down");
        let is_unanswered =
            ["did not answer in time", "nodes must answer"].iter().any(|why| error.to_string().contains(why));
        if is_unanswered { Err(error) } else { Ok(error) }
    });
    assert_cool_down_error(&error.await);
}
