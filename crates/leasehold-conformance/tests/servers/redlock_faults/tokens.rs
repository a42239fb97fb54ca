//! Tokens of `redlock:` after the nodes lost them.

use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::{Claim, Holder, LockName, LockOptions, Locks, Mode, Owner};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::eventually;
use leasehold_testbed::redis::{IndependentServers, Reply, RespClient};

use crate::redlock_faults::fixture::{LASTING, PATIENT, connected_client, connected_engine};

/// After every node restarted empty, tokens continue from the clock, both with a guess and in the
/// second round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_after_every_node_restarted_empty() {
    let servers = IndependentServers::start(3).await.expect("servers");
    for (options, owner) in [("", None), ("", Some(Owner::new())), ("&second-round=always", None)] {
        let locks =
            Locks::builder().ttl(LASTING).open(&format!("{}?{PATIENT}{options}", servers.url())).await.expect("locks");
        let mut last = None;
        for round in 0..5 {
            let mutex = locks.mutex("a");
            let mutex = match &owner {
                Some(owner) => mutex.owner(owner),
                None => mutex,
            };
            let guard = mutex.lock().await.expect("a lock");
            assert!(last < Some(guard.token()), "{options} {owner:?} {round}: {last:?}, then {:?}", guard.token());
            last = Some(guard.token());
            let _ = guard.release().await.expect("a release");
            for server in servers.servers() {
                let mut raw = RespClient::connect(server.addr()).await.expect("a connection");
                let _ = raw.command(&["FLUSHALL"]).await.expect("an answer");
            }
        }
        // Tokens from a clock are far above counted ones.
        assert!(last.expect("a token").0 > 1_000_000_000_000_000, "{last:?}");
    }
}

/// Every key expires, whatever was done to its lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_expires() {
    let servers = IndependentServers::start(3).await.expect("servers");
    let url = format!("{}?{PATIENT}", servers.url());
    let locks = connected_client(&url, LASTING, &Clock::system()).await;
    let first = locks.mutex("released").lock().await.expect("a lock");
    let _ = first.release().await.expect("a release");
    let _held = locks.mutex("held").lock().await.expect("a lock");
    let force_released = locks.mutex("force-released").lock().await.expect("a lock");
    let claim = locks.inspect("force-released").await.expect("a view").holders[0].claim;
    let _ = locks.force_release("force-released", claim).await.expect("a force release");
    drop(force_released);
    // An expired claim whose late renewal is rejected.
    let engine = connected_engine(&url, &Clock::system()).await;
    let name = LockName::new("over").expect("a name");
    let lock_options =
        LockOptions::new(name.clone(), Mode::Exclusive, None, Duration::from_secs(2), Holder::this_process().into());
    let claim = std::sync::Arc::new(Claim::new(lock_options.into()));
    let attempt = || std::sync::Arc::clone(&engine).attempt(std::sync::Arc::clone(&claim), false);
    let _ = eventually(TEST_TIMEOUT, attempt).await;
    eventually(TEST_TIMEOUT, || async {
        let view = std::sync::Arc::clone(&engine).inspect(name.clone()).await.map_err(|error| error.to_string())?;
        if view.holders.is_empty() { Ok(()) } else { Err(format!("{view:?}")) }
    })
    .await;
    let _ = std::sync::Arc::clone(&engine).renew(vec![claim]).await.expect("an answer");
    for server in servers.servers() {
        let mut raw = RespClient::connect(server.addr()).await.expect("a connection");
        let Reply::Array(keys) = raw.command(&["KEYS", "*"]).await.expect("keys") else { panic!("no keys") };
        assert!(keys.len() >= 4, "{keys:?}");
        for key in keys {
            let Reply::Bulk(key) = &key else { panic!("{key:?}") };
            let left = raw.command(&["TTL", key]).await.expect("an answer");
            assert!(matches!(left, Reply::Integer(1..=7200)), "{key}: {left:?}");
        }
    }
}
