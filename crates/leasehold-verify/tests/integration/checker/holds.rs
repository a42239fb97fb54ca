//! Tests the checks of exclusion, tokens, re-entry and permits.

use leasehold_verify::history::{Call, Event, FaultKind, Mode, OpId, Outcome, WorkerState, Workload};
use leasehold_verify::verdict::Guarantee::{Exclusion, Fencing, Loss, Permits, Reentry, Tokens};

use crate::checker::history_builder::{
    HistoryBuilder, NANOS_PER_MS, TTL, exclusive_request, exclusive_request_of, failed_outcome, header, permit_request,
    shared_request, unknown_outcome,
};

#[test]
fn successive_holds_keep_exclusion_even_if_they_touch() {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((0, 10), 1, 1);
    history.release((50, 60), first);
    // Granted at the very time at which the other one's release began.
    let second = history.acquire((5, 50), 2, 2);
    history.add_held_check(70, second);
    let finding = history.assert_kept(Exclusion);
    assert_eq!(finding.checked, 2);
    assert_eq!(finding.figure, "2 holds of 1 lock, 0 overlapping another");
}

#[test]
fn two_concurrent_holders_break_exclusion() {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((0, 10), 1, 1);
    history.add_held_check(3_000, first);
    let second = history.acquire((5, 2_500), 2, 2);
    history.add_held_check(2_812, second);
    let verdict = history.assert_broken(Exclusion, 1);
    let one = &verdict.violations[0];
    assert_eq!(one.title, "two held \"a\" for 1.312 s");
    assert_eq!((one.from, one.to), (2_500 * NANOS_PER_MS, 3_812 * NANOS_PER_MS));
    assert_eq!((one.workers.clone(), one.ops.clone()), (vec![1, 2], vec![first, second]));
    assert!(one.details.contains("Worker 1 was granted \"a\" at 0.010 s with token 1"), "{}", one.details);
}

/// Worker 1 is granted the lock at 10 with a deadline of 1,010, and worker 2 is granted it at `t`.
/// Returns the history and worker 1's call.
fn hold_and_grant_at(t: u64) -> (HistoryBuilder, OpId) {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((0, 10), 1, 1);
    let second = history.acquire((5, t), 2, 2);
    history.add_held_check(t + 10, second);
    (history, first)
}

#[test]
fn a_lock_counts_as_held_until_the_deadline_its_holder_relies_on() {
    hold_and_grant_at(1_010).0.assert_kept(Exclusion);
    hold_and_grant_at(1_009).0.assert_broken(Exclusion, 1);
    // A stopped holder may be resumed within its lease, and then rely on its lock.
    let (mut history, _) = hold_and_grant_at(1_009);
    history.add_worker_state(20, 1, WorkerState::Stopped);
    history.add_worker_state(2_000, 1, WorkerState::Resumed);
    history.assert_broken(Exclusion, 1);
    // A killed holder does not rely on its lock.
    let (mut history, _) = hold_and_grant_at(500);
    history.add_worker_state(20, 1, WorkerState::Killed);
    history.assert_kept(Exclusion);
    // Nor does a holder that began to release, with any outcome, or that was notified of the loss.
    for outcome in [Outcome::WasLost { reason: "expired".to_owned() }, unknown_outcome(), failed_outcome()] {
        let (mut history, first) = hold_and_grant_at(500);
        history.release_with((400, 410), first, outcome.clone());
        history.assert_kept(Exclusion);
        let (mut history, first) = hold_and_grant_at(500);
        history.release_with((600, 610), first, outcome);
        history.assert_broken(Exclusion, 1);
    }
    let (mut history, first) = hold_and_grant_at(500);
    history.add_loss(400, first, 1_010);
    history.assert_kept(Exclusion);
}

#[test]
fn a_lease_lasts_no_longer_than_its_ttl() {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let hold = history.acquire((0, 10), 1, 1);
    history.add_held_check(20, hold);
    history.assert_kept(Loss);
    history.events.push(Event::Held { t: 30 * NANOS_PER_MS, op: hold, deadline: (31 + TTL) * NANOS_PER_MS });
    let verdict = history.assert_broken(Loss, 1);
    assert_eq!(verdict.violations[0].title, "\"a\" had a lease of 1.001 s, longer than its TTL");
}

