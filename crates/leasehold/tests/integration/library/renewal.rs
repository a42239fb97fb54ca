//! The keeper renews leases in time and in batches, and handles each answer to a renewal.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::ManualClock;
use leasehold::engine::RenewReply;
use leasehold::{Guard, Locks, LostReason};

use crate::library::spy::{Call, ScriptedReply, Spy};
use crate::library::time::{DRIFT, TTL, advance, advance_in_steps, builder_with_clock, run_until_idle};

/// `memory:` behind a spy, on a frozen clock.
pub(crate) async fn locks_with_spy() -> (ManualClock, Arc<Spy>, Locks) {
    let manual_clock = ManualClock::new();
    let spy = Spy::new(&manual_clock.clock()).await;
    let locks = builder_with_clock(&manual_clock).open_engine(spy.clone());
    (manual_clock, spy, locks)
}

/// A held lock on a frozen clock, whose renewals all get this reply.
async fn lease_with_renew_reply(reply: ScriptedReply) -> (ManualClock, Arc<Spy>, Locks, Guard) {
    let (manual_clock, spy, locks) = locks_with_spy().await;
    spy.reply_always(Call::Renew, reply);
    let guard = locks.mutex("a").lock().await.unwrap();
    (manual_clock, spy, locks, guard)
}

#[tokio::test]
async fn a_lease_is_renewed_at_about_a_third_of_its_ttl() {
    let (manual_clock, spy, locks) = locks_with_spy().await;
    let guard = locks.mutex("a").lock().await.unwrap();
    let (start, step) = (locks.clock().now(), Duration::from_millis(250));
    advance_in_steps(&manual_clock, TTL * 10, step).await;
    assert!(guard.is_held());
    let mut last = start;
    let calls = spy.calls(Call::Renew);
    for call in &calls {
        let gap = call.at.duration_since(last);
        assert!(gap >= TTL / 4 && gap <= TTL / 3 + step, "a renewal came {gap:?} after the one before");
        last = call.at;
    }
    assert!((30..=40).contains(&calls.len()), "{} renewals in ten TTLs", calls.len());
}

#[tokio::test]
async fn many_leases_are_renewed_in_few_batches_of_at_most_128() {
    let (manual_clock, spy, locks) = locks_with_spy().await;
    let mut guards = Vec::new();
    for index in 0..300 {
        guards.push(locks.mutex(format!("lock {index}")).lock().await.unwrap());
    }
    advance_in_steps(&manual_clock, TTL / 3, Duration::from_millis(50)).await;
    let sizes: Vec<_> = spy.calls(Call::Renew).iter().map(|call| call.claims).collect();
    assert_eq!(sizes.iter().sum::<usize>(), 300, "{sizes:?}");
    assert!(sizes.iter().all(|size| *size <= 128), "{sizes:?}");
    assert!(sizes.len() <= 6, "{sizes:?}");
}

#[tokio::test]
async fn each_lease_is_renewed_by_its_own_ttl() {
    let (manual_clock, spy, locks) = locks_with_spy().await;
    let long_lease = locks.mutex("long").ttl(TTL * 100).lock().await.unwrap();
    let short_lease = locks.mutex("short").ttl(TTL / 10).lock().await.unwrap();
    advance_in_steps(&manual_clock, TTL, Duration::from_millis(100)).await;
    assert!(short_lease.is_held() && long_lease.is_held());
    assert!((30..=40).contains(&spy.count(Call::Renew)), "{}", spy.count(Call::Renew));
}

#[tokio::test]
async fn an_unknown_answer_does_not_extend_the_lease_and_is_retried_sooner() {
    for reply in [
        ScriptedReply::Fail(true),
        ScriptedReply::RenewAs(RenewReply::Unknown),
        ScriptedReply::LoseReply,
        ScriptedReply::NoResponse,
    ] {
        let (manual_clock, spy, locks, guard) = lease_with_renew_reply(reply).await;
        let deadline = guard.deadline();
        let tick = Duration::from_millis(1);
        advance_in_steps(&manual_clock, deadline.duration_since(locks.clock().now()) - tick, Duration::from_millis(20))
            .await;
        assert!(guard.is_held(), "the answer does not end the lease");
        assert_eq!(guard.deadline(), deadline, "the answer does not extend the lease");
        let calls = spy.calls(Call::Renew);
        assert!(calls.len() >= 4, "only {} renewals before the deadline", calls.len());
        for pair in calls.windows(2) {
            let gap = pair[1].at.duration_since(pair[0].at);
            // The timeout of a call to an unresponsive engine is a third of the TTL, at most five
            // seconds.
            assert!(gap <= TTL / 10 + Duration::from_secs(5) + Duration::from_millis(40), "{gap:?}");
        }
        advance(&manual_clock, tick).await;
        assert_eq!(guard.lost_reason(), Some(LostReason::Expired));
    }
}

