//! Broken connections, restarted and paused servers: held locks stay held, and holders learn of
//! lost ones.

use std::time::Duration;

use leasehold::clock::{Clock, Instant};
use leasehold::{Guard, Locks, LostReason, ReleaseOutcome};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::redis::Redis;
use leasehold_testbed::{Data, eventually};
use tokio::time::timeout;

use crate::redis_faults::fixture::{Fixture, await_guard, inspect, release, spawn_lock, until_empty, until_waiting};

/// A holder, two waiters, and a holder of many locks.
struct HoldersAndWaiters {
    held: Guard,
    grouped: Vec<Guard>,
    waiters: Vec<tokio::task::JoinHandle<leasehold::Result<Guard>>>,
}

async fn holders_and_waiters(locks: &Locks, watcher: &Locks) -> HoldersAndWaiters {
    let held = locks.mutex("a").lock().await.expect("a lock");
    let mut many = Vec::new();
    for number in 0..40 {
        many.push(locks.mutex(format!("many {number}")).lock().await.expect("a lock"));
    }
    let mut waiters = Vec::new();
    for number in 0..2 {
        waiters.push(spawn_lock(locks, "a"));
        until_waiting(watcher, "a", number + 1).await;
    }
    HoldersAndWaiters { held, grouped: many, waiters }
}

impl HoldersAndWaiters {
    fn guards(&self) -> impl Iterator<Item = &Guard> {
        self.grouped.iter().chain([&self.held])
    }

    /// The deadline of each guard.
    fn deadlines(&self) -> Vec<Instant> {
        self.guards().map(Guard::deadline).collect()
    }

    /// Waits until each guard is renewed. A scheduled renewal comes later than this timeout.
    async fn until_renewed(&self, before: &[Instant]) {
        eventually(TEST_TIMEOUT, || async {
            let renewed = |(guard, old): &(&Guard, &Instant)| guard.is_held() && guard.deadline() > **old;
            let old = self.guards().zip(before).filter(|pair| !renewed(pair)).count();
            if old == 0 { Ok(()) } else { Err(format!("{old} were not renewed")) }
        })
        .await;
    }
}

async fn assert_served_in_order(contenders: HoldersAndWaiters) {
    let mut token = contenders.held.token();
    release(contenders.held).await;
    for waiter in contenders.waiters {
        let next = await_guard(waiter).await;
        assert!(next.token() > token);
        token = next.token();
        release(next).await;
    }
    for guard in contenders.grouped {
        release(guard).await;
    }
}

fn waiting_claims(view: &leasehold::engine::LockView) -> Vec<leasehold::ClaimId> {
    view.waiters.iter().map(|waiter| waiter.claim).collect()
}

/// The server closes all connections: holders renew at once, and waiters keep their positions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_and_waiters_survive_the_end_of_their_connection() {
    let fixture = Fixture::new().await;
    let (locks, watcher) = (fixture.locks(LONG_TTL).await, fixture.locks(LONG_TTL).await);
    let contenders = holders_and_waiters(&locks, &watcher).await;
    let before = waiting_claims(&inspect(&watcher, "a").await);
    for _ in 0..3 {
        let valid = contenders.deadlines();
        assert_eq!(fixture.kill_connections().await, 2);
        contenders.until_renewed(&valid).await;
        // The watcher's own connection was closed as well.
        eventually(TEST_TIMEOUT, || async { watcher.inspect("a").await.map(drop) }).await;
        assert_eq!(waiting_claims(&inspect(&watcher, "a").await), before);
    }
    assert_served_in_order(contenders).await;
    until_empty(&watcher).await;
}

/// The network is partitioned for a while: holders renew afterwards, and waiters keep their
/// positions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_and_waiters_survive_a_partition() {
    let fixture = Fixture::shared().await;
    let watcher = fixture.locks(LONG_TTL).await;
    let (locks, proxy) = fixture.proxied_locks(LONG_TTL).await;
    let contenders = holders_and_waiters(&locks, &watcher).await;
    let before = waiting_claims(&inspect(&watcher, "a").await);
    let valid = contenders.deadlines();
    proxy.refuse(true);
    proxy.cut();
    eventually(TEST_TIMEOUT, || async { if proxy.counts().refused > 3 { Ok(()) } else { Err("no attempts so far") } })
        .await;
    assert!(contenders.held.is_held());
    proxy.refuse(false);
    contenders.until_renewed(&valid).await;
    assert_eq!(waiting_claims(&inspect(&watcher, "a").await), before);
    assert_served_in_order(contenders).await;
    until_empty(&watcher).await;
}

/// A server that keeps its data restarts: no lock is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_and_waiters_survive_a_restart_with_data() {
    let mut fixture =
        Fixture::with_config(Redis::new().args(&["--appendonly", "yes", "--appendfsync", "always"])).await;
    let (locks, watcher) = (fixture.locks(LONG_TTL).await, fixture.locks(LONG_TTL).await);
    let contenders = holders_and_waiters(&locks, &watcher).await;
    let before = waiting_claims(&inspect(&watcher, "a").await);
    let valid = contenders.deadlines();
    fixture.server.kill().expect("a killed server");
    fixture.server.restart(Data::Keep).await.expect("a restarted server");
    contenders.until_renewed(&valid).await;
    eventually(TEST_TIMEOUT, || async { watcher.inspect("a").await.map(drop) }).await;
    assert_eq!(waiting_claims(&inspect(&watcher, "a").await), before);
    assert_served_in_order(contenders).await;
    until_empty(&watcher).await;
}

