//! What reading the Redis engine's protocol found, as tests.

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

/// A record lives as long as its longest lease, whatever other clients think of how long to keep it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_with_different_retentions_do_not_end_each_others_leases() {
    let site = Fixture::shared().await;
    let (short, long) = (engine(&site.url("retention=1s")).await, engine(&site.url("")).await);
    let (first, second) = (claim("a", LONG_TTL / 2), claim("a", LONG_TTL));
    assert!(matches!(attempt(&short, &first).await, AcquireReply::Granted(_)));
    Arc::clone(&short).release(first).await.expect("a release");
    assert!(matches!(attempt(&long, &second).await, AcquireReply::Granted(_)));
    let left = raw_connection(site.server).await.command(&["PTTL", &site.key("a")]).await.expect("an answer");
    let Reply::Integer(left) = left else { panic!("{left:?}") };
    // It is kept for an hour by the second.
    assert!(left > LONG_TTL.as_millis() as i64, "the record ends in {left} ms");
    let third = claim("a", LONG_TTL);
    assert!(matches!(attempt(&short, &third).await, AcquireReply::Queued { .. }));
}

/// A claim that a late request has put into the queue does not hold, whatever it held before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_only_waits_is_not_renewed() {
    let engine = engine(&Fixture::shared().await.url("")).await;
    let (holds, waits) = (claim("a", LONG_TTL), claim("a", LONG_TTL));
    assert!(matches!(attempt(&engine, &holds).await, AcquireReply::Granted(_)));
    assert!(matches!(attempt(&engine, &waits).await, AcquireReply::Queued { .. }));
    let renewed = Arc::clone(&engine).renew(vec![holds, waits]).await.expect("an answer");
    assert!(matches!(renewed[..], [RenewReply::Renewed(_), RenewReply::Lost]), "{renewed:?}");
}

/// What another program has put under one lock's key costs the others of the same renewal nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_overwritten_key_does_not_end_other_leases() {
    let (site, hand) = (Fixture::shared().await, ManualClock::running());
    let (locks, other) = (site.locks_with_clock(LONG_TTL, hand.clock()).await, site.locks(LONG_TTL).await);
    let mut guards: Vec<Guard> = Vec::new();
    for number in 0..40 {
        guards.push(locks.mutex(format!("lock {number}")).lock().await.expect("a lock"));
    }
    let spoilt = ["SET", &site.key("lock 9"), "x", "PX", "600000"];
    assert_eq!(
        raw_connection(site.server).await.command(&spoilt).await.expect("an answer"),
        Reply::Simple("OK".to_owned())
    );
    let lost = guards.remove(9);
    // With the fourth renewal at the latest each is asked for by itself; twice the TTL.
    for _ in 0..6 {
        pass_and_renew(&guards, |by| hand.advance(by)).await;
    }
    let reason = tokio::time::timeout(TEST_TIMEOUT, lost.lost()).await.expect("it is told");
    assert!(matches!(reason, LostReason::Revoked | LostReason::Expired));
    for guard in &guards {
        assert!(guard.is_held(), "{guard:?}");
        assert!(other.mutex(guard.name()).try_lock().await.expect("an answer").is_none(), "{guard:?}");
    }
}

/// A lease in a bundle is no longer than what the replicas have acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_replicas_grouped_leases_are_not_extended() {
    let (server, hand) = (redis::start().await.expect("a server"), ManualClock::running());
    let mut replica = replica_of(&server).start().await.expect("a replica");
    let locks = patient_client(&format!("{}?replicas=1", server.url()), LONG_TTL, hand.clock()).await;
    let taking = tokio::spawn(async move {
        let mut guards = Vec::new();
        for number in 0..40 {
            guards.push(locks.mutex(format!("lock {number}")).timeout(LONG_TTL).lock().await.expect("a lock"));
        }
        guards
    });
    // A grant that the replica has not seen in time is asked for again, after a pause.
    manual_time::advance_until(&hand, || if taking.is_finished() { Ok(()) } else { Err("not all are taken") }).await;
    let guards = taking.await.expect("no panic");
    replica.pause().expect("a pause");
    let promised: Vec<_> = guards.iter().map(Guard::deadline).collect();
    let _ = raw_connection(&server).await.command(&["CONFIG", "RESETSTAT"]).await.expect("an answer");
    hand.advance(LONG_TTL / 3);
    wait_until("they are renewed on the server, which asks its replica", async || {
        let stats = raw_connection(&server).await.command(&["INFO", "commandstats"]).await.expect("an answer");
        matches!(stats, Reply::Bulk(stats) if stats.contains("cmdstat_wait:calls="))
    })
    .await;
    hand.advance(LONG_TTL);
    for (guard, promised) in guards.iter().zip(promised) {
        tokio::time::timeout(TEST_TIMEOUT, guard.lost()).await.expect("it is lost when its lease ends");
        assert!(guard.deadline() <= promised, "{guard:?} was extended without the replica");
    }
}

/// A server that has no memory left lets no new holder in; those that hold go on, and give back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_memory_held_locks_are_kept_and_released() {
    let (server, hand) = (redis::start().await.expect("a server"), ManualClock::running());
    let locks = patient_client(&server.url(), LONG_TTL, hand.clock()).await;
    let mut guards: Vec<Guard> = Vec::new();
    for number in 0..40 {
        guards.push(locks.mutex(format!("lock {number}")).lock().await.expect("a lock"));
    }
    let _ = raw_connection(&server).await.command(&["CONFIG", "SET", "maxmemory", "1"]).await.expect("an answer");
    let error = locks.mutex("new").try_lock().await.expect_err("there is no room");
    assert_eq!(error.kind(), leasehold::ErrorKind::Full, "{error}");
    for _ in 0..4 {
        pass_and_renew(&guards, |by| hand.advance(by)).await;
    }
    for guard in guards {
        assert!(guard.is_held(), "{guard:?}");
        assert_eq!(guard.release().await.expect("a release"), leasehold::ReleaseOutcome::Released);
    }
}
