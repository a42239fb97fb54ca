//! Servers that are not there.

use std::net::TcpListener;
use std::time::Duration;

use leasehold::ErrorKind;
use leasehold_conformance::world::SOON;
#[cfg(feature = "nightly")]
use leasehold_testbed::zookeeper::Ensemble;
use leasehold_testbed::{Proxy, eventually};

use crate::zookeeper_access::site::{client, open, refused, says, server, works};

/// An address at which nobody listens.
fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_not_there_is_named() {
    let host = nobody();
    says(&refused(&format!("zookeeper://{host}")).await, ErrorKind::Unavailable, &[&host]);
    let error = refused("zookeeper://no-such-host.invalid:2181").await;
    says(&error, ErrorKind::Unavailable, &["no-such-host.invalid"]);
}

/// It takes connections, and says nothing: its disk hangs, or it is something else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_says_nothing_is_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let host = silent.local_addr().expect("its address").to_string();
    let error = refused(&format!("zookeeper://{host}?connect-timeout=500ms")).await;
    says(&error, ErrorKind::Unavailable, &[&host]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_of_them_are_named_if_none_is_there() {
    let hosts = [nobody(), nobody(), nobody()];
    let url = format!("zookeeper://{}?connect-timeout=500ms", hosts.join(","));
    let error = refused(&url).await;
    says(&error, ErrorKind::Unavailable, &[&hosts[0], &hosts[1], &hosts[2]]);
    assert!(error.is_retryable(), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dead_in_front_do_not_keep_us_from_the_living() {
    let server = server().await;
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = silent.local_addr().map(|addr| (addr.to_string(), silent)).expect("its address");
    for hosts in [format!("{},{}", nobody(), server.url()), format!("{},{}", silent.0, server.url())] {
        // On a slow machine the living one, too, may take longer than this.
        let url = format!("zookeeper://{hosts}/living?connect-timeout=2s");
        works(&eventually(SOON, || open(&url)).await).await;
    }
}

#[cfg(feature = "nightly")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ensemble_is_there_while_most_of_it_is() {
    let mut ensemble = Ensemble::start(3).await.expect("an ensemble");
    let url = format!("zookeeper://{}/n?connect-timeout=5s", ensemble.url());
    ensemble.server_mut(0).kill().expect("a dead server");
    eventually(SOON, || async {
        let locks = open(&url).await?;
        locks.mutex("a").try_lock().await.map(drop)
    })
    .await;
    works(&client(&url).await).await;
    ensemble.server_mut(1).kill().expect("another dead server");
    let hosts: Vec<String> = (0..3).map(|at| ensemble.addr(at).to_string()).collect();
    eventually(SOON, || async {
        match open(&url.replace("5s", "1s")).await {
            Ok(_) => Err("one server alone serves nobody"),
            Err(error) => {
                says(&error, ErrorKind::Unavailable, &[&hosts[0], &hosts[1], &hosts[2], "majority"]);
                Ok(())
            }
        }
    })
    .await;
}

/// A line that is slow is not one that is dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn far_away_is_not_away() {
    let server = server().await;
    let line = Proxy::start(server.addr()).await.expect("a proxy");
    line.delay(Duration::from_millis(150));
    works(&client(&format!("zookeeper://{}/far", line.addr())).await).await;
}
