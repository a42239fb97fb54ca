//! Tokens rise, whatever becomes of the record that they are kept in.

use std::time::Duration;

use leasehold::clock::ManualClock;
use leasehold::{Guard, Locks, LostReason, Owner, Token};
use leasehold_conformance::protocol::LockRequest;
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::Data;
use tokio::time::timeout;

use crate::redis_faults::fixture::{Fixture, inspect, release};

async fn acquire(locks: &Locks) -> Guard {
    locks.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("the lock")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_with_every_grant_of_any_mode() {
    let site = Fixture::shared().await;
    let locks = site.locks(LONG_TTL).await;
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
        release(guard).await;
    }
    // Together: each its own.
    let first = locks.rwlock("a").read().await.expect("a lock");
    let second = locks.rwlock("a").read().await.expect("a lock");
    assert!(last < first.token() && first.token() < second.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_enters_again_keeps_its_token() {
    let site = Fixture::shared().await;
    let (locks, other) = (site.locks(LONG_TTL).await, site.locks(LONG_TTL).await);
    let owner = Owner::new();
    let first = locks.mutex("a").owner(&owner).lock().await.expect("a lock");
    let again = other.mutex("a").owner(&owner).lock().await.expect("the same owner, elsewhere");
    let read = locks.rwlock("a").owner(&owner).read().await.expect("the same owner, for less");
    assert_eq!((first.token(), first.token()), (again.token(), read.token()));
    let token = first.token();
    for guard in [first, again, read] {
        assert!(other.mutex("a").try_lock().await.expect("an answer").is_none(), "held until the last release");
        release(guard).await;
    }
    assert!(acquire(&other).await.token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_after_a_lease_that_ended_by_itself() {
    let site = Fixture::shared().await;
    let locks = site.locks(LONG_TTL).await;
    let mut player = site.actor_process(Duration::from_secs(1)).await;
    let (token, _) = player.acquire(LockRequest::exclusive_with_retries("a")).await;
    player.process().sigkill().expect("a killed process");
    assert!(acquire(&locks).await.token().0 > token);
}

/// The record is removed by hand, while the lock is free and while it is held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_after_the_record_is_gone() {
    let (site, hand) = (Fixture::new().await, ManualClock::running());
    let (locks, other) = (site.locks_with_clock(LONG_TTL, hand.clock()).await, site.locks(LONG_TTL).await);
    let mut last = Token(0);
    for words in [&["DEL", &site.key("a")][..], &["FLUSHALL"], &["FLUSHDB"]] {
        let guard = acquire(&locks).await;
        assert!(guard.token() > last, "{words:?}");
        last = guard.token();
        release(guard).await;
        site.command(words).await;
        assert!(site.keys().await.is_empty());
        let held = acquire(&locks).await;
        assert!(held.token() > last, "{words:?}");
        site.command(words).await;
        let next = acquire(&other).await;
        assert!(next.token() > held.token(), "{words:?}");
        last = next.token();
        // Its holder finds out when it renews.
        hand.advance(LONG_TTL / 3);
        let reason = timeout(TEST_TIMEOUT, held.lost()).await.expect("it is told");
        assert_eq!(reason, LostReason::Revoked);
        drop(held);
        locks.flush().await.expect("given back");
        assert!(next.is_held());
        assert_eq!(inspect(&other, "a").await.holders.len(), 1, "the one that was lost did not touch the next");
        release(next).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_after_a_restart_without_data() {
    let mut site = Fixture::new().await;
    let locks = site.locks(LONG_TTL).await;
    let mut last = Token(0);
    for _ in 0..3 {
        let guard = acquire(&locks).await;
        assert!(guard.token() > last);
        last = guard.token();
        site.server.kill().expect("a killed server");
        site.server.restart(Data::Wipe).await.expect("a restarted server");
        drop(guard);
    }
    assert!(acquire(&locks).await.token() > last);
}

/// The server's clock was set back: the record remembers a token of the future, and the next ones are above it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_above_those_of_a_clock_that_was_set_back() {
    let site = Fixture::shared().await;
    let (locks, other) = (site.locks(LONG_TTL).await, site.locks(LONG_TTL).await);
    let guard = acquire(&locks).await;
    let now = guard.token().0;
    release(guard).await;
    // As `scripts/table.lua` writes a free lock: its last token, and the second in which its end was set.
    let mut last = now + 3_600_000_000;
    let record = format!("F{last:016}{:010}", now / 1_000_000);
    site.command(&["HSET", &site.key("a"), "m", &record]).await;
    assert_eq!(inspect(&locks, "a").await.last_token, Some(Token(last)));
    for round in 0..6 {
        let guard = match round % 3 {
            0 => locks.mutex("a").lock().await,
            1 => locks.rwlock("a").read().await,
            _ => locks.semaphore("a", 2).acquire(1).await,
        };
        let guard = guard.expect("the lock");
        assert!(guard.token().0 > last, "{} after {last}", guard.token());
        last = guard.token().0;
        release(guard).await;
    }
    let held = acquire(&locks).await;
    let claim = inspect(&other, "a").await.holders[0].claim;
    let fence = other.force_release("a", claim).await.expect("an eviction").fence_token.expect("a token");
    assert!(fence > held.token() && held.token().0 > last);
    let next = other.multi_lock(["a", "b"]).lock().await.expect("both");
    assert!(inspect(&other, "a").await.holders[0].token > Some(fence));
    drop(next);
}
