//! Slow regression tests for findings of a review of the Redlock engine's protocol.

use std::time::Duration;

use leasehold_testbed::Proxy;
use leasehold_testbed::redis::IndependentServers;

use crate::redlock_faults::fixture::LASTING;
use crate::redlock_faults::review_findings::open_locks;

/// A hung server does not delay inspections or force releases for long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_server_does_not_delay_inspection() {
    let mut servers = IndependentServers::start(5).await.expect("servers");
    let url = format!("{}?node-timeout=1s", servers.url());
    let (holds, inspects) = (open_locks(&url, LASTING).await, open_locks(&url, LASTING).await);
    let (lists, force_releases) = (open_locks(&url, LASTING).await, open_locks(&url, LASTING).await);
    let held = holds.mutex("a").lock().await.expect("the lock");
    servers.server_mut(1).pause().expect("a paused server");
    let view = inspects.inspect("a").await.expect("a view");
    assert_eq!(view.holders.len(), 1, "{view:?}");
    assert_eq!(lists.list("").await.expect("a list").len(), 1);
    let force_released = force_releases.force_release("a", view.holders[0].claim).await.expect("a force release");
    assert!(force_released.fence_token > Some(held.token()));
}

/// Listing the locks of distant servers does not cost one round trip per lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listing_many_locks_is_not_one_round_trip_each() {
    let servers = IndependentServers::start(3).await.expect("servers");
    let near = open_locks(&servers.url(), LASTING).await;
    let mut guards = Vec::new();
    for number in 0..300 {
        guards.push(near.mutex(format!("n{number}")).lock().await.expect("a lock"));
    }
    let mut proxies = Vec::new();
    for server in servers.servers() {
        let proxy = Proxy::start(server.addr()).await.expect("a proxy");
        proxy.delay(Duration::from_millis(15));
        proxies.push(proxy);
    }
    let hosts: Vec<_> = proxies.iter().map(|proxy| proxy.addr().to_string()).collect();
    let far = open_locks(&format!("redlock://{}", hosts.join(",")), LASTING).await;
    assert_eq!(far.list("n").await.expect("a list").len(), guards.len());
}
