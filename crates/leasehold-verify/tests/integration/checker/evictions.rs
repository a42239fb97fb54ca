//! Evictions: the stated exception from exclusion, and the guarantees beside it.

use leasehold_verify::history::{Call, FaultKind, OpId, Outcome, WorkerId, WorkerState, Workload};
use leasehold_verify::verdict::Guarantee::{Eviction, Exclusion, Fencing, Loss, Ticks};

use crate::checker::history_builder::{HistoryBuilder, exclusive, failed, shared, unknown, value};

/// Evicts a hold with this token from "a".
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

/// Worker 3 requests the release of "a" by worker 1, from 100 to 110; worker 2 is granted it at
/// `granted`, and worker 1 releases it at `released`.
fn graceful_eviction(learned: Option<u64>, released: u64, granted: u64) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((0, 10), 1, 1);
    let graceful = Call::Evict { lock: "a".to_owned(), hold: Some(first), token: 1, graceful: true };
    let op = history.begin(100, 3, graceful);
    history.end(110, op, Outcome::Evicted { token: None, gone: false });
    if let Some(learned) = learned {
        history.requested(learned, first);
    }
    history.held(released - 10, first);
    let second = history.acquire((20, granted), 2, 3);
    history.held(granted + 50, second);
    history.release((released, released + 10), first);
    history.done(3_000);
    history
}

#[test]
fn after_a_graceful_eviction_the_next_grant_waits_for_the_release() {
    graceful_eviction(Some(120), 400, 420).assert_kept(Eviction);
    // After a forced eviction, the same grant would be the stated exception.
    graceful_eviction(Some(120), 400, 300).assert_broken(Exclusion, 1);
}

#[test]
fn a_graceful_eviction_is_notified_within_the_same_bound() {
    graceful_eviction(Some(900), 1_000, 1_020).assert_broken(Eviction, 1);
    graceful_eviction(None, 1_000, 1_020).assert_broken(Eviction, 1);
}

fn evicted(token: u64) -> Outcome {
    Outcome::Evicted { token: Some(token), gone: false }
}

fn gone(token: Option<u64>) -> Outcome {
    Outcome::Evicted { token, gone: true }
}

/// Worker 1 holds, worker 3 evicts it, and worker 2 acquires the lock before worker 1 is notified,
/// at `notified_at`.
fn granted_beside_evicted_holder(outcome: Outcome, notified_at: u64) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((0, 10), 1, 1);
    history.held(200, first);
    force_release(&mut history, (100, 110), 3, (first, 1), outcome);
    let second = history.acquire((20, 120), 2, 3);
    history.held(150, second);
    history.lost(notified_at, first, 1_010);
    history.release((400, 410), second);
    history.done(3_000);
    history
}

#[test]
fn another_holder_may_be_granted_beside_an_evicted_one_that_is_notified_in_time() {
    granted_beside_evicted_holder(evicted(2), 300).assert_kept(Eviction);
    granted_beside_evicted_holder(Outcome::Evicted { token: None, gone: false }, 300).assert_kept(Eviction);
    // The eviction may have taken effect.
    let verdict = granted_beside_evicted_holder(unknown(), 300).check();
    assert!(verdict.violations.is_empty(), "{:?}", verdict.violations);
}

#[test]
fn no_holder_is_granted_beside_one_that_was_not_evicted() {
    // The eviction had no effect, or the claim was gone and this is another one.
    granted_beside_evicted_holder(failed(), 300).assert_broken(Exclusion, 1);
    granted_beside_evicted_holder(gone(None), 300).assert_broken(Exclusion, 1);
}

#[test]
fn an_evicted_holder_is_notified_within_half_a_second() {
    let verdict = granted_beside_evicted_holder(evicted(2), 900).assert_broken(Eviction, 1);
    assert!(verdict.violations[0].title.contains("was notified 790 ms later"), "{:?}", verdict.violations);
    assert!(verdict.violations[0].about_time);
}

#[test]
fn an_evicted_holder_that_is_never_notified_is_a_violation() {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((0, 10), 1, 1);
    force_release(&mut history, (100, 110), 3, (first, 1), evicted(2));
    history.held(900, first);
    history.release((1_000, 1_010), first);
    history.done(3_000);
    let verdict = history.assert_broken(Eviction, 1);
    assert!(verdict.violations[0].title.contains("was never notified"), "{:?}", verdict.violations);
}

#[test]
fn a_stopped_or_unreachable_holder_need_not_be_notified() {
    let mut history = granted_beside_evicted_holder(evicted(2), 900);
    history.worker(105, 1, WorkerState::Stopped);
    history.worker(890, 1, WorkerState::Resumed);
    history.assert_kept(Eviction);
    let mut history = granted_beside_evicted_holder(evicted(2), 900);
    history.fault((90, 800), 1, FaultKind::Partition, &[]);
    history.assert_kept(Eviction);
}

#[test]
fn the_fence_token_is_above_the_evicted_token_and_below_all_others() {
    let verdict = granted_beside_evicted_holder(evicted(1), 300).assert_broken(Eviction, 1);
    assert!(verdict.violations[0].title.contains("does not fence it off"), "{:?}", verdict.violations);
    // The next holder has token 3, and requested before: its lower token may have been assigned
    // already. A later request may not get a lower one.
    granted_beside_evicted_holder(evicted(3), 300).assert_kept(Eviction);
    let mut history = granted_beside_evicted_holder(evicted(4), 300);
    let third = history.acquire((500, 510), 2, 4);
    history.release((520, 530), third);
    let verdict = history.assert_broken(Eviction, 1);
    assert!(verdict.violations[0].title.contains("fences off the next holder"), "{:?}", verdict.violations);
}

