//! Any two of five servers die at any moment.

use crate::redlock_faults::pairs::pairs;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_two_may_die_the_first_among_them() {
    pairs(|a, _| a == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_two_may_die_the_first_not_among_them() {
    pairs(|a, _| a > 0).await;
}
