//! Impossible requests are refused with a message.

use std::time::Duration;

use leasehold_verify::deploy::{Deployment, Local, Setup};
use leasehold_verify::dice::Dice;
use leasehold_verify::history::FaultKind::{self, *};

use crate::deploy::site::start;

fn setup(faults: &[FaultKind]) -> Setup {
    Setup { faults: faults.to_vec(), guard: true, ttl: Duration::from_secs(1), apart: false, option: None }
}

async fn refused(local: Local, faults: &[FaultKind]) -> String {
    Deployment::start(local, &setup(faults)).await.expect_err("a refusal").to_string()
}

async fn refused_there(url: &str, faults: &[FaultKind]) -> String {
    let trouble = Deployment::remote(url, &setup(faults)).await.expect_err("a refusal");
    let words = format!("{trouble} {trouble:?}");
    assert!(!words.contains("hunter2"), "{words}");
    words
}

#[tokio::test]
async fn what_an_engine_cannot_have() {
    assert!(refused(Local::Memory, &[Crash]).await.contains("memory: lives in one process"));
    assert!(refused(Local::File, &[Kill, Delay]).await.contains("no network"));
    assert!(refused(Local::RedisSentinel, &[Failover, Leader]).await.contains("redis-sentinel: has no leader"));
}

#[tokio::test]
async fn what_is_never_done_to_servers_of_others() {
    for fault in [Crash, Wipe, Failover, Leader, Clock, Ahead, Evict, DiskFull, ReadOnly, Hang, Reshard, Grow] {
        let words = refused_there("redis://u:hunter2@127.0.0.1:1", &[Cut, fault]).await;
        assert!(words.contains(fault.as_str()) && words.contains("--local redis"), "{words}");
    }
    assert!(refused_there("redis+sentinel://h/m", &[Failover]).await.contains("--local redis-sentinel"));
    assert!(refused_there("redis+cluster://h", &[Reshard]).await.contains("--local redis-cluster"));
    assert!(refused_there("file:///tmp/x", &[DiskFull]).await.contains("--local file"));
}

#[tokio::test]
async fn where_no_proxy_can_stand() {
    for (url, says) in [
        ("redis+sentinel://u:hunter2@h1/m", "Sentinels"),
        ("redis+cluster://u:hunter2@h1", "cluster"),
        ("rediss://u:hunter2@h1", "TLS"),
        ("postgres://u:hunter2@h1/d?ca=/c", "TLS"),
        ("memory:", "one process"),
        ("file:///tmp/x", "folder"),
        // Nothing listens on port 1.
        ("redis://u:hunter2@127.0.0.1:1", "127.0.0.1:1 cannot be reached"),
        ("redis://u:hunter2@no.such.host.invalid", "no.such.host.invalid:6379 cannot be reached"),
    ] {
        let words = refused_there(url, &[Kill, LostReply]).await;
        assert!(words.contains(says), "{url}: {words}");
    }
}

#[tokio::test]
async fn faults_that_were_not_asked_for_or_are_not_for_here() {
    let mut deployment = start(Local::Redis, &[Kill, Cut], true).await;
    let mut dice = Dice::new(1);
    let words = deployment.begin(Kill, &mut dice).await.expect_err("a refusal").to_string();
    assert!(words.contains("hits workers"), "{words}");
    let words = deployment.begin(Delay, &mut dice).await.expect_err("a refusal").to_string();
    assert!(words.contains("was not asked for"), "{words}");
    let words = deployment.end(Cut).await.expect_err("a refusal").to_string();
    assert!(words.contains("had not begun"), "{words}");
}

#[tokio::test]
async fn one_server_fault_at_a_time() {
    let mut deployment = start(Local::Redis, &[Crash, Wipe, Cut, Delay], true).await;
    let mut dice = Dice::new(1);
    deployment.begin(Crash, &mut dice).await.expect("a crash");
    let words = deployment.begin(Wipe, &mut dice).await.expect_err("a refusal").to_string();
    assert!(words.contains("crash has not ended"), "{words}");
    for fault in [Cut, Delay] {
        deployment.begin(fault, &mut dice).await.expect("the network may fail at the same time");
    }
    for fault in [Delay, Crash, Cut] {
        deployment.end(fault).await.expect("its end");
    }
    deployment.begin(Wipe, &mut dice).await.expect("now it may");
}
