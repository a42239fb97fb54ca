//! Edge cases of a lock's record: short retention, several claims of one client in one renewal, a
//! server that rejects writes.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Clock, ManualClock};
use leasehold::engine::{AcquireReply, Engine, ReleaseReply, RenewReply};
use leasehold::{Claim, LockName, Mode, Token};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::eventually;

use crate::redis_faults::fixture::{Fixture, await_guard, claim, inspect, release, spawn_lock, until_waiting};
use crate::redis_faults::manual_time::{ManualTime, pass_and_renew};

/// Acquires the claim's lock and returns the token.
async fn acquire(engine: &Arc<dyn Engine>, claim: &Arc<Claim>) -> Token {
    match Arc::clone(engine).attempt(Arc::clone(claim), true).await.expect("an answer") {
        AcquireReply::Granted(grant) => grant.token,
        other => panic!("{other:?}"),
    }
}

/// A client that tries, leaves or force-releases does not shorten the record's retention: the
/// record outlives every lease in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_outlives_its_longest_lease() {
    let time = ManualTime::new();
    let fixture = Fixture::with_config(time.redis_config()).await;
    let engine = fixture.engine_with("retention=1s", &Clock::system()).await;
    let holder = claim("a", Mode::Shared, LONG_TTL);
    // A token is the server's time, in microseconds.
    let end = i64::try_from(acquire(&engine, &holder).await.0 / 1000 + LONG_TTL.as_millis() as u64).expect("a time");
    let lives = |what: &'static str| {
        let fixture = &fixture;
        async move {
            let record = fixture.command_number(&["PEXPIRETIME", &fixture.key("a")]).await;
            assert!(record >= end, "{what}: the record ends at {record} ms, and the lease at {end} ms");
        }
    };
    lives("acquired").await;
    for what in ["tried", "left", "waited", "force-released"] {
        // Longer than half the retention since the expiry was last set.
        time.advance(Duration::from_secs(2));
        let short = claim("a", if what == "left" { Mode::Shared } else { Mode::Exclusive }, LONG_TTL / 2);
        match what {
            "tried" => drop(Arc::clone(&engine).attempt(short, false).await.expect("an answer")),
            "left" => {
                acquire(&engine, &short).await;
                assert_eq!(Arc::clone(&engine).release(short).await.expect("an answer"), ReleaseReply::Released);
            }
            "waited" => {
                let answer = Arc::clone(&engine).attempt(Arc::clone(&short), true).await.expect("an answer");
                assert!(matches!(answer, AcquireReply::Queued { .. }), "{answer:?}");
                assert_eq!(Arc::clone(&engine).release(short).await.expect("an answer"), ReleaseReply::LeftQueue);
            }
            _ => {
                let name = LockName::new("a").expect("a name");
                let force_released =
                    Arc::clone(&engine).force_release(name, short.id, String::new()).await.expect("an answer");
                assert!(force_released.contender.is_none());
            }
        }
        lives(what).await;
    }
}

/// A `try_lock` by another client, with a short retention, does not end the holder's lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_does_not_end_anothers_lease() {
    let time = ManualTime::new();
    let fixture = Fixture::with_config(time.redis_config()).await;
    let (locks, other) =
        (fixture.locks_with(LONG_TTL, "retention=1s").await, fixture.locks_with(LONG_TTL, "retention=1s").await);
    let held = locks.mutex("a").lock().await.expect("a lock");
    for _ in 0..2 {
        time.advance(Duration::from_secs(2));
        assert!(other.mutex("a").try_lock().await.expect("an answer").is_none(), "the lock is held");
    }
    assert!(held.is_held());
    release(held).await;
}

/// One renewal covers two claims on the same lock and finds that a third claim's lease has expired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_claims_on_one_lock_are_renewed_together() {
    let (permit, short) = (Mode::Permits { n: 1, limit: 3 }, LONG_TTL / 10);
    let time = ManualTime::new();
    let fixture = Fixture::with_config(time.redis_config()).await;
    let (engine, other) = (fixture.engine().await, fixture.engine().await);
    for dead_first in [true, false] {
        let name = format!("the expired claim was first: {dead_first}");
        let (one, two, dead) =
            (claim(&name, permit, LONG_TTL), claim(&name, permit, LONG_TTL), claim(&name, permit, short));
        let order = if dead_first { [&dead, &one, &two] } else { [&one, &two, &dead] };
        for claim in order {
            acquire(if Arc::ptr_eq(claim, &dead) { &other } else { &engine }, claim).await;
        }
        let waits = claim(&name, permit, LONG_TTL);
        let answer = Arc::clone(&other).attempt(Arc::clone(&waits), true).await.expect("an answer");
        assert!(matches!(answer, AcquireReply::Queued { .. }), "{answer:?}");
        time.advance(short + Duration::from_secs(1));

        let renewals = Arc::clone(&engine).renew(vec![Arc::clone(&one), Arc::clone(&two)]).await.expect("an answer");
        assert!(renewals.iter().all(|renewal| matches!(renewal, RenewReply::Renewed(_))), "{renewals:?}");
        let view = Arc::clone(&engine).inspect(LockName::new(&name).expect("a name")).await.expect("a view");
        assert_eq!((view.holders.len(), view.waiters.len()), (3, 0), "{name}: {view:?}");
        // Everything can be released and acquired again, so the record is intact.
        for claim in [&waits, &one, &two] {
            let released = Arc::clone(&other).release(Arc::clone(claim)).await.expect("an answer");
            assert_eq!(released, ReleaseReply::Released, "{name}");
        }
        let alone = claim(&name, Mode::Exclusive, LONG_TTL);
        acquire(&other, &alone).await;
        Arc::clone(&other).release(alone).await.expect("an answer");
    }
}

