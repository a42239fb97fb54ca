//! A server restarts empty, and leases expire in real time.

use std::time::Duration;

use leasehold::clock::{Clock, Instant};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::{Data, eventually};

use crate::redlock_faults::fixture::{Fixture, attempt, claim, until_granted};

const TTL: Duration = Duration::from_secs(5);

fn now() -> Instant {
    Clock::system().now()
}

/// Nodes 4 and 5 are cut off from A, and node 3 restarts.
async fn assert_second_holder_follows_the_first(fixture: &mut Fixture, options: &str, data: Data) {
    let (a, _proxies) = fixture.engine_without(&[3, 4], options).await;
    let (first, _) = until_granted(&a, &claim("a", None, TTL)).await;
    // The steps are repeated on a new name, so that the whole lease is left.
    let claim_b = claim("b", None, TTL);
    let (token, end) = eventually(TEST_TIMEOUT, || async {
        attempt(&a, &claim_b).await.map_err(|error| error.to_string())?.ok_or("the lock is not free".to_owned())
    })
    .await;
    assert!(token > first);
    fixture.kill(&[2]);
    fixture.restart(&[2], data).await;
    let b = fixture.engine(options).await;
    let claim = claim("b", None, TTL);
    let (mut refusals, mut last_error) = (0, String::new());
    let (second, granted) = loop {
        match attempt(&b, &claim).await {
            Ok(Some((token, _))) => break (token, now()),
            Ok(None) => refusals += 1,
            Err(error) => {
                refusals += 1;
                last_error = error.to_string();
            }
        }
        assert!(now() < end.saturating_add(TEST_TIMEOUT), "B never acquires the lock: {last_error}");
        tokio::task::yield_now().await;
    };
    assert!(granted >= end, "B holds {:?} before A's lease expires", end.duration_since(granted));
    assert!(refusals > 0, "the first attempt came too late");
    assert!(second > token, "{second} after {token}");
    if options.contains("strict") {
        assert!(last_error.contains("cools down"), "no reason given: {last_error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strict_grants_nothing_before_the_lost_lease_is_over() {
    assert_second_holder_follows_the_first(&mut Fixture::new().await, "strict=5s", Data::Wipe).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_durable_node_makes_no_second_holder_after_a_restart() {
    assert_second_holder_follows_the_first(&mut Fixture::durable().await, "", Data::Keep).await;
}

/// Strict mode rejects a TTL beyond the cool-down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strict_refuses_leases_longer_than_the_cool_down() {
    let fixture = Fixture::new().await;
    let locks = fixture.locks_with(TTL * 2, "strict=5s").await;
    let error = locks.mutex("a").try_lock().await.expect_err("too long");
    assert!(error.to_string().contains("5s"), "{error}");
    let short = fixture.locks_with(TTL, "strict=5s").await;
    eventually(TEST_TIMEOUT, || async {
        match short.mutex("a").try_lock().await {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err("busy".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await;
}