#[test]
fn a_possible_hold_does_not_excuse_a_repeated_token_after_another_holder() {
    let with = |other: bool| {
        let mut history = HistoryBuilder::for_workload(Workload::Reentrant);
        let earlier = history.begin(0, 1, exclusive_request_of("a", "x"));
        history.end(5, earlier, unknown_outcome());
        let first = history.add_grant((6, 10), 1, exclusive_request_of("a", "x"), 7);
        history.release((20, 30), first);
        if other {
            let between = history.add_grant((31, 40), 2, exclusive_request_of("a", "y"), 8);
            history.release((50, 60), between);
        }
        history.add_grant((61, 70), 1, exclusive_request_of("a", "x"), 7);
        history
    };
    with(false).assert_kept(Tokens);
    with(true).assert_broken(Tokens, 2);
}

#[test]
fn a_confirmed_release_proves_the_hold_until_the_release_began() {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((0, 10), 1, 1);
    history.release((500, 510), first);
    let second = history.acquire((5, 100), 2, 2);
    history.add_held_check(200, second);
    history.assert_broken(Exclusion, 1);
}

#[test]
fn a_failed_release_ends_nothing() {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let first = history.acquire((0, 10), 1, 1);
    history.release_with((50, 60), first, failed_outcome());
    history.add_held_check(300, first);
    let second = history.acquire((5, 100), 2, 2);
    history.add_held_check(200, second);
    history.assert_broken(Exclusion, 1);
}

#[test]
fn readers_share_and_a_writer_does_not() {
    let mut history = HistoryBuilder::for_workload(Workload::Rwlock);
    let one = history.add_grant((0, 10), 1, shared_request("a"), 1);
    let two = history.add_grant((0, 20), 2, shared_request("a"), 2);
    history.release((100, 101), one);
    history.release((120, 121), two);
    history.assert_kept(Exclusion);
    let writer = history.add_grant((0, 90), 3, exclusive_request("a"), 3);
    history.add_held_check(95, writer);
    history.assert_broken(Exclusion, 1);
}

#[test]
fn holders_of_different_locks_do_not_conflict() {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    for (worker, lock) in [(1, "a"), (2, "b")] {
        let hold = history.add_grant((0, 10), worker, exclusive_request(lock), 1);
        history.add_held_check(500, hold);
    }
    history.assert_kept(Exclusion);
}

#[test]
fn a_reentry_keeps_its_token_and_breaks_nothing() {
    let mut history = HistoryBuilder::for_workload(Workload::Reentrant);
    let outer = history.add_grant((0, 10), 1, exclusive_request_of("a", "x"), 7);
    let inner = history.add_grant((20, 30), 1, exclusive_request_of("a", "x"), 7);
    history.add_held_check(40, inner);
    history.release((50, 55), inner);
    history.release((60, 65), outer);
    for guarantee in [Exclusion, Tokens, Reentry] {
        history.assert_kept(guarantee);
    }
}

#[test]
fn a_reentry_with_another_token_is_found() {
    let mut history = HistoryBuilder::for_workload(Workload::Reentrant);
    let outer = history.add_grant((0, 10), 1, exclusive_request_of("a", "x"), 7);
    history.add_grant((20, 30), 1, exclusive_request_of("a", "x"), 8);
    history.release((60, 65), outer);
    history.assert_broken(Reentry, 1);
}

#[test]
fn a_hold_that_may_be_lost_leaves_reentry_untested() {
    let mut history = HistoryBuilder::for_workload(Workload::Reentrant);
    let outer = history.add_grant((0, 10), 1, exclusive_request_of("a", "x"), 7);
    history.add_held_check(25, outer);
    history.add_grant((20, 30), 1, exclusive_request_of("a", "x"), 8);
    history.assert_untested(Reentry);
}

#[test]
fn other_owners_do_not_reenter() {
    let mut history = HistoryBuilder::for_workload(Workload::Reentrant);
    let outer = history.add_grant((0, 10), 1, exclusive_request_of("a", "x"), 7);
    let inner = history.add_grant((20, 30), 2, exclusive_request_of("a", "y"), 7);
    history.add_held_check(40, inner);
    history.release((60, 65), outer);
    history.assert_broken(Exclusion, 1);
    history.assert_broken(Tokens, 1);
    history.assert_untested(Reentry);
}

