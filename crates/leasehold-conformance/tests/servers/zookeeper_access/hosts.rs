//! Unreachable servers.

use std::net::TcpListener;
use std::time::Duration;

use leasehold::ErrorKind;
use leasehold_conformance::test_context::TEST_TIMEOUT;
#[cfg(feature = "nightly")]
use leasehold_testbed::zookeeper::Ensemble;
use leasehold_testbed::{Proxy, eventually};

use crate::zookeeper_access::fixture::{
    acquire_and_release, assert_error, open_error, open_locks, shared_server, try_open,
};

/// An address without a listener.
fn unused_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("a bound address").to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_server_is_named() {
    let host = unused_address();
    assert_error(&open_error(&format!("zookeeper://{host}")).await, ErrorKind::Unavailable, &[&host]);
    let error = open_error("zookeeper://no-such-host.invalid:2181").await;
    assert_error(&error, ErrorKind::Unavailable, &["no-such-host.invalid"]);
}

/// The server accepts connections but does not respond: its disk hangs, or it is another kind of
/// server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unresponsive_server_times_out() {
    let unresponsive = TcpListener::bind("127.0.0.1:0").expect("a port");
    let host = unresponsive.local_addr().expect("a bound address").to_string();
    let error = open_error(&format!("zookeeper://{host}?connect-timeout=500ms")).await;
    assert_error(&error, ErrorKind::Unavailable, &[&host]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_servers_are_named_if_none_is_reachable() {
    let hosts = [unused_address(), unused_address(), unused_address()];
    let url = format!("zookeeper://{}?connect-timeout=500ms", hosts.join(","));
    let error = open_error(&url).await;
    assert_error(&error, ErrorKind::Unavailable, &[&hosts[0], &hosts[1], &hosts[2]]);
    assert!(error.is_retryable(), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_servers_first_in_the_list_are_skipped() {
    let server = shared_server().await;
    let unresponsive = TcpListener::bind("127.0.0.1:0").expect("a port");
    let unresponsive = unresponsive.local_addr().map(|addr| (addr.to_string(), unresponsive)).expect("a bound address");
    for hosts in [format!("{},{}", unused_address(), server.url()), format!("{},{}", unresponsive.0, server.url())] {
        // On a slow machine the live server may exceed this timeout as well.
        let url = format!("zookeeper://{hosts}/living?connect-timeout=2s");
        acquire_and_release(&eventually(TEST_TIMEOUT, || try_open(&url)).await).await;
    }
}

#[cfg(feature = "nightly")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ensemble_serves_while_a_majority_runs() {
    let mut ensemble = Ensemble::start(3).await.expect("an ensemble");
    let url = format!("zookeeper://{}/n?connect-timeout=5s", ensemble.url());
    ensemble.server_mut(0).kill().expect("a dead server");
    eventually(TEST_TIMEOUT, || async {
        let locks = try_open(&url).await?;
        locks.mutex("a").try_lock().await.map(drop)
    })
    .await;
    acquire_and_release(&open_locks(&url).await).await;
    ensemble.server_mut(1).kill().expect("another dead server");
    let hosts: Vec<String> = (0..3).map(|at| ensemble.addr(at).to_string()).collect();
    eventually(TEST_TIMEOUT, || async {
        match try_open(&url.replace("5s", "1s")).await {
            Ok(_) => Err("one server alone must not serve"),
            Err(error) => {
                assert_error(&error, ErrorKind::Unavailable, &[&hosts[0], &hosts[1], &hosts[2], "majority"]);
                Ok(())
            }
        }
    })
    .await;
}

/// A slow connection does not count as unreachable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_connection_is_not_unreachable() {
    let server = shared_server().await;
    let proxy = Proxy::start(server.addr()).await.expect("a proxy");
    proxy.delay(Duration::from_millis(150));
    acquire_and_release(&open_locks(&format!("zookeeper://{}/far", proxy.addr())).await).await;
}
