//! Tokens rise, whatever becomes of the record that they are kept in.

use std::time::Duration;

use leasehold::clock::ManualClock;
use leasehold::{Guard, Locks, LostReason, Owner, Token};
use leasehold_conformance::protocol::Ask;
use leasehold_conformance::world::{LONG, SOON};
use leasehold_testbed::Data;
use tokio::time::timeout;

use crate::redis_faults::site::{Site, give_back, view};

async fn take(locks: &Locks) -> Guard {
    locks.mutex("a").wait(SOON).lock().await.expect("the lock")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_with_every_grant_of_any_mode() {
    let site = Site::shared().await;
    let locks = site.locks(LONG).await;
    let mut last = Token(0);
    for round in 0..200 {
        let guard = match round % 3 {
            0 => locks.mutex("a").lock().await,
            1 => locks.rwlock("a").read().await,
            _ => locks.semaphore("a", 5).acquire(2).await,
        };
        let guard = guard.expect("the lock");
        assert!(guard.token() > last, "{} after {last}", guard.token());
        last = guard.token();
        give_back(guard).await;
    }
    // Together: each its own.
    let first = locks.rwlock("a").read().await.expect("a lock");
    let second = locks.rwlock("a").read().await.expect("a lock");
    assert!(last < first.token() && first.token() < second.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_enters_again_keeps_its_token() {
    let site = Site::shared().await;
    let (locks, other) = (site.locks(LONG).await, site.locks(LONG).await);
    let owner = Owner::new();
    let first = locks.mutex("a").owner(&owner).lock().await.expect("a lock");
    let again = other.mutex("a").owner(&owner).lock().await.expect("the same owner, elsewhere");
    let read = locks.rwlock("a").owner(&owner).read().await.expect("the same owner, for less");
    assert_eq!((first.token(), first.token()), (again.token(), read.token()));
    let token = first.token();
    for guard in [first, again, read] {
        assert!(other.mutex("a").try_lock().await.expect("an answer").is_none(), "held until the last release");
        give_back(guard).await;
    }
    assert!(take(&other).await.token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_after_a_lease_that_ended_by_itself() {
    let site = Site::shared().await;
    let locks = site.locks(LONG).await;
    let mut player = site.player(Duration::from_secs(1)).await;
    let (token, _) = player.lock(Ask::stubborn("a")).await;
    player.process().sigkill().expect("a killed process");
    assert!(take(&locks).await.token().0 > token);
}

/// The record is removed by hand, while the lock is free and while it is held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_after_the_record_is_gone() {
    let (site, hand) = (Site::new().await, ManualClock::running());
    let (locks, other) = (site.timed(LONG, hand.clock()).await, site.locks(LONG).await);
    let mut last = Token(0);
    for words in [&["DEL", &site.key("a")][..], &["FLUSHALL"], &["FLUSHDB"]] {
        let guard = take(&locks).await;
        assert!(guard.token() > last, "{words:?}");
        last = guard.token();
        give_back(guard).await;
        site.ask(words).await;
        assert!(site.keys().await.is_empty());
        let held = take(&locks).await;
        assert!(held.token() > last, "{words:?}");
        site.ask(words).await;
        let next = take(&other).await;
        assert!(next.token() > held.token(), "{words:?}");
        last = next.token();
        // Its holder finds out when it renews.
        hand.advance(LONG / 3);
        let reason = timeout(SOON, held.lost()).await.expect("it is told");
        assert_eq!(reason, LostReason::Taken);
        drop(held);
        locks.settle().await.expect("given back");
        assert!(next.is_held());
        assert_eq!(view(&other, "a").await.holders.len(), 1, "the one that was lost did not touch the next");
        give_back(next).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_after_a_restart_without_data() {
    let mut site = Site::new().await;
    let locks = site.locks(LONG).await;
    let mut last = Token(0);
    for _ in 0..3 {
        let guard = take(&locks).await;
        assert!(guard.token() > last);
        last = guard.token();
        site.server.kill().expect("a killed server");
        site.server.restart(Data::Wipe).await.expect("a restarted server");
        drop(guard);
    }
    assert!(take(&locks).await.token() > last);
}

/// The server's clock was set back: the record remembers a token of the future, and the next ones are above it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_above_those_of_a_clock_that_was_set_back() {
    let site = Site::shared().await;
    let (locks, other) = (site.locks(LONG).await, site.locks(LONG).await);
    let guard = take(&locks).await;
    let now = guard.token().0;
    give_back(guard).await;
    // As `scripts/table.lua` writes a free lock: its last token, and the second in which its end was set.
    let mut last = now + 3_600_000_000;
    let record = format!("F{last:016}{:010}", now / 1_000_000);
    site.ask(&["HSET", &site.key("a"), "m", &record]).await;
    assert_eq!(view(&locks, "a").await.last_token, Some(Token(last)));
    for round in 0..6 {
        let guard = match round % 3 {
            0 => locks.mutex("a").lock().await,
            1 => locks.rwlock("a").read().await,
            _ => locks.semaphore("a", 2).acquire(1).await,
        };
        let guard = guard.expect("the lock");
        assert!(guard.token().0 > last, "{} after {last}", guard.token());
        last = guard.token().0;
        give_back(guard).await;
    }
    let held = take(&locks).await;
    let claim = view(&other, "a").await.holders[0].claim;
    let fence = other.evict("a", claim).await.expect("an eviction").token.expect("a token");
    assert!(fence > held.token() && held.token().0 > last);
    let next = other.all(["a", "b"]).lock().await.expect("both");
    assert!(view(&other, "a").await.holders[0].token > Some(fence));
    drop(next);
}
