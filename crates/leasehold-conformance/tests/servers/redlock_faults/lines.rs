//! Lines to some of the servers are slow, silent, cut or double: nobody meets anybody, tokens rise, and nothing is left anywhere.

use std::time::Duration;

use leasehold::{Locks, Token};
use leasehold_conformance::world::{LONG, SOON};
use leasehold_testbed::{Proxy, eventually};

use tokio::time::timeout;

use crate::redlock_faults::site::{Dice, NODES, Site, give_back, guard, lock, spawn_lock};

/// All five servers are free for somebody else, long before any TTL has ended.
async fn all_free(site: &Site, other: &Locks, name: &str, above: Token) -> Token {
    site.until_claims(name, 0, SOON).await;
    let held = lock(other, name).await;
    assert!(held.token() > above, "{} after {above}", held.token());
    // What came late somewhere would be in its way there.
    site.until_claims(name, 1, LONG / 3 + SOON).await;
    let token = held.token();
    give_back(held).await;
    site.until_claims(name, 0, SOON).await;
    token
}

/// A failed attempt, where three lines are as `bad` makes them; then they are well again.
async fn a_failed_attempt_leaves_nothing(bad: impl Fn(&Proxy), well: impl Fn(&Proxy)) {
    let site = Site::new().await;
    let other = site.locks(LONG).await;
    let (locks, proxies) = site.proxied(LONG, "connect-timeout=300ms&node-timeout=100ms").await;
    let mut last = all_free(&site, &other, "a", Token(0)).await;
    for first in 0..3 {
        let lines = || proxies.iter().skip(first).take(3);
        lines().for_each(&bad);
        for _ in 0..2 {
            let answer = locks.mutex("a").try_lock().await;
            assert!(answer.is_err(), "no majority has answered: {answer:?}");
        }
        // A lock that is held meanwhile stays so, whatever was sent twice or comes late.
        lines().for_each(&well);
        last = all_free(&site, &other, "a", last).await;
        eventually(SOON, || async { locks.inspect("a").await.map(drop) }).await;
        give_back(lock(&locks, "a").await).await;
    }
    all_free(&site, &other, "a", last).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_lines_leave_nothing() {
    a_failed_attempt_leaves_nothing(|line| line.freeze(true), |line| line.freeze(false)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_lines_leave_nothing() {
    let slow = Duration::from_millis(250);
    a_failed_attempt_leaves_nothing(|line| line.delay(slow), |line| line.delay(Duration::ZERO)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_leave_nothing() {
    a_failed_attempt_leaves_nothing(|line| line.drop_replies(true), |line| line.drop_replies(false)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_lines_leave_nothing() {
    let bad = |line: &Proxy| {
        line.refuse(true);
        line.cut();
    };
    a_failed_attempt_leaves_nothing(bad, |line| line.refuse(false)).await;
}

/// The line ends in the moment of the answer, on three at once: what was asked for was done, and nobody was told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_that_end_with_the_answer() {
    let site = Site::new().await;
    let other = site.locks(LONG).await;
    let (locks, proxies) = site.proxied(LONG, "").await;
    let mut last = Token(0);
    for round in 0..8 {
        let cut = || (0..3).for_each(|at| proxies[(round + at) % NODES].cut_after_request());
        cut();
        let held = lock(&locks, "a").await;
        assert!(held.token() > last, "round {round}: {} after {last}", held.token());
        last = held.token();
        assert!(other.mutex("a").try_lock().await.expect("an answer").is_none(), "round {round}");
        let waits = spawn_lock(&other, "a");
        cut();
        give_back(held).await;
        let next = guard(waits).await;
        assert!(next.token() > last);
        last = next.token();
        give_back(next).await;
        last = all_free(&site, &other, "a", last).await;
    }
}

/// Two lines are slower than a node is waited for: locks are taken, kept and given back without them, and they learn of it late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_slow_lines_keep_nothing_that_was_given_back() {
    let site = Site::new().await;
    let other = site.locks(LONG).await;
    let (locks, proxies) = site.proxied(LONG, "node-timeout=60ms&connect-timeout=2s").await;
    let mut last = Token(0);
    for round in 0..6 {
        for line in [round % NODES, (round + 2) % NODES] {
            proxies[line].delay(Duration::from_millis(80));
        }
        for _ in 0..5 {
            let held = lock(&locks, "a").await;
            assert!(held.token() > last);
            last = held.token();
            give_back(held).await;
        }
        proxies.iter().for_each(|line| line.delay(Duration::ZERO));
        last = all_free(&site, &other, "a", last).await;
    }
}

/// Callers go away at any moment of their attempt, on lines that are slow to different degrees.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_go_away_leave_nothing() {
    let site = Site::new().await;
    let other = site.locks(LONG).await;
    let (locks, proxies) = site.proxied(LONG, "node-timeout=40ms&connect-timeout=2s").await;
    let mut dice = Dice(Dice::seed());
    let mut last = Token(0);
    for _ in 0..4 {
        for line in &proxies {
            line.delay(Duration::from_millis([0, 0, 5, 15, 30][dice.below(5) as usize]));
        }
        for _ in 0..25 {
            let patience = Duration::from_micros(dice.below(60_000));
            match timeout(patience, locks.mutex("a").wait(SOON).lock()).await {
                Ok(guard) => drop(guard.expect("the lock")),
                Err(_) => continue,
            }
        }
        proxies.iter().for_each(|line| line.delay(Duration::ZERO));
        eventually(SOON, || locks.settle()).await;
        last = all_free(&site, &other, "a", last).await;
    }
}

/// Each request arrives twice at each server: the second take finds the first, the second release finds nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_arrive_twice_change_nothing() {
    let site = Site::new().await;
    let other = site.locks(LONG).await;
    let (locks, proxies) = site.proxied(LONG, "").await;
    give_back(lock(&locks, "a").await).await;
    let mut last = Token(0);
    for _ in 0..5 {
        for at in 0..NODES {
            site.ask(at, &["CONFIG", "RESETSTAT"]).await;
        }
        proxies.iter().for_each(|line| line.duplicate_requests(true));
        let held = lock(&locks, "a").await;
        settled(&site, &proxies, 2).await;
        assert!(held.token() > last, "{} after {last}", held.token());
        last = held.token();
        assert_eq!(site.all_claims("a").await, [1; NODES]);
        assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
        for at in 0..NODES {
            site.ask(at, &["CONFIG", "RESETSTAT"]).await;
        }
        proxies.iter().for_each(|line| line.duplicate_requests(true));
        give_back(held).await;
        settled(&site, &proxies, 2).await;
        last = all_free(&site, &other, "a", last).await;
    }
}

/// Waits until each server has run so many scripts, and has requests arrive once again.
async fn settled(site: &Site, proxies: &[Proxy], scripts: usize) {
    eventually(SOON, || async {
        for at in 0..NODES {
            let calls = site.scripts(at).await;
            if calls != scripts {
                return Err(format!("server {at} has run {calls}"));
            }
        }
        Ok(())
    })
    .await;
    proxies.iter().for_each(|line| line.duplicate_requests(false));
}
