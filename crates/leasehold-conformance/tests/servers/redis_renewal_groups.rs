//! `redis:` renews many leases in groups. Each group outlasts its TTL, and the loss of one lease is
//! still detected.
#![allow(clippy::expect_used, reason = "tests report failures by panicking")]

use leasehold::clock::{Clock, ManualClock};
use leasehold::{Guard, Locks, LostReason, ReleaseOutcome};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::redis::{Reply, RespClient};
use leasehold_testbed::{Data, Server, eventually, redis};
use tokio::time::timeout;

use crate::redis_faults::manual_time::{self, patient_client};

const LEASES: usize = if cfg!(feature = "nightly") { 400 } else { 100 };

/// A client whose leases are renewed when the test moves its clock, and when a resync needs it.
async fn open(server: &Server, clock: Clock) -> Locks {
    patient_client(&server.url(), LONG_TTL, clock).await
}

async fn raw_connection(server: &Server) -> RespClient {
    RespClient::connect(server.addr()).await.expect("a raw connection")
}

async fn hold_all(locks: &Locks) -> Vec<Guard> {
    // Acquired together, so that they fall due together and form a group.
    let taking = (0..LEASES).map(|number| {
        let mutex = locks.mutex(format!("lock {number}"));
        async move { mutex.lock().await.expect("a lock") }
    });
    futures_util::future::join_all(taking).await
}

/// The number of renewal groups on the server.
async fn group_count(server: &Server) -> usize {
    match raw_connection(server).await.command(&["KEYS", "leasehold:b*"]).await.expect("an answer") {
        Reply::Array(keys) => keys.len(),
        other => panic!("{other:?}"),
    }
}

/// Waits until the leases are renewed in groups.
async fn wait_grouped(server: &Server, guards: &[Guard], clock: &ManualClock) {
    renew_all(guards, clock, 1).await;
    eventually(TEST_TIMEOUT, || async {
        if group_count(server).await > 0 { Ok(()) } else { Err("no renewal group so far".to_owned()) }
    })
    .await;
}

/// The number of HSET calls on the server.
async fn hset_calls(server: &Server) -> u64 {
    let stats = raw_connection(server).await.command(&["INFO", "commandstats"]).await.expect("an answer");
    let Reply::Bulk(stats) = stats else { panic!("no statistics") };
    let calls = |line: &str| line.strip_prefix("cmdstat_hset:calls=")?.split(',').next()?.parse().ok();
    stats.lines().find_map(calls).unwrap_or(0)
}

