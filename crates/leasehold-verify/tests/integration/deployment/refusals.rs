//! Tests that impossible requests for faults are refused with a message.

use std::time::Duration;

use leasehold_verify::deployment::{Deployment, DeploymentOptions, LocalEngine};
use leasehold_verify::history::FaultKind::{self, *};
use leasehold_verify::rng::Rng;

use crate::deployment::fixture::start;

fn options(faults: &[FaultKind]) -> DeploymentOptions {
    DeploymentOptions {
        faults: faults.to_vec(),
        has_safeguards: true,
        ttl: Duration::from_secs(1),
        isolates_workers: false,
        option: None,
    }
}

/// The error of starting this engine for these faults.
async fn start_error(local: LocalEngine, faults: &[FaultKind]) -> String {
    Deployment::start(local, &options(faults)).await.expect_err("a refusal").to_string()
}

/// The error of using the user's engine at this URL with these faults; it must contain no password.
async fn remote_error(url: &str, faults: &[FaultKind]) -> String {
    let trouble = Deployment::remote(url, &options(faults)).await.expect_err("a refusal");
    let words = format!("{trouble} {trouble:?}");
    assert!(!words.contains("hunter2"), "{words}");
    words
}

#[tokio::test]
async fn unsupported_faults_are_refused() {
    assert!(start_error(LocalEngine::Memory, &[Crash]).await.contains("memory: lives in one process"));
    assert!(start_error(LocalEngine::File, &[Kill, Delay]).await.contains("no network"));
    assert!(
        start_error(LocalEngine::RedisSentinel, &[Failover, Leader]).await.contains("redis-sentinel: has no leader")
    );
}

#[tokio::test]
async fn server_faults_are_refused_on_a_users_servers() {
    for fault in [Crash, Wipe, Failover, Leader, Clock, Ahead, Evict, DiskFull, ReadOnly, Hang, Reshard, Grow] {
        let words = remote_error("redis://u:hunter2@127.0.0.1:1", &[Cut, fault]).await;
        assert!(words.contains(fault.as_str()) && words.contains("--local redis"), "{words}");
    }
    assert!(remote_error("redis+sentinel://h/m", &[Failover]).await.contains("--local redis-sentinel"));
    assert!(remote_error("redis+cluster://h", &[Reshard]).await.contains("--local redis-cluster"));
    assert!(remote_error("file:///tmp/x", &[DiskFull]).await.contains("--local file"));
}

#[tokio::test]
async fn network_faults_are_refused_where_no_proxy_is_possible() {
    for (url, part) in [
        ("redis+sentinel://u:hunter2@h1/m", "Sentinels"),
        ("redis+cluster://u:hunter2@h1", "cluster"),
        ("rediss://u:hunter2@h1", "TLS"),
        ("postgres://u:hunter2@h1/d?ca=/c", "TLS"),
        ("memory:", "one process"),
        ("file:///tmp/x", "folder"),
        // Nothing listens on port 1, and the other host does not exist.
        ("redis://u:hunter2@127.0.0.1:1", "127.0.0.1:1 cannot be reached"),
        ("redis://u:hunter2@no.such.host.invalid", "no.such.host.invalid:6379 cannot be reached"),
    ] {
        let words = remote_error(url, &[Kill, LostReply]).await;
        assert!(words.contains(part), "{url}: {words}");
    }
}

#[tokio::test]
async fn faults_that_were_not_requested_are_refused() {
    let mut deployment = start(LocalEngine::Redis, &[Kill, Cut], true).await;
    let mut rng = Rng::new(1);
    let words = deployment.begin_fault(Kill, &mut rng).await.expect_err("a refusal").to_string();
    assert!(words.contains("fault of workers"), "{words}");
    let words = deployment.begin_fault(Delay, &mut rng).await.expect_err("a refusal").to_string();
    assert!(words.contains("was not among the faults"), "{words}");
    let words = deployment.end_fault(Cut).await.expect_err("a refusal").to_string();
    assert!(words.contains("had not begun"), "{words}");
}

#[tokio::test]
async fn only_one_server_fault_is_active_at_a_time() {
    let mut deployment = start(LocalEngine::Redis, &[Crash, Wipe, Cut, Delay], true).await;
    let mut rng = Rng::new(1);
    deployment.begin_fault(Crash, &mut rng).await.expect("a crash");
    let words = deployment.begin_fault(Wipe, &mut rng).await.expect_err("a refusal").to_string();
    assert!(words.contains("crash has not ended"), "{words}");
    for fault in [Cut, Delay] {
        deployment.begin_fault(fault, &mut rng).await.expect("the network may fail at the same time");
    }
    for fault in [Delay, Crash, Cut] {
        deployment.end_fault(fault).await.expect("its end");
    }
    deployment.begin_fault(Wipe, &mut rng).await.expect("now it may");
}