#[test]
fn tokens_of_concurrent_grants_may_have_either_order() {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    let later = history.acquire((0, 30), 1, 2);
    let earlier = history.acquire((10, 20), 2, 1);
    history.release((21, 22), earlier);
    history.release((31, 32), later);
    history.acquire((32, 40), 3, 3);
    assert_eq!(history.assert_kept(Tokens).figure, "3 grants, 0 out of order");
}

#[test]
fn a_lower_token_later_breaks_tokens() {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    history.acquire((0, 30), 1, 2);
    history.acquire((31, 40), 2, 1);
    history.assert_broken(Tokens, 1);
}

#[test]
fn a_repeated_token_breaks_tokens() {
    let mut history = HistoryBuilder::for_workload(Workload::Mutex);
    history.acquire((0, 30), 1, 2);
    history.acquire((10, 40), 2, 2);
    history.assert_broken(Tokens, 1);
}

#[test]
fn the_same_owner_needs_a_new_token_after_a_release() {
    let mut history = HistoryBuilder::for_workload(Workload::Reentrant);
    let first = history.add_grant((0, 10), 1, exclusive_request_of("a", "x"), 7);
    history.release((20, 30), first);
    history.add_grant((31, 40), 1, exclusive_request_of("a", "x"), 7);
    history.assert_broken(Tokens, 1);
}

/// A call with an unknown outcome may hold the lock, so a later grant may repeat its token. A fault
/// alone is no excuse for that.
#[test]
fn an_owner_may_reenter_a_claim_whose_outcome_it_does_not_know() {
    let reentered = |fault: bool, unknown: bool| {
        let mut history = HistoryBuilder::for_workload(Workload::Reentrant);
        if fault {
            history.add_fault((0, 5), 1, leasehold_verify::history::FaultKind::Cut, &[]);
        }
        if unknown {
            let earlier = history.begin(0, 1, exclusive_request_of("a", "x"));
            history.end(5, earlier, crate::checker::history_builder::unknown_outcome());
        }
        let first = history.add_grant((6, 10), 1, exclusive_request_of("a", "x"), 7);
        history.release((20, 30), first);
        history.add_grant((31, 40), 1, exclusive_request_of("a", "x"), 7);
        history
    };
    reentered(false, true).assert_kept(Tokens);
    reentered(true, false).assert_broken(Tokens, 1);
}

#[test]
fn a_reader_that_reenters_keeps_a_token_below_others() {
    let mut history = HistoryBuilder::for_workload(Workload::Rwlock);
    let call = || leasehold_verify::history::Call::Lock {
        lock: "a".to_owned(),
        mode: leasehold_verify::history::Mode::Shared,
        owner: Some("x".to_owned()),
        waits: true,
    };
    let outer = history.add_grant((0, 10), 1, call(), 5);
    history.add_grant((11, 20), 2, shared_request("a"), 6);
    history.add_grant((21, 30), 1, call(), 5);
    history.release((60, 65), outer);
    history.assert_kept(Tokens);
}

#[test]
fn tokens_that_are_not_guaranteed_are_only_counted() {
    let mut head = header(Workload::Mutex);
    head.fencing = false;
    let mut history = HistoryBuilder::with_header(head);
    let first = history.acquire((0, 30), 1, 2);
    history.release((30, 31), first);
    history.acquire((31, 40), 2, 2);
    let finding = history.assert_not_guaranteed(Tokens);
    assert_eq!(finding.figure, "not guaranteed under these faults; 2 grants, 1 out of order");
    assert!(history.check().has_no_violations());
}

#[test]
fn permits_up_to_the_limit_are_kept() {
    let mut history = HistoryBuilder::for_workload(Workload::Semaphore);
    let one = history.add_grant((0, 10), 1, permit_request(2, 3), 1);
    let two = history.add_grant((0, 12), 2, permit_request(1, 3), 2);
    history.release((50, 51), one);
    history.release((60, 61), two);
    let three = history.add_grant((0, 50), 3, permit_request(2, 3), 3);
    history.add_held_check(90, three);
    assert_eq!(history.assert_kept(Permits).figure, "3 grants of permits, at most 3 of 3 in use at once");
}

