//! Clients with different prefixes or databases are isolated.

use leasehold::Locks;
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT, patient_url};

use crate::redis_faults::fixture::{Fixture, await_guard, inspect, release, spawn_lock, until_empty, until_waiting};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_with_different_prefixes_are_independent() {
    let fixture = Fixture::new().await;
    let (one, two) =
        (fixture.locks_with(LONG_TTL, "prefix=one:").await, fixture.locks_with(LONG_TTL, "prefix=two:").await);
    let plain = Locks::builder().ttl(LONG_TTL).open(&patient_url(&fixture.server.url())).await.expect("a client");
    // One prefix starts with another, and one is a glob pattern.
    let (longer, odd) =
        (fixture.locks_with(LONG_TTL, "prefix=one:l").await, fixture.locks_with(LONG_TTL, "prefix=*:").await);
    let all = [&one, &two, &plain, &longer, &odd];
    let mut held = Vec::new();
    for locks in all {
        held.push(locks.mutex("a").try_lock().await.expect("an answer").expect("free in this prefix"));
    }
    for (locks, guard) in all.iter().zip(&held) {
        let listed = locks.list("").await.expect("a list");
        let holders: Vec<_> = listed.iter().flat_map(|view| &view.holders).map(|holder| holder.token).collect();
        assert_eq!(holders, [Some(guard.token())], "{locks:?}");
    }
    for key in fixture.keys().await {
        assert!(["one:", "two:", "leasehold:", "*:"].iter().any(|prefix| key.starts_with(prefix)), "{key}");
    }
    // A force release, a wait and a hand-off under one prefix do not affect the others.
    let waits = spawn_lock(&two, "a");
    until_waiting(&two, "a", 1).await;
    assert!(inspect(&one, "a").await.waiters.is_empty());
    let claim = inspect(&one, "a").await.holders[0].claim;
    assert!(two.force_release("a", claim).await.expect("an answer").contender.is_none());
    assert!(held.iter().all(leasehold::Guard::is_held));
    let of_two = held.remove(1);
    release(of_two).await;
    release(await_guard(waits).await).await;
    for guard in held {
        release(guard).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_in_different_databases_are_independent() {
    let fixture = Fixture::new().await;
    let zero = fixture.locks(LONG_TTL).await;
    let url = format!("{}1", fixture.server.url());
    let open = || async { Locks::builder().ttl(LONG_TTL).open(&patient_url(&url)).await.expect("a client") };
    let (one, other, by_option) = (open().await, open().await, fixture.locks_with(LONG_TTL, "db=1").await);
    let in_zero = zero.mutex("a").lock().await.expect("a lock");
    let in_one = one.mutex("a").try_lock().await.expect("an answer").expect("free in the other database");
    assert!(by_option.mutex("a").try_lock().await.expect("an answer").is_none(), "the same database");
    // Pub/sub ignores databases, yet each message reaches only its client.
    let (waits_in_zero, waits_in_one) = (spawn_lock(&zero, "a"), spawn_lock(&other, "a"));
    until_waiting(&zero, "a", 1).await;
    until_waiting(&other, "a", 1).await;
    release(in_one).await;
    let in_one = await_guard(waits_in_one).await;
    assert!(!waits_in_zero.is_finished() && in_zero.is_held());
    assert_eq!(inspect(&by_option, "a").await.holders[0].token, Some(in_one.token()));
    release(in_zero).await;
    let in_zero = await_guard(waits_in_zero).await;
    assert!(in_one.is_held());
    // After a reconnect, each message still reaches only its client.
    assert_eq!(fixture.kill_connections().await, 4);
    let waits_in_one = spawn_lock(&by_option, "a");
    leasehold_testbed::eventually(TEST_TIMEOUT, || async { one.inspect("a").await.map(drop) }).await;
    until_waiting(&one, "a", 1).await;
    release(in_one).await;
    release(await_guard(waits_in_one).await).await;
    release(in_zero).await;
    until_empty(&zero).await;
    until_empty(&one).await;
}
