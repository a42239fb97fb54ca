//! What reading the Redlock engine's protocol found, where it takes long.

use std::time::Duration;

use leasehold_testbed::Proxy;
use leasehold_testbed::redis::IndependentServers;

use crate::redlock_faults::fixture::LASTING;
use crate::redlock_faults::review_findings::open_locks;

/// A server that hangs does not keep those waiting for long who only look, nor those who put somebody out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_server_does_not_delay_inspection() {
    let mut servers = IndependentServers::start(5).await.expect("servers");
    let url = format!("{}?node-timeout=1s", servers.url());
    let (holds, looks) = (open_locks(&url, LASTING).await, open_locks(&url, LASTING).await);
    let (lists, evicts) = (open_locks(&url, LASTING).await, open_locks(&url, LASTING).await);
    let held = holds.mutex("a").lock().await.expect("the lock");
    servers.server_mut(1).pause().expect("a paused server");
    let view = looks.inspect("a").await.expect("a view");
    assert_eq!(view.holders.len(), 1, "{view:?}");
    assert_eq!(lists.list("").await.expect("a list").len(), 1);
    let evicted = evicts.force_release("a", view.holders[0].claim).await.expect("an eviction");
    assert!(evicted.fence_token > Some(held.token()));
}

/// Whoever lists the locks of servers far away does not pay a round trip for each of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listing_many_locks_is_not_one_round_trip_each() {
    let servers = IndependentServers::start(3).await.expect("servers");
    let near = open_locks(&servers.url(), LASTING).await;
    let mut guards = Vec::new();
    for number in 0..300 {
        guards.push(near.mutex(format!("n{number}")).lock().await.expect("a lock"));
    }
    let mut lines = Vec::new();
    for server in servers.servers() {
        let line = Proxy::start(server.addr()).await.expect("a proxy");
        line.delay(Duration::from_millis(15));
        lines.push(line);
    }
    let hosts: Vec<_> = lines.iter().map(|line| line.addr().to_string()).collect();
    let far = open_locks(&format!("redlock://{}", hosts.join(",")), LASTING).await;
    assert_eq!(far.list("n").await.expect("a list").len(), guards.len());
}
