//! Connections break, servers restart and stand still: what is held stays held, and what is lost is told.

use std::time::Duration;

use leasehold::clock::{Clock, Instant};
use leasehold::{Guard, Locks, LostReason, ReleaseOutcome};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::redis::Redis;
use leasehold_testbed::{Data, eventually};
use tokio::time::timeout;

use crate::redis_faults::fixture::{Fixture, await_guard, inspect, release, spawn_lock, until_empty, until_waiting};

/// A holder, two who wait, and a holder of many.
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

    /// Until when each is valid.
    fn deadlines(&self) -> Vec<Instant> {
        self.guards().map(Guard::deadline).collect()
    }

    /// Each was renewed since it was valid until then: its turn comes later than this waits.
    async fn until_renewed(&self, before: &[Instant]) {
        eventually(TEST_TIMEOUT, || async {
            let renewed = |(guard, old): &(&Guard, &Instant)| guard.is_held() && guard.deadline() > **old;
            let old = self.guards().zip(before).filter(|pair| !renewed(pair)).count();
            if old == 0 { Ok(()) } else { Err(format!("{old} were not renewed")) }
        })
        .await;
    }
}

async fn assert_served_in_order(scene: HoldersAndWaiters) {
    let mut token = scene.held.token();
    release(scene.held).await;
    for waiter in scene.waiters {
        let next = await_guard(waiter).await;
        assert!(next.token() > token);
        token = next.token();
        release(next).await;
    }
    for guard in scene.grouped {
        release(guard).await;
    }
}

fn waiting_claims(view: &leasehold::engine::LockView) -> Vec<leasehold::ClaimId> {
    view.waiters.iter().map(|waiter| waiter.claim).collect()
}

/// The server ends all connections: holders renew at once, waiters keep their places.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_and_waiters_survive_the_end_of_their_connection() {
    let site = Fixture::new().await;
    let (locks, watcher) = (site.locks(LONG_TTL).await, site.locks(LONG_TTL).await);
    let scene = holders_and_waiters(&locks, &watcher).await;
    let before = waiting_claims(&inspect(&watcher, "a").await);
    for _ in 0..3 {
        let valid = scene.deadlines();
        assert_eq!(site.kill_connections().await, 2);
        scene.until_renewed(&valid).await;
        // The watcher's own connection was ended, too.
        eventually(TEST_TIMEOUT, || async { watcher.inspect("a").await.map(drop) }).await;
        assert_eq!(waiting_claims(&inspect(&watcher, "a").await), before);
    }
    assert_served_in_order(scene).await;
    until_empty(&watcher).await;
}

/// As above, where the line is cut and cannot be had back for a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_and_waiters_survive_a_partition() {
    let site = Fixture::shared().await;
    let watcher = site.locks(LONG_TTL).await;
    let (locks, proxy) = site.proxied_locks(LONG_TTL).await;
    let scene = holders_and_waiters(&locks, &watcher).await;
    let before = waiting_claims(&inspect(&watcher, "a").await);
    let valid = scene.deadlines();
    proxy.refuse(true);
    proxy.cut();
    eventually(TEST_TIMEOUT, || async { if proxy.counts().refused > 3 { Ok(()) } else { Err("no tries so far") } })
        .await;
    assert!(scene.held.is_held());
    proxy.refuse(false);
    scene.until_renewed(&valid).await;
    assert_eq!(waiting_claims(&inspect(&watcher, "a").await), before);
    assert_served_in_order(scene).await;
    until_empty(&watcher).await;
}

/// A server that keeps its data restarts: nobody loses anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_and_waiters_survive_a_restart_with_data() {
    let mut site = Fixture::with_config(Redis::new().args(&["--appendonly", "yes", "--appendfsync", "always"])).await;
    let (locks, watcher) = (site.locks(LONG_TTL).await, site.locks(LONG_TTL).await);
    let scene = holders_and_waiters(&locks, &watcher).await;
    let before = waiting_claims(&inspect(&watcher, "a").await);
    let valid = scene.deadlines();
    site.server.kill().expect("a killed server");
    site.server.restart(Data::Keep).await.expect("a restarted server");
    scene.until_renewed(&valid).await;
    eventually(TEST_TIMEOUT, || async { watcher.inspect("a").await.map(drop) }).await;
    assert_eq!(waiting_claims(&inspect(&watcher, "a").await), before);
    assert_served_in_order(scene).await;
    until_empty(&watcher).await;
}

