//! A holder or waiter dies or is stopped: the waiters behind it are served.

use std::time::Duration;

use leasehold::{Locks, Token};
use leasehold_conformance::actor_process::ActorProcess;
use leasehold_conformance::protocol::{ActorCommand, LockRequest};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::eventually;

use crate::redis_faults::fixture::{Fixture, await_guard, inspect, release, spawn_lock, until_empty, until_waiting};
use crate::redis_faults::manual_time::{LONGER, ManualTime};

/// A TTL that the test waits out. In nightly tests it is long enough to check the state before it
/// expires.
const SHORT_TTL: Duration = Duration::from_secs(if cfg!(feature = "nightly") { 10 } else { 1 });

/// Two dead waiters at the head of the queue cost the third nothing: the release skips them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_waiter_is_skipped_by_the_same_script() {
    let fixture = Fixture::new().await;
    let locks = fixture.locks(LONG_TTL).await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let mut dead = [fixture.actor_process(LONG_TTL).await, fixture.actor_process(LONG_TTL).await];
    for (number, actor) in dead.iter_mut().enumerate() {
        actor.send(&ActorCommand::Lock(LockRequest::exclusive("a"))).await;
        until_waiting(&locks, "a", number + 1).await;
    }
    let lives = spawn_lock(&locks, "a");
    until_waiting(&locks, "a", 3).await;
    for actor in &mut dead {
        actor.process().sigkill().expect("a killed process");
    }
    eventually(TEST_TIMEOUT, || async {
        let open = fixture.connections().await;
        if open == 1 { Ok(()) } else { Err(format!("{open} connections")) }
    })
    .await;
    fixture.reset_stats().await;
    release(held).await;
    let next = await_guard(lives).await;
    assert_eq!(fixture.calls().await.scripts(), 1, "the release granted the lock");
    let view = inspect(&locks, "a").await;
    assert_eq!((view.holders.len(), view.waiters.len()), (1, 0), "{view:?}");
    release(next).await;
}

/// A stopped waiter does not accept its grant. The grant expires after its TTL, and the next waiter
/// acquires the lock without a request from another client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_grant_of_a_stopped_waiter_expires() {
    let fixture = Fixture::shared().await;
    let locks = fixture.locks(LONG_TTL).await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let mut stopped = fixture.actor_process(SHORT_TTL).await;
    stopped.send(&ActorCommand::Lock(LockRequest::exclusive_with_retries("a"))).await;
    until_waiting(&locks, "a", 1).await;
    let behind = spawn_lock(&locks, "a");
    until_waiting(&locks, "a", 2).await;
    stopped.process().sigstop().expect("a stopped process");
    let before = held.token();
    release(held).await;
    if cfg!(feature = "nightly") {
        let granted = inspect(&locks, "a").await;
        assert_eq!(granted.holders.first().map(|holder| holder.holder.pid), Some(stopped.pid()), "{granted:?}");
    }
    // The next heartbeat of the waiter behind comes after `await_guard` times out.
    let next = await_guard(behind).await;
    assert!(next.token() > before);
    stopped.process().sigcont().expect("a running process");
    until_waiting(&locks, "a", 1).await;
    assert!(next.is_held(), "the stopped waiter retries and queues");
    release(next).await;
    stopped.wait_granted("a").await;
    let outcome = stopped.release("a").await;
    assert!(outcome == "released" || cfg!(not(feature = "nightly")), "{outcome}");
    until_empty(&locks).await;
}

/// A stopped waiter's grant, on a clock that the test moves, lasts exactly until the TTL ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_grant_of_a_waiter_that_stands_still_lasts_for_its_ttl() {
    let time = ManualTime::new();
    let fixture = Fixture::with_config(time.redis_config()).await;
    let locks = fixture.locks_with_clock(LONGER, time.clients_clock()).await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let mut stopped = fixture.actor_process(LONG_TTL).await;
    stopped.send(&ActorCommand::Lock(LockRequest::exclusive("a"))).await;
    until_waiting(&locks, "a", 1).await;
    let behind = spawn_lock(&locks, "a");
    until_waiting(&locks, "a", 2).await;
    stopped.process().sigstop().expect("a stopped process");
    let before = held.token();
    release(held).await;
    time.advance(LONG_TTL - Duration::from_secs(100));
    let granted = inspect(&locks, "a").await;
    let holders: Vec<_> = granted.holders.iter().map(|holder| holder.holder.pid).collect();
    assert_eq!((holders, granted.waiters.len()), (vec![stopped.pid()], 1), "not before its lease has expired");
    assert!(!behind.is_finished());
    time.advance(Duration::from_secs(101));
    let next = time.advance_until_granted(behind).await;
    assert!(next.token() > before);
    release(next).await;
    // The stopped waiter's own clock was not moved, so it would consider the grant still valid.
    stopped.process().sigkill().expect("a killed process");
}

/// A server whose clock the test moves, a process that holds a lock and dies, and a client whose
/// heartbeats come much later than that lease's end. So only the client's timer can detect the end.
struct DyingHolder {
    clock: ManualTime,
    fixture: Fixture,
    process: ActorProcess,
    locks: Locks,
    token: u64,
}

impl DyingHolder {
    async fn new() -> Self {
        let time = ManualTime::new();
        let fixture = Fixture::with_config(time.redis_config()).await;
        let mut actor = fixture.actor_process(LONG_TTL).await;
        let locks = fixture.locks_with_clock(LONGER, time.clients_clock()).await;
        let (token, _) = actor.acquire(LockRequest::exclusive("a")).await;
        Self { clock: time, fixture, process: actor, locks, token }
    }

    /// The process dies, and a little later its lease expires.
    async fn kill(&mut self, waiter_count: usize) {
        self.process.process().sigkill().expect("a killed process");
        self.clock.advance(LONG_TTL - Duration::from_secs(100));
        let seen = inspect(&self.locks, "a").await;
        let holds: Vec<_> = seen.holders.iter().map(|holder| holder.token).collect();
        assert_eq!(
            (holds, seen.waiters.len()),
            (vec![Some(Token(self.token))], waiter_count),
            "not before the lease has expired"
        );
        self.clock.advance(Duration::from_secs(101));
    }
}

/// When a dead holder's lease expires, the first waiter acquires the lock, and the others follow in
/// order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_a_dead_holder_is_granted_at_the_end_of_its_lease() {
    let mut death = DyingHolder::new().await;
    let (first, second) =
        (death.locks.clone(), death.fixture.locks_with_clock(LONGER, death.clock.clients_clock()).await);
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

/// The first waiter leaves before the dead holder's lease ends: the next one then watches the
/// lease.
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

/// The first waiter is force-released before the dead holder's lease ends: the next one then
/// watches the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_waiter_watches_the_lease_when_the_first_was_force_released() {
    let mut death = DyingHolder::new().await;
    // The first waiter is stopped, so it does not retry.
    let mut first = death.fixture.actor_process(LONGER).await;
    first.send(&ActorCommand::Lock(LockRequest::exclusive("a"))).await;
    until_waiting(&death.locks, "a", 1).await;
    let stays = spawn_lock(&death.locks, "a");
    until_waiting(&death.locks, "a", 2).await;
    first.process().sigstop().expect("a stopped process");
    let claim = inspect(&death.locks, "a").await.waiters[0].claim;
    assert!(death.locks.force_release("a", claim).await.expect("a force release").contender.is_some());
    death.kill(1).await;
    release(death.clock.advance_until_granted(stays).await).await;
}
