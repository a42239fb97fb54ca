//! Connections on which nothing is heard any more. A client finds out by itself: it asks a quiet one after five seconds.

use leasehold::clock::Clock;
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::eventually;

use crate::redis_faults::fixture::{Fixture, await_guard, inspect, release, spawn_lock, until_empty, until_waiting};

/// The message of the hand-off is swallowed, and everything after it on that connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_on_a_mute_connection_is_recovered() {
    let site = Fixture::shared().await;
    let (locks, other) = (site.locks(LONG_TTL).await, site.locks(LONG_TTL).await);
    let (deaf, proxy) = site.proxied_locks_with(LONG_TTL, Clock::system(), "connect-timeout=500ms").await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let waits = spawn_lock(&deaf, "a");
    until_waiting(&locks, "a", 1).await;
    let behind = spawn_lock(&other, "a");
    until_waiting(&locks, "a", 2).await;
    proxy.drop_replies(true);
    release(held).await;
    eventually(TEST_TIMEOUT, || async {
        let swallowed = proxy.counts().dropped_bytes;
        if swallowed > 0 { Ok(()) } else { Err("nothing was swallowed yet") }
    })
    .await;
    proxy.drop_replies(false);
    let got = await_guard(waits).await;
    assert!(got.is_held());
    let seen = inspect(&locks, "a").await;
    assert_eq!(seen.holders.iter().map(|holder| holder.token).collect::<Vec<_>>(), [Some(got.token())], "{seen:?}");
    assert!(!behind.is_finished(), "one holds it");
    release(got).await;
    release(await_guard(behind).await).await;
    until_empty(&locks).await;
}
