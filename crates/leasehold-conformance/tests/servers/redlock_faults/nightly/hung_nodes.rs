//! One to three hung servers.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Locks;

use crate::redlock_faults::fixture::{Fixture, LASTING, lock, release, until_all_respond};
use crate::redlock_faults::hung_nodes::{assert_holds_through, assert_hung_nodes_cost_one_timeout};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hung_nodes_are_waited_for_once() {
    assert_hung_nodes_cost_one_timeout(&[0, 4]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_keeps_its_lock_while_one_node_hangs() {
    assert_holds_through(&[2]).await;
}

/// Three nodes hang: no majority, so callers get an error, and no claim remains when the nodes
/// resume.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_hung_nodes_end_the_wait_and_keep_no_claims() {
    let mut fixture = Fixture::new().await;
    let engine = fixture.engine("node-timeout=1s").await;
    let locks = Locks::builder().ttl(LASTING).open_engine(Arc::clone(&engine));
    release(lock(&locks, "a").await).await;
    fixture.pause(&[0, 1, 2]);
    for _ in 0..3 {
        let error = locks.mutex("a").try_lock().await.expect_err("no majority");
        let text = error.to_string();
        assert!(text.contains("3 of 5 nodes must answer, and 3 did not"), "{text}");
    }
    let error = locks.mutex("a").timeout(Duration::from_secs(3)).lock().await.expect_err("no majority");
    assert!(error.to_string().contains("3 of 5 nodes must answer"), "{error}");
    fixture.until_claim_counts("a", 0).await;
    fixture.resume(&[0, 1, 2]);
    // Long before the TTL would end them.
    fixture.until_claim_counts("a", 0).await;
    until_all_respond(&engine).await;
    let held = lock(&locks, "a").await;
    fixture.until_claim_counts("a", 1).await;
    release(held).await;
    fixture.until_claim_counts("a", 0).await;
}
