//! Lost messages: the client recovers long before the affected lease expires.

use std::time::Duration;

use std::sync::Arc;

use leasehold::clock::{Clock, ManualClock};
use leasehold::engine::AcquireReply;
use leasehold::{ErrorKind, LostReason, Mode};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::eventually;
use tokio::time::timeout;

use crate::redis_faults::fixture::{
    Fixture, await_guard, claim, inspect, release, spawn_lock, until_empty, until_waiting,
};

/// The network hangs during the hand-off, and then the connection breaks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_message_lost_with_the_connection_is_recovered() {
    let fixture = Fixture::shared().await;
    let locks = fixture.locks(LONG_TTL).await;
    let (far, proxy) = fixture.proxied_locks(LONG_TTL).await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let waits = spawn_lock(&far, "a");
    until_waiting(&locks, "a", 1).await;
    proxy.freeze(true);
    release(held).await;
    let granted = inspect(&locks, "a").await;
    assert_eq!((granted.holders.len(), granted.waiters.len()), (1, 0), "{granted:?}");
    proxy.cut();
    proxy.freeze(false);
    let got = await_guard(waits).await;
    assert_eq!(granted.holders[0].token, Some(got.token()), "the grant whose message was lost");
    release(got).await;
}

/// A waiter is force-released while its client is disconnected, so no message reaches it. Its call
/// still fails, and it does not queue again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_force_released_while_disconnected_learns_of_it_at_its_next_heartbeat() {
    let fixture = Fixture::shared().await;
    let locks = fixture.locks(LONG_TTL).await;
    let (far, proxy) = fixture.proxied_locks(LONG_TTL).await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let waits = spawn_lock(&far, "a");
    until_waiting(&locks, "a", 1).await;
    let force_released = inspect(&locks, "a").await.waiters[0].claim;
    proxy.refuse(true);
    proxy.cut();
    assert!(locks.force_release("a", force_released).await.expect("a force release").contender.is_some());
    proxy.refuse(false);
    let ended = timeout(TEST_TIMEOUT, waits).await.expect("the call returns").expect("no panic");
    assert_eq!(ended.map(drop).expect_err("the waiter was force-released").kind(), ErrorKind::ForceReleased);
    until_waiting(&locks, "a", 0).await;
    release(held).await;
}

/// A waiter is force-released after its last attempt failed, and then retries: it must not queue
/// again. Other claims are unaffected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_force_released_between_two_attempts_does_not_queue_again() {
    let fixture = Fixture::shared().await;
    let (locks, near) = (fixture.locks(LONG_TTL).await, fixture.engine().await);
    let proxy = leasehold_testbed::Proxy::start(fixture.server().addr()).await.expect("a proxy");
    let url = fixture.url("").replace(&fixture.server().addr().to_string(), &proxy.addr().to_string());
    let far = leasehold::registry::open(&url, &Clock::system()).await.expect("an engine");
    let attempt = |engine: &Arc<dyn leasehold::engine::Engine>, claim| Arc::clone(engine).attempt(claim, true);
    let (held, waits, other) = (
        claim("a", Mode::Exclusive, LONG_TTL),
        claim("a", Mode::Exclusive, LONG_TTL),
        claim("a", Mode::Exclusive, LONG_TTL),
    );
    assert!(matches!(attempt(&near, Arc::clone(&held)).await, Ok(AcquireReply::Granted(_))));
    for (claim, ahead) in [(&waits, 0), (&other, 1)] {
        let queued = attempt(&far, Arc::clone(claim)).await;
        assert!(matches!(queued, Ok(AcquireReply::Queued { ahead: at, .. }) if at == ahead), "{queued:?}");
    }
    proxy.refuse(true);
    proxy.cut();
    for claim in [&waits, &other] {
        eventually(TEST_TIMEOUT, || async {
            match Arc::clone(&far).wait(Arc::clone(claim), Duration::ZERO).await {
                Err(_) => Ok(()),
                answer => Err(format!("{answer:?}, though there is no connection")),
            }
        })
        .await;
    }
    assert!(locks.force_release("a", waits.id).await.expect("a force release").contender.is_some());
    proxy.refuse(false);
    assert_eq!(eventually(TEST_TIMEOUT, || attempt(&far, Arc::clone(&waits))).await, AcquireReply::ForceReleased);
    let still = eventually(TEST_TIMEOUT, || attempt(&far, Arc::clone(&other))).await;
    assert!(matches!(still, AcquireReply::Queued { ahead: 0, .. }), "{still:?}");
    // The force release is reported once: a client that retries after it queues again.
    let retried = attempt(&far, Arc::clone(&waits)).await;
    assert!(matches!(retried, Ok(AcquireReply::Queued { ahead: 1, .. })), "{retried:?}");
    for claim in [waits, other, held] {
        Arc::clone(&near).release(claim).await.expect("a release");
    }
    assert!(inspect(&locks, "a").await.damage.is_none());
}

