//! How many requests and messages a lock costs: one to take, one to give back, one message a hand-off, nothing at rest.

use std::sync::{Arc, Mutex};

use leasehold::clock::ManualClock;
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::eventually;

use crate::redis_faults::fixture::{Fixture, await_guard, inspect, release, spawn_lock, until_empty, until_waiting};
use crate::redis_faults::manual_time::pass_and_renew;
use crate::redis_faults::monitor::Monitor;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_is_one_request_and_a_release_another() {
    let site = Fixture::new().await;
    let locks = site.locks(LONG_TTL).await;
    let mut monitor = Monitor::start(&site).await;
    monitor.client_commands(&site).await;
    // A lock that is new, and one that was held before.
    for round in 0..3 {
        let guard = locks.mutex("a").lock().await.expect("a lock");
        assert_eq!(monitor.client_commands(&site).await, ["evalsha"], "to take it, round {round}");
        release(guard).await;
        assert_eq!(monitor.client_commands(&site).await, ["evalsha"], "to give it back, round {round}");
    }
    let shared = locks.rwlock("b").read().await.expect("a lock");
    let permits = locks.semaphore("c", 3).acquire(2).await.expect("permits");
    assert_eq!(monitor.client_commands(&site).await, ["evalsha", "evalsha"], "in the other modes, too");
    assert!(locks.rwlock("b").try_write().await.expect("an answer").is_none());
    assert_eq!(monitor.client_commands(&site).await, ["evalsha"], "to try in vain");
    release(shared).await;
    release(permits).await;
    assert_eq!(monitor.client_commands(&site).await, ["evalsha", "evalsha"]);
}

/// So many wait, asked for from four clients; all of them are served. The requests and messages that this took are counted.
async fn measure_hand_offs(count: usize) {
    let site = Fixture::new().await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(site.locks(LONG_TTL).await);
    }
    let holder = clients[0].mutex("a").lock().await.expect("a lock");
    site.reset_stats().await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let waiter = |number: usize| {
        let mutex = clients[number % clients.len()].mutex("a").describe(number.to_string());
        let order = Arc::clone(&order);
        tokio::spawn(async move {
            let guard = mutex.lock().await.expect("the lock");
            order.lock().expect("no panic").push(number.to_string());
            release(guard).await;
        })
    };
    let waiters: Vec<_> = (0..count).map(waiter).collect();
    eventually(TEST_TIMEOUT, || async {
        let attempts = site.calls().await.scripts();
        if attempts == count as u64 { Ok(()) } else { Err(format!("{attempts} have asked")) }
    })
    .await;
    let arrived: Vec<_> =
        inspect(&clients[1], "a").await.waiters.iter().map(|waiter| waiter.holder.description.to_string()).collect();
    assert_eq!(arrived.len(), count);

    release(holder).await;
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
    measure_hand_offs(8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_among_64_is_two_requests_and_one_message() {
    measure_hand_offs(64).await;
}

#[cfg(feature = "nightly")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_among_512_is_two_requests_and_one_message() {
    measure_hand_offs(512).await;
}

/// A message is for the one client whose turn it is: the others are not woken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_reaches_one_client() {
    let site = Fixture::shared().await;
    let holder = site.locks(LONG_TTL).await;
    let ((first, to_first), (second, to_second)) =
        (site.proxied_locks(LONG_TTL).await, site.proxied_locks(LONG_TTL).await);
    let held = holder.mutex("a").lock().await.expect("a lock");
    let waits = spawn_lock(&first, "a");
    until_waiting(&holder, "a", 1).await;
    let waits_behind = spawn_lock(&second, "a");
    until_waiting(&holder, "a", 2).await;
    // Both have had the answers to what they asked: one more comes behind them.
    for locks in [&first, &second] {
        inspect(locks, "a").await;
    }
    let (before, before_second) = (to_first.counts().reply_bytes, to_second.counts().reply_bytes);
    release(held).await;
    let held = await_guard(waits).await;
    assert!(to_first.counts().reply_bytes > before);
    assert_eq!(to_second.counts().reply_bytes, before_second, "the one behind hears nothing");
    release(held).await;
    release(await_guard(waits_behind).await).await;
}

/// Those who hold and those who wait are at rest: no client asks whether the lock is free. Two minutes pass, and then all are served:
/// what the server was asked for is one attempt and one release each, as if no time had passed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_polls_while_a_lock_is_held() {
    let (site, hand) = (Fixture::new().await, ManualClock::running());
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(site.locks_with_clock(LONG_TTL, hand.clock()).await);
    }
    let looks = site.locks(LONG_TTL).await;
    let held = clients[0].mutex("a").lock().await.expect("a lock");
    let mut waiters = Vec::new();
    for (number, locks) in clients.iter().enumerate() {
        waiters.push(spawn_lock(locks, "a"));
        until_waiting(&looks, "a", number + 1).await;
    }
    let mut monitor = Monitor::start(&site).await;
    monitor.client_commands(&site).await;
    // Less than a quarter of the TTL: nothing is due by its turn.
    hand.advance(LONG_TTL / 5);
    release(held).await;
    for waiter in waiters {
        release(await_guard(waiter).await).await;
    }
    let mut asked = monitor.client_commands(&site).await;
    // Each client also asks, every five seconds, whether its connection lives.
    asked.retain(|command| command != "ping");
    assert_eq!(asked, vec!["evalsha"; 1 + clients.len()], "one release each");
}

/// A client that holds or waits is heard of every third of its TTL, and not more often.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_client_sends_only_heartbeats() {
    let (site, hand) = (Fixture::new().await, ManualClock::running());
    let (holder, other) =
        (site.locks_with_clock(LONG_TTL, hand.clock()).await, site.locks_with_clock(LONG_TTL, hand.clock()).await);
    let held = holder.mutex("a").lock().await.expect("a lock");
    let mut waiters = Vec::new();
    for locks in [&other, &other, &holder] {
        waiters.push(spawn_lock(locks, "a"));
        until_waiting(&holder, "a", waiters.len()).await;
    }
    site.reset_stats().await;
    for _ in 0..4 {
        pass_and_renew([&held], |by| hand.advance(by)).await;
    }
    // A waiter that has not gone back to rest when the clock moves is heard of in the next third.
    eventually(TEST_TIMEOUT, || async {
        let calls = site.calls().await.scripts();
        if calls >= 4 + 3 * 2 { Ok(()) } else { Err(format!("{calls} scripts in four thirds")) }
    })
    .await;
    release(held).await;
    for waiter in waiters {
        release(await_guard(waiter).await).await;
    }
    // Besides the four releases.
    let calls = site.calls().await.scripts() - 4;
    assert!(calls <= 4 * 4, "{calls} scripts of one holder and three waiters in four thirds");
}

/// However many locks are held and waited for: one connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_serves_all_locks() {
    let site = Fixture::new().await;
    let other = site.locks(LONG_TTL).await;
    assert_eq!(site.connections().await, 1);
    let locks = site.locks(LONG_TTL).await;
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
    let all = site.command_text(&["CLIENT", "LIST"]).await.lines().count();
    assert_eq!(all, 3, "and ours by hand");
    drop(held);
    for waiter in waiters {
        release(await_guard(waiter).await).await;
    }
    locks.flush().await.expect("all given back");
    until_empty(&other).await;
    drop(locks);
    eventually(TEST_TIMEOUT, || async {
        let open = site.connections().await;
        if open == 1 { Ok(()) } else { Err(format!("{open} connections")) }
    })
    .await;
}
