//! Tokens rise, even if the record that stores the last one is lost.

use std::time::Duration;

use leasehold::clock::ManualClock;
use leasehold::{ClaimId, Guard, Locks, LostReason, Owner, Token};
use leasehold_conformance::protocol::LockRequest;
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_internals::redis::wire::SimpleState;
use leasehold_internals::redis::{Rest, Stored};
use leasehold_testbed::Data;
use tokio::time::timeout;

use crate::redis_faults::fixture::{Fixture, inspect, release};

async fn acquire(locks: &Locks) -> Guard {
    locks.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("the lock")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_with_every_grant_of_any_mode() {
    let fixture = Fixture::shared().await;
    let locks = fixture.locks(LONG_TTL).await;
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
    // Concurrent holders have different tokens.
    let first = locks.rwlock("a").read().await.expect("a lock");
    let second = locks.rwlock("a").read().await.expect("a lock");
    assert!(last < first.token() && first.token() < second.token());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_re_enters_keeps_its_token() {
    let fixture = Fixture::shared().await;
    let (locks, other) = (fixture.locks(LONG_TTL).await, fixture.locks(LONG_TTL).await);
    let owner = Owner::new();
    let first = locks.mutex("a").owner(&owner).lock().await.expect("a lock");
    let again = other.mutex("a").owner(&owner).lock().await.expect("the same owner in another client");
    let read = locks.rwlock("a").owner(&owner).read().await.expect("the same owner in a weaker mode");
    assert_eq!((first.token(), first.token()), (again.token(), read.token()));
    let token = first.token();
    for guard in [first, again, read] {
        assert!(other.mutex("a").try_lock().await.expect("an answer").is_none(), "held until the last release");
        release(guard).await;
    }
    assert!(acquire(&other).await.token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_after_an_expired_lease() {
    let fixture = Fixture::shared().await;
    let locks = fixture.locks(LONG_TTL).await;
    let mut actor = fixture.actor_process(Duration::from_secs(1)).await;
    let (token, _) = actor.acquire(LockRequest::exclusive_with_retries("a")).await;
    actor.process().sigkill().expect("a killed process");
    assert!(acquire(&locks).await.token().0 > token);
}

/// The record is deleted while the lock is free and while it is held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_after_the_record_is_deleted() {
    let (fixture, manual_clock) = (Fixture::new().await, ManualClock::running());
    let (locks, other) =
        (fixture.locks_with_clock(LONG_TTL, manual_clock.clock()).await, fixture.locks(LONG_TTL).await);
    let mut last = Token(0);
    for words in [&["DEL", &fixture.key("a")][..], &["FLUSHALL"], &["FLUSHDB"]] {
        let guard = acquire(&locks).await;
        assert!(guard.token() > last, "{words:?}");
        last = guard.token();
        release(guard).await;
        fixture.command(words).await;
        assert!(fixture.keys().await.is_empty());
        let held = acquire(&locks).await;
        assert!(held.token() > last, "{words:?}");
        fixture.command(words).await;
        let next = acquire(&other).await;
        assert!(next.token() > held.token(), "{words:?}");
        last = next.token();
        // The holder learns of it at its next renewal.
        manual_clock.advance(LONG_TTL / 3);
        let reason = timeout(TEST_TIMEOUT, held.lost()).await.expect("the holder learns of the loss");
        assert_eq!(reason, LostReason::Revoked);
        drop(held);
        locks.flush().await.expect("released");
        assert!(next.is_held());
        assert_eq!(
            inspect(&other, "a").await.holders.len(),
            1,
            "the release of the lost lock did not affect the next holder"
        );
        release(next).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_after_a_restart_without_data() {
    let mut fixture = Fixture::new().await;
    let locks = fixture.locks(LONG_TTL).await;
    let mut last = Token(0);
    for _ in 0..3 {
        let guard = acquire(&locks).await;
        assert!(guard.token() > last);
        last = guard.token();
        fixture.server.kill().expect("a killed server");
        fixture.server.restart(Data::Wipe).await.expect("a restarted server");
        drop(guard);
    }
    assert!(acquire(&locks).await.token() > last);
}

/// The server's clock was set back: the record stores a token from the future, and later tokens are
/// above it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_above_those_of_a_clock_that_was_set_back() {
    let fixture = Fixture::shared().await;
    let (locks, other) = (fixture.locks(LONG_TTL).await, fixture.locks(LONG_TTL).await);
    let guard = acquire(&locks).await;
    let now = guard.token().0;
    release(guard).await;
    let mut last = now + 3_600_000_000;
    let free = SimpleState {
        token: Token(last),
        kept: now / 1_000_000,
        since: 0,
        claim: ClaimId::from_bits(0),
        run: *b"a run id",
        group: "".into(),
        contender: Rest::default(),
    };
    let (key, free) = (fixture.key("a"), free.write());
    let command: [&[u8]; 4] = [b"HSET", key.as_bytes(), b"m", &free];
    fixture.raw_connection().await.command(&command).await.expect("an answer");
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
    let fence = other.force_release("a", claim).await.expect("a force release").fence_token.expect("a token");
    assert!(fence > held.token() && held.token().0 > last);
    let next = other.multi_lock(["a", "b"]).lock().await.expect("both");
    assert!(inspect(&other, "a").await.holders[0].token > Some(fence));
    drop(next);
}
