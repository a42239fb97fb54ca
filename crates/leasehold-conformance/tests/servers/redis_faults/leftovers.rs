//! Nothing is left behind: every key expires, and no queue entry, lock or connection remains.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Locks, Owner};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::eventually;

use crate::redis_faults::fixture::{Fixture, await_guard, inspect, release, spawn_lock, until_empty, until_waiting};
use crate::redis_faults::manual_time::{LONGER, ManualTime, pass_and_renew, patient_client};

/// Uses every feature: locks that are held, released, awaited, contended, force-released,
/// re-entered and renewed in groups.
async fn use_every_feature(locks: &Locks, other: &Locks, time: &ManualTime) {
    let owner = Owner::new();
    let mutex = locks.mutex("mutex").owner(&owner).lock().await.expect("a lock");
    let again = locks.mutex("mutex").owner(&owner).lock().await.expect("a lock");
    assert!(other.mutex("mutex").try_lock().await.expect("an answer").is_none());
    let read = locks.rwlock("rwlock").read().await.expect("a lock");
    let also = other.rwlock("rwlock").read().await.expect("a lock");
    let permits = locks.semaphore("semaphore", 4).acquire(3).await.expect("permits");
    assert!(other.semaphore("semaphore", 4).try_acquire(2).await.expect("an answer").is_none());
    let all = locks.multi_lock(["one", "two", "three"]).lock().await.expect("all locks");
    let writer = other.rwlock("rwlock").timeout(Duration::from_millis(100));
    assert!(writer.write().await.is_err(), "others read");
    let waits = spawn_lock(other, "semaphore");
    until_waiting(locks, "semaphore", 1).await;
    release(permits).await;
    let handed = await_guard(waits).await;
    let force_released = locks.mutex("force-released").lock().await.expect("a lock");
    let claim = inspect(other, "force-released").await.holders[0].claim;
    other.force_release("force-released", claim).await.expect("a force release");
    force_released.lost().await;
    other.force_release("never acquired", claim).await.expect("force-releasing an unknown claim");
    let mut many = Vec::new();
    for number in 0..40 {
        many.push(locks.mutex(format!("many {number}")).lock().await.expect("a lock"));
    }
    pass_and_renew(&many, |by| time.advance(by)).await;
    drop((mutex, again, read, also, all, handed, force_released, many));
    locks.flush().await.expect("all released");
    other.flush().await.expect("all released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_expires() {
    let time = Arc::new(ManualTime::new());
    let fixture = Fixture::with_config(time.redis_config()).await;
    // During the run and after it, with long and short retention.
    for options in ["prefix=long:", "prefix=short:&retention=1s"] {
        let (locks, other) = (
            patient_client(&fixture.url(options), LONG_TTL, time.clients_clock()).await,
            fixture.locks_with(LONGER, options).await,
        );
        let mixing = tokio::spawn({
            let time = Arc::clone(&time);
            async move { use_every_feature(&locks, &other, &time).await }
        });
        while !mixing.is_finished() {
            fixture.assert_all_keys_expire().await;
        }
        mixing.await.expect("no panic");
        fixture.assert_all_keys_expire().await;
    }
    let long = fixture.keys().await.iter().filter(|key| key.starts_with("long:l")).count();
    assert!(long >= 40, "records of free locks are retained: {long}");
    time.advance(LONGER + Duration::from_secs(2));
    eventually(TEST_TIMEOUT, || async {
        let short = fixture.keys().await.into_iter().filter(|key| key.starts_with("short:")).collect::<Vec<_>>();
        if short.is_empty() { Ok(()) } else { Err(format!("{short:?}")) }
    })
    .await;
}

/// A client is dropped while it holds and waits: its locks and queue entries are released, and its
/// connection closes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_client_leaves_no_claims_behind() {
    let fixture = Fixture::new().await;
    let watcher = fixture.locks(LONG_TTL).await;
    let rounds = if cfg!(feature = "nightly") { 10 } else { 4 };
    for round in 0..rounds {
        let locks = fixture.locks(LONG_TTL).await;
        let other = watcher.mutex("other").lock().await.expect("a lock");
        let held = locks.mutex("held").lock().await.expect("a lock");
        let read = locks.rwlock("read").read().await.expect("a lock");
        let waiters: Vec<_> = (0..5).map(|_| spawn_lock(&locks, "other")).collect();
        until_waiting(&watcher, "other", 5).await;
        drop(locks);
        if round % 2 == 0 {
            drop((held, read));
            waiters.iter().for_each(tokio::task::JoinHandle::abort);
        } else {
            waiters.iter().for_each(tokio::task::JoinHandle::abort);
            drop((held, read));
        }
        eventually(TEST_TIMEOUT, || async {
            let left: Vec<_> = watcher.list("").await.map_err(|error| error.to_string())?;
            let alone = left.len() == 1 && left[0].waiters.is_empty();
            if alone { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await;
        release(other).await;
        until_empty(&watcher).await;
        eventually(TEST_TIMEOUT, || async {
            let open = fixture.connections().await;
            if open == 1 { Ok(()) } else { Err(format!("{open} connections")) }
        })
        .await;
    }
}

/// A client is dropped while its connection is down: nothing of it remains for longer than a TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_dropped_while_disconnected_leaves_no_claims_after_a_ttl() {
    let ttl = Duration::from_secs(1);
    let fixture = Fixture::shared().await;
    let watcher = fixture.locks(LONG_TTL).await;
    let (locks, proxy) = fixture.proxied_locks(ttl).await;
    let other = watcher.mutex("other").lock().await.expect("a lock");
    let held = locks.mutex("held").lock().await.expect("a lock");
    let waits = spawn_lock(&locks, "other");
    until_waiting(&watcher, "other", 1).await;
    proxy.refuse(true);
    proxy.cut();
    waits.abort();
    drop((locks, held));
    eventually(TEST_TIMEOUT, || async {
        let left = watcher.list("").await.map_err(|error| error.to_string())?;
        if left.len() == 1 && left[0].waiters.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    release(other).await;
}
