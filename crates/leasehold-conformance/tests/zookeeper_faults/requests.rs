//! What a lock costs, counted by the server: this is a promise, and no matter of speed.

use std::time::Duration;

use leasehold::clock::Clock;
use leasehold_conformance::world::SOON;
use leasehold_testbed::{eventually, zookeeper};

use crate::site::{LONG, Site, contender};

/// A server of the test's own: nobody else's requests are counted.
async fn alone() -> (leasehold_testbed::Server, Site) {
    let server = zookeeper::start().await.expect("a server");
    let site = Site::at(server.addr(), "/r").await;
    (server, site)
}

/// Taking a free lock is one request, and giving it back is another.
#[tokio::test]
async fn a_free_lock_costs_two_requests() {
    let (_server, site) = alone().await;
    let locks = site.locks(LONG).await;
    drop(locks.mutex("a").lock().await.expect("a lock"));
    site.until_nodes("a", 0).await;
    let before = site.figure("zk_packets_received").await;
    for _ in 0..100 {
        let guard = locks.mutex("a").lock().await.expect("a lock");
        let _ = guard.release().await.expect("a release");
    }
    let cost = site.figure("zk_packets_received").await - before;
    // A few pings and beats of the two clients may have come between.
    assert!((200..=210).contains(&cost), "{cost} requests for 100 locks");
}

/// A give-back wakes one waiter, which needs no further request: however many wait.
#[tokio::test]
async fn a_hand_off_costs_one_request_and_wakes_one() {
    let (_server, site) = alone().await;
    let locks = site.locks(LONG).await;
    let mut guard = locks.mutex("a").lock().await.expect("a lock");
    let mut waiters = Vec::new();
    for count in 2..=17 {
        waiters.push(contender(&locks, "a"));
        site.until_nodes("a", count).await;
    }
    for waiter in waiters {
        quiet(&site).await;
        let (received, sent) = (site.figure("zk_packets_received").await, site.figure("zk_packets_sent").await);
        let _ = guard.release().await.expect("a release");
        let (_, next) = tokio::time::timeout(SOON, waiter).await.expect("in time").expect("a contender");
        let received = site.figure("zk_packets_received").await - received;
        let events = site.figure("zk_packets_sent").await - sent - received;
        // The give-back itself; and perhaps a ping.
        assert!((1..=2).contains(&received), "{received} requests for a hand-off");
        // The next one hears of it, and the one who left, of itself.
        assert!((1..=2).contains(&events), "{events} events for a hand-off");
        guard = next;
    }
}

/// Waits until the holder has told the one behind it, and that one has looked: nobody asks anything any more.
async fn quiet(site: &Site) {
    eventually(SOON, || async {
        let before = site.figure("zk_packets_received").await;
        Clock::system().sleep_until(Clock::system().now().after(Duration::from_millis(150))).await;
        let after = site.figure("zk_packets_received").await;
        // A ping may come between.
        if after <= before + 1 { Ok(()) } else { Err(format!("{} requests", after - before)) }
    })
    .await;
}
