//! Finds leftovers on Redis servers that an inspection of locks does not show.

use std::time::Duration;

use leasehold_testbed::redis::RespClient;
use leasehold_verify::deployment::{Deployment, LocalEngine};
use leasehold_verify::history::FaultKind::*;

use crate::deployment::fixture::{client, start};

/// The TTL of all leases: none expires during a test.
const TTL: Duration = Duration::from_secs(600);

/// What the servers still store, after the only inspected lock `a`.
pub(crate) async fn leftovers(deployment: &Deployment) -> Vec<(String, String)> {
    deployment.leftovers(&["a".to_owned()]).await.expect("an inspection")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_without_expiry_is_found() {
    let deployment = start(LocalEngine::Redis, &[Kill], true).await;
    let locks = client(deployment.direct_url(), TTL).await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let records = locks.records().expect("records");
    assert!(records.compare_and_set("a", 0, "a record stays").await.expect("an answer").is_some());
    assert!(leftovers(&deployment).await.is_empty(), "all of leasehold's keys expire, or are records");
    let addr =
        deployment.direct_url().trim_start_matches("redis://").trim_end_matches('/').parse().expect("an address");
    let mut redis = RespClient::connect(addr).await.expect("a connection");
    redis.command(&["SET", "leasehold:lb", "x"]).await.expect("a key");
    let found = leftovers(&deployment).await;
    assert!(
        matches!(found.as_slice(), [(at, what)] if at.contains("server") && what.contains("leasehold:lb")),
        "{found:?}"
    );
    assert!(held.release().await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_without_a_majority_is_found() {
    let deployment = start(LocalEngine::Redlock, &[Kill], true).await;
    let all = client(deployment.direct_url(), TTL).await;
    let third = deployment.direct_url().trim_start_matches("redlock://").split(',').nth(2).expect("five of them");
    let one = client(&format!("redlock://{third}"), TTL).await;
    let held = one.mutex("a").lock().await.expect("a lock");
    assert!(
        all.inspect("a").await.expect("an inspection").holders.is_empty(),
        "a query of all servers does not show it"
    );
    let found = leftovers(&deployment).await;
    assert!(matches!(found.as_slice(), [(at, _)] if at == "a on server 3 of 5"), "{found:?}");
    assert!(held.release().await.is_ok());
    assert!(leftovers(&deployment).await.is_empty());
}