#[test]
fn one_permit_too_many_is_found() {
    let mut history = HistoryBuilder::for_workload(Workload::Semaphore);
    let one = history.add_grant((0, 10), 1, permit_request(2, 3), 1);
    history.release((50, 51), one);
    let two = history.add_grant((0, 49), 2, permit_request(2, 3), 2);
    history.add_held_check(70, two);
    let verdict = history.assert_broken(Permits, 1);
    assert_eq!(verdict.violations[0].title, "4 of 3 permits of \"a\" were in use");
}

/// Worker 1 is granted the lock at 10 and notified of its loss at 300; worker 2 is granted it at
/// 100. `exclusion`: whether the header guarantees exclusion.
fn two_concurrent_holders(exclusion: bool) -> HistoryBuilder {
    let mut head = header(Workload::Fenced);
    head.exclusion = exclusion;
    let mut history = HistoryBuilder::with_header(head);
    let first = history.acquire((0, 10), 1, 1);
    let second = history.acquire((20, 100), 2, 2);
    history.add_held_check(200, first);
    history.add_loss(300, first, 1200);
    history.write((210, 220), second, Some(2), 7, Outcome::Accepted);
    history
}

#[test]
fn where_leases_may_end_early_concurrent_holds_are_only_counted_and_fencing_is_still_checked() {
    two_concurrent_holders(true).assert_broken(Exclusion, 1);
    two_concurrent_holders(true).assert_broken(Loss, 1);
    let history = two_concurrent_holders(false);
    let figure = "not guaranteed under these faults; 2 holds of 1 lock, 1 overlapping another";
    assert_eq!(history.assert_not_guaranteed(Exclusion).figure, figure);
    history.assert_kept(Loss);
    history.assert_kept(Tokens);
    let mut history = two_concurrent_holders(false);
    let first = history.acquire((400, 410), 3, 3);
    history.write((420, 430), first, Some(1), 8, Outcome::Accepted);
    history.assert_broken(Fencing, 1);
}

#[test]
fn a_waiter_has_a_higher_token_than_the_holder_granted_before_it() {
    // Worker 2 requests before worker 1 is granted, and gets the lock by a hand-off from it.
    let hand_off = |tokens: (u64, u64), valid: bool| {
        let mut history = HistoryBuilder::for_workload(Workload::Mutex);
        let second = history.begin(1, 2, exclusive_request("a"));
        let first = history.acquire((0, 10), 1, tokens.0);
        history.add_held_check(200, first);
        history.release((300, 310), first);
        let deadline = if valid { 400 + TTL } else { 350 };
        history.end(400, second, Outcome::Granted { token: tokens.1, deadline: deadline * NANOS_PER_MS });
        history
    };
    hand_off((5, 9), true).assert_kept(Tokens);
    hand_off((9, 5), true).assert_broken(Tokens, 1);
    // Its lease was over when it learned of the grant: it may have come first.
    hand_off((9, 5), false).assert_kept(Tokens);
    // Tokens of two readers may have either order, because both hold at once. A writer's may not.
    for (mode, wrong) in [(shared_request("a"), false), (exclusive_request("a"), true)] {
        let mut history = HistoryBuilder::for_workload(Workload::Rwlock);
        let second = history.begin(1, 2, mode);
        let first = history.add_grant((0, 10), 1, shared_request("a"), 9);
        history.release((20, 30), first);
        history.end(40, second, Outcome::Granted { token: 5, deadline: (40 + TTL) * NANOS_PER_MS });
        if wrong {
            history.assert_broken(Tokens, 1);
        } else {
            history.assert_kept(Tokens);
        }
    }
}

