//! How often waiters retry.

use std::time::Duration;

use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::eventually;

use crate::redlock_faults::fixture::{Fixture, await_guard, lock, release, spawn_lock};

/// A waiter retries after pauses that double, up to a quarter of a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_retries_with_growing_pauses() {
    let fixture = Fixture::new().await;
    let (holds, waits) = (fixture.locks().await, fixture.locks().await);
    let held = lock(&holds, "a").await;
    let before = fixture.script_calls(0).await;
    // Each attempt sends one request and withdraws it.
    let attempts = async || (fixture.script_calls(0).await - before) / 2;
    waits.mutex("a").timeout(Duration::from_secs(3)).lock().await.expect_err("the lock is held");
    // The first six take a third of a second; without growing pauses there would be hundreds.
    let some = attempts().await;
    assert!((1..=40).contains(&some), "{some} attempts in three seconds");
    // The waiter does continue to retry.
    let waiting = spawn_lock(&waits, "a");
    eventually(TEST_TIMEOUT, || async {
        let more = attempts().await - some;
        if more > 6 { Ok(()) } else { Err(format!("{more} attempts")) }
    })
    .await;
    release(held).await;
    release(await_guard(waiting).await).await;
}
