//! The effects of URL options on real servers.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::ReleaseReply;
use leasehold::{Claim, ErrorKind, Holder, LockName, LockOptions, Locks, Mode};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::eventually;
use tokio::time::Instant;

use crate::redlock_faults::fixture::{
    Fixture, LASTING, NODES, PATIENT, ShiftedClock, attempt, claim, connected_client, connected_engine, lock, release,
    until_granted,
};

/// A TTL too short for some drifts.
const TTL: Duration = Duration::from_secs(4);

/// The longest lease a client has right after a grant or renewal.
fn lease_after_drift(drift: Duration) -> Duration {
    LASTING.checked_sub(drift).expect("less than a TTL")
}

/// The size of a stored holder is limited: an overlong program name leaves a readable record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_name_of_a_program_damages_no_lock() {
    let fixture = Fixture::shared().await;
    let engine = connected_engine(&fixture.url(PATIENT), &Clock::system()).await;
    let holder = Holder::new("host", 1, &"x".repeat(20_000), "");
    let lock_options =
        LockOptions::new(LockName::new("long").expect("a name"), Mode::Exclusive, None, LASTING, Arc::new(holder));
    let long = Arc::new(Claim::new(Arc::new(lock_options)));
    assert!(attempt(&engine, &long).await.expect("an answer").is_some());
    let next = claim("long", None, LASTING);
    assert!(attempt(&engine, &next).await.expect("an answer").is_none());
    assert_eq!(Arc::clone(&engine).release(long).await.expect("an answer"), ReleaseReply::Released);
    fixture.until_claim_counts("long", 0).await;
    assert!(attempt(&engine, &next).await.expect("an answer").is_some());
}

/// The drift is subtracted from the lease at the grant and at each renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_drift_is_taken_off_every_lease() {
    let (fixture, ahead) = (Fixture::shared().await, ShiftedClock::new());
    for (options, drift) in [
        ("", Duration::from_millis(6_000 + 2)),
        ("drift=0.2", Duration::from_millis(120_000 + 2)),
        ("drift=0&drift-fixed=300ms", Duration::from_millis(300)),
        ("drift=0.1&drift-fixed=500ms", Duration::from_millis(60_000 + 500)),
    ] {
        let locks = connected_client(&fixture.url(&format!("{PATIENT}&{options}")), LASTING, &ahead.clock()).await;
        let clock = locks.clock();
        let before = clock.now();
        let held = lock(&locks, "a").await;
        let (after, end) = (clock.now(), held.deadline());
        let most = lease_after_drift(drift);
        assert!(
            end >= before.saturating_add(most) && end <= after.saturating_add(most),
            "{options}: the lease lasts {:?}",
            end.duration_since(before)
        );
        ahead.renew_now(&[&held], LASTING).await;
        let (now, renewed) = (clock.now(), held.deadline());
        assert!(renewed <= now.saturating_add(most), "{options}: renewed for {:?}", renewed.duration_since(now));
        release(held).await;
    }
}

/// A lease that the drift consumes entirely is rejected: otherwise the lock would look held
/// forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drift_as_long_as_the_lease_is_refused() {
    let fixture = Fixture::shared().await;
    for options in ["drift-fixed=5s", "drift-fixed=2s", "drift=0.49&drift-fixed=100ms"] {
        let locks = fixture.locks_with(TTL, options).await;
        for error in [
            locks.mutex("a").try_lock().await.expect_err("the drift leaves no lease"),
            locks.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect_err("the drift leaves no lease"),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
            assert!(error.to_string().contains("a longer TTL, or allow less drift"), "{error}");
        }
        release(locks.mutex("a").ttl(LASTING).lock().await.expect("a longer TTL")).await;
    }
}

/// A node's timeout is `node-timeout`, but at most a tenth of the TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_timeout_is_the_option_and_at_most_a_tenth_of_the_ttl() {
    let mut fixture = Fixture::new().await;
    let (short, long) = (Duration::from_secs(1), Duration::from_secs(30));
    for (options, ttl, waits) in [
        ("node-timeout=400ms", long, Duration::from_millis(400)),
        ("node-timeout=400ms", short, Duration::from_millis(100)),
        ("", long, Duration::from_millis(250)),
        ("", short, Duration::from_millis(100)),
    ] {
        let engine = fixture.engine(options).await;
        until_granted(&engine, &claim("a", None, ttl)).await;
        fixture.pause(&[0, 2, 4]);
        let start = Instant::now();
        let error = attempt(&engine, &claim("b", None, ttl)).await.expect_err("no majority");
        let taken = start.elapsed();
        fixture.resume(&[0, 2, 4]);
        assert!(error.to_string().contains(&format!("no answer within {waits:?}")), "{options}: {error}");
        assert!(taken >= waits, "{options} {ttl:?}: {taken:?}");
        drop(engine);
        let locks = Locks::open(&fixture.url("")).await.expect("a client");
        eventually(TEST_TIMEOUT, || locks.inspect("b")).await;
        for at in 0..NODES {
            fixture.command(at, &["FLUSHALL"]).await;
        }
    }
}