/// Two readers, one of which is evicted, or was already gone.
fn two_readers_one_evicted(outcome: Outcome) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Rwlock);
    let first = history.granted((0, 10), 1, shared("a"), 1);
    let second = history.granted((0, 20), 2, shared("a"), 2);
    force_release(&mut history, (100, 110), 3, (first, 1), outcome);
    history.lost(120, first, 1_010);
    history.held(300, second);
    history.release((400, 410), second);
    history.done(3_000);
    history
}

#[test]
fn a_remaining_holder_is_not_fenced_off() {
    two_readers_one_evicted(Outcome::Evicted { token: None, gone: false }).assert_kept(Eviction);
    for did in [evicted(2), evicted(3), gone(Some(3))] {
        let verdict = two_readers_one_evicted(did).assert_broken(Eviction, 1);
        assert!(verdict.violations[0].title.contains("fences off a holder that stays"), "{:?}", verdict.violations);
    }
}

/// The evicted holder writes after the resource has seen the fence token.
fn write_after_eviction(outcome: Outcome) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Fenced);
    let first = history.acquire((0, 10), 1, 1);
    history.write((20, 30), first, Some(1), 7, Outcome::Accepted);
    let fence = force_release(&mut history, (100, 110), 3, (first, 1), evicted(2));
    history.read((120, 130), fence, Some(2), value(7));
    history.write((140, 150), first, Some(1), 8, outcome);
    history.lost(160, first, 1_010);
    history.done(3_000);
    history
}

#[test]
fn no_write_of_an_evicted_holder_is_accepted_after_the_fence_token() {
    write_after_eviction(Outcome::Refused { seen: 2 }).assert_kept(Fencing);
    let verdict = write_after_eviction(Outcome::Accepted).assert_broken(Fencing, 1);
    assert!(verdict.violations[0].title.contains("accepted token 1 after 2"), "{:?}", verdict.violations);
}

#[test]
fn the_loss_of_an_evicted_lock_is_neither_late_nor_unneeded() {
    let history = granted_beside_evicted_holder(evicted(2), 590);
    let verdict = history.check();
    assert!(verdict.violations.is_empty(), "{:?}", verdict.violations);
    history.assert_kept(Loss);
}

/// Two runs of a tick; the first was evicted, or not, before it was done.
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
fn only_an_evicted_run_may_run_again() {
    two_runs_of_a_tick(evicted(6)).assert_kept(Ticks);
    two_runs_of_a_tick(gone(None)).assert_broken(Ticks, 2);
}

/// Worker 2 waits since 50 for the lock that worker 1 holds; worker 1 is evicted at 110.
fn waiter_granted_at(granted: u64) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((0, 10), 1, 1);
    force_release(&mut history, (100, 110), 3, (first, 1), evicted(2));
    history.lost(120, first, 1_010);
    let second = history.acquire((20, granted), 2, 3);
    history.queued(50, second);
    history.release((granted + 10, granted + 20), second);
    history.done(3_000);
    history
}

#[test]
fn the_next_waiter_of_an_evicted_holder_is_granted_the_lock_within_half_a_second() {
    let finding = waiter_granted_at(300).assert_kept(Eviction);
    assert!(finding.figure.contains("1 with a waiter to be served at once"), "{finding:?}");
    let verdict = waiter_granted_at(1_000).assert_broken(Eviction, 1);
    assert!(verdict.violations[0].title.contains("no waiter of \"a\" was granted it"), "{:?}", verdict.violations);
    assert!(verdict.violations[0].about_time);
}

#[test]
fn no_waiter_is_expected_beside_a_claim_that_may_hold_the_lock() {
    // A worker with a claim was killed, or one request's effect is unknown.
    let mut killed = waiter_granted_at(1_000);
    let _ = killed.begin(30, 4, exclusive("a"));
    killed.worker(90, 4, WorkerState::Killed);
    killed.assert_kept(Eviction);
    let mut unclear = waiter_granted_at(1_000);
    let op = unclear.begin(30, 4, exclusive("a"));
    unclear.end(90, op, unknown());
    unclear.assert_kept(Eviction);
    let mut disturbed = waiter_granted_at(1_000);
    disturbed.fault((90, 800), 1, FaultKind::Partition, &[]);
    disturbed.assert_kept(Eviction);
}

/// Worker 2 waits and is evicted at 110; its request ends at `ended`.
fn waiter_evicted(ended: u64, outcome: Outcome) -> HistoryBuilder {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((0, 10), 1, 1);
    let second = history.begin(20, 2, exclusive("a"));
    history.queued(50, second);
    force_release(&mut history, (100, 110), 3, (second, 0), Outcome::Evicted { token: None, gone: false });
    history.end(ended, second, outcome);
    history.held(1_500, first);
    history.release((1_600, 1_610), first);
    history.done(3_000);
    history
}

#[test]
fn the_request_of_an_evicted_waiter_ends_within_half_a_second() {
    let finding = waiter_evicted(300, failed()).assert_kept(Eviction);
    assert!(finding.figure.contains("1 of waiters"), "{finding:?}");
    let verdict = waiter_evicted(1_000, failed()).assert_broken(Eviction, 1);
    assert!(verdict.violations[0].title.contains("did not end"), "{:?}", verdict.violations);
}

/// The evicted claim was granted meanwhile: its hold is an evicted one, too.
#[test]
fn a_waiter_that_was_granted_and_evicted_is_the_stated_exception() {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((10, 120), 1, 1);
    history.held(200, first);
    force_release(&mut history, (100, 110), 3, (first, 0), evicted(2));
    let second = history.acquire((20, 130), 2, 3);
    history.held(150, second);
    history.lost(300, first, 1_010);
    history.release((400, 410), second);
    history.done(3_000);
    history.assert_kept(Eviction);
}
