//! Tests the check of force releases, `Call::Evict` in the history: the documented exception
//! from exclusion, and what is guaranteed instead.

use leasehold_verify::history::{Call, FaultKind, OpId, Outcome, WorkerId, WorkerState, Workload};
use leasehold_verify::verdict::Guarantee::{Exclusion, Fencing, ForceRelease, Loss, Ticks};

use crate::checker::history_builder::{
    HistoryBuilder, exclusive_request, failed_outcome, shared_request, unknown_outcome, value_outcome,
};

/// Adds a force release of this hold of the lock `a`, with its token (0: a waiter).
fn force_release(
    history: &mut HistoryBuilder,
    (from, to): (u64, u64),
    worker: WorkerId,
    (hold, token): (OpId, u64),
    outcome: Outcome,
) -> OpId {
    let op =
        history.begin(from, worker, Call::Evict { lock: "a".to_owned(), hold: Some(hold), token, graceful: false });
    history.end(to, op, outcome);
    op
}

/// From 100 to 110, worker 3 asks worker 1 to release the lock `a`. Worker 1 is notified at
/// `notified` (`None`: never) and releases it at `released`; worker 2 is granted it at `granted`.
fn history_with_release_request(notified: Option<u64>, released: u64, granted: u64) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((0, 10), 1, 1);
    let graceful = Call::Evict { lock: "a".to_owned(), hold: Some(first), token: 1, graceful: true };
    let op = history.begin(100, 3, graceful);
    history.end(110, op, Outcome::Evicted { token: None, gone: false });
    if let Some(notified) = notified {
        history.add_release_request(notified, first);
    }
    history.add_held_check(released - 10, first);
    let second = history.acquire((20, granted), 2, 3);
    history.add_held_check(granted + 50, second);
    history.release((released, released + 10), first);
    history.add_last_line(3_000);
    history
}

#[test]
fn after_a_release_request_the_next_grant_waits_for_the_release() {
    history_with_release_request(Some(120), 400, 420).assert_kept(ForceRelease);
    // Before the release it is a violation; after a force release it would be the documented
    // exception.
    history_with_release_request(Some(120), 400, 300).assert_broken(Exclusion, 1);
}

#[test]
fn a_release_request_is_notified_within_the_same_bound() {
    history_with_release_request(Some(900), 1_000, 1_020).assert_broken(ForceRelease, 1);
    history_with_release_request(None, 1_000, 1_020).assert_broken(ForceRelease, 1);
}

/// A force release that succeeded with this fence token.
fn force_released_outcome(token: u64) -> Outcome {
    Outcome::Evicted { token: Some(token), gone: false }
}

/// A force release whose target had no claim any more.
fn already_gone_outcome(token: Option<u64>) -> Outcome {
    Outcome::Evicted { token, gone: true }
}

/// Worker 1 holds the lock, worker 3 force-releases it at 110 with this outcome, and worker 2 is
/// granted the lock at 120. Worker 1 is notified at `notified_at`.
fn granted_beside_force_released_holder(outcome: Outcome, notified_at: u64) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((0, 10), 1, 1);
    history.add_held_check(200, first);
    force_release(&mut history, (100, 110), 3, (first, 1), outcome);
    let second = history.acquire((20, 120), 2, 3);
    history.add_held_check(150, second);
    history.add_loss(notified_at, first, 1_010);
    history.release((400, 410), second);
    history.add_last_line(3_000);
    history
}

#[test]
fn another_holder_may_be_granted_beside_a_force_released_one_that_is_notified_in_time() {
    granted_beside_force_released_holder(force_released_outcome(2), 300).assert_kept(ForceRelease);
    granted_beside_force_released_holder(Outcome::Evicted { token: None, gone: false }, 300).assert_kept(ForceRelease);
    // With an unknown outcome, the force release may have taken effect.
    let verdict = granted_beside_force_released_holder(unknown_outcome(), 300).check();
    assert!(verdict.violations.is_empty(), "{:?}", verdict.violations);
}

#[test]
fn no_holder_is_granted_beside_one_that_was_not_force_released() {
    // The force release had no effect, or the target's claim was already gone.
    granted_beside_force_released_holder(failed_outcome(), 300).assert_broken(Exclusion, 1);
    granted_beside_force_released_holder(already_gone_outcome(None), 300).assert_broken(Exclusion, 1);
}