#[tokio::test]
async fn renewals_resume_normally_after_an_unknown_answer() {
    let (manual_clock, spy, locks) = locks_with_spy().await;
    let guard = locks.mutex("a").lock().await.unwrap();
    let first = guard.deadline();
    spy.reply_next(Call::Renew, ScriptedReply::Fail(true));
    spy.reply_next(Call::Renew, ScriptedReply::LoseReply);
    advance_in_steps(&manual_clock, TTL * 2, Duration::from_millis(50)).await;
    assert!(guard.is_held());
    assert!(guard.deadline() > first);
}

#[tokio::test]
async fn the_answer_held_neither_extends_nor_ends_the_lease() {
    let (manual_clock, spy, locks, guard) = lease_with_renew_reply(ScriptedReply::RenewAs(RenewReply::Held)).await;
    let deadline = guard.deadline();
    advance_in_steps(
        &manual_clock,
        deadline.duration_since(locks.clock().now()) - Duration::from_nanos(1),
        Duration::from_millis(100),
    )
    .await;
    assert!(spy.count(Call::Renew) > 3);
    assert!(guard.is_held());
    assert_eq!(guard.deadline(), deadline);
    advance(&manual_clock, Duration::from_nanos(1)).await;
    assert_eq!(guard.lost_reason(), Some(LostReason::Expired));
}

#[tokio::test]
async fn the_answer_lost_is_signalled_at_once() {
    let (manual_clock, spy, locks, guard) = lease_with_renew_reply(ScriptedReply::RenewAs(RenewReply::Lost)).await;
    let watch = guard.watcher();
    let loss = tokio::spawn(async move { watch.lost().await });
    advance_in_steps(&manual_clock, TTL / 3, Duration::from_millis(100)).await;
    assert_eq!(spy.count(Call::Renew), 1);
    assert!(locks.clock().now() < guard.deadline());
    assert!(loss.is_finished(), "the waiting task was notified, long before the deadline");
    assert_eq!(loss.await.unwrap(), LostReason::Revoked);
    assert!(!guard.is_held());
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_eq!(locks.held_count(), 0);
}

#[tokio::test]
async fn missing_answers_count_as_unknown_and_lose_no_lease() {
    let (manual_clock, spy, locks) = locks_with_spy().await;
    let guards = [locks.mutex("a").lock().await.unwrap(), locks.mutex("b").lock().await.unwrap()];
    spy.reply_next(Call::Renew, ScriptedReply::TooFewAnswers);
    let deadlines = guards.each_ref().map(Guard::deadline);
    advance(&manual_clock, TTL / 3).await;
    assert_eq!(guards.each_ref().map(Guard::deadline), deadlines, "no lease was extended");
    advance_in_steps(&manual_clock, TTL * 2, Duration::from_millis(100)).await;
    assert!(guards.iter().all(Guard::is_held));
}

#[tokio::test]
async fn the_loss_is_signalled_exactly_at_the_deadline() {
    let (manual_clock, _spy, locks, guard) = lease_with_renew_reply(ScriptedReply::NoResponse).await;
    let watch = guard.watcher();
    let loss = tokio::spawn(async move { watch.lost().await });
    let tick = Duration::from_nanos(1);
    assert_eq!(guard.deadline(), locks.clock().now().saturating_add(TTL - DRIFT));
    advance(&manual_clock, TTL - DRIFT - tick).await;
    assert!(guard.is_held() && !loss.is_finished(), "not 1 ns before");
    assert_eq!(guard.remaining(), tick);
    advance(&manual_clock, tick).await;
    assert!(!guard.is_held() && loss.is_finished(), "and not 1 ns after");
    assert_eq!(loss.await.unwrap(), LostReason::Expired);
}

#[tokio::test]
async fn a_reply_after_the_deadline_does_not_restore_the_lease() {
    let (manual_clock, spy, locks) = locks_with_spy().await;
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let guard = locks.mutex("a").lock().await.unwrap();
    advance(&manual_clock, TTL - DRIFT - Duration::from_secs(1)).await;
    assert_eq!(spy.count(Call::Renew), 1, "the first renewal, which is late because no task ran");
    let first = guard.deadline();
    assert!(first > locks.clock().now().saturating_add(TTL / 2));
    // The engine does the next renewals in time, but their replies arrive after the deadline.
    spy.reply_always(Call::Renew, ScriptedReply::AfterGate(Arc::clone(&gate)));
    advance_in_steps(&manual_clock, TTL / 3, Duration::from_millis(500)).await;
    assert!(spy.count(Call::Renew) > 1);
    gate.add_permits(100);
    manual_clock.advance(TTL);
    run_until_idle().await;
    assert_eq!(guard.lost_reason(), Some(LostReason::Expired));
    assert_eq!(guard.deadline(), first, "the late reply did not move the deadline");
    assert!(!guard.is_held());
    assert!(locks.inspect("a").await.unwrap().holders.is_empty(), "the lease that it had extended was released");
}
