//! Lines to some of the servers are slow, silent, cut or double: nobody meets anybody, tokens rise, and nothing is left anywhere.

use std::time::Duration;

use leasehold::{Locks, Token};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::{Proxy, eventually};

use crate::redlock_faults::fixture::{Fixture, LASTING, NODES, PATIENT, await_guard, lock, release, spawn_lock};

/// All five servers are free for somebody else, long before any TTL has ended.
pub(super) async fn assert_free_on_all_nodes(site: &Fixture, other: &Locks, name: &str, above: Token) -> Token {
    site.until_claim_counts(name, 0).await;
    let held = lock(other, name).await;
    assert!(held.token() > above, "{} after {above}", held.token());
    // What came late somewhere would be in its way there.
    site.until_claim_counts(name, 1).await;
    let token = held.token();
    release(held).await;
    site.until_claim_counts(name, 0).await;
    token
}

/// A failed attempt, where three lines are as `break_connection` makes them, from this one on; then they are well again.
pub(super) async fn assert_failed_attempt_leaves_nothing(
    first_nodes: std::ops::Range<usize>,
    break_connection: impl Fn(&Proxy),
    restore_connection: impl Fn(&Proxy),
) {
    let site = Fixture::shared().await;
    let other = site.locks().await;
    let (locks, proxies) = site.proxied_locks(LASTING, "connect-timeout=1s&node-timeout=1s").await;
    let mut last = assert_free_on_all_nodes(&site, &other, "a", Token(0)).await;
    for first in first_nodes {
        let lines = || proxies.iter().skip(first).take(3);
        lines().for_each(&break_connection);
        for _ in 0..2 {
            let answer = locks.mutex("a").try_lock().await;
            assert!(answer.is_err(), "no majority has answered: {answer:?}");
        }
        // A lock that is held meanwhile stays so, whatever was sent twice or comes late.
        lines().for_each(&restore_connection);
        last = assert_free_on_all_nodes(&site, &other, "a", last).await;
        eventually(TEST_TIMEOUT, || async { locks.inspect("a").await.map(drop) }).await;
        release(lock(&locks, "a").await).await;
    }
    assert_free_on_all_nodes(&site, &other, "a", last).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_connections_leave_no_claims() {
    assert_failed_attempt_leaves_nothing(0..1, |line| line.freeze(true), |line| line.freeze(false)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_leave_no_claims() {
    assert_failed_attempt_leaves_nothing(1..2, |line| line.drop_replies(true), |line| line.drop_replies(false)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_connections_leave_no_claims() {
    let bad = |line: &Proxy| {
        line.refuse(true);
        line.cut();
    };
    assert_failed_attempt_leaves_nothing(2..3, bad, |line| line.refuse(false)).await;
}

/// The line ends in the moment of the answer, on three at once: what was asked for was done, and nobody was told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_cut_at_the_reply_leave_no_claims() {
    let site = Fixture::shared().await;
    let other = site.locks().await;
    let (locks, proxies) = site.proxied_locks(LASTING, PATIENT).await;
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
        last = assert_free_on_all_nodes(&site, &other, "a", last).await;
    }
}

/// Two lines are slower than a node is waited for: locks are taken, kept and given back without them, and they learn of it late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_slow_connections_keep_no_released_claims() {
    let site = Fixture::shared().await;
    let other = site.locks().await;
    let (locks, proxies) = site.proxied_locks(LASTING, "node-timeout=1s&connect-timeout=5s").await;
    let mut last = Token(0);
    for round in 0..2 {
        for line in [round % NODES, (round + 2) % NODES] {
            // There and back.
            proxies[line].delay(Duration::from_millis(600));
        }
        for _ in 0..5 {
            let held = lock(&locks, "a").await;
            assert!(held.token() > last);
            last = held.token();
            release(held).await;
        }
        proxies.iter().for_each(|line| line.delay(Duration::ZERO));
        last = assert_free_on_all_nodes(&site, &other, "a", last).await;
    }
}

/// Each request arrives twice at each server: the second take finds the first, the second release finds nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_arrive_twice_change_nothing() {
    let site = Fixture::new().await;
    let other = site.locks().await;
    let (locks, proxies) = site.proxied_locks(LASTING, PATIENT).await;
    release(lock(&locks, "a").await).await;
    let mut last = Token(0);
    for _ in 0..3 {
        for at in 0..NODES {
            site.command(at, &["CONFIG", "RESETSTAT"]).await;
        }
        proxies.iter().for_each(|line| line.duplicate_requests(true));
        let held = lock(&locks, "a").await;
        wait_duplicates_arrived(&site, &proxies, 2).await;
        assert!(held.token() > last, "{} after {last}", held.token());
        last = held.token();
        site.until_claim_counts("a", 1).await;
        assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
        for at in 0..NODES {
            site.command(at, &["CONFIG", "RESETSTAT"]).await;
        }
        proxies.iter().for_each(|line| line.duplicate_requests(true));
        release(held).await;
        wait_duplicates_arrived(&site, &proxies, 2).await;
        last = assert_free_on_all_nodes(&site, &other, "a", last).await;
    }
}

/// Waits until each server has run so many scripts, and has requests arrive once again.
async fn wait_duplicates_arrived(site: &Fixture, proxies: &[Proxy], scripts: usize) {
    eventually(TEST_TIMEOUT, || async {
        for at in 0..NODES {
            let calls = site.script_calls(at).await;
            if calls < scripts {
                return Err(format!("server {at} has run {calls}"));
            }
        }
        Ok(())
    })
    .await;
    proxies.iter().for_each(|line| line.duplicate_requests(false));
}
