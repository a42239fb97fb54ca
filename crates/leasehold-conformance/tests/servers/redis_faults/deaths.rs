//! A client dies or stands still while it holds or waits: those behind it are served.

use std::time::Duration;

use leasehold::{Locks, Token};
use leasehold_conformance::player::Player;
use leasehold_conformance::protocol::{Ask, Order};
use leasehold_conformance::world::{LONG, SOON};
use leasehold_testbed::eventually;

use crate::redis_faults::site::{Site, give_back, guard, spawn_lock, until_empty, until_waiting, view};
use crate::redis_faults::time::{LONGER, Time};

/// A TTL whose end is awaited; long enough, in the nightly tests, to look at what happens before.
const LAPSES: Duration = Duration::from_secs(if cfg!(feature = "nightly") { 10 } else { 1 });

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
/// without a request of another client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_grant_of_a_waiter_that_stands_still_lapses() {
    let site = Site::shared().await;
    let locks = site.locks(LONG).await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let mut still = site.player(LAPSES).await;
    still.tell(&Order::Lock(Ask::stubborn("a"))).await;
    until_waiting(&locks, "a", 1).await;
    let behind = spawn_lock(&locks, "a");
    until_waiting(&locks, "a", 2).await;
    still.process().sigstop().expect("a stopped process");
    let before = held.token();
    give_back(held).await;
    if cfg!(feature = "nightly") {
        let granted = view(&locks, "a").await;
        assert_eq!(granted.holders.first().map(|holder| holder.holder.pid), Some(still.pid()), "{granted:?}");
    }
    // The heartbeat of the one behind comes later than `guard` waits.
    let next = guard(behind).await;
    assert!(next.token() > before);
    still.process().sigcont().expect("a running process");
    until_waiting(&locks, "a", 1).await;
    assert!(next.is_held(), "the other asks again, and waits");
    give_back(next).await;
    still.granted("a").await;
    let outcome = still.release("a").await;
    assert!(outcome == "released" || cfg!(not(feature = "nightly")), "{outcome}");
    until_empty(&locks).await;
}

/// The same on a clock that the test moves: the grant lasts until the TTL is over, and no longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_grant_of_a_waiter_that_stands_still_lasts_for_its_ttl() {
    let time = Time::new();
    let site = Site::of(time.redis()).await;
    let locks = site.timed(LONGER, time.clock()).await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let mut still = site.player(LONG).await;
    still.tell(&Order::Lock(Ask::exclusive("a"))).await;
    until_waiting(&locks, "a", 1).await;
    let behind = spawn_lock(&locks, "a");
    until_waiting(&locks, "a", 2).await;
    still.process().sigstop().expect("a stopped process");
    let before = held.token();
    give_back(held).await;
    time.pass(LONG - Duration::from_secs(100));
    let granted = view(&locks, "a").await;
    let holders: Vec<_> = granted.holders.iter().map(|holder| holder.holder.pid).collect();
    assert_eq!((holders, granted.waiters.len()), (vec![still.pid()], 1), "not before its lease has ended");
    assert!(!behind.is_finished());
    time.pass(Duration::from_secs(101));
    let next = time.granted(behind).await;
    assert!(next.token() > before);
    give_back(next).await;
    // Its own clock was not moved: it would take the grant for one that lasts.
    still.process().sigkill().expect("a killed process");
}

/// A server whose clock the test moves, a process that holds a lock of it and dies, and a client whose heartbeats come much later
/// than the end of that lease: it is the client's timer that counts.
struct Death {
    time: Time,
    site: Site,
    player: Player,
    locks: Locks,
    token: u64,
}

impl Death {
    async fn new() -> Self {
        let time = Time::new();
        let site = Site::of(time.redis()).await;
        let mut player = site.player(LONG).await;
        let locks = site.timed(LONGER, time.clock()).await;
        let (token, _) = player.lock(Ask::exclusive("a")).await;
        Self { time, site, player, locks, token }
    }

    /// The process dies; a little later its lease ends.
    async fn happens(&mut self, waits: usize) {
        self.player.process().sigkill().expect("a killed process");
        self.time.pass(LONG - Duration::from_secs(100));
        let seen = view(&self.locks, "a").await;
        let holds: Vec<_> = seen.holders.iter().map(|holder| holder.token).collect();
        assert_eq!(
            (holds, seen.waiters.len()),
            (vec![Some(Token(self.token))], waits),
            "not before the lease has ended"
        );
        self.time.pass(Duration::from_secs(101));
    }
}

/// The lock of a dead holder goes to the first in line at the end of its lease, and to the others in their order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_a_dead_holder_is_granted_at_the_end_of_its_lease() {
    let mut death = Death::new().await;
    let (first, second) = (death.locks.clone(), death.site.timed(LONGER, death.time.clock()).await);
    let waits = spawn_lock(&first, "a");
    until_waiting(&second, "a", 1).await;
    let behind = spawn_lock(&second, "a");
    until_waiting(&second, "a", 2).await;
    death.happens(2).await;
    let got = death.time.granted(waits).await;
    assert!(got.token().0 > death.token);
    let (next, before) = (view(&second, "a").await, got.token());
    assert_eq!((next.holders.len(), next.waiters.len()), (1, 1), "{next:?}");
    assert!(!behind.is_finished());
    give_back(got).await;
    let next = guard(behind).await;
    assert!(next.token() > before);
    give_back(next).await;
}

/// The first in line goes away before the dead holder's lease ends: the one that is first then takes over its watch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_in_line_watches_when_the_first_has_left() {
    let mut death = Death::new().await;
    let leaves = spawn_lock(&death.locks, "a");
    until_waiting(&death.locks, "a", 1).await;
    let stays = spawn_lock(&death.locks, "a");
    until_waiting(&death.locks, "a", 2).await;
    leaves.abort();
    until_waiting(&death.locks, "a", 1).await;
    death.happens(1).await;
    give_back(death.time.granted(stays).await).await;
}

/// As above, where the first in line is evicted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_in_line_watches_when_the_first_was_put_out() {
    let mut death = Death::new().await;
    // It does not ask again: it stands still.
    let mut first = death.site.player(LONGER).await;
    first.tell(&Order::Lock(Ask::exclusive("a"))).await;
    until_waiting(&death.locks, "a", 1).await;
    let stays = spawn_lock(&death.locks, "a");
    until_waiting(&death.locks, "a", 2).await;
    first.process().sigstop().expect("a stopped process");
    let claim = view(&death.locks, "a").await.waiters[0].claim;
    assert!(death.locks.evict("a", claim).await.expect("an eviction").party.is_some());
    death.happens(1).await;
    give_back(death.time.granted(stays).await).await;
}
