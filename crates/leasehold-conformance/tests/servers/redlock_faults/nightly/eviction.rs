//! Putting holders out with any two servers down.

use crate::redlock_faults::eviction::stays_out;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_put_out_with_any_two_servers_down_stays_out() {
    stays_out(&[[0, 1], [3, 4], [1, 3]]).await;
}
