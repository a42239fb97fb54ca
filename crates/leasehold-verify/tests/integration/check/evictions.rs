//! Evictions: the stated exception from exclusion, and the guarantees beside it.

use leasehold_verify::history::{Call, FaultKind, OpId, Outcome, State, Worker, Workload};
use leasehold_verify::verdict::Promise::{Eviction, Exclusion, Fencing, Loss, Ticks};

use crate::check::build::{History, failed, shared, unknown, value};

/// Evicts a hold with this token from "a".
fn evict(
    history: &mut History,
    (from, to): (u64, u64),
    worker: Worker,
    (hold, token): (OpId, u64),
    did: Outcome,
) -> OpId {
    let op =
        history.begin(from, worker, Call::Evict { lock: "a".to_owned(), hold: Some(hold), token, graceful: false });
    history.end(to, op, did);
    op
}

/// Worker 3 requests the release of "a" by worker 1, from 100 to 110; worker 2 is granted it at
/// `granted`, and worker 1 releases it at `released`.
fn asked(learned: Option<u64>, released: u64, granted: u64) -> History {
    let mut history = History::of(Workload::Mutex);
    let first = history.take((0, 10), 1, 1);
    let graceful = Call::Evict { lock: "a".to_owned(), hold: Some(first), token: 1, graceful: true };
    let op = history.begin(100, 3, graceful);
    history.end(110, op, Outcome::Evicted { token: None, gone: false });
    if let Some(learned) = learned {
        history.requested(learned, first);
    }
    history.held(released - 10, first);
    let second = history.take((20, granted), 2, 3);
    history.held(granted + 50, second);
    history.release((released, released + 10), first);
    history.done(3_000);
    history
}

#[test]
fn after_a_graceful_eviction_the_next_is_granted_only_when_the_holder_has_released() {
    asked(Some(120), 400, 420).keeps(Eviction);
    // After a forced eviction, the same grant would be the stated exception.
    asked(Some(120), 400, 300).breaks(Exclusion, 1);
}

#[test]
fn a_holder_learns_of_a_graceful_eviction_as_soon_as_of_any() {
    asked(Some(900), 1_000, 1_020).breaks(Eviction, 1);
    asked(None, 1_000, 1_020).breaks(Eviction, 1);
}

fn evicted(token: u64) -> Outcome {
    Outcome::Evicted { token: Some(token), gone: false }
}

fn gone(token: Option<u64>) -> Outcome {
    Outcome::Evicted { token, gone: true }
}

/// Worker 1 holds, worker 3 evicts it, and worker 2 acquires the lock before worker 1 is notified,
/// at `told`.
fn overtaken(did: Outcome, told: u64) -> History {
    let mut history = History::of(Workload::Mutex);
    let first = history.take((0, 10), 1, 1);
    history.held(200, first);
    evict(&mut history, (100, 110), 3, (first, 1), did);
    let second = history.take((20, 120), 2, 3);
    history.held(150, second);
    history.lost(told, first, 1_010);
    history.release((400, 410), second);
    history.done(3_000);
    history
}

#[test]
fn another_may_come_in_beside_an_evicted_holder_that_is_told_soon() {
    overtaken(evicted(2), 300).keeps(Eviction);
    overtaken(Outcome::Evicted { token: None, gone: false }, 300).keeps(Eviction);
    // It may have been done.
    let verdict = overtaken(unknown(), 300).check();
    assert!(verdict.violations.is_empty(), "{:?}", verdict.violations);
}

#[test]
fn and_not_beside_one_that_was_not_evicted() {
    // The eviction had no effect, or the claim was gone and this is another one.
    overtaken(failed(), 300).breaks(Exclusion, 1);
    overtaken(gone(None), 300).breaks(Exclusion, 1);
}

#[test]
fn an_evicted_holder_is_told_within_half_a_second() {
    let verdict = overtaken(evicted(2), 900).breaks(Eviction, 1);
    assert!(verdict.violations[0].title.contains("was told 790 ms later"), "{:?}", verdict.violations);
    assert!(verdict.violations[0].about_time);
}

#[test]
fn one_that_is_never_told_and_goes_on_is_found() {
    let mut history = History::of(Workload::Mutex);
    let first = history.take((0, 10), 1, 1);
    evict(&mut history, (100, 110), 3, (first, 1), evicted(2));
    history.held(900, first);
    history.release((1_000, 1_010), first);
    history.done(3_000);
    let verdict = history.breaks(Eviction, 1);
    assert!(verdict.violations[0].title.contains("was never told"), "{:?}", verdict.violations);
}

