//! Leftovers on servers that take seconds to start.

use std::time::Duration;

use leasehold_testbed::eventually;
use leasehold_verify::deploy::Local;
use leasehold_verify::history::FaultKind::Kill;

use crate::deploy::left::left;
use crate::deploy::site::{BOUND, client, start};

const TTL: Duration = Duration::from_secs(600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_session_goes_on() {
    let deployment = start(Local::Zookeeper, &[Kill], true).await;
    let locks = client(deployment.own_url(), Duration::from_secs(20)).await;
    let held = locks.mutex("not one of those that are looked at").lock().await.expect("a lock");
    let found = left(&deployment).await;
    assert!(matches!(found.as_slice(), [(at, _)] if at.starts_with("/verify/")), "{found:?}");
    assert!(held.release().await.is_ok());
    eventually(BOUND, || async {
        let found = left(&deployment).await;
        if found.is_empty() { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

/// The sessions with one holder, and without any.
async fn a_session(local: Local) {
    let deployment = start(local, &[Kill], true).await;
    let locks = client(deployment.own_url(), TTL).await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let found = deployment.sessions().await.expect("a look");
    assert!(!found.is_empty() && found.iter().all(|(at, _)| at.starts_with("session ")), "{found:?}");
    assert!(held.release().await.is_ok());
    locks.close().await.expect("its end");
    eventually(BOUND, || async {
        let found = deployment.sessions().await.map_err(|trouble| trouble.to_string())?;
        if found.is_empty() { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_at_a_database() {
    tokio::join!(a_session(Local::Mysql), a_session(Local::Postgres));
}
