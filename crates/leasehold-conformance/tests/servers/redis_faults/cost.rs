//! How many requests and messages a lock costs: one to take, one to give back, one message a hand-off, nothing at rest.

use std::sync::{Arc, Mutex};

use leasehold::clock::ManualClock;
use leasehold_conformance::world::{LONG, SOON};
use leasehold_testbed::eventually;

use crate::redis_faults::monitor::Monitor;
use crate::redis_faults::site::{Site, give_back, guard, spawn_lock, until_empty, until_waiting, view};
use crate::redis_faults::time::renewed;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_take_is_one_request_and_a_release_another() {
    let site = Site::new().await;
    let locks = site.locks(LONG).await;
    let mut monitor = Monitor::start(&site).await;
    monitor.asked(&site).await;
    // A lock that is new, and one that was held before.
    for round in 0..3 {
        let guard = locks.mutex("a").lock().await.expect("a lock");
        assert_eq!(monitor.asked(&site).await, ["evalsha"], "to take it, round {round}");
        give_back(guard).await;
        assert_eq!(monitor.asked(&site).await, ["evalsha"], "to give it back, round {round}");
    }
    let shared = locks.rwlock("b").read().await.expect("a lock");
    let permits = locks.semaphore("c", 3).acquire(2).await.expect("permits");
    assert_eq!(monitor.asked(&site).await, ["evalsha", "evalsha"], "in the other modes, too");
    assert!(locks.rwlock("b").try_write().await.expect("an answer").is_none());
    assert_eq!(monitor.asked(&site).await, ["evalsha"], "to try in vain");
    give_back(shared).await;
    give_back(permits).await;
    assert_eq!(monitor.asked(&site).await, ["evalsha", "evalsha"]);
}

/// So many wait, asked for from four clients; all of them are served. The requests and messages that this took are counted.
async fn hand_over(count: usize) {
    let site = Site::new().await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(site.locks(LONG).await);
    }
    let holder = clients[0].mutex("a").lock().await.expect("a lock");
    site.reset().await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let waiter = |number: usize| {
        let mutex = clients[number % clients.len()].mutex("a").describe(number.to_string());
        let order = Arc::clone(&order);
        tokio::spawn(async move {
            let guard = mutex.lock().await.expect("the lock");
            order.lock().expect("no panic").push(number.to_string());
            give_back(guard).await;
        })
    };
    let waiters: Vec<_> = (0..count).map(waiter).collect();
    eventually(SOON, || async {
        let attempts = site.calls().await.scripts();
        if attempts == count as u64 { Ok(()) } else { Err(format!("{attempts} have asked")) }
    })
    .await;
    let arrived: Vec<_> =
        view(&clients[1], "a").await.waiters.iter().map(|waiter| waiter.holder.text.to_string()).collect();
    assert_eq!(arrived.len(), count);

    give_back(holder).await;
    for waiter in waiters {
        waiter.await.expect("every waiter is served");
    }
    let calls = site.calls().await;
    // One attempt and one release each, besides the first holder's release and our look at the queue.
    assert_eq!(calls.scripts(), 2 * count as u64 + 2, "two scripts a hand-off");
    assert_eq!(calls.of("publish"), count as u64, "one message a hand-off");
    assert_eq!(*order.lock().expect("no panic"), arrived, "served in the order of arrival");
    until_empty(&clients[2]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_among_8_is_two_requests_and_one_message() {
    hand_over(8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_among_64_is_two_requests_and_one_message() {
    hand_over(64).await;
}

#[cfg(feature = "nightly")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_among_512_is_two_requests_and_one_message() {
    hand_over(512).await;
}

/// A message is for the one client whose turn it is: the others are not woken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_reaches_one_client() {
    let site = Site::shared().await;
    let holder = site.locks(LONG).await;
    let ((first, to_first), (second, to_second)) = (site.proxied(LONG).await, site.proxied(LONG).await);
    let held = holder.mutex("a").lock().await.expect("a lock");
    let waits = spawn_lock(&first, "a");
    until_waiting(&holder, "a", 1).await;
    let waits_behind = spawn_lock(&second, "a");
    until_waiting(&holder, "a", 2).await;
    // Both have had the answers to what they asked: one more comes behind them.
    for locks in [&first, &second] {
        view(locks, "a").await;
    }
    let (before, before_second) = (to_first.counts().reply_bytes, to_second.counts().reply_bytes);
    give_back(held).await;
    let held = guard(waits).await;
    assert!(to_first.counts().reply_bytes > before);
    assert_eq!(to_second.counts().reply_bytes, before_second, "the one behind hears nothing");
    give_back(held).await;
    give_back(guard(waits_behind).await).await;
}

/// Those who hold and those who wait are at rest: no client asks whether the lock is free. Two minutes pass, and then all are served:
/// what the server was asked for is one attempt and one release each, as if no time had passed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_asks_while_nothing_happens() {
    let (site, hand) = (Site::new().await, ManualClock::running());
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(site.timed(LONG, hand.clock()).await);
    }
    let looks = site.locks(LONG).await;
    let held = clients[0].mutex("a").lock().await.expect("a lock");
    let mut waiters = Vec::new();
    for (number, locks) in clients.iter().enumerate() {
        waiters.push(spawn_lock(locks, "a"));
        until_waiting(&looks, "a", number + 1).await;
    }
    let mut monitor = Monitor::start(&site).await;
    monitor.asked(&site).await;
    // Less than a quarter of the TTL: nothing is due by its turn.
    hand.advance(LONG / 5);
    give_back(held).await;
    for waiter in waiters {
        give_back(guard(waiter).await).await;
    }
    let mut asked = monitor.asked(&site).await;
    // Each client also asks, every five seconds, whether its connection lives.
    asked.retain(|command| command != "ping");
    assert_eq!(asked, vec!["evalsha"; 1 + clients.len()], "one release each");
}

