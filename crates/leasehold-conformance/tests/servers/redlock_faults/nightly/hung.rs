//! More servers that hang, or fewer.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Locks;

use crate::redlock_faults::hung::{costs_one_node_timeout, holds_through};
use crate::redlock_faults::site::{LASTING, Site, give_back, lock, until_in_touch};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_who_hang_are_waited_for_once() {
    costs_one_node_timeout(&[0, 4]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_goes_on_while_one_hangs() {
    holds_through(&[2]).await;
}

/// Three hang: no majority, and the caller is told; and nothing of it is left when they go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_who_hang_end_the_wait_and_keep_nothing() {
    let mut site = Site::new().await;
    let engine = site.engine("node-timeout=1s").await;
    let locks = Locks::builder().ttl(LASTING).open_engine(Arc::clone(&engine));
    give_back(lock(&locks, "a").await).await;
    site.pause(&[0, 1, 2]);
    for _ in 0..3 {
        let error = locks.mutex("a").try_lock().await.expect_err("no majority");
        let text = error.to_string();
        assert!(text.contains("3 of 5 nodes must answer, and 3 did not"), "{text}");
    }
    let error = locks.mutex("a").wait(Duration::from_secs(3)).lock().await.expect_err("no majority");
    assert!(error.to_string().contains("3 of 5 nodes must answer"), "{error}");
    site.until_claims("a", 0).await;
    site.resume(&[0, 1, 2]);
    // Long before the TTL would end them.
    site.until_claims("a", 0).await;
    until_in_touch(&engine).await;
    let held = lock(&locks, "a").await;
    site.until_claims("a", 1).await;
    give_back(held).await;
    site.until_claims("a", 0).await;
}
