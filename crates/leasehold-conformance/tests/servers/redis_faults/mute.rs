//! Connections on which nothing is heard any more. A client finds out by itself: it asks a quiet one after five seconds.

use leasehold::clock::Clock;
use leasehold_conformance::world::{LONG, SOON};
use leasehold_testbed::eventually;

use crate::redis_faults::site::{Site, give_back, guard, spawn_lock, until_empty, until_waiting, view};

/// The message of the hand-off is swallowed, and everything after it on that connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swallowed_message_is_made_good() {
    let site = Site::shared().await;
    let (locks, other) = (site.locks(LONG).await, site.locks(LONG).await);
    let (deaf, proxy) = site.proxied_with(LONG, Clock::system(), "connect-timeout=500ms").await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let waits = spawn_lock(&deaf, "a");
    until_waiting(&locks, "a", 1).await;
    let behind = spawn_lock(&other, "a");
    until_waiting(&locks, "a", 2).await;
    proxy.drop_replies(true);
    give_back(held).await;
    eventually(SOON, || async {
        let swallowed = proxy.counts().swallowed_bytes;
        if swallowed > 0 { Ok(()) } else { Err("nothing was swallowed yet") }
    })
    .await;
    proxy.drop_replies(false);
    let got = guard(waits).await;
    assert!(got.is_held());
    let seen = view(&locks, "a").await;
    assert_eq!(seen.holders.iter().map(|holder| holder.token).collect::<Vec<_>>(), [Some(got.token())], "{seen:?}");
    assert!(!behind.is_finished(), "one holds it");
    give_back(got).await;
    give_back(guard(behind).await).await;
    until_empty(&locks).await;
}