/// A server that has forgotten everything: each holder is told soon, whoever waits is let in, and tokens go on rising.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_learn_that_the_server_lost_its_data() {
    let mut site = Fixture::new().await;
    let (locks, other) = (site.locks(LONG_TTL).await, site.locks(LONG_TTL).await);
    let scene = holders_and_waiters(&locks, &other).await;
    site.server.kill().expect("a killed server");
    site.server.restart(Data::Wipe).await.expect("a restarted server");
    for guard in scene.grouped.iter().chain([&scene.held]) {
        // When they would have renewed anyway is later.
        let reason = timeout(TEST_TIMEOUT, guard.lost()).await.expect("it is told soon");
        assert_eq!(reason, LostReason::Revoked);
    }
    // The other's own connection was ended, too.
    eventually(TEST_TIMEOUT, || async { other.inspect("a").await.map(drop) }).await;
    for lost in scene.grouped {
        let next = other.mutex(lost.name().as_str()).try_lock().await.expect("an answer").expect("it is free");
        assert!(next.token() > lost.token(), "the new token is higher");
        assert_eq!(lost.release().await.expect("an outcome"), ReleaseOutcome::AlreadyLost(LostReason::Revoked));
        assert!(next.is_held(), "the late release does not touch the next holder");
        release(next).await;
    }
    // Both waiters are let in, one after the other; in which order they come back is not promised.
    let old = scene.held.token();
    assert_eq!(scene.held.release().await.expect("an outcome"), ReleaseOutcome::AlreadyLost(LostReason::Revoked));
    let mut tokens = Vec::new();
    for waiter in scene.waiters {
        let (sender, taken) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let guard = await_guard(waiter).await;
            sender.send(guard.token()).expect("somebody listens");
            release(guard).await;
        });
        tokens.push(taken);
    }
    for token in tokens {
        assert!(timeout(TEST_TIMEOUT, token).await.expect("it is let in").expect("a token") > old);
    }
    until_empty(&other).await;
}

/// The server stands still until its clients have given up their connections. Nothing is lost, those who gave up meanwhile leave
/// nothing behind, and waiters are served afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_for_a_while_loses_nothing() {
    let mut site = Fixture::new().await;
    let (locks, proxy) = site.proxied_locks_with(LONG_TTL, Clock::system(), "connect-timeout=500ms").await;
    let other = site.locks(LONG_TTL).await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let also = other.mutex("b").lock().await.expect("a lock");
    let waits = spawn_lock(&other, "a");
    until_waiting(&locks, "a", 1).await;
    let lines = proxy.counts().accepted;
    site.server.pause().expect("a paused server");
    // Some ask meanwhile and give up: for locks that are free, and for one that is held.
    let mut gave_up = Vec::new();
    for number in 0..10 {
        let mutex = locks.mutex(if number == 0 { "b".to_owned() } else { format!("c {number}") });
        let mutex = mutex.timeout(Duration::from_millis(200 * (number % 4)));
        gave_up.push(tokio::spawn(async move { mutex.lock().await.map(drop) }));
    }
    let dropped = spawn_lock(&locks, "d");
    for task in gave_up {
        let error = timeout(TEST_TIMEOUT, task).await.expect("an end").expect("no panic").expect_err("nobody answers");
        assert!(["unavailable", "timeout"].contains(&error.kind().as_str()), "{error}");
    }
    dropped.abort();
    eventually(TEST_TIMEOUT, || async {
        if proxy.counts().accepted > lines { Ok(()) } else { Err("the connection is not given up so far") }
    })
    .await;
    site.server.resume().expect("a running server");

    assert!(held.is_held() && also.is_held());
    release(held).await;
    let next = await_guard(waits).await;
    // What was asked for before is gone before a TTL is over: it was given back, not left to lapse.
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
        let open = site.connections().await;
        if open == 2 { Ok(()) } else { Err(format!("{open} connections: the broken ones are not closed")) }
    })
    .await;
}

/// The network is silent for a while, and then delivers everything that was asked for meanwhile, late and at once: what that
/// leaves behind is gone with a TTL at the latest, and no guard is held by two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_requests_leave_no_claims_after_a_ttl() {
    let site = Fixture::shared().await;
    let other = site.locks(LONG_TTL).await;
    let (locks, proxy) =
        site.proxied_locks_with(Duration::from_secs(1), Clock::system(), "connect-timeout=500ms").await;
    proxy.freeze(true);
    let names: Vec<String> = (0..8).map(|number| format!("late {number}")).collect();
    let tries = names.iter().map(|name| {
        let mutex = locks.mutex(name).timeout(Duration::from_millis(300));
        tokio::spawn(async move { mutex.lock().await.map(drop) })
    });
    for task in tries.collect::<Vec<_>>() {
        assert!(timeout(TEST_TIMEOUT, task).await.expect("an end").expect("no panic").is_err(), "nobody answers");
    }
    // Long enough for the client to have given the connection up and to have tried others.
    eventually(TEST_TIMEOUT, || async {
        let tries = proxy.counts().accepted;
        if tries >= 3 { Ok(()) } else { Err(format!("{tries} connections")) }
    })
    .await;
    proxy.freeze(false);
    until_empty(&other).await;
    for name in &names {
        release(other.mutex(name).try_lock().await.expect("an answer").expect("it is free")).await;
        release(locks.mutex(name).ttl(LONG_TTL).timeout(TEST_TIMEOUT).lock().await.expect("it works again")).await;
    }
}
