//! How many requests and messages a lock costs: one to take, one to give back, one message a hand-off, nothing at rest.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::Locks;
use leasehold_conformance::world::{LONG, SOON};
use leasehold_testbed::eventually;
use tokio::time::Instant;

use crate::redis_faults::site::{Monitor, Site, give_back, guard, spawn_lock, until_empty, until_waiting, view};

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
    until_empty(&clients[2], SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_among_8_is_two_requests_and_one_message() {
    hand_over(8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_among_64_is_two_requests_and_one_message() {
    hand_over(64).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_among_512_is_two_requests_and_one_message() {
    hand_over(512).await;
}

/// A message is for the one client whose turn it is: the others are not woken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_reaches_one_client() {
    let site = Site::new().await;
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

/// Eight who want a lock again and again have it equally often.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contenders_are_served_equally() {
    const ROUNDS: usize = 400;
    let site = Site::new().await;
    let served = Arc::new(Mutex::new(vec![0usize; 8]));
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(site.locks(LONG).await);
    }
    let start = clients[0].mutex("a").lock().await.expect("a lock");
    let contend = |number: usize, locks: &Locks| {
        let (mutex, served) = (locks.mutex("a"), Arc::clone(&served));
        tokio::spawn(async move {
            loop {
                let guard = mutex.lock().await.expect("the lock");
                let over = {
                    let mut served = served.lock().expect("no panic");
                    served[number] += 1;
                    served.iter().sum::<usize>() >= ROUNDS
                };
                give_back(guard).await;
                if over {
                    return;
                }
            }
        })
    };
    let tasks: Vec<_> = (0..8).map(|number| contend(number, &clients[number % 4])).collect();
    until_waiting(&clients[0], "a", 8).await;
    give_back(start).await;
    for task in tasks {
        task.await.expect("no panic");
    }
    let served = served.lock().expect("no panic").clone();
    let (least, most) = (served.iter().min(), served.iter().max());
    assert!(least.zip(most).is_some_and(|(least, most)| least * 2 > *most), "{served:?}");
}

/// Those who hold and those who wait are at rest: nobody asks whether the lock is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_asks_while_nothing_happens() {
    let site = Site::new().await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(site.locks(LONG).await);
    }
    let held = clients[0].mutex("a").lock().await.expect("a lock");
    let mut waiters = Vec::new();
    for (number, locks) in clients.iter().enumerate() {
        waiters.push(spawn_lock(locks, "a"));
        until_waiting(locks, "a", number + 1).await;
    }
    let mut monitor = Monitor::start(&site).await;
    monitor.asked(&site).await;
    let clock = clients[0].clock();
    clock.sleep_until(clock.now().after(Duration::from_secs(3))).await;
    let mut asked = monitor.asked(&site).await;
    // Each client asks every five seconds whether its connection lives.
    let pings = asked.iter().filter(|command| *command == "ping").count();
    assert!(pings <= clients.len(), "{asked:?}");
    asked.retain(|command| command != "ping");
    assert!(asked.is_empty(), "{asked:?}");
    give_back(held).await;
    for waiter in waiters {
        give_back(guard(waiter).await).await;
    }
}

/// Whoever holds or waits is heard of every third of its TTL, and not more often.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_heartbeats_are_sent() {
    let ttl = Duration::from_secs(6);
    let site = Site::new().await;
    let (holder, other) = (site.locks(ttl).await, site.locks(ttl).await);
    let held = holder.mutex("a").lock().await.expect("a lock");
    let mut waiters = Vec::new();
    for locks in [&other, &other, &holder] {
        waiters.push(spawn_lock(locks, "a"));
        until_waiting(&holder, "a", waiters.len()).await;
    }
    site.reset().await;
    let start = Instant::now();
    // One holder and three waiters; renewals come up to a seventh earlier than a third of the TTL.
    let each = |beats: u64| 4 * beats;
    let (calls, taken) = eventually(SOON, || async {
        let calls = site.calls().await.scripts();
        if calls >= each(4) { Ok((calls, start.elapsed())) } else { Err(format!("{calls} scripts so far")) }
    })
    .await;
    let beats = (taken.as_secs_f64() / (ttl.as_secs_f64() / 3.0) * 7.0 / 6.0).ceil() as u64 + 1;
    assert!(calls <= each(beats), "{calls} scripts in {taken:?}: at most {} were expected", each(beats));
    assert!(held.is_held(), "it was renewed");
    give_back(held).await;
    for waiter in waiters {
        give_back(guard(waiter).await).await;
    }
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
    until_empty(&other, SOON).await;
    drop(locks);
    eventually(SOON, || async {
        let open = site.connections().await;
        if open == 1 { Ok(()) } else { Err(format!("{open} connections")) }
    })
    .await;
}
