//! Passwords and TLS in a cluster.

use std::net::TcpListener;
use std::process::Command;

use leasehold::{ErrorKind, Locks};
use leasehold_testbed::redis::{Redis, Reply, RespClient};

use crate::redis_deployments::logins::{SECRET, assert_hands_off, assert_login_refused};

/// Arguments for a cluster of one node. The bus port must be free, but no other node connects to
/// it.
fn single_node_arguments() -> Vec<String> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
    let arguments = format!("--cluster-enabled yes --cluster-config-file nodes.conf --cluster-port {port}");
    arguments.split(' ').map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_in_a_cluster() {
    let arguments = single_node_arguments();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let server = Redis::new().password(SECRET).args(&arguments).start().await.expect("a server");
    let mut raw = RespClient::connect(server.addr()).await.expect("a raw connection");
    for words in [&["AUTH", SECRET][..], &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]] {
        assert_eq!(raw.command(words).await.expect("an answer"), Reply::Simple("OK".to_owned()));
    }
    assert_hands_off(&format!("redis+cluster://:{SECRET}@{}", server.addr())).await;
    assert_login_refused(&format!("redis+cluster://:wrong@{}", server.addr())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_in_a_cluster() {
    let mut arguments = single_node_arguments();
    arguments.extend(["--tls-cluster".to_owned(), "yes".to_owned()]);
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let redis = Redis::new().args(&arguments).tls().start().await.expect("a server");
    let mut cli = Command::new("redis-cli");
    cli.args(["-h", "127.0.0.1", "-p", &redis.server.port().to_string(), "--tls", "--cacert"]).arg(&redis.ca);
    let done = cli.args(["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).output().expect("redis-cli");
    assert_eq!(String::from_utf8_lossy(&done.stdout).trim(), "OK", "{done:?}");
    let url = format!("redis+cluster://{}", redis.server.addr());
    assert_hands_off(&format!("{url}?tls=on&ca={}", redis.ca.display())).await;
    let error = Locks::open(&url).await.expect_err("TLS is required");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