#[test]
fn an_owner_that_lost_the_lock_to_another_holder_gets_a_new_token() {
    let granted_again = |between: bool| {
        let mut history = HistoryBuilder::for_workload(Workload::Reentrant);
        let first = history.add_grant((0, 10), 1, exclusive_request_of("a", "x"), 5);
        history.add_held_check(20, first);
        history.add_loss(1010, first, 1010);
        history.release_with((1020, 1030), first, Outcome::WasLost { reason: "expired".to_owned() });
        if between {
            // The other owner had waited for the lock since before the loss.
            let other = history.add_grant((5, 1100), 2, exclusive_request_of("a", "y"), 6);
            history.add_held_check(1110, other);
            history.release((1120, 1130), other);
        }
        history.add_grant((1200, 1210), 1, exclusive_request_of("a", "x"), 5);
        history
    };
    // Without another holder in between, the server's lease may not have expired: a re-entry.
    granted_again(false).assert_kept(Tokens);
    // Two violations: the token was granted twice, and came after a higher one.
    let verdict = granted_again(true).assert_broken(Tokens, 2);
    assert!(verdict.violations.iter().any(|violation| violation.title.contains("granted twice")));
}

#[test]
fn an_owner_whose_lock_was_lost_long_ago_gets_a_new_token() {
    let granted_again = |at: u64| {
        let mut history = HistoryBuilder::for_workload(Workload::Reentrant);
        let first = history.add_grant((0, 10), 1, exclusive_request_of("a", "x"), 5);
        history.add_held_check(20, first);
        history.add_loss(1_010, first, 1_010);
        history.add_grant((at, at + 10), 1, exclusive_request_of("a", "x"), 5);
        history
    };
    // A TTL and a fifth, and a second: by then the servers' record has expired, too.
    granted_again(3_210).assert_kept(Tokens);
    granted_again(3_211).assert_broken(Tokens, 1);
    // A server that was down may keep the lease's record for longer.
    let mut history = granted_again(3_211);
    history.add_fault((500, 1_500), 1, FaultKind::Crash, &[]);
    history.assert_kept(Tokens);
}

#[test]
fn permits_are_in_use_until_the_last_hold_of_their_owner_ends() {
    let of = |owner: Option<&str>, n| {
        let owner = owner.map(str::to_owned);
        Call::Lock { lock: "a".to_owned(), mode: Mode::Permits { n, limit: 3 }, owner, waits: true }
    };
    let reentered = |outer_first: bool| {
        let mut history = HistoryBuilder::for_workload(Workload::Semaphore);
        let outer = history.add_grant((0, 10), 1, of(Some("x"), 2), 1);
        let inner = history.add_grant((20, 30), 1, of(Some("x"), 2), 1);
        let (first, second) = if outer_first { (outer, inner) } else { (inner, outer) };
        history.release((40, 41), first);
        history.add_held_check(100, second);
        history.release((120, 121), second);
        history
    };
    for outer_first in [true, false] {
        let mut history = reentered(outer_first);
        let other = history.add_grant((0, 50), 2, of(None, 1), 2);
        history.add_held_check(90, other);
        assert_eq!(history.assert_kept(Permits).figure, "3 grants of permits, at most 3 of 3 in use at once");
        let mut history = reentered(outer_first);
        let other = history.add_grant((0, 50), 2, of(None, 2), 2);
        history.add_held_check(90, other);
        history.assert_broken(Permits, 1);
    }
    // After the hold with two permits has ended, only the one with one permit counts.
    let mut history = HistoryBuilder::for_workload(Workload::Semaphore);
    let outer = history.add_grant((0, 10), 1, of(Some("x"), 2), 1);
    let inner = history.add_grant((20, 30), 1, of(Some("x"), 1), 1);
    history.release((40, 41), outer);
    let other = history.add_grant((0, 50), 2, of(None, 2), 2);
    history.add_held_check(90, other);
    history.add_held_check(100, inner);
    history.release((120, 121), inner);
    history.assert_kept(Permits);
}

/// The event `Killed` is written when the worker's process has ended. A history that is cut short
/// before that has only the fault.
#[test]
fn a_worker_killed_when_the_history_was_cut_short_holds_nothing() {
    let cut = |whole: bool| {
        let mut history = HistoryBuilder::for_workload(Workload::Mutex);
        let first = history.acquire((0, 10), 1, 1);
        history.add_held_check(20, first);
        history.add_fault((30, 40), 1, FaultKind::Kill, &[1]);
        let second = history.acquire((35, 50), 2, 2);
        history.add_held_check(60, second);
        if whole {
            history.add_last_line(70);
        }
        history
    };
    cut(false).assert_kept(Exclusion);
    cut(true).assert_broken(Exclusion, 1);
}
