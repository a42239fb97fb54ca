//! Slow tests, and tests with several database servers.

mod connections;
mod deployments;
mod records;
mod rows;

use std::time::Duration;

use leasehold::Guard;

/// Asserts that none of the guards is lost during this time.
async fn assert_stay_held(guards: &[Guard], time: Duration) {
    let lost = futures_util::future::select_all(guards.iter().map(|guard| Box::pin(guard.lost())));
    let lost = tokio::time::timeout(time, lost).await;
    assert!(lost.is_err() && guards.iter().all(Guard::is_held), "a lock was lost");
}
