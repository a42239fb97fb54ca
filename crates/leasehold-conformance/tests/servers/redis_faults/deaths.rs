//! A client dies or stands still while it holds or waits: those behind it are served.

use std::time::Duration;

use leasehold::{Locks, Token};
use leasehold_conformance::actor_process::ActorProcess;
use leasehold_conformance::protocol::{ActorCommand, LockRequest};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::eventually;

use crate::redis_faults::fixture::{Fixture, await_guard, inspect, release, spawn_lock, until_empty, until_waiting};
use crate::redis_faults::manual_time::{LONGER, ManualTime};

/// A TTL whose end is awaited; long enough, in the nightly tests, to look at what happens before.
const SHORT_TTL: Duration = Duration::from_secs(if cfg!(feature = "nightly") { 10 } else { 1 });

/// Two dead waiters at the head of the queue cost the third nothing: the release that meets them passes them over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_waiter_is_skipped_by_the_same_script() {
    let site = Fixture::new().await;
    let locks = site.locks(LONG_TTL).await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let mut dead = [site.actor_process(LONG_TTL).await, site.actor_process(LONG_TTL).await];
    for (number, player) in dead.iter_mut().enumerate() {
        player.send(&ActorCommand::Lock(LockRequest::exclusive("a"))).await;
        until_waiting(&locks, "a", number + 1).await;
    }
    let lives = spawn_lock(&locks, "a");
    until_waiting(&locks, "a", 3).await;
    for player in &mut dead {
        player.process().sigkill().expect("a killed process");
    }
    eventually(TEST_TIMEOUT, || async {
        let open = site.connections().await;
        if open == 1 { Ok(()) } else { Err(format!("{open} connections")) }
    })
    .await;
    site.reset_stats().await;
    release(held).await;
    let next = await_guard(lives).await;
    assert_eq!(site.calls().await.scripts(), 1, "the release did it");
    let view = inspect(&locks, "a").await;
    assert_eq!((view.holders.len(), view.waiters.len()), (1, 0), "{view:?}");
    release(next).await;
}

/// A waiter that stands still is granted the lock and does not take it: its grant ends with its TTL, and the next is let in
/// without a request of another client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_grant_of_a_waiter_that_stands_still_lapses() {
    let site = Fixture::shared().await;
    let locks = site.locks(LONG_TTL).await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let mut still = site.actor_process(SHORT_TTL).await;
    still.send(&ActorCommand::Lock(LockRequest::exclusive_with_retries("a"))).await;
    until_waiting(&locks, "a", 1).await;
    let behind = spawn_lock(&locks, "a");
    until_waiting(&locks, "a", 2).await;
    still.process().sigstop().expect("a stopped process");
    let before = held.token();
    release(held).await;
    if cfg!(feature = "nightly") {
        let granted = inspect(&locks, "a").await;
        assert_eq!(granted.holders.first().map(|holder| holder.holder.pid), Some(still.pid()), "{granted:?}");
    }
    // The heartbeat of the one behind comes later than `guard` waits.
    let next = await_guard(behind).await;
    assert!(next.token() > before);
    still.process().sigcont().expect("a running process");
    until_waiting(&locks, "a", 1).await;
    assert!(next.is_held(), "the other asks again, and waits");
    release(next).await;
    still.wait_granted("a").await;
    let outcome = still.release("a").await;
    assert!(outcome == "released" || cfg!(not(feature = "nightly")), "{outcome}");
    until_empty(&locks).await;
}

/// The same on a clock that the test moves: the grant lasts until the TTL is over, and no longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_grant_of_a_waiter_that_stands_still_lasts_for_its_ttl() {
    let time = ManualTime::new();
    let site = Fixture::with_config(time.redis_config()).await;
    let locks = site.locks_with_clock(LONGER, time.clients_clock()).await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let mut still = site.actor_process(LONG_TTL).await;
    still.send(&ActorCommand::Lock(LockRequest::exclusive("a"))).await;
    until_waiting(&locks, "a", 1).await;
    let behind = spawn_lock(&locks, "a");
    until_waiting(&locks, "a", 2).await;
    still.process().sigstop().expect("a stopped process");
    let before = held.token();
    release(held).await;
    time.advance(LONG_TTL - Duration::from_secs(100));
    let granted = inspect(&locks, "a").await;
    let holders: Vec<_> = granted.holders.iter().map(|holder| holder.holder.pid).collect();
    assert_eq!((holders, granted.waiters.len()), (vec![still.pid()], 1), "not before its lease has ended");
    assert!(!behind.is_finished());
    time.advance(Duration::from_secs(101));
    let next = time.advance_until_granted(behind).await;
    assert!(next.token() > before);
    release(next).await;
    // Its own clock was not moved: it would take the grant for one that lasts.
    still.process().sigkill().expect("a killed process");
}

