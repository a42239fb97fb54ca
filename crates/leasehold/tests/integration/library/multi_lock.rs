//! Several locks that are acquired together, all or none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::{ErrorKind, LockSpec, LostReason, Mode, ReleaseOutcome};

use crate::library::time::{
    TTL, advance, advance_in_steps, locks_on_manual_clock, open_with_long_ttl, release_held, run_until_idle,
    within_timeout,
};

fn names(guard: &leasehold::MultiLockGuard) -> Vec<&str> {
    guard.guards().iter().map(|guard| guard.name().as_str()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn callers_that_list_locks_in_different_orders_do_not_deadlock() {
    let locks = open_with_long_ttl("memory:").await;
    let inside = Arc::new([AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0)]);
    let orders: [&[usize]; 4] = [&[0, 1, 2], &[2, 1, 0], &[1, 0], &[2, 1]];
    let work = orders.into_iter().cycle().take(8).map(|order| {
        let (locks, inside) = (locks.clone(), Arc::clone(&inside));
        tokio::spawn(async move {
            for _ in 0..50 {
                let guard = locks.multi_lock(order.iter().map(|index| format!("lock {index}"))).lock().await.unwrap();
                for index in order {
                    assert_eq!(inside[*index].fetch_add(1, Ordering::SeqCst), 0, "alone with each of them");
                }
                tokio::task::yield_now().await;
                for index in order {
                    inside[*index].fetch_sub(1, Ordering::SeqCst);
                }
                guard.release().await.unwrap();
            }
        })
    });
    for task in work.collect::<Vec<_>>() {
        within_timeout("no deadlock", task).await.unwrap();
    }
}

#[tokio::test]
async fn a_repeated_name_is_acquired_once_in_the_mode_that_covers_both() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let both = locks.rwlock("b");
    let wanted = [LockSpec::from("c"), both.read_spec(), "a".into(), both.write_spec(), "c".into()];
    let guard = locks.multi_lock(wanted).lock().await.unwrap();
    assert_eq!(names(&guard), ["a", "b", "c"], "ordered by name");
    let view = locks.inspect("b").await.unwrap();
    assert_eq!((view.holders.len(), view.holders[0].mode), (1, Mode::Exclusive));
    assert!(guard.token("b").is_some() && guard.token("x").is_none());
    let outcomes = guard.release().await.unwrap();
    assert_eq!(outcomes.len(), 3);
    assert!(outcomes.iter().all(|(_, outcome)| *outcome == ReleaseOutcome::Released));
}

#[tokio::test]
async fn conflicting_modes_are_refused_before_anything_is_acquired() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let wanted = [LockSpec::from("a"), locks.rwlock("b").read_spec(), locks.semaphore("b", 3).permits_spec(1)];
    let error = locks.multi_lock(wanted).lock().await.unwrap_err();
    assert_eq!((error.kind(), error.name().map(|name| name.as_str())), (ErrorKind::Conflict, Some("b")));
    assert!(locks.list("").await.unwrap().is_empty());
}

#[tokio::test]
async fn an_invalid_name_is_refused_with_the_reason() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let error = locks.multi_lock(["a", "b\n"]).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidName);
    let error = locks.multi_lock([&locks.mutex("a"), &locks.mutex("b\n")]).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidName);
    assert!(error.to_string().contains("U+000A"), "{error}");
    assert!(locks.list("").await.unwrap().is_empty());
}

#[tokio::test]
async fn all_locks_share_one_deadline_and_a_timeout_releases_them() {
    let (manual_clock, locks) = locks_on_manual_clock().await;
    let (b, c) = (locks.mutex("b").lock().await.unwrap(), locks.mutex("c").lock().await.unwrap());
    let wait = Duration::from_secs(10);
    let all = tokio::spawn({
        let all = locks.multi_lock(["c", "b", "a"]).timeout(wait);
        async move { all.lock().await }
    });
    advance_in_steps(&manual_clock, wait - Duration::from_secs(1), Duration::from_millis(500)).await;
    release_held(b).await;
    run_until_idle().await;
    let view = locks.inspect("b").await.unwrap();
    assert_eq!(view.holders.len(), 1, "it holds b by now and waits for c with the remaining time");
    advance(&manual_clock, Duration::from_millis(999)).await;
    assert!(!all.is_finished());
    advance(&manual_clock, Duration::from_millis(1)).await;
    let error = all.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.name().map(|name| name.as_str())), (ErrorKind::Timeout, Some("c")));
    run_until_idle().await;
    let held: Vec<_> = locks.list("").await.unwrap().into_iter().map(|view| view.name.to_string()).collect();
    assert_eq!(held, ["c"], "only the lock of the other guard");
    drop(c);
}

#[tokio::test]
async fn try_lock_acquires_all_or_nothing() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let b = locks.mutex("b").lock().await.unwrap();
    assert!(locks.multi_lock(["a", "b"]).try_lock().await.unwrap().is_none());
    assert!(locks.inspect("a").await.unwrap().holders.is_empty(), "released already");
    release_held(b).await;
    let guard = locks.multi_lock(["b", "a"]).try_lock().await.unwrap().unwrap();
    assert!(guard.is_held());
}

#[tokio::test]
async fn the_whole_guard_is_lost_with_the_first_lock() {
    let (manual_clock, locks) = locks_on_manual_clock().await;
    let guard = locks.multi_lock(["a", "b"]).lock().await.unwrap();
    run_until_idle().await;
    let claim = locks.inspect("b").await.unwrap().holders[0].claim;
    locks.force_release("b", claim).await.unwrap();
    let (name, reason) = within_timeout("the loss", guard.lost()).await;
    assert_eq!((name.as_str(), reason), ("b", LostReason::Revoked));
    assert!(!guard.is_held());
    let outcomes: Vec<_> = guard.release().await.unwrap().into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(outcomes, [ReleaseOutcome::Released, ReleaseOutcome::AlreadyLost(LostReason::Revoked)]);
    drop(manual_clock);
}

#[tokio::test]
async fn the_options_apply_to_each_lock() {
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let owner = leasehold::Owner::named("me");
    let all = locks.multi_lock(["a", "b"]).ttl(TTL * 2).owner(&owner).describe("both").max_hold(TTL);
    let guard = all.lock().await.unwrap();
    let again = all.try_lock().await.unwrap().unwrap();
    assert_eq!(guard.token("a"), again.token("a"), "the same owner re-enters");
    for name in ["a", "b"] {
        let holder = &locks.inspect(name).await.unwrap().holders[0];
        assert_eq!((&*holder.holder.description, holder.remaining), ("both", TTL * 2));
    }
    assert!(guard.guards().iter().all(|guard| guard.remaining() == TTL), "max_hold");
}