#[test]
fn a_force_released_holder_is_notified_within_half_a_second() {
    let verdict = granted_beside_force_released_holder(force_released_outcome(2), 900).assert_broken(ForceRelease, 1);
    assert!(verdict.violations[0].title.contains("was notified 790 ms later"), "{:?}", verdict.violations);
    assert!(verdict.violations[0].is_time_bound);
}

#[test]
fn a_force_released_holder_that_is_never_notified_is_a_violation() {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((0, 10), 1, 1);
    force_release(&mut history, (100, 110), 3, (first, 1), force_released_outcome(2));
    history.add_held_check(900, first);
    history.release((1_000, 1_010), first);
    history.add_last_line(3_000);
    let verdict = history.assert_broken(ForceRelease, 1);
    assert!(verdict.violations[0].title.contains("was never notified"), "{:?}", verdict.violations);
}

#[test]
fn a_stopped_or_unreachable_holder_need_not_be_notified() {
    let mut history = granted_beside_force_released_holder(force_released_outcome(2), 900);
    history.add_worker_state(105, 1, WorkerState::Stopped);
    history.add_worker_state(890, 1, WorkerState::Resumed);
    history.assert_kept(ForceRelease);
    let mut history = granted_beside_force_released_holder(force_released_outcome(2), 900);
    history.add_fault((90, 800), 1, FaultKind::Partition, &[]);
    history.assert_kept(ForceRelease);
}

#[test]
fn the_fence_token_is_above_the_force_released_token_and_below_all_others() {
    let verdict = granted_beside_force_released_holder(force_released_outcome(1), 300).assert_broken(ForceRelease, 1);
    assert!(verdict.violations[0].title.contains("does not fence it off"), "{:?}", verdict.violations);
    // Worker 2 has token 3 and requested the lock before, so its token may already have been
    // assigned. A later request must get a higher token than the fence token.
    granted_beside_force_released_holder(force_released_outcome(3), 300).assert_kept(ForceRelease);
    let mut history = granted_beside_force_released_holder(force_released_outcome(4), 300);
    let third = history.acquire((500, 510), 2, 4);
    history.release((520, 530), third);
    let verdict = history.assert_broken(ForceRelease, 1);
    assert!(verdict.violations[0].title.contains("fences off the next holder"), "{:?}", verdict.violations);
}

/// Two readers hold the lock, and the first one is force-released with this outcome.
fn two_readers_one_force_released(outcome: Outcome) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Rwlock);
    let first = history.add_grant((0, 10), 1, shared_request("a"), 1);
    let second = history.add_grant((0, 20), 2, shared_request("a"), 2);
    force_release(&mut history, (100, 110), 3, (first, 1), outcome);
    history.add_loss(120, first, 1_010);
    history.add_held_check(300, second);
    history.release((400, 410), second);
    history.add_last_line(3_000);
    history
}

#[test]
fn a_remaining_holder_is_not_fenced_off() {
    two_readers_one_force_released(Outcome::Evicted { token: None, gone: false }).assert_kept(ForceRelease);
    for outcome in [force_released_outcome(2), force_released_outcome(3), already_gone_outcome(Some(3))] {
        let verdict = two_readers_one_force_released(outcome).assert_broken(ForceRelease, 1);
        assert!(verdict.violations[0].title.contains("fences off a holder that stays"), "{:?}", verdict.violations);
    }
}

/// A force-released holder writes after the resource has seen the fence token; `outcome` is that of
/// the write.
fn write_after_force_release(outcome: Outcome) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Fenced);
    let first = history.acquire((0, 10), 1, 1);
    history.write((20, 30), first, Some(1), 7, Outcome::Accepted);
    let fence = force_release(&mut history, (100, 110), 3, (first, 1), force_released_outcome(2));
    history.read((120, 130), fence, Some(2), value_outcome(7));
    history.write((140, 150), first, Some(1), 8, outcome);
    history.add_loss(160, first, 1_010);
    history.add_last_line(3_000);
    history
}

#[test]
fn no_write_of_a_force_released_holder_is_accepted_after_the_fence_token() {
    write_after_force_release(Outcome::Refused { seen: 2 }).assert_kept(Fencing);
    let verdict = write_after_force_release(Outcome::Accepted).assert_broken(Fencing, 1);
    assert!(verdict.violations[0].title.contains("accepted token 1 after 2"), "{:?}", verdict.violations);
}

#[test]
fn the_loss_of_a_force_released_lock_is_neither_late_nor_unneeded() {
    let history = granted_beside_force_released_holder(force_released_outcome(2), 590);
    let verdict = history.check();
    assert!(verdict.violations.is_empty(), "{:?}", verdict.violations);
    history.assert_kept(Loss);
}

