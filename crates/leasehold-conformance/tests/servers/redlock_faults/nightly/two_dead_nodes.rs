//! Any two of five servers die at any time.

use crate::redlock_faults::two_dead_nodes::assert_survives_pairs;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_two_dead_nodes_including_the_first_are_tolerated() {
    assert_survives_pairs(|a, _| a == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_two_dead_nodes_except_the_first_are_tolerated() {
    assert_survives_pairs(|a, _| a > 0).await;
}
