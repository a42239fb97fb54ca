//! The keeper ends a hold at `max_hold`, handles the engine's events, and is a single task.

use std::time::Duration;

use leasehold::LostReason;

use crate::library::renewal::locks_with_spy;
use crate::library::spy::{Call, ScriptedReply};
use crate::library::time::{
    DRIFT, TTL, advance, advance_in_steps, locks_on_manual_clock, open_with_long_ttl, release_held, run_until_idle,
};

#[tokio::test]
async fn max_hold_ends_the_renewals_and_then_the_hold() {
    let (manual_clock, spy, locks) = locks_with_spy().await;
    let max_hold = TTL * 2;
    let guard = locks.mutex("a").max_hold(max_hold).lock().await.unwrap();
    advance_in_steps(&manual_clock, max_hold - Duration::from_nanos(1), Duration::from_millis(100)).await;
    assert!(guard.is_held(), "held until max_hold");
    let renewals = spy.calls(Call::Renew);
    let last = renewals.last().unwrap().at;
    assert!(locks.clock().now().duration_since(last) > TTL / 2, "not renewed once its lease reaches the maximum");
    advance(&manual_clock, Duration::from_nanos(1)).await;
    assert_eq!(guard.lost_reason(), Some(LostReason::MaxHold));
    assert!(
        locks.mutex("a").try_lock().await.unwrap().is_none(),
        "the lock stays reserved while the signal of the loss arrives"
    );
    advance(&manual_clock, DRIFT).await;
    assert!(locks.mutex("a").try_lock().await.unwrap().is_some(), "after the drift margin the lock is free");
}

#[tokio::test]
async fn a_max_hold_below_the_ttl_is_never_renewed() {
    let (manual_clock, spy, locks) = locks_with_spy().await;
    let guard = locks.mutex("a").max_hold(TTL / 2).lock().await.unwrap();
    advance_in_steps(&manual_clock, TTL / 2, Duration::from_millis(100)).await;
    assert_eq!((guard.lost_reason(), spy.count(Call::Renew)), (Some(LostReason::MaxHold), 0));
}

#[tokio::test]
async fn max_hold_counts_from_the_grant_and_not_from_the_waiting() {
    let (manual_clock, locks) = locks_on_manual_clock().await;
    let first = locks.mutex("a").lock().await.unwrap();
    let max_hold = Duration::from_secs(10);
    let waiter = tokio::spawn({
        let next = locks.mutex("a").max_hold(max_hold);
        async move { next.lock().await }
    });
    run_until_idle().await;
    // The second request waits for nine seconds, less than its heartbeat interval.
    advance(&manual_clock, Duration::from_secs(9)).await;
    release_held(first).await;
    run_until_idle().await;
    let second = waiter.await.unwrap().unwrap();
    assert!(second.remaining() >= max_hold - Duration::from_millis(1), "only {:?} of {max_hold:?}", second.remaining());
}

#[tokio::test]
async fn a_force_release_is_signalled_at_once() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let guard = locks.mutex("a").lock().await.unwrap();
    run_until_idle().await;
    let claim = locks.inspect("a").await.unwrap().holders[0].claim;
    let outcome = locks.force_release("a", claim).await.unwrap();
    run_until_idle().await;
    assert_eq!(guard.lost_reason(), Some(LostReason::Revoked));
    let fence = outcome.fence_token.unwrap();
    assert!(fence > guard.token(), "the fence token is above that of the force-released holder");
    let next = locks.mutex("a").try_lock().await.unwrap().unwrap();
    assert!(next.token() > fence);
}

#[tokio::test]
async fn consecutive_force_releases_right_after_opening_are_each_signalled_at_once() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let mut guards = Vec::new();
    for name in ["a", "b", "c"] {
        guards.push(locks.mutex(name).lock().await.unwrap());
    }
    for name in ["a", "b", "c"] {
        let claim = locks.inspect(name).await.unwrap().holders[0].claim;
        locks.force_release(name, claim).await.unwrap();
    }
    run_until_idle().await;
    let reasons: Vec<_> = guards.iter().map(leasehold::Guard::lost_reason).collect();
    assert_eq!(reasons, [Some(LostReason::Revoked); 3]);
}

#[tokio::test]
async fn an_engine_without_a_queue_is_polled_with_growing_pauses() {
    let (manual_clock, spy, locks) = locks_with_spy().await;
    spy.reply_always(Call::Attempt, ScriptedReply::Busy);
    let waiter = tokio::spawn({
        let mutex = locks.mutex("a");
        async move { mutex.lock().await }
    });
    advance_in_steps(&manual_clock, Duration::from_secs(10), Duration::from_millis(5)).await;
    let attempts = spy.count(Call::Attempt);
    // The pauses soon grow to between 125 and 250 ms.
    assert!((40..=120).contains(&attempts), "{attempts} attempts in ten seconds");
    waiter.abort();
}

#[tokio::test]
async fn one_keeper_task_serves_all_leases_and_ends_with_the_last_user() {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert_eq!(tasks(), 0);
    let locks = open_with_long_ttl("memory:").await;
    let mut guards = Vec::new();
    for index in 0..50 {
        guards.push(locks.mutex(format!("lock {index}")).lock().await.unwrap());
    }
    let clone = locks.clone();
    run_until_idle().await;
    assert_eq!(tasks(), 1, "one keeper");
    drop((locks, clone));
    run_until_idle().await;
    assert_eq!(tasks(), 1, "the guards still need it");
    guards.truncate(1);
    run_until_idle().await;
    assert_eq!((tasks(), guards[0].is_held()), (1, true));
    guards.clear();
    run_until_idle().await;
    assert_eq!(tasks(), 0, "the keeper has ended");
}
