//! A client dies or stands still while it holds or waits: those behind it are served.

use std::time::Duration;

use leasehold_conformance::protocol::{Ask, Order};
use leasehold_conformance::world::{LONG, SOON};
use leasehold_testbed::eventually;
use tokio::time::Instant;

use crate::redis_faults::site::{Site, give_back, guard, spawn_lock, until_empty, until_waiting, view};

/// Two dead waiters at the head of the queue cost the third nothing: the release that meets them passes them over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_waiter_is_passed_over_by_the_same_script() {
    let site = Site::new().await;
    let locks = site.locks(LONG).await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let mut dead = [site.player(LONG).await, site.player(LONG).await];
    for (number, player) in dead.iter_mut().enumerate() {
        player.tell(&Order::Lock(Ask::exclusive("a"))).await;
        until_waiting(&locks, "a", number + 1).await;
    }
    let lives = spawn_lock(&locks, "a");
    until_waiting(&locks, "a", 3).await;
    for player in &mut dead {
        player.process().sigkill().expect("a killed process");
    }
    eventually(SOON, || async {
        let open = site.connections().await;
        if open == 1 { Ok(()) } else { Err(format!("{open} connections")) }
    })
    .await;
    site.reset().await;
    give_back(held).await;
    let next = guard(lives).await;
    assert_eq!(site.calls().await.scripts(), 1, "the release did it");
    let view = view(&locks, "a").await;
    assert_eq!((view.holders.len(), view.waiters.len()), (1, 0), "{view:?}");
    give_back(next).await;
}

/// A waiter that stands still is granted the lock and does not take it: its grant ends with its TTL, and the next is let in
/// without anybody's doing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_grant_of_a_waiter_that_stands_still_lapses() {
    let ttl = Duration::from_secs(5);
    let site = Site::new().await;
    let locks = site.locks(LONG).await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let mut still = site.player(ttl).await;
    still.tell(&Order::Lock(Ask::exclusive("a"))).await;
    until_waiting(&locks, "a", 1).await;
    let behind = spawn_lock(&locks, "a");
    until_waiting(&locks, "a", 2).await;
    still.process().sigstop().expect("a stopped process");
    let start = Instant::now();
    give_back(held).await;
    let granted = view(&locks, "a").await;
    assert_eq!(granted.holders.first().map(|holder| holder.holder.pid), Some(still.pid()), "{granted:?}");
    let next = guard(behind).await;
    let taken = start.elapsed();
    // Far below the heartbeat of the one behind, whose TTL is long.
    assert!(taken < ttl + Duration::from_secs(5), "{taken:?}");
    assert!(taken >= ttl - Duration::from_millis(50), "not before the other's lease has ended: {taken:?}");
    assert!(Some(next.token()) > granted.holders[0].token);
    still.process().sigcont().expect("a running process");
    until_waiting(&locks, "a", 1).await;
    assert!(next.is_held(), "the other asks again, and waits");
    give_back(next).await;
    still.granted("a").await;
    assert_eq!(still.release("a").await, "released");
    until_empty(&locks, SOON).await;
}

/// The lock of a dead holder goes to the first in line at the end of its lease, and to the others in their order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_a_dead_holder_is_granted_at_the_end_of_its_lease() {
    let ttl = Duration::from_secs(2);
    let site = Site::new().await;
    // Their heartbeats come much later than the end of the lease: it is the first one's timer that counts.
    let (first, second) = (site.locks(LONG).await, site.locks(LONG).await);
    let mut player = site.player(ttl).await;
    let (token, at) = player.lock(Ask::exclusive("a")).await;
    let waits = spawn_lock(&first, "a");
    until_waiting(&second, "a", 1).await;
    let behind = spawn_lock(&second, "a");
    until_waiting(&second, "a", 2).await;
    player.process().sigkill().expect("a killed process");
    let killed = first.clock().now();
    let got = guard(waits).await;
    let waited = first.clock().now();
    assert!(waited.as_nanos() >= at + ttl.as_nanos() as u64 - 50_000_000, "not before the lease has ended");
    let late = waited.since(killed);
    assert!(late < ttl + Duration::from_secs(3), "{late:?} after the death");
    assert!(got.token().0 > token);
    assert!(!behind.is_finished());
    let (next, before) = (view(&second, "a").await, got.token());
    assert_eq!((next.holders.len(), next.waiters.len()), (1, 1), "{next:?}");
    give_back(got).await;
    let next = guard(behind).await;
    assert!(next.token() > before);
    give_back(next).await;
}

/// The first in line goes away before the dead holder's lease ends: whoever is first then takes over its watch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_in_line_watches_when_the_first_has_left() {
    let ttl = Duration::from_secs(2);
    let site = Site::new().await;
    let locks = site.locks(LONG).await;
    let mut player = site.player(ttl).await;
    player.lock(Ask::exclusive("a")).await;
    let leaves = spawn_lock(&locks, "a");
    until_waiting(&locks, "a", 1).await;
    let stays = spawn_lock(&locks, "a");
    until_waiting(&locks, "a", 2).await;
    player.process().sigkill().expect("a killed process");
    leaves.abort();
    until_waiting(&locks, "a", 1).await;
    let start = Instant::now();
    let got = guard(stays).await;
    let late = start.elapsed();
    assert!(late < ttl + Duration::from_secs(5), "{late:?} after the death");
    give_back(got).await;
}

/// As above, where the first in line is put out by somebody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_in_line_watches_when_the_first_was_put_out() {
    let ttl = Duration::from_secs(2);
    let site = Site::new().await;
    let locks = site.locks(LONG).await;
    let mut player = site.player(ttl).await;
    player.lock(Ask::exclusive("a")).await;
    // It does not ask again: it stands still.
    let mut first = site.player(LONG).await;
    first.tell(&Order::Lock(Ask::exclusive("a"))).await;
    until_waiting(&locks, "a", 1).await;
    let stays = spawn_lock(&locks, "a");
    until_waiting(&locks, "a", 2).await;
    first.process().sigstop().expect("a stopped process");
    player.process().sigkill().expect("a killed process");
    let claim = view(&locks, "a").await.waiters[0].claim;
    assert!(locks.evict("a", claim).await.expect("an eviction").party.is_some());
    let start = Instant::now();
    let got = guard(stays).await;
    let late = start.elapsed();
    assert!(late < ttl + Duration::from_secs(5), "{late:?} after the death");
    give_back(got).await;
}
