//! Leftovers on our own servers are found, even those that an inspection of locks does not show.

use std::time::Duration;

use leasehold_testbed::redis::Resp;
use leasehold_verify::deploy::{Deployment, Local};
use leasehold_verify::history::FaultKind::*;

use crate::deploy::site::{client, start};

/// No lease expires during a test.
const TTL: Duration = Duration::from_secs(600);

pub(crate) async fn left(deployment: &Deployment) -> Vec<(String, String)> {
    deployment.left(&["a".to_owned()]).await.expect("a look")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_never_ends() {
    let deployment = start(Local::Redis, &[Kill], true).await;
    let locks = client(deployment.own_url(), TTL).await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let records = locks.records().expect("records");
    assert!(records.compare_and_set("a", 0, "a record stays").await.expect("an answer").is_some());
    assert!(left(&deployment).await.is_empty(), "all that is ours ends, or is a record");
    let addr = deployment.own_url().trim_start_matches("redis://").trim_end_matches('/').parse().expect("an address");
    let mut redis = Resp::connect(addr).await.expect("a connection");
    redis.command(&["SET", "leasehold:lb", "x"]).await.expect("a key");
    let found = left(&deployment).await;
    assert!(
        matches!(found.as_slice(), [(at, what)] if at.contains("server") && what.contains("leasehold:lb")),
        "{found:?}"
    );
    assert!(held.release().await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_no_majority_has() {
    let deployment = start(Local::Redlock, &[Kill], true).await;
    let all = client(deployment.own_url(), TTL).await;
    let third = deployment.own_url().trim_start_matches("redlock://").split(',').nth(2).expect("five of them");
    let one = client(&format!("redlock://{third}"), TTL).await;
    let held = one.mutex("a").lock().await.expect("a lock");
    assert!(all.inspect("a").await.expect("a look").holders.is_empty(), "who asks all of them does not see it");
    let found = left(&deployment).await;
    assert!(matches!(found.as_slice(), [(at, _)] if at == "a on server 3 of 5"), "{found:?}");
    assert!(held.release().await.is_ok());
    assert!(left(&deployment).await.is_empty());
}
