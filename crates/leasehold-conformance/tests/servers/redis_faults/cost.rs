//! Requests and messages per lock: one to acquire, one to release, one message per hand-off, none
//! at rest.

use std::sync::{Arc, Mutex};

use leasehold::Locks;
use leasehold::clock::ManualClock;
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::eventually;

use crate::redis_faults::fixture::{Fixture, await_guard, inspect, release, spawn_lock, until_empty, until_waiting};
use crate::redis_faults::manual_time::pass_and_renew;
use crate::redis_faults::monitor::Monitor;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_is_one_request_and_a_release_another() {
    let fixture = Fixture::new().await;
    let locks = fixture.locks(LONG_TTL).await;
    let mut monitor = Monitor::start(&fixture).await;
    monitor.client_commands(&fixture).await;
    // A new lock, then one that was held before.
    for round in 0..3 {
        let guard = locks.mutex("a").lock().await.expect("a lock");
        assert_eq!(monitor.client_commands(&fixture).await, ["evalsha"], "the acquire in round {round}");
        release(guard).await;
        assert_eq!(monitor.client_commands(&fixture).await, ["evalsha"], "the release in round {round}");
    }
    let shared = locks.rwlock("b").read().await.expect("a lock");
    let permits = locks.semaphore("c", 3).acquire(2).await.expect("permits");
    assert_eq!(monitor.client_commands(&fixture).await, ["evalsha", "evalsha"], "one request in the other modes");
    assert!(locks.rwlock("b").try_write().await.expect("an answer").is_none());
    assert_eq!(monitor.client_commands(&fixture).await, ["evalsha"], "one request for a failed try");
    release(shared).await;
    release(permits).await;
    assert_eq!(monitor.client_commands(&fixture).await, ["evalsha", "evalsha"]);
}

/// Four clients queue `count` waiters, and all of them are served. Counts the requests and
/// messages.
async fn measure_hand_offs(count: usize) {
    let fixture = Fixture::new().await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(fixture.locks(LONG_TTL).await);
    }
    let holder = clients[0].mutex("a").lock().await.expect("a lock");
    fixture.reset_stats().await;
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
        let attempts = fixture.calls().await.scripts();
        if attempts == count as u64 { Ok(()) } else { Err(format!("{attempts} have queued")) }
    })
    .await;
    let arrived: Vec<_> =
        inspect(&clients[1], "a").await.waiters.iter().map(|waiter| waiter.holder.description.to_string()).collect();
    assert_eq!(arrived.len(), count);

    release(holder).await;
    for waiter in waiters {
        waiter.await.expect("every waiter is served");
    }
    let calls = fixture.calls().await;
    // One attempt and one release per waiter, plus the first holder's release and the inspection
    // above.
    assert_eq!(calls.scripts(), 2 * count as u64 + 2, "two scripts per hand-off");
    assert_eq!(calls.of("publish"), count as u64, "one message per hand-off");
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

/// A message goes only to the client that is next; the others are not woken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_reaches_one_client() {
    let fixture = Fixture::shared().await;
    let holder = fixture.locks(LONG_TTL).await;
    let ((first, to_first), (second, to_second)) =
        (fixture.proxied_locks(LONG_TTL).await, fixture.proxied_locks(LONG_TTL).await);
    let held = holder.mutex("a").lock().await.expect("a lock");
    let waits = spawn_lock(&first, "a");
    until_waiting(&holder, "a", 1).await;
    let waits_behind = spawn_lock(&second, "a");
    until_waiting(&holder, "a", 2).await;
    until_replies_arrived([&first, &second]).await;
    let (before, before_second) = (to_first.counts().reply_bytes, to_second.counts().reply_bytes);
    release(held).await;
    let held = await_guard(waits).await;
    assert!(to_first.counts().reply_bytes > before);
    assert_eq!(to_second.counts().reply_bytes, before_second, "the second waiter receives nothing");
    release(held).await;
    release(await_guard(waits_behind).await).await;
}

/// Waits until these clients have received the replies to all their earlier requests. Until then, a
/// request counts as timed out when the clock moves, and is sent again.
async fn until_replies_arrived<'a>(clients: impl IntoIterator<Item = &'a Locks>) {
    for locks in clients {
        // A server answers the requests of one connection in order.
        inspect(locks, "a").await;
    }
}

