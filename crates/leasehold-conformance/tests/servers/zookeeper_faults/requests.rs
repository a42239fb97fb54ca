//! What a lock costs, counted by the server: this is a promise, and no matter of speed.

use std::time::Duration;

use leasehold::Locks;
use leasehold::clock::{Clock, ManualClock};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::{eventually, zookeeper};

use crate::zookeeper_faults::fixture::{Fixture, LONG_TTL, spawn_waiter};

/// How often the figures are asked for until they count what has happened.
const MAX_POLLS: i64 = 20;

/// A server of the test's own: nobody else's requests are counted.
async fn fixture_on_own_server() -> (leasehold_testbed::Server, Fixture) {
    let server = zookeeper::start().await.expect("a server");
    let site = Fixture::at(server.addr(), "/r").await;
    (server, site)
}

/// Taking a free lock is one request, and giving it back is another.
#[tokio::test]
async fn a_free_lock_costs_two_requests() {
    let (_server, site) = fixture_on_own_server().await;
    // Its clock stands still: no lock is held for so long that its own node is watched, however slow the machine is.
    let clock = ManualClock::new().clock();
    let locks = Locks::builder().ttl(LONG_TTL).clock(clock).open(&site.url()).await.expect("a client");
    drop(locks.mutex("a").lock().await.expect("a lock"));
    site.until_nodes("a", 0).await;
    let asking = measurement_cost(&site).await.0;
    // Pings of the two clients come between, the more the slower the machine is: some ten locks are without.
    eventually(TEST_TIMEOUT, || async {
        let before = site.packets().await.0;
        for _ in 0..10 {
            let guard = locks.mutex("a").lock().await.expect("a lock");
            let _ = guard.release().await.expect("a release");
        }
        let cost = site.packets().await.0 - before - asking;
        assert!(cost >= 20, "{cost} requests for 10 locks");
        if cost == 20 { Ok(()) } else { Err(format!("{cost} requests for 10 locks")) }
    })
    .await;
}

/// A give-back wakes one waiter, which needs no further request: however many wait.
#[tokio::test]
async fn a_hand_off_costs_one_request_and_wakes_one() {
    let (_server, site) = fixture_on_own_server().await;
    let locks = site.open_locks(LONG_TTL).await;
    let mut guard = locks.mutex("a").lock().await.expect("a lock");
    let mut waiters = Vec::new();
    for count in 2..=17 {
        waiters.push(spawn_waiter(&locks, "a"));
        site.until_nodes("a", count).await;
    }
    let asking = measurement_cost(&site).await;
    let (mut requests, mut events) = (0i64, 0i64);
    for (round, waiter) in waiters.into_iter().enumerate() {
        if round > 0 {
            // Who has waited tells the one behind.
            eventually(TEST_TIMEOUT, || async {
                let holder = site.client.check_stat(&site.nodes("a").await[0]).await.expect("an answer");
                if holder.is_some_and(|stat| stat.version == 1) { Ok(()) } else { Err("not told yet".to_owned()) }
            })
            .await;
        }
        until_quiet(&site).await;
        let before = site.packets().await;
        let _ = guard.release().await.expect("a release");
        let (_, next) = tokio::time::timeout(TEST_TIMEOUT, waiter).await.expect("in time").expect("a contender");
        // A packet is counted a moment after it was sent: the waiter may hear of it before.
        let mut asked = 0;
        let (received, told) = loop {
            let after = site.packets().await;
            asked += 1;
            let received = (after.0 - before.0) - asked * asking.0;
            let told = (after.1 - before.1) - asked * asking.1 - received;
            if told > 0 || asked == MAX_POLLS {
                break (received, told);
            }
        };
        requests += received;
        events += told;
        guard = next;
    }
    // The give-backs themselves, and a few pings. With a list for each there would be twice as many.
    assert!((16..=26).contains(&requests), "{requests} requests for 16 hand-offs");
    // The next one hears of each, and the one who left, of itself. A herd of 16 would make 136.
    assert!((16..=34).contains(&events), "{events} events for 16 hand-offs");
}

/// What asking for the figures itself costs: they count it, too. Now and then a ping comes in between, or a reply is counted a moment later: mostly not.
async fn measurement_cost(site: &Fixture) -> (i64, i64) {
    until_quiet(site).await;
    let (mut received, mut sent) = (Vec::new(), Vec::new());
    for _ in 0..9 {
        let (before, after) = (site.packets().await, site.packets().await);
        received.push(after.0 - before.0);
        sent.push(after.1 - before.1);
    }
    let middle = |mut of: Vec<i64>| {
        of.sort_unstable();
        of[of.len() / 2]
    };
    (middle(received), middle(sent))
}

/// Waits until the holder has told the one behind it, and that one has looked: nobody asks anything any more.
async fn until_quiet(site: &Fixture) {
    eventually(TEST_TIMEOUT, || async {
        let before = site.packets().await.0;
        Clock::system().sleep_until(Clock::system().now().saturating_add(Duration::from_millis(150))).await;
        let after = site.packets().await.0;
        // A ping may come between.
        if after <= before + 1 { Ok(()) } else { Err(format!("{} requests", after - before)) }
    })
    .await;
}
