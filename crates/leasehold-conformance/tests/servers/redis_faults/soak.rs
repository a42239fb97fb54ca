//! Many locks that are used only once do not fill the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::eventually;

use crate::redis_faults::fixture::{Fixture, release};
use crate::redis_faults::manual_time::ManualTime;

/// Locks with ever new names do not fill the server. `LEASEHOLD_SOAK` sets their number, 20,000 by
/// default.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_used_once_leave_no_keys() {
    const TASKS: usize = 64;
    let names = std::env::var("LEASEHOLD_SOAK").map_or(20_000, |text| text.parse().expect("a number"));
    let time = ManualTime::new();
    let fixture = Fixture::with_config(time.redis_config()).await;
    let locks = fixture.locks_with(LONG_TTL, "retention=1s").await;
    let used = Arc::new(AtomicUsize::new(0));
    let work = || {
        let (locks, used) = (locks.clone(), Arc::clone(&used));
        tokio::spawn(async move {
            loop {
                let number = used.fetch_add(1, Ordering::Relaxed);
                if number >= names {
                    return;
                }
                release(locks.mutex(format!("used once {number}")).lock().await.expect("a lock")).await;
            }
        })
    };
    for task in (0..TASKS).map(|_| work()).collect::<Vec<_>>() {
        task.await.expect("no panic");
    }
    time.advance(LONG_TTL + Duration::from_secs(2));
    // Redis removes expired keys lazily, which takes some seconds for very many keys.
    eventually(TEST_TIMEOUT + Duration::from_secs(names as u64 / 100_000), || async {
        let left = fixture.command_number(&["DBSIZE"]).await;
        if left == 0 { Ok(()) } else { Err(format!("{left} keys are left")) }
    })
    .await;
}