/// A client that holds or waits is heard of every third of its TTL, and not more often.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_heartbeats_are_sent() {
    let (site, hand) = (Site::new().await, ManualClock::running());
    let (holder, other) = (site.timed(LONG, hand.clock()).await, site.timed(LONG, hand.clock()).await);
    let held = holder.mutex("a").lock().await.expect("a lock");
    let mut waiters = Vec::new();
    for locks in [&other, &other, &holder] {
        waiters.push(spawn_lock(locks, "a"));
        until_waiting(&holder, "a", waiters.len()).await;
    }
    site.reset().await;
    for _ in 0..4 {
        renewed([&held], |by| hand.advance(by)).await;
    }
    // A waiter that has not gone back to rest when the clock moves is heard of in the next third.
    eventually(SOON, || async {
        let calls = site.calls().await.scripts();
        if calls >= 4 + 3 * 2 { Ok(()) } else { Err(format!("{calls} scripts in four thirds")) }
    })
    .await;
    give_back(held).await;
    for waiter in waiters {
        give_back(guard(waiter).await).await;
    }
    // Besides the four releases.
    let calls = site.calls().await.scripts() - 4;
    assert!(calls <= 4 * 4, "{calls} scripts of one holder and three waiters in four thirds");
}

/// However many locks are held and waited for: one connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_serves_all_locks() {
    let site = Site::new().await;
    let other = site.locks(LONG).await;
    assert_eq!(site.connections().await, 1);
    let locks = site.locks(LONG).await;
    let names: Vec<String> = (0..200).map(|number| format!("lock {number}")).collect();
    let mut held = Vec::new();
    for name in &names {
        held.push(locks.mutex(name).lock().await.expect("a lock"));
    }
    let waiters: Vec<_> = names[..50].iter().map(|name| spawn_lock(&locks, name)).collect();
    for name in &names[..50] {
        until_waiting(&other, name, 1).await;
    }
    assert_eq!(site.connections().await, 2, "one for each client");
    let all = site.text(&["CLIENT", "LIST"]).await.lines().count();
    assert_eq!(all, 3, "and ours by hand");
    drop(held);
    for waiter in waiters {
        give_back(guard(waiter).await).await;
    }
    locks.settle().await.expect("all given back");
    until_empty(&other).await;
    drop(locks);
    eventually(SOON, || async {
        let open = site.connections().await;
        if open == 1 { Ok(()) } else { Err(format!("{open} connections")) }
    })
    .await;
}
