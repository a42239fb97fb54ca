//! Force release with any two servers down.

use crate::redlock_faults::force_release::assert_stays_released;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_force_released_with_any_two_servers_down_stays_released() {
    assert_stays_released(&[[0, 1], [3, 4], [1, 3]]).await;
}
