//! Setting the server's clock back: earlier records count as written now, and no lease outlasts its
//! TTL.

use leasehold::clock::Clock;
use leasehold::engine::AcquireReply;
use leasehold::{ErrorKind, Holder, LockName, LockOptions, Mode};
use leasehold_conformance::test_context::LONG_TTL;
use leasehold_testbed::WallClock;
use leasehold_testbed::redis::Redis;
use std::sync::Arc;

use crate::redis_faults::fixture::{Fixture, claim};

/// The TTL of all leases, in seconds.
const TTL: i64 = LONG_TTL.as_secs() as i64;
/// How far the server's clock is set back, in seconds: far longer than a lease.
const BACK: i64 = -100 * TTL;

async fn fixture() -> (Fixture, WallClock) {
    let clock = WallClock::new().expect("a clock");
    (Fixture::with_config(Redis::new().clock(&clock)).await, clock)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_ends_within_its_ttl() {
    let (fixture, clock) = fixture().await;
    let engine = fixture.engine().await;
    let attempt = async |name: &str, mode, queue| {
        Arc::clone(&engine).attempt(claim(name, mode, LONG_TTL), queue).await.expect("an answer")
    };
    for (name, mode) in [("a", Mode::Exclusive), ("b", Mode::Shared)] {
        assert!(matches!(attempt(name, mode, false).await, AcquireReply::Granted(_)));
    }
    // A waiter that sends nothing more.
    assert!(matches!(attempt("c", Mode::Exclusive, false).await, AcquireReply::Granted(_)));
    assert!(matches!(attempt("c", Mode::Exclusive, true).await, AcquireReply::Queued { .. }));
    clock.set_offset(BACK).expect("a moved clock");
    for name in ["a", "b", "c"] {
        match attempt(name, Mode::Exclusive, false).await {
            AcquireReply::Busy { recheck_after: recheck } => {
                assert!(recheck.is_some_and(|left| left <= LONG_TTL), "{name}: {recheck:?}")
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    clock.set_offset(BACK + TTL + 1).expect("a moved clock");
    for name in ["a", "b", "c"] {
        let answer = attempt(name, Mode::Exclusive, false).await;
        assert!(matches!(answer, AcquireReply::Granted(_)), "{name}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strict_mode_waits_for_no_longer_than_the_longest_lease() {
    let (fixture, clock) = fixture().await;
    let engine = fixture.engine_with(&format!("strict={TTL}s"), &Clock::system()).await;
    let granted = async |name: &str| {
        let answer =
            Arc::clone(&engine).attempt(claim(name, Mode::Exclusive, LONG_TTL), false).await.expect("an answer");
        matches!(answer, AcquireReply::Granted(_))
    };
    assert!(!granted("a").await, "a new server may have lost leases");
    clock.set_offset(TTL + 1).expect("a moved clock");
    assert!(granted("a").await);
    clock.set_offset(BACK).expect("a moved clock");
    assert!(!granted("b").await, "the server counts as newly started");
    clock.set_offset(BACK + TTL + 1).expect("a moved clock");
    assert!(granted("b").await, "a deadline in the future counts as now");
}

/// The size of a stored holder is limited, both in the client and in the engine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_name_of_a_program_damages_nothing() {
    let fixture = Fixture::shared().await;
    let long = "x".repeat(100_000);
    let holder = Holder::new(&long, 1, &long, &long);
    let url = fixture.url("");
    let locks = leasehold::Locks::builder().holder(holder.clone()).open(&url).await.expect("a client");
    let error = locks.mutex("a").try_lock().await.expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert!(error.to_string().contains("at most 255 bytes"), "{error}");
    let name = LockName::new("a").expect("a name");
    let options = LockOptions::new(name.clone(), Mode::Exclusive, None, LONG_TTL, Arc::new(holder));
    let engine = fixture.engine().await;
    let claim = Arc::new(leasehold::Claim::new(Arc::new(options)));
    assert!(matches!(Arc::clone(&engine).attempt(claim, false).await, Ok(AcquireReply::Granted(_))));
    let view = engine.inspect(name).await.expect("a view");
    assert_eq!((view.holders.len(), view.damage), (1, None));
}
