//! Finds leftover sessions at databases and ZooKeeper, whose servers take seconds to start.

use std::time::Duration;

use leasehold_testbed::eventually;
use leasehold_verify::deployment::LocalEngine;
use leasehold_verify::history::FaultKind::Kill;

use crate::deployment::fixture::{TEST_TIMEOUT, client, start};
use crate::deployment::leftovers::leftovers;

const TTL: Duration = Duration::from_secs(600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_a_live_session_is_found() {
    let deployment = start(LocalEngine::Zookeeper, &[Kill], true).await;
    let locks = client(deployment.direct_url(), Duration::from_secs(20)).await;
    let held = locks.mutex("not an inspected lock").lock().await.expect("a lock");
    let found = leftovers(&deployment).await;
    assert!(matches!(found.as_slice(), [(at, _)] if at.starts_with("/verify/")), "{found:?}");
    assert!(held.release().await.is_ok());
    eventually(TEST_TIMEOUT, || async {
        let found = leftovers(&deployment).await;
        if found.is_empty() { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

/// A session of a client that holds a lock is found; after the client has closed, none is.
async fn assert_session_is_found(local: LocalEngine) {
    let deployment = start(local, &[Kill], true).await;
    let locks = client(deployment.direct_url(), TTL).await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let found = deployment.leftover_sessions().await.expect("an inspection");
    assert!(!found.is_empty() && found.iter().all(|(at, _)| at.starts_with("session ")), "{found:?}");
    assert!(held.release().await.is_ok());
    locks.close().await.expect("its end");
    eventually(TEST_TIMEOUT, || async {
        let found = deployment.leftover_sessions().await.map_err(|trouble| trouble.to_string())?;
        if found.is_empty() { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_sessions_are_found() {
    tokio::join!(assert_session_is_found(LocalEngine::Mysql), assert_session_is_found(LocalEngine::Postgres));
}
