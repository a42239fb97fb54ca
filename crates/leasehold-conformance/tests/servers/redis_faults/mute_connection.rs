//! Connections that stop delivering data. The client pings an idle connection after five seconds to
//! detect this.

use leasehold::clock::Clock;
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::eventually;

use crate::redis_faults::fixture::{Fixture, await_guard, inspect, release, spawn_lock, until_empty, until_waiting};

/// The hand-off message and everything after it on that connection is dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_on_a_mute_connection_is_recovered() {
    let fixture = Fixture::shared().await;
    let (locks, other) = (fixture.locks(LONG_TTL).await, fixture.locks(LONG_TTL).await);
    let (muted, proxy) = fixture.proxied_locks_with(LONG_TTL, Clock::system(), "connect-timeout=500ms").await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let waits = spawn_lock(&muted, "a");
    until_waiting(&locks, "a", 1).await;
    let behind = spawn_lock(&other, "a");
    until_waiting(&locks, "a", 2).await;
    proxy.drop_replies(true);
    release(held).await;
    eventually(TEST_TIMEOUT, || async {
        let swallowed = proxy.counts().dropped_bytes;
        if swallowed > 0 { Ok(()) } else { Err("nothing was dropped yet") }
    })
    .await;
    proxy.drop_replies(false);
    let got = await_guard(waits).await;
    assert!(got.is_held());
    let seen = inspect(&locks, "a").await;
    assert_eq!(seen.holders.iter().map(|holder| holder.token).collect::<Vec<_>>(), [Some(got.token())], "{seen:?}");
    assert!(!behind.is_finished(), "one client holds the lock");
    release(got).await;
    release(await_guard(behind).await).await;
    until_empty(&locks).await;
}
