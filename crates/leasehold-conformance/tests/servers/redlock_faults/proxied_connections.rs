//! Connections to some servers are slow, frozen, cut or duplicate requests: no two holders overlap,
//! tokens rise, and no claim is left.

use std::time::Duration;

use leasehold::{Locks, Token};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::{Proxy, eventually};

use crate::redlock_faults::fixture::{
    Fixture, LASTING, NODES, PATIENT, ShiftedClock, await_guard, lock, release, spawn_lock,
};

/// Asserts that another client, whose clock is `ahead`, can acquire the lock on all five servers long
/// before any TTL ends.
pub(super) async fn assert_free_on_all_nodes(
    fixture: &Fixture,
    (other, ahead): (&Locks, &ShiftedClock),
    name: &str,
    above: Token,
) -> Token {
    fixture.until_claim_counts(name, 0).await;
    let held = lock(other, name).await;
    assert!(held.token() > above, "{} after {above}", held.token());
    // A late request on some server is in the way there until its withdrawal arrives. Then the next
    // renewal reaches that server, too.
    fixture.renew_until_claim_counts(ahead, &[&held], name, 1).await;
    let token = held.token();
    release(held).await;
    fixture.until_claim_counts(name, 0).await;
    token
}

/// Fails attempts over three broken connections starting at each of `first_nodes`, then restores
/// them.
pub(super) async fn assert_failed_attempt_leaves_nothing(
    first_nodes: std::ops::Range<usize>,
    break_connection: impl Fn(&Proxy),
    restore_connection: impl Fn(&Proxy),
) {
    let fixture = Fixture::shared().await;
    let ahead = ShiftedClock::new();
    let other = fixture.locks_with_clock(&ahead).await;
    let (locks, proxies) = fixture.proxied_locks(LASTING, "connect-timeout=1s&node-timeout=1s").await;
    let mut last = assert_free_on_all_nodes(&fixture, (&other, &ahead), "a", Token(0)).await;
    for first in first_nodes {
        let broken = || proxies.iter().skip(first).take(3);
        broken().for_each(&break_connection);
        for _ in 0..2 {
            let answer = locks.mutex("a").try_lock().await;
            assert!(answer.is_err(), "a grant without a majority: {answer:?}");
        }
        // A lock that is held meanwhile stays held, despite duplicate or late requests.
        broken().for_each(&restore_connection);
        last = assert_free_on_all_nodes(&fixture, (&other, &ahead), "a", last).await;
        eventually(TEST_TIMEOUT, || async { locks.inspect("a").await.map(drop) }).await;
        release(lock(&locks, "a").await).await;
    }
    assert_free_on_all_nodes(&fixture, (&other, &ahead), "a", last).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_connections_leave_no_claims() {
    assert_failed_attempt_leaves_nothing(0..1, |proxy| proxy.freeze(true), |proxy| proxy.freeze(false)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_leave_no_claims() {
    assert_failed_attempt_leaves_nothing(1..2, |proxy| proxy.drop_replies(true), |proxy| proxy.drop_replies(false))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_connections_leave_no_claims() {
    let bad = |proxy: &Proxy| {
        proxy.refuse(true);
        proxy.cut();
    };
    assert_failed_attempt_leaves_nothing(2..3, bad, |proxy| proxy.refuse(false)).await;
}

/// Three connections break before their reply: the servers handled the request, but the client does
/// not know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_cut_at_the_reply_leave_no_claims() {
    let fixture = Fixture::shared().await;
    let ahead = ShiftedClock::new();
    let other = fixture.locks_with_clock(&ahead).await;
    let (locks, proxies) = fixture.proxied_locks(LASTING, PATIENT).await;
    let mut last = Token(0);
    for round in 0..5 {
        let cut = || (0..3).for_each(|at| proxies[(round + at) % NODES].cut_after_request());
        cut();
        let held = lock(&locks, "a").await;
        assert!(held.token() > last, "round {round}: {} after {last}", held.token());
        last = held.token();
        assert!(other.mutex("a").try_lock().await.expect("an answer").is_none(), "round {round}");
        let waits = spawn_lock(&other, "a");
        cut();
        release(held).await;
        let next = await_guard(waits).await;
        assert!(next.token() > last);
        last = next.token();
        release(next).await;
        last = assert_free_on_all_nodes(&fixture, (&other, &ahead), "a", last).await;
    }
}

/// Two connections are slower than the node timeout: locks are acquired, renewed and released
/// without these nodes, which learn of it late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_slow_connections_keep_no_released_claims() {
    let fixture = Fixture::shared().await;
    let ahead = ShiftedClock::new();
    let other = fixture.locks_with_clock(&ahead).await;
    let (locks, proxies) = fixture.proxied_locks(LASTING, "node-timeout=1s&connect-timeout=5s").await;
    let mut last = Token(0);
    for round in 0..2 {
        for node in [round % NODES, (round + 2) % NODES] {
            // The delay applies in both directions.
            proxies[node].delay(Duration::from_millis(600));
        }
        for _ in 0..5 {
            let held = lock(&locks, "a").await;
            assert!(held.token() > last);
            last = held.token();
            release(held).await;
        }
        proxies.iter().for_each(|proxy| proxy.delay(Duration::ZERO));
        last = assert_free_on_all_nodes(&fixture, (&other, &ahead), "a", last).await;
    }
}

/// Each request arrives twice at each server: a repeated acquire or release changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_arrive_twice_change_nothing() {
    let fixture = Fixture::new().await;
    let ahead = ShiftedClock::new();
    let other = fixture.locks_with_clock(&ahead).await;
    let (locks, proxies) = fixture.proxied_locks(LASTING, PATIENT).await;
    release(lock(&locks, "a").await).await;
    let mut last = Token(0);
    for _ in 0..3 {
        for at in 0..NODES {
            fixture.command(at, &["CONFIG", "RESETSTAT"]).await;
        }
        proxies.iter().for_each(|proxy| proxy.duplicate_requests(true));
        let held = lock(&locks, "a").await;
        wait_duplicates_arrived(&fixture, &proxies, 2).await;
        assert!(held.token() > last, "{} after {last}", held.token());
        last = held.token();
        fixture.until_claim_counts("a", 1).await;
        assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
        for at in 0..NODES {
            fixture.command(at, &["CONFIG", "RESETSTAT"]).await;
        }
        proxies.iter().for_each(|proxy| proxy.duplicate_requests(true));
        release(held).await;
        wait_duplicates_arrived(&fixture, &proxies, 2).await;
        last = assert_free_on_all_nodes(&fixture, (&other, &ahead), "a", last).await;
    }
}

/// Waits until each server has run `scripts` scripts, then stops duplicating requests.
async fn wait_duplicates_arrived(fixture: &Fixture, proxies: &[Proxy], scripts: usize) {
    eventually(TEST_TIMEOUT, || async {
        for at in 0..NODES {
            let calls = fixture.script_calls(at).await;
            if calls < scripts {
                return Err(format!("server {at} has run {calls}"));
            }
        }
        Ok(())
    })
    .await;
    proxies.iter().for_each(|proxy| proxy.duplicate_requests(false));
}