/// A server that restarts empty: holders learn of the loss soon, waiters are served, and tokens
/// keep rising.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_learn_that_the_server_lost_its_data() {
    let mut fixture = Fixture::new().await;
    let (locks, other) = (fixture.locks(LONG_TTL).await, fixture.locks(LONG_TTL).await);
    let contenders = holders_and_waiters(&locks, &other).await;
    fixture.server.kill().expect("a killed server");
    fixture.server.restart(Data::Wipe).await.expect("a restarted server");
    for guard in contenders.grouped.iter().chain([&contenders.held]) {
        // A scheduled renewal would come later than this timeout.
        let reason = timeout(TEST_TIMEOUT, guard.lost()).await.expect("the holder learns of the loss soon");
        assert_eq!(reason, LostReason::Revoked);
    }
    // The other client's connection was closed as well.
    eventually(TEST_TIMEOUT, || async { other.inspect("a").await.map(drop) }).await;
    for lost in contenders.grouped {
        let next = other.mutex(lost.name().as_str()).try_lock().await.expect("an answer").expect("the lock is free");
        assert!(next.token() > lost.token(), "the new token is higher");
        assert_eq!(lost.release().await.expect("an outcome"), ReleaseOutcome::AlreadyLost(LostReason::Revoked));
        assert!(next.is_held(), "the late release does not affect the next holder");
        release(next).await;
    }
    // Both waiters are served one after the other, in any order.
    let old = contenders.held.token();
    assert_eq!(contenders.held.release().await.expect("an outcome"), ReleaseOutcome::AlreadyLost(LostReason::Revoked));
    let mut tokens = Vec::new();
    for waiter in contenders.waiters {
        let (sender, taken) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let guard = await_guard(waiter).await;
            sender.send(guard.token()).expect("the receiver is open");
            release(guard).await;
        });
        tokens.push(taken);
    }
    for token in tokens {
        assert!(timeout(TEST_TIMEOUT, token).await.expect("the waiter is served").expect("a token") > old);
    }
    until_empty(&other).await;
}

/// The server is paused until its clients drop their connections. No lock is lost, calls that timed
/// out leave nothing behind, and waiters are served afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_server_loses_nothing() {
    let mut fixture = Fixture::new().await;
    let (locks, proxy) = fixture.proxied_locks_with(LONG_TTL, Clock::system(), "connect-timeout=500ms").await;
    let other = fixture.locks(LONG_TTL).await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let also = other.mutex("b").lock().await.expect("a lock");
    let waits = spawn_lock(&other, "a");
    until_waiting(&locks, "a", 1).await;
    let connections = proxy.counts().accepted;
    fixture.server.pause().expect("a paused server");
    // Some calls time out meanwhile, on free locks and on a held one.
    let mut timed_out = Vec::new();
    for number in 0..10 {
        let mutex = locks.mutex(if number == 0 { "b".to_owned() } else { format!("c {number}") });
        let mutex = mutex.timeout(Duration::from_millis(200 * (number % 4)));
        timed_out.push(tokio::spawn(async move { mutex.lock().await.map(drop) }));
    }
    let dropped = spawn_lock(&locks, "d");
    for task in timed_out {
        let error = timeout(TEST_TIMEOUT, task)
            .await
            .expect("the call returns")
            .expect("no panic")
            .expect_err("the server is paused");
        assert!(["unavailable", "timeout"].contains(&error.kind().as_str()), "{error}");
    }
    dropped.abort();
    eventually(TEST_TIMEOUT, || async {
        if proxy.counts().accepted > connections { Ok(()) } else { Err("the connection is not dropped so far") }
    })
    .await;
    fixture.server.resume().expect("a running server");

    assert!(held.is_held() && also.is_held());
    release(held).await;
    let next = await_guard(waits).await;
    // Claims of the dropped calls are released, not left to expire.
    eventually(TEST_TIMEOUT, || async {
        let left = other.list("").await.map_err(|error| error.to_string())?;
        let names: Vec<_> = left.iter().map(|view| view.name.as_str()).collect();
        if names == ["a", "b"] { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    assert!(also.is_held() && next.is_held());
    release(also).await;
    release(next).await;
    until_empty(&locks).await;
    eventually(TEST_TIMEOUT, || async {
        let open = fixture.connections().await;
        if open == 2 { Ok(()) } else { Err(format!("{open} connections: the broken ones are not closed")) }
    })
    .await;
}

/// The network hangs for a while and then delivers all delayed requests at once. What they leave
/// behind is gone after a TTL, and no lock has two holders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_requests_leave_no_claims_after_a_ttl() {
    let fixture = Fixture::shared().await;
    let other = fixture.locks(LONG_TTL).await;
    let (locks, proxy) =
        fixture.proxied_locks_with(Duration::from_secs(1), Clock::system(), "connect-timeout=500ms").await;
    proxy.freeze(true);
    let names: Vec<String> = (0..8).map(|number| format!("late {number}")).collect();
    let tries = names.iter().map(|name| {
        let mutex = locks.mutex(name).timeout(Duration::from_millis(300));
        tokio::spawn(async move { mutex.lock().await.map(drop) })
    });
    for task in tries.collect::<Vec<_>>() {
        assert!(
            timeout(TEST_TIMEOUT, task).await.expect("the call returns").expect("no panic").is_err(),
            "the network hangs"
        );
    }
    // Long enough for the client to drop the connection and open others.
    eventually(TEST_TIMEOUT, || async {
        let tries = proxy.counts().accepted;
        if tries >= 3 { Ok(()) } else { Err(format!("{tries} connections")) }
    })
    .await;
    proxy.freeze(false);
    until_empty(&other).await;
    for name in &names {
        release(other.mutex(name).try_lock().await.expect("an answer").expect("the lock is free")).await;
        release(locks.mutex(name).ttl(LONG_TTL).timeout(TEST_TIMEOUT).lock().await.expect("the client works again"))
            .await;
    }
}