/// Holders and waiters are idle: no client polls the lock. Two minutes pass before all waiters are
/// served, and the server sees one attempt and one release each, as if no time had passed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_polls_while_a_lock_is_held() {
    let (fixture, manual_clock) = (Fixture::new().await, ManualClock::running());
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(fixture.locks_with_clock(LONG_TTL, manual_clock.clock()).await);
    }
    let observer = fixture.locks(LONG_TTL).await;
    let held = clients[0].mutex("a").lock().await.expect("a lock");
    let mut waiters = Vec::new();
    for (number, locks) in clients.iter().enumerate() {
        waiters.push(spawn_lock(locks, "a"));
        until_waiting(&observer, "a", number + 1).await;
    }
    until_replies_arrived(&clients).await;
    let mut monitor = Monitor::start(&fixture).await;
    monitor.client_commands(&fixture).await;
    // Less than a quarter of the TTL, so no heartbeat is due.
    manual_clock.advance(LONG_TTL / 5);
    release(held).await;
    for waiter in waiters {
        release(await_guard(waiter).await).await;
    }
    let mut commands = monitor.client_commands(&fixture).await;
    // Each client also pings the server every five seconds.
    commands.retain(|command| command != "ping");
    assert_eq!(commands, vec!["evalsha"; 1 + clients.len()], "one release each");
}

/// A holder or waiter sends one heartbeat per third of its TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_client_sends_only_heartbeats() {
    let (fixture, manual_clock) = (Fixture::new().await, ManualClock::running());
    let (holder, other) = (
        fixture.locks_with_clock(LONG_TTL, manual_clock.clock()).await,
        fixture.locks_with_clock(LONG_TTL, manual_clock.clock()).await,
    );
    let held = holder.mutex("a").lock().await.expect("a lock");
    let mut waiters = Vec::new();
    for locks in [&other, &other, &holder] {
        waiters.push(spawn_lock(locks, "a"));
        until_waiting(&holder, "a", waiters.len()).await;
    }
    until_replies_arrived([&other, &holder]).await;
    fixture.reset_stats().await;
    for _ in 0..4 {
        pass_and_renew([&held], |by| manual_clock.advance(by)).await;
    }
    // A waiter that was not idle when the clock moved sends its heartbeat in the next third.
    eventually(TEST_TIMEOUT, || async {
        let calls = fixture.calls().await.scripts();
        if calls >= 4 + 3 * 2 { Ok(()) } else { Err(format!("{calls} scripts in four thirds")) }
    })
    .await;
    release(held).await;
    for waiter in waiters {
        release(await_guard(waiter).await).await;
    }
    // Without the four releases.
    let calls = fixture.calls().await.scripts() - 4;
    assert!(calls <= 4 * 4, "{calls} scripts of one holder and three waiters in four thirds");
}

/// A client uses one connection, however many locks it holds and waits for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_serves_all_locks() {
    let fixture = Fixture::new().await;
    let other = fixture.locks(LONG_TTL).await;
    assert_eq!(fixture.connections().await, 1);
    let locks = fixture.locks(LONG_TTL).await;
    let names: Vec<String> = (0..200).map(|number| format!("lock {number}")).collect();
    let mut held = Vec::new();
    for name in &names {
        held.push(locks.mutex(name).lock().await.expect("a lock"));
    }
    let waiters: Vec<_> = names[..50].iter().map(|name| spawn_lock(&locks, name)).collect();
    for name in &names[..50] {
        until_waiting(&other, name, 1).await;
    }
    assert_eq!(fixture.connections().await, 2, "one for each client");
    let all = fixture.command_text(&["CLIENT", "LIST"]).await.lines().count();
    assert_eq!(all, 3, "one more for the raw connection");
    drop(held);
    for waiter in waiters {
        release(await_guard(waiter).await).await;
    }
    locks.flush().await.expect("all released");
    until_empty(&other).await;
    drop(locks);
    eventually(TEST_TIMEOUT, || async {
        let open = fixture.connections().await;
        if open == 1 { Ok(()) } else { Err(format!("{open} connections")) }
    })
    .await;
}