/// Advances the clock by this many thirds of a lease; every lease is renewed in each of them.
async fn renew_all(guards: &[Guard], clock: &ManualClock, thirds: u32) {
    for _ in 0..thirds {
        manual_time::pass_and_renew(guards, |by| clock.advance(by)).await;
    }
    assert!(guards.iter().all(Guard::is_held), "all are held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grouped_leases_outlast_many_ttls_with_few_writes_and_are_released() {
    let (server, manual_clock) = (redis::start().await.expect("a server"), ManualClock::running());
    let locks = open(&server, manual_clock.clock()).await;
    let guards = hold_all(&locks).await;
    wait_grouped(&server, &guards, &manual_clock).await;
    // Until all leases are grouped, some are still renewed one at a time.
    renew_all(&guards, &manual_clock, 3).await;
    let before = hset_calls(&server).await;
    renew_all(&guards, &manual_clock, 12).await;
    let wrote = hset_calls(&server).await - before;
    // One at a time, they would have been written 12 times each.
    assert!(wrote < LEASES as u64, "{wrote} writes in four TTLs");
    let view = locks.inspect("lock 7").await.expect("a view");
    assert_eq!(view.holders[0].token, Some(guards[7].token()));
    assert!(view.holders[0].remaining > std::time::Duration::ZERO && view.holders[0].remaining <= LONG_TTL, "{view:?}");
    assert_eq!(locks.list("").await.expect("a list").len(), LEASES);
    for guard in guards {
        assert_eq!(guard.release().await.expect("a release"), ReleaseOutcome::Released);
    }
    assert!(locks.list("").await.expect("a list").is_empty());
    assert!(locks.mutex("lock 7").try_lock().await.expect("an answer").is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_contended_lease_leaves_its_group_and_is_handed_off() {
    let (server, manual_clock) = (redis::start().await.expect("a server"), ManualClock::running());
    let (locks, other) = (open(&server, manual_clock.clock()).await, open(&server, Clock::system()).await);
    let mut guards = hold_all(&locks).await;
    wait_grouped(&server, &guards, &manual_clock).await;
    let waiter = tokio::spawn({
        let mutex = other.mutex("lock 3").timeout(LONG_TTL);
        async move { mutex.lock().await }
    });
    eventually(TEST_TIMEOUT, || async {
        let view = other.inspect("lock 3").await.map_err(|error| error.to_string())?;
        if view.waiters.len() == 1 { Ok(()) } else { Err(format!("{view:?}")) }
    })
    .await;
    // The next renewal covers the grouped leases and the one that left its group.
    renew_all(&guards, &manual_clock, 6).await;
    assert!(other.mutex("lock 4").try_lock().await.expect("an answer").is_none(), "the lock is still held");
    let token = guards[3].token();
    assert_eq!(guards.remove(3).release().await.expect("a release"), ReleaseOutcome::Released);
    let next =
        timeout(TEST_TIMEOUT, waiter).await.expect("the waiter gets the lock").expect("no panic").expect("a lock");
    assert!(next.token() > token);
    renew_all(&guards, &manual_clock, 6).await;
    assert!(next.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_force_released_lease_and_a_deleted_key_are_lost_and_the_others_last() {
    let (server, manual_clock) = (redis::start().await.expect("a server"), ManualClock::running());
    let (locks, other) = (open(&server, manual_clock.clock()).await, open(&server, Clock::system()).await);
    let mut guards = hold_all(&locks).await;
    wait_grouped(&server, &guards, &manual_clock).await;
    let claim = other.inspect("lock 5").await.expect("a view").holders[0].claim;
    let force_released = other.force_release("lock 5", claim).await.expect("a force release");
    assert!(force_released.contender.is_some());
    let reason = timeout(TEST_TIMEOUT, guards[5].lost()).await.expect("the holder learns of the loss");
    assert_eq!(reason, LostReason::Revoked);
    let deleted = raw_connection(&server).await.command(&["DEL", "leasehold:l{lock 9}"]).await.expect("an answer");
    assert_eq!(deleted, Reply::Integer(1));
    let (deleted, force_released) = (guards.remove(9), guards.remove(5));
    // Each lease is renewed on its own at least every fourth time.
    renew_all(&guards, &manual_clock, 4).await;
    let reason = timeout(TEST_TIMEOUT, deleted.lost()).await.expect("the holder detects the loss");
    assert_eq!(reason, LostReason::Revoked);
    drop((deleted, force_released));
    // The other leases are not affected.
    renew_all(&guards, &manual_clock, 6).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grouped_leases_survive_reconnects_and_flushed_scripts_but_not_lost_data() {
    let (mut server, manual_clock) = (redis::start().await.expect("a server"), ManualClock::running());
    let locks = open(&server, manual_clock.clock()).await;
    let guards = hold_all(&locks).await;
    wait_grouped(&server, &guards, &manual_clock).await;
    for _ in 0..3 {
        let mut raw = raw_connection(&server).await;
        raw.command(&["SCRIPT", "FLUSH"]).await.expect("an answer");
        let before: Vec<_> = guards.iter().map(Guard::deadline).collect();
        raw.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await.expect("an answer");
        manual_time::advance_until(&manual_clock, || {
            let late = guards.iter().zip(&before).find(|(guard, before)| guard.deadline() <= **before);
            late.map_or(Ok(()), |(guard, _)| Err(format!("{guard:?}")))
        })
        .await;
        renew_all(&guards, &manual_clock, 3).await;
    }
    server.kill().expect("a kill");
    server.restart(Data::Wipe).await.expect("a restart");
    manual_time::advance_until(&manual_clock, || {
        let held = guards.iter().find(|guard| guard.lost_reason().is_none());
        held.map_or(Ok(()), |guard| Err(format!("holder not notified: {guard:?}")))
    })
    .await;
    assert!(
        guards.iter().all(|guard| guard.lost_reason() == Some(LostReason::Revoked)),
        "long before their leases expire"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releases_in_any_order_keep_the_rest_of_a_group() {
    let (server, manual_clock) = (redis::start().await.expect("a server"), ManualClock::running());
    let locks = open(&server, manual_clock.clock()).await;
    let mut guards = hold_all(&locks).await;
    wait_grouped(&server, &guards, &manual_clock).await;
    while guards.len() > 20 {
        let at = guards.len() * 7 / 13;
        assert_eq!(guards.swap_remove(at).release().await.expect("a release"), ReleaseOutcome::Released);
        if guards.len() % 30 == 0 {
            renew_all(&guards, &manual_clock, 1).await;
        }
    }
    drop(guards);
    eventually(TEST_TIMEOUT, || async {
        let left = locks.list("").await.map_err(|error| error.to_string())?;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}