#[test]
fn one_that_did_not_run_or_could_not_be_reached_need_not_be_told() {
    let mut history = overtaken(evicted(2), 900);
    history.worker(105, 1, State::Stopped);
    history.worker(890, 1, State::Resumed);
    history.keeps(Eviction);
    let mut history = overtaken(evicted(2), 900);
    history.fault((90, 800), 1, FaultKind::Partition, &[]);
    history.keeps(Eviction);
}

#[test]
fn the_fence_is_above_the_evicted_token_and_below_all_others() {
    let verdict = overtaken(evicted(1), 300).breaks(Eviction, 1);
    assert!(verdict.violations[0].title.contains("does not fence it off"), "{:?}", verdict.violations);
    // The next holder has token 3, and requested before: its lower token may have been assigned
    // already. A later request may not get a lower one.
    overtaken(evicted(3), 300).keeps(Eviction);
    let mut history = overtaken(evicted(4), 300);
    let third = history.take((500, 510), 2, 4);
    history.release((520, 530), third);
    let verdict = history.breaks(Eviction, 1);
    assert!(verdict.violations[0].title.contains("fences off the next holder"), "{:?}", verdict.violations);
}

/// Two readers, one of which is evicted, or was already gone.
fn readers(did: Outcome) -> History {
    let mut history = History::of(Workload::Rwlock);
    let first = history.lock((0, 10), 1, shared("a"), 1);
    let second = history.lock((0, 20), 2, shared("a"), 2);
    evict(&mut history, (100, 110), 3, (first, 1), did);
    history.lost(120, first, 1_010);
    history.held(300, second);
    history.release((400, 410), second);
    history.done(3_000);
    history
}

#[test]
fn a_holder_that_stays_is_not_fenced_off() {
    readers(Outcome::Evicted { token: None, gone: false }).keeps(Eviction);
    for did in [evicted(2), evicted(3), gone(Some(3))] {
        let verdict = readers(did).breaks(Eviction, 1);
        assert!(verdict.violations[0].title.contains("fences off a holder that stays"), "{:?}", verdict.violations);
    }
}

/// The evicted holder writes after the resource has seen the fence token.
fn writes(outcome: Outcome) -> History {
    let mut history = History::of(Workload::Fenced);
    let first = history.take((0, 10), 1, 1);
    history.write((20, 30), first, Some(1), 7, Outcome::Accepted);
    let fence = evict(&mut history, (100, 110), 3, (first, 1), evicted(2));
    history.read((120, 130), fence, Some(2), value(7));
    history.write((140, 150), first, Some(1), 8, outcome);
    history.lost(160, first, 1_010);
    history.done(3_000);
    history
}

#[test]
fn no_write_of_an_evicted_holder_is_accepted_once_the_resource_knows() {
    writes(Outcome::Refused { seen: 2 }).keeps(Fencing);
    let verdict = writes(Outcome::Accepted).breaks(Fencing, 1);
    assert!(verdict.violations[0].title.contains("accepted token 1 after 2"), "{:?}", verdict.violations);
}

#[test]
fn the_loss_of_an_evicted_lock_is_not_called_late_or_needless() {
    let history = overtaken(evicted(2), 590);
    let verdict = history.check();
    assert!(verdict.violations.is_empty(), "{:?}", verdict.violations);
    history.keeps(Loss);
}

/// Two runs of a tick; the first was evicted, or not, before it was done.
fn runs(did: Outcome) -> History {
    let mut history = History::of(Workload::Ticks);
    let tick = |attempt, token| Call::Tick { job: "j".to_owned(), tick: 60, attempt, token, once: false };
    let first = history.begin(100, 1, tick(1, 5));
    evict(&mut history, (110, 115), 3, (0, 5), did);
    let second = history.begin(120, 2, tick(2, 7));
    history.end(140, first, Outcome::Done);
    history.end(150, second, Outcome::Done);
    history
}

#[test]
fn an_evicted_run_may_be_run_again_and_any_other_not() {
    runs(evicted(6)).keeps(Ticks);
    runs(gone(None)).breaks(Ticks, 2);
}