/// A server whose clock the test moves, a process that holds a lock of it and dies, and a client whose heartbeats come much later
/// than the end of that lease: it is the client's timer that counts.
struct DyingHolder {
    clock: ManualTime,
    site: Fixture,
    process: ActorProcess,
    locks: Locks,
    token: u64,
}

impl DyingHolder {
    async fn new() -> Self {
        let time = ManualTime::new();
        let site = Fixture::with_config(time.redis_config()).await;
        let mut player = site.actor_process(LONG_TTL).await;
        let locks = site.locks_with_clock(LONGER, time.clients_clock()).await;
        let (token, _) = player.acquire(LockRequest::exclusive("a")).await;
        Self { clock: time, site, process: player, locks, token }
    }

    /// The process dies; a little later its lease ends.
    async fn kill(&mut self, waiter_count: usize) {
        self.process.process().sigkill().expect("a killed process");
        self.clock.advance(LONG_TTL - Duration::from_secs(100));
        let seen = inspect(&self.locks, "a").await;
        let holds: Vec<_> = seen.holders.iter().map(|holder| holder.token).collect();
        assert_eq!(
            (holds, seen.waiters.len()),
            (vec![Some(Token(self.token))], waiter_count),
            "not before the lease has ended"
        );
        self.clock.advance(Duration::from_secs(101));
    }
}

/// The lock of a dead holder goes to the first in line at the end of its lease, and to the others in their order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_a_dead_holder_is_granted_at_the_end_of_its_lease() {
    let mut death = DyingHolder::new().await;
    let (first, second) = (death.locks.clone(), death.site.locks_with_clock(LONGER, death.clock.clients_clock()).await);
    let waits = spawn_lock(&first, "a");
    until_waiting(&second, "a", 1).await;
    let behind = spawn_lock(&second, "a");
    until_waiting(&second, "a", 2).await;
    death.kill(2).await;
    let got = death.clock.advance_until_granted(waits).await;
    assert!(got.token().0 > death.token);
    let (next, before) = (inspect(&second, "a").await, got.token());
    assert_eq!((next.holders.len(), next.waiters.len()), (1, 1), "{next:?}");
    assert!(!behind.is_finished());
    release(got).await;
    let next = await_guard(behind).await;
    assert!(next.token() > before);
    release(next).await;
}

/// The first in line goes away before the dead holder's lease ends: the one that is first then takes over its watch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_waiter_watches_the_lease_when_the_first_has_left() {
    let mut death = DyingHolder::new().await;
    let leaves = spawn_lock(&death.locks, "a");
    until_waiting(&death.locks, "a", 1).await;
    let stays = spawn_lock(&death.locks, "a");
    until_waiting(&death.locks, "a", 2).await;
    leaves.abort();
    until_waiting(&death.locks, "a", 1).await;
    death.kill(1).await;
    release(death.clock.advance_until_granted(stays).await).await;
}

/// As above, where the first in line is evicted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_waiter_watches_the_lease_when_the_first_was_force_released() {
    let mut death = DyingHolder::new().await;
    // It does not ask again: it stands still.
    let mut first = death.site.actor_process(LONGER).await;
    first.send(&ActorCommand::Lock(LockRequest::exclusive("a"))).await;
    until_waiting(&death.locks, "a", 1).await;
    let stays = spawn_lock(&death.locks, "a");
    until_waiting(&death.locks, "a", 2).await;
    first.process().sigstop().expect("a stopped process");
    let claim = inspect(&death.locks, "a").await.waiters[0].claim;
    assert!(death.locks.force_release("a", claim).await.expect("an eviction").contender.is_some());
    death.kill(1).await;
    release(death.clock.advance_until_granted(stays).await).await;
}