/// The network hangs during the hand-off and then recovers: the message is only delayed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delayed_grant_message_still_counts() {
    let fixture = Fixture::new().await;
    let locks = fixture.locks(LONG_TTL).await;
    // A timeout long enough that the client keeps the idle connection.
    let (far, proxy) = fixture.proxied_locks_with(LONG_TTL, Clock::system(), "connect-timeout=300s").await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let waits = spawn_lock(&far, "a");
    until_waiting(&locks, "a", 1).await;
    proxy.freeze(true);
    release(held).await;
    let granted = inspect(&locks, "a").await;
    fixture.reset_stats().await;
    proxy.freeze(false);
    let got = await_guard(waits).await;
    assert_eq!(granted.holders[0].token, Some(got.token()));
    assert_eq!(fixture.calls().await.scripts(), 0, "the message was enough");
    release(got).await;
}

/// A grant message that arrives after the grant expired is ignored, and the waiter retries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_message_after_the_lease_grants_nothing() {
    let ttl = Duration::from_secs(1);
    let fixture = Fixture::shared().await;
    let locks = fixture.locks(LONG_TTL).await;
    let (far, proxy) = fixture.proxied_locks(ttl).await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    let waits = spawn_lock(&far, "a");
    until_waiting(&locks, "a", 1).await;
    let behind = spawn_lock(&locks, "a");
    until_waiting(&locks, "a", 2).await;
    proxy.freeze(true);
    release(held).await;
    let next = await_guard(behind).await;
    proxy.freeze(false);
    until_waiting(&locks, "a", 1).await;
    assert!(next.is_held() && !waits.is_finished());
    let before = next.token();
    release(next).await;
    let got = await_guard(waits).await;
    assert!(got.token() > before);
    drop(got);
    until_empty(&locks).await;
}