/// A server that rejects writes for a while publishes no grant that it has not stored.
async fn assert_no_grant_without_a_write(setting: &str, off: &str, on: &str) {
    let fixture = Fixture::new().await;
    let (locks, other) = (fixture.locks(LONG_TTL).await, fixture.locks(LONG_TTL).await);
    let held = locks.mutex("a").lock().await.expect("a lock");
    let waits = spawn_lock(&other, "a");
    until_waiting(&locks, "a", 1).await;
    fixture.reset_stats().await;
    fixture.command_text(&["CONFIG", "SET", setting, off]).await;
    let releasing = tokio::spawn(held.release());
    // The server has received the release and either rejected it or applied all of it.
    eventually(TEST_TIMEOUT, || async {
        let scripts = fixture.calls().await.scripts();
        if scripts >= 1 { Ok(()) } else { Err("no release so far") }
    })
    .await;
    let notified = fixture.calls().await.of("publish") > 0;
    let seen = inspect(&locks, "a").await;
    if notified {
        assert!(
            seen.waiters.is_empty(),
            "the waiter was notified of a grant, but the record shows it waiting: {seen:?}"
        );
    }
    fixture.command_text(&["CONFIG", "SET", setting, on]).await;
    let got = await_guard(waits).await;
    let seen = inspect(&locks, "a").await;
    assert_eq!(seen.holders.iter().map(|holder| holder.token).collect::<Vec<_>>(), [Some(got.token())], "{seen:?}");
    let _ = releasing.await.expect("no panic").expect("a release");
    release(got).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_enough_replicas_sends_no_grant() {
    assert_no_grant_without_a_write("min-replicas-to-write", "1", "0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_memory_sends_no_grant() {
    assert_no_grant_without_a_write("maxmemory", "1", "0").await;
}

/// One write renews a group of leases; each lock's record outlives its lease, even with a short
/// retention.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_record_of_a_grouped_lease_outlives_it() {
    let time = ManualTime::new();
    let (fixture, clock) = (Fixture::with_config(time.redis_config()).await, time.clients_clock());
    let engine = fixture.engine_with("retention=1s", &clock).await;
    let claims: Vec<_> = (0..40).map(|number| claim(&format!("many {number}"), Mode::Exclusive, LONG_TTL)).collect();
    for claim in &claims {
        acquire(&engine, claim).await;
    }
    // As a keeper does; after these rounds, each claim is renewed on its own again.
    for round in 0..3 {
        // The lease starts no earlier than the request.
        let requested = fixture.time().await;
        let renewals = Arc::clone(&engine).renew(claims.clone()).await.expect("an answer");
        for (claim, renewal) in claims.iter().zip(renewals) {
            let lease = match renewal {
                RenewReply::Renewed(expires_at) => expires_at.duration_since(clock.now()),
                other => panic!("{other:?}"),
            };
            let record = fixture.command_number(&["PEXPIRETIME", &fixture.key(claim.name().as_str())]).await;
            let record = Duration::from_millis(record.try_into().expect("the record expires"));
            assert!(
                record > requested + lease,
                "round {round}: the record ends at {record:?}, the lease {lease:?} after {requested:?}"
            );
        }
        time.advance(LONG_TTL * 3 / 10);
    }
}

/// A heartbeat costs the server the same at any queue length; otherwise a long queue would use all
/// its time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_costs_the_same_for_any_queue_length() {
    let fixture = Fixture::new().await;
    let engine = fixture.engine().await;
    acquire(&engine, &claim("a", Mode::Exclusive, LONG_TTL)).await;
    let mut last = claim("a", Mode::Exclusive, LONG_TTL);
    for _ in 0..2000 {
        last = claim("a", Mode::Exclusive, LONG_TTL);
        let answer = Arc::clone(&engine).attempt(Arc::clone(&last), true).await.expect("an answer");
        assert!(matches!(answer, AcquireReply::Queued { .. }), "{answer:?}");
    }
    fixture.reset_stats().await;
    let answer = Arc::clone(&engine).wait(last, Duration::ZERO).await.expect("an answer");
    assert!(matches!(answer, AcquireReply::Queued { ahead: 1.., .. }), "{answer:?}");
    let reads = fixture.calls().await.of("hget");
    assert!(reads < 200, "{reads} waiters were read");
}

/// Another program overwrites one lock's key: that lock is lost, but not the others in its renewal
/// group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overwritten_record_ends_no_other_lease() {
    let (fixture, manual_clock) = (Fixture::shared().await, ManualClock::running());
    let locks = fixture.locks_with_clock(LONG_TTL, manual_clock.clock()).await;
    let mut held = Vec::new();
    for number in 0..24 {
        held.push(locks.mutex(format!("alone {number}")).lock().await.expect("a lock"));
        held.push(locks.rwlock(format!("together {number}")).read().await.expect("a lock"));
    }
    for name in ["alone 7", "together 9"] {
        fixture.command(&["SET", &fixture.key(name), "something else", "EX", "600"]).await;
    }
    let (spoilt, whole): (Vec<_>, Vec<_>) =
        held.into_iter().partition(|guard| ["alone 7", "together 9"].contains(&guard.name().as_str()));
    // Each lease is renewed on its own at least every fourth time.
    for _ in 0..5 {
        pass_and_renew(&whole, |by| manual_clock.advance(by)).await;
    }
    for guard in &spoilt {
        tokio::time::timeout(TEST_TIMEOUT, guard.lost()).await.expect("the holder learns of the loss");
    }
    drop(spoilt);
    for guard in whole {
        release(guard).await;
    }
}