/// A tick runs twice, and its first run is force-released with this outcome before it is done.
fn two_runs_of_a_tick(outcome: Outcome) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Ticks);
    let tick = |attempt, token| Call::Tick { job: "j".to_owned(), tick: 60, attempt, token, once: false };
    let first = history.begin(100, 1, tick(1, 5));
    force_release(&mut history, (110, 115), 3, (0, 5), outcome);
    let second = history.begin(120, 2, tick(2, 7));
    history.end(140, first, Outcome::Done);
    history.end(150, second, Outcome::Done);
    history
}

#[test]
fn only_a_force_released_run_may_run_again() {
    two_runs_of_a_tick(force_released_outcome(6)).assert_kept(Ticks);
    two_runs_of_a_tick(already_gone_outcome(None)).assert_broken(Ticks, 2);
}

/// Worker 2 waits since 50 for the lock that worker 1 holds. Worker 1 is force-released at 110, and
/// worker 2 is granted the lock at `granted`.
fn waiter_granted_at(granted: u64) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((0, 10), 1, 1);
    force_release(&mut history, (100, 110), 3, (first, 1), force_released_outcome(2));
    history.add_loss(120, first, 1_010);
    let second = history.acquire((20, granted), 2, 3);
    history.add_queued(50, second);
    history.release((granted + 10, granted + 20), second);
    history.add_last_line(3_000);
    history
}

#[test]
fn the_next_waiter_of_a_force_released_holder_is_granted_the_lock_within_half_a_second() {
    let finding = waiter_granted_at(300).assert_kept(ForceRelease);
    assert!(finding.figure.contains("1 with a waiter to be served at once"), "{finding:?}");
    let verdict = waiter_granted_at(1_000).assert_broken(ForceRelease, 1);
    assert!(verdict.violations[0].title.contains("no waiter of \"a\" was granted it"), "{:?}", verdict.violations);
    assert!(verdict.violations[0].is_time_bound);
}

#[test]
fn no_waiter_is_expected_beside_a_claim_that_may_hold_the_lock() {
    // A worker with a claim was killed, or one request's effect is unknown.
    let mut killed = waiter_granted_at(1_000);
    let _ = killed.begin(30, 4, exclusive_request("a"));
    killed.add_worker_state(90, 4, WorkerState::Killed);
    killed.assert_kept(ForceRelease);
    let mut unclear = waiter_granted_at(1_000);
    let op = unclear.begin(30, 4, exclusive_request("a"));
    unclear.end(90, op, unknown_outcome());
    unclear.assert_kept(ForceRelease);
    let mut disturbed = waiter_granted_at(1_000);
    disturbed.add_fault((90, 800), 1, FaultKind::Partition, &[]);
    disturbed.assert_kept(ForceRelease);
}

/// Worker 2 waits and is force-released at 110; its request ends at `ended` with this outcome.
fn force_released_waiter(ended: u64, outcome: Outcome) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((0, 10), 1, 1);
    let second = history.begin(20, 2, exclusive_request("a"));
    history.add_queued(50, second);
    force_release(&mut history, (100, 110), 3, (second, 0), Outcome::Evicted { token: None, gone: false });
    history.end(ended, second, outcome);
    history.add_held_check(1_500, first);
    history.release((1_600, 1_610), first);
    history.add_last_line(3_000);
    history
}

#[test]
fn the_request_of_a_force_released_waiter_ends_within_half_a_second() {
    let finding = force_released_waiter(300, failed_outcome()).assert_kept(ForceRelease);
    assert!(finding.figure.contains("1 of waiters"), "{finding:?}");
    let verdict = force_released_waiter(1_000, failed_outcome()).assert_broken(ForceRelease, 1);
    assert!(verdict.violations[0].title.contains("did not end"), "{:?}", verdict.violations);
}

/// A waiter that is granted the lock while it is force-released counts as a force-released holder.
#[test]
fn a_waiter_granted_while_it_is_force_released_is_the_documented_exception() {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((10, 120), 1, 1);
    history.add_held_check(200, first);
    force_release(&mut history, (100, 110), 3, (first, 0), force_released_outcome(2));
    let second = history.acquire((20, 130), 2, 3);
    history.add_held_check(150, second);
    history.add_loss(300, first, 1_010);
    history.release((400, 410), second);
    history.add_last_line(3_000);
    history.assert_kept(ForceRelease);
}
