//! Regression tests for findings of a review of the Redis engine's protocol.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Clock, ManualClock};
use leasehold::engine::{AcquireReply, Engine, RenewReply};
use leasehold::{Claim, Guard, Holder, LockName, LockOptions, LostReason, Mode};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT, patient_url};
use leasehold_testbed::redis::{Reply, RespClient, replica_of};
use leasehold_testbed::{Server, eventually, redis};

use crate::redis_faults::fixture::Fixture;
use crate::redis_faults::manual_time::{self, pass_and_renew, patient_client};

pub(super) async fn raw_connection(server: &Server) -> RespClient {
    RespClient::connect(server.addr()).await.expect("a raw connection")
}

async fn engine(url: &str) -> Arc<dyn Engine> {
    leasehold::registry::open(&patient_url(url), &Clock::system()).await.expect("the engine")
}

fn claim(name: &str, ttl: Duration) -> Arc<Claim> {
    let holder = Arc::new(Holder::this_process());
    let name = LockName::new(name).expect("a name");
    Arc::new(Claim::new(Arc::new(LockOptions::new(name, Mode::Exclusive, None, ttl, holder))))
}

async fn attempt(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) -> AcquireReply {
    Arc::clone(engine).attempt(Arc::clone(claim), true).await.expect("an answer")
}

pub(super) async fn wait_until(what: &str, condition: impl AsyncFn() -> bool) {
    eventually(TEST_TIMEOUT, || async { if condition().await { Ok(()) } else { Err(what.to_owned()) } }).await;
}

/// A record outlives its longest lease, whatever retention other clients use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_with_different_retentions_do_not_end_each_others_leases() {
    let fixture = Fixture::shared().await;
    let (short, long) = (engine(&fixture.url("retention=1s")).await, engine(&fixture.url("")).await);
    let (first, second) = (claim("a", LONG_TTL / 2), claim("a", LONG_TTL));
    assert!(matches!(attempt(&short, &first).await, AcquireReply::Granted(_)));
    Arc::clone(&short).release(first).await.expect("a release");
    assert!(matches!(attempt(&long, &second).await, AcquireReply::Granted(_)));
    let left = raw_connection(fixture.server).await.command(&["PTTL", &fixture.key("a")]).await.expect("an answer");
    let Reply::Integer(left) = left else { panic!("{left:?}") };
    // The second client's retention is an hour.
    assert!(left > LONG_TTL.as_millis() as i64, "the record ends in {left} ms");
    let third = claim("a", LONG_TTL);
    assert!(matches!(attempt(&short, &third).await, AcquireReply::Queued { .. }));
}

/// A claim that a late request has queued is not renewed, whatever it held before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_only_waits_is_not_renewed() {
    let engine = engine(&Fixture::shared().await.url("")).await;
    let (holds, waits) = (claim("a", LONG_TTL), claim("a", LONG_TTL));
    assert!(matches!(attempt(&engine, &holds).await, AcquireReply::Granted(_)));
    assert!(matches!(attempt(&engine, &waits).await, AcquireReply::Queued { .. }));
    let renewed = Arc::clone(&engine).renew(vec![holds, waits]).await.expect("an answer");
    assert!(matches!(renewed[..], [RenewReply::Renewed(_), RenewReply::Lost]), "{renewed:?}");
}

/// Foreign data under one lock's key does not affect the other leases of the same renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_overwritten_key_does_not_end_other_leases() {
    let (fixture, manual_clock) = (Fixture::shared().await, ManualClock::running());
    let (locks, other) =
        (fixture.locks_with_clock(LONG_TTL, manual_clock.clock()).await, fixture.locks(LONG_TTL).await);
    let mut guards: Vec<Guard> = Vec::new();
    for number in 0..40 {
        guards.push(locks.mutex(format!("lock {number}")).lock().await.expect("a lock"));
    }
    let overwrite = ["SET", &fixture.key("lock 9"), "x", "PX", "600000"];
    assert_eq!(
        raw_connection(fixture.server).await.command(&overwrite).await.expect("an answer"),
        Reply::Simple("OK".to_owned())
    );
    let lost = guards.remove(9);
    // Each lease is renewed on its own at least every fourth time; this is twice the TTL.
    for _ in 0..6 {
        pass_and_renew(&guards, |by| manual_clock.advance(by)).await;
    }
    let reason = tokio::time::timeout(TEST_TIMEOUT, lost.lost()).await.expect("the holder learns of the loss");
    assert!(matches!(reason, LostReason::Revoked | LostReason::Expired));
    for guard in &guards {
        assert!(guard.is_held(), "{guard:?}");
        assert!(other.mutex(guard.name()).try_lock().await.expect("an answer").is_none(), "{guard:?}");
    }
}

/// A grouped lease lasts no longer than the replicas have acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_replicas_grouped_leases_are_not_extended() {
    let (server, manual_clock) = (redis::start().await.expect("a server"), ManualClock::running());
    let mut replica = replica_of(&server).start().await.expect("a replica");
    let locks = patient_client(&format!("{}?replicas=1", server.url()), LONG_TTL, manual_clock.clock()).await;
    let acquiring = tokio::spawn(async move {
        let mut guards = Vec::new();
        for number in 0..40 {
            guards.push(locks.mutex(format!("lock {number}")).timeout(LONG_TTL).lock().await.expect("a lock"));
        }
        guards
    });
    // A grant that the replica has not acknowledged in time is retried after a back-off.
    manual_time::advance_until(&manual_clock, || {
        if acquiring.is_finished() { Ok(()) } else { Err("not all are acquired") }
    })
    .await;
    let guards = acquiring.await.expect("no panic");
    replica.pause().expect("a pause");
    let deadlines: Vec<_> = guards.iter().map(Guard::deadline).collect();
    let _ = raw_connection(&server).await.command(&["CONFIG", "RESETSTAT"]).await.expect("an answer");
    manual_clock.advance(LONG_TTL / 3);
    wait_until("the server renews them and asks its replica", async || {
        let stats = raw_connection(&server).await.command(&["INFO", "commandstats"]).await.expect("an answer");
        matches!(stats, Reply::Bulk(stats) if stats.contains("cmdstat_wait:calls="))
    })
    .await;
    manual_clock.advance(LONG_TTL);
    for (guard, deadline) in guards.iter().zip(deadlines) {
        tokio::time::timeout(TEST_TIMEOUT, guard.lost()).await.expect("lost when the lease expires");
        assert!(guard.deadline() <= deadline, "{guard:?} was extended without the replica");
    }
}

/// A server without free memory grants no new lock; holders can still renew and release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_memory_held_locks_are_kept_and_released() {
    let (server, manual_clock) = (redis::start().await.expect("a server"), ManualClock::running());
    let locks = patient_client(&server.url(), LONG_TTL, manual_clock.clock()).await;
    let mut guards: Vec<Guard> = Vec::new();
    for number in 0..40 {
        guards.push(locks.mutex(format!("lock {number}")).lock().await.expect("a lock"));
    }
    let _ = raw_connection(&server).await.command(&["CONFIG", "SET", "maxmemory", "1"]).await.expect("an answer");
    let error = locks.mutex("new").try_lock().await.expect_err("out of memory");
    assert_eq!(error.kind(), leasehold::ErrorKind::Full, "{error}");
    for _ in 0..4 {
        pass_and_renew(&guards, |by| manual_clock.advance(by)).await;
    }
    for guard in guards {
        assert!(guard.is_held(), "{guard:?}");
        assert_eq!(guard.release().await.expect("a release"), leasehold::ReleaseOutcome::Released);
    }
}
