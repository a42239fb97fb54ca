//! Requests per lock, counted by the server: a guarantee, not a matter of speed.

use std::time::Duration;

use leasehold::Locks;
use leasehold::clock::{Clock, ManualClock};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::{eventually, zookeeper};

use crate::zookeeper_faults::fixture::{Fixture, LONG_TTL, spawn_waiter};

/// The number of polls until the statistics include the last packets.
const MAX_POLLS: i64 = 20;

/// A server of the test's own, so that no other requests are counted.
async fn fixture_on_own_server() -> (leasehold_testbed::Server, Fixture) {
    let server = zookeeper::start().await.expect("a server");
    let fixture = Fixture::at(server.addr(), "/r").await;
    (server, fixture)
}

/// Acquiring a free lock takes one request, and releasing it another.
#[tokio::test]
async fn a_free_lock_costs_two_requests() {
    let (_server, fixture) = fixture_on_own_server().await;
    // The client's clock is stopped: no lock is held long enough for a watch on its own node,
    // however slow the machine is.
    let clock = ManualClock::new().clock();
    let locks = Locks::builder().ttl(LONG_TTL).clock(clock).open(&fixture.url()).await.expect("a client");
    drop(locks.mutex("a").lock().await.expect("a lock"));
    fixture.until_nodes("a", 0).await;
    let polling = measurement_cost(&fixture).await.0;
    // Pings of the two clients interfere, more so on a slow machine; some runs of ten locks are
    // without them.
    eventually(TEST_TIMEOUT, || async {
        let before = fixture.packets().await.0;
        for _ in 0..10 {
            let guard = locks.mutex("a").lock().await.expect("a lock");
            let _ = guard.release().await.expect("a release");
        }
        let cost = fixture.packets().await.0 - before - polling;
        assert!(cost >= 20, "{cost} requests for 10 locks");
        if cost == 20 { Ok(()) } else { Err(format!("{cost} requests for 10 locks")) }
    })
    .await;
}

/// A release wakes one waiter, which needs no further request, however many wait.
#[tokio::test]
async fn a_hand_off_costs_one_request_and_wakes_one() {
    let (_server, fixture) = fixture_on_own_server().await;
    let locks = fixture.open_locks(LONG_TTL).await;
    let mut guard = locks.mutex("a").lock().await.expect("a lock");
    let mut waiters = Vec::new();
    for count in 2..=17 {
        waiters.push(spawn_waiter(&locks, "a"));
        fixture.until_nodes("a", count).await;
    }
    let polling = measurement_cost(&fixture).await;
    let (mut requests, mut events) = (0i64, 0i64);
    for (round, waiter) in waiters.into_iter().enumerate() {
        if round > 0 {
            // The former waiter notifies the next one.
            eventually(TEST_TIMEOUT, || async {
                let holder = fixture.client.check_stat(&fixture.nodes("a").await[0]).await.expect("an answer");
                if holder.is_some_and(|stat| stat.version == 1) { Ok(()) } else { Err("not notified yet".to_owned()) }
            })
            .await;
        }
        until_quiet(&fixture).await;
        let before = fixture.packets().await;
        let _ = guard.release().await.expect("a release");
        let (_, next) = tokio::time::timeout(TEST_TIMEOUT, waiter).await.expect("in time").expect("no panic");
        // The server counts a packet a moment after it was sent, so the waiter may receive it
        // earlier.
        let mut polls = 0;
        let (received, notified) = loop {
            let after = fixture.packets().await;
            polls += 1;
            let received = (after.0 - before.0) - polls * polling.0;
            let notified = (after.1 - before.1) - polls * polling.1 - received;
            if notified > 0 || polls == MAX_POLLS {
                break (received, notified);
            }
        };
        requests += received;
        events += notified;
        guard = next;
    }
    // The releases and a few pings. With a list request per hand-off there would be twice as many.
    assert!((16..=26).contains(&requests), "{requests} requests for 16 hand-offs");
    // One event for each next holder and one for each releasing client. A herd of 16 would cause
    // 136.
    assert!((16..=34).contains(&events), "{events} events for 16 hand-offs");
}

/// The cost of reading the statistics, which count themselves. The median hides occasional pings
/// and late counts.
async fn measurement_cost(fixture: &Fixture) -> (i64, i64) {
    until_quiet(fixture).await;
    let (mut received, mut sent) = (Vec::new(), Vec::new());
    for _ in 0..9 {
        let (before, after) = (fixture.packets().await, fixture.packets().await);
        received.push(after.0 - before.0);
        sent.push(after.1 - before.1);
    }
    let middle = |mut of: Vec<i64>| {
        of.sort_unstable();
        of[of.len() / 2]
    };
    (middle(received), middle(sent))
}

/// Waits until the holder has notified the next waiter, which has checked its node: no more
/// requests.
async fn until_quiet(fixture: &Fixture) {
    eventually(TEST_TIMEOUT, || async {
        let before = fixture.packets().await.0;
        Clock::system().sleep_until(Clock::system().now().saturating_add(Duration::from_millis(150))).await;
        let after = fixture.packets().await.0;
        // A ping may come in between.
        if after <= before + 1 { Ok(()) } else { Err(format!("{} requests", after - before)) }
    })
    .await;
}
