//! Any two of five servers die at any time.

use crate::redlock_faults::two_dead_nodes::assert_survives_pairs;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_two_may_die_the_first_among_them() {
    assert_survives_pairs(|a, _| a == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_two_may_die_the_first_not_among_them() {
    assert_survives_pairs(|a, _| a > 0).await;
}