/// The server closes the waiter's connection just before or just after the hand-off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_closed_during_a_hand_off_loses_no_grant() {
    const ROUNDS: usize = if cfg!(feature = "nightly") { 20 } else { 4 };
    let fixture = Fixture::new().await;
    let (locks, other) = (fixture.locks(LONG_TTL).await, fixture.locks(LONG_TTL).await);
    for round in 0..ROUNDS {
        let held = locks.mutex("a").lock().await.expect("a lock");
        let waits = spawn_lock(&other, "a");
        until_waiting(&locks, "a", 1).await;
        if round % 2 == 0 {
            let (killed, ()) = tokio::join!(fixture.kill_connections(), release(held));
            assert_eq!(killed, 2);
        } else {
            let ((), killed) = tokio::join!(release(held), fixture.kill_connections());
            assert_eq!(killed, 2);
        }
        let got = await_guard(waits).await;
        eventually(TEST_TIMEOUT, || async {
            let seen = locks.inspect("a").await.map_err(|error| error.to_string())?;
            let holds: Vec<_> = seen.holders.iter().map(|holder| holder.token).collect();
            if holds == [Some(got.token())] { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await;
        release(got).await;
    }
    until_empty(&locks).await;
}

/// A message notifies a force-released holder of its loss, before its next renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_force_released_holder_learns_of_it_at_once() {
    let fixture = Fixture::new().await;
    let (locks, other) = (fixture.locks(LONG_TTL).await, fixture.locks(LONG_TTL).await);
    let held = locks.mutex("a").lock().await.expect("a lock");
    let bystander = locks.mutex("b").lock().await.expect("a lock");
    let waits = spawn_lock(&other, "a");
    until_waiting(&other, "a", 1).await;
    let claim = inspect(&other, "a").await.holders[0].claim;
    fixture.reset_stats().await;
    let force_released = other.force_release("a", claim).await.expect("a force release");
    let reason = timeout(TEST_TIMEOUT, held.lost()).await.expect("the holder learns of it before its next renewal");
    assert_eq!(reason, LostReason::Revoked);
    let next = await_guard(waits).await;
    let fence = force_released.fence_token.expect("a token");
    assert!(held.token() < fence && fence < next.token());
    assert_eq!(fixture.calls().await.scripts(), 1, "the force release notified both");
    assert!(bystander.is_held(), "other locks are unaffected");
    assert_eq!(held.release().await.expect("an outcome"), leasehold::ReleaseOutcome::AlreadyLost(LostReason::Revoked));
    release(next).await;
    release(bystander).await;
}

/// A waiter's grant and its force release arrive before its future is polled: it never holds beside
/// the next holder. The wait outlasts the time for which the keeper remembers a loss of an unknown
/// claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_force_release_before_the_future_is_polled_is_kept() {
    let (fixture, manual_clock) = (Fixture::shared().await, ManualClock::running());
    let (locks, other) =
        (fixture.locks(LONG_TTL).await, fixture.locks_with_clock(LONG_TTL, manual_clock.clock()).await);
    let held = locks.mutex("a").lock().await.expect("a lock");
    let mutex = other.mutex("a").timeout(LONG_TTL);
    let mut waits = std::pin::pin!(mutex.lock());
    tokio::select! {
        biased;
        early = &mut waits => panic!("the lock is held: {early:?}"),
        () = until_waiting(&locks, "a", 1) => {}
    }
    release(held).await;
    let claim = inspect(&locks, "a").await.holders[0].claim;
    assert!(locks.force_release("a", claim).await.expect("a force release").contender.is_some());
    let next = locks.mutex("a").lock().await.expect("a lock");
    // The grant and the force release arrive before this reply. Then the keeper wakes, and time
    // passes.
    inspect(&other, "a").await;
    manual_clock.advance(Duration::from_secs(5));
    release(other.mutex("b").lock().await.expect("a lock")).await;
    if let Ok(late) = timeout(TEST_TIMEOUT, waits).await.expect("the call returns") {
        timeout(TEST_TIMEOUT, late.lost()).await.expect("two clients hold the lock");
    }
    assert!(next.is_held());
    release(next).await;
}

/// The lock changes just after the observer subscribed, so the change and the subscription's reply
/// arrive together; the observer must also see the next change. A single thread ensures that both
/// are read before either is processed.
#[tokio::test]
async fn an_observer_sees_the_change_after_one_reported_with_the_reply() {
    let fixture = Fixture::new().await;
    let other = fixture.locks(LONG_TTL).await;
    let (locks, proxy) = fixture.proxied_locks(LONG_TTL).await;
    let mut observer = locks.election("a").observe().expect("an observer");
    assert!(observer.next().await.expect("an answer").is_none());
    fixture.reset_stats().await;
    // Slow enough to act between a request and its reply.
    proxy.delay(Duration::from_millis(300));
    let following = tokio::spawn(async move {
        let first = observer.next().await.expect("an answer");
        (observer, first)
    });
    eventually(TEST_TIMEOUT, || async {
        if fixture.calls().await.of("exists") > 0 { Ok(()) } else { Err("no request so far") }
    })
    .await;
    proxy.freeze(true);
    let leads = other.election("a").campaign().await.expect("a leader");
    fixture.command_text(&["PING"]).await;
    proxy.delay(Duration::ZERO);
    proxy.freeze(false);
    let (mut observer, seen) =
        timeout(TEST_TIMEOUT, following).await.expect("the observer sees the leader").expect("no panic");
    assert_eq!(seen.map(|leader| leader.token), Some(leads.token()));
    fixture.reset_stats().await;
    let following = tokio::spawn(async move { observer.next().await.expect("an answer") });
    // The observer is idle after it has inspected the lock again.
    eventually(TEST_TIMEOUT, || async {
        if fixture.calls().await.scripts() > 0 { Ok(()) } else { Err("no second inspection so far") }
    })
    .await;
    let _ = leads.resign().await.expect("a release");
    let seen = timeout(TEST_TIMEOUT, following).await.expect("the observer sees the next change").expect("no panic");
    assert!(seen.is_none());
}
