//! Exclusion, tokens, re-entry, permits.

use leasehold_verify::history::{Call, Event, FaultKind, Mode, OpId, Outcome, State, Workload};
use leasehold_verify::verdict::Promise::{Exclusion, Fencing, Loss, Permits, Reentry, Tokens};

use crate::check::build::{History, MS, TTL, alone, failed, header, owned, permits, shared, unknown};

#[test]
fn one_after_the_other_keeps_exclusion_also_if_they_touch() {
    let mut history = History::of(Workload::Mutex);
    let first = history.take((0, 10), 1, 1);
    history.release((50, 60), first);
    // Granted at the very time at which the other one's release began.
    let second = history.take((5, 50), 2, 2);
    history.held(70, second);
    let finding = history.keeps(Exclusion);
    assert_eq!(finding.checked, 2);
    assert_eq!(finding.figure, "2 holds of 1 lock, 0 at once with another");
}

#[test]
fn two_at_once_break_exclusion() {
    let mut history = History::of(Workload::Mutex);
    let first = history.take((0, 10), 1, 1);
    history.held(3_000, first);
    let second = history.take((5, 2_500), 2, 2);
    history.held(2_812, second);
    let verdict = history.breaks(Exclusion, 1);
    let one = &verdict.violations[0];
    assert_eq!(one.title, "two held \"a\" for 1.312 s");
    assert_eq!((one.from, one.to), (2_500 * MS, 3_812 * MS));
    assert_eq!((one.workers.clone(), one.ops.clone()), (vec![1, 2], vec![first, second]));
    assert!(one.words.contains("Worker 1 was granted \"a\" at 0.010 s with token 1"), "{}", one.words);
}

/// Worker 1 is granted the lock at 10 with a deadline of 1,010; worker 2 is granted it at `t`.
fn relied_on(t: u64) -> (History, OpId) {
    let mut history = History::of(Workload::Mutex);
    let first = history.take((0, 10), 1, 1);
    let second = history.take((5, t), 2, 2);
    history.held(t + 10, second);
    (history, first)
}

#[test]
fn what_may_be_relied_on_counts_as_held_until_its_deadline() {
    relied_on(1_010).0.keeps(Exclusion);
    relied_on(1_009).0.breaks(Exclusion, 1);
    // A stopped holder may go on within its lease, and rely on it.
    let (mut history, _) = relied_on(1_009);
    history.worker(20, 1, State::Stopped);
    history.worker(2_000, 1, State::Resumed);
    history.breaks(Exclusion, 1);
    // A dead holder relies on nothing.
    let (mut history, _) = relied_on(500);
    history.worker(20, 1, State::Killed);
    history.keeps(Exclusion);
    // Nor does a holder that releases, whatever the outcome, or that knows of the loss.
    for outcome in [Outcome::WasLost { reason: "expired".to_owned() }, unknown(), failed()] {
        let (mut history, first) = relied_on(500);
        history.give_back((400, 410), first, outcome.clone());
        history.keeps(Exclusion);
        let (mut history, first) = relied_on(500);
        history.give_back((600, 610), first, outcome);
        history.breaks(Exclusion, 1);
    }
    let (mut history, first) = relied_on(500);
    history.lost(400, first, 1_010);
    history.keeps(Exclusion);
}

#[test]
fn a_lease_lasts_no_longer_than_its_ttl() {
    let mut history = History::of(Workload::Mutex);
    let hold = history.take((0, 10), 1, 1);
    history.held(20, hold);
    history.keeps(Loss);
    history.events.push(Event::Held { t: 30 * MS, op: hold, deadline: (31 + TTL) * MS });
    let verdict = history.breaks(Loss, 1);
    assert_eq!(verdict.violations[0].title, "\"a\" was to last 1.001 s, longer than its TTL");
}

#[test]
fn what_may_be_held_excuses_no_token_after_somebody_else() {
    let with = |other: bool| {
        let mut history = History::of(Workload::Reentrant);
        let earlier = history.begin(0, 1, owned("a", "x"));
        history.end(5, earlier, unknown());
        let first = history.lock((6, 10), 1, owned("a", "x"), 7);
        history.release((20, 30), first);
        if other {
            let between = history.lock((31, 40), 2, owned("a", "y"), 8);
            history.release((50, 60), between);
        }
        history.lock((61, 70), 1, owned("a", "x"), 7);
        history
    };
    with(false).keeps(Tokens);
    with(true).breaks(Tokens, 2);
}

#[test]
fn a_release_that_answered_confirms_the_hold_until_it_began() {
    let mut history = History::of(Workload::Mutex);
    let first = history.take((0, 10), 1, 1);
    history.release((500, 510), first);
    let second = history.take((5, 100), 2, 2);
    history.held(200, second);
    history.breaks(Exclusion, 1);
}

#[test]
fn a_failed_release_ends_nothing() {
    let mut history = History::of(Workload::Mutex);
    let first = history.take((0, 10), 1, 1);
    history.give_back((50, 60), first, failed());
    history.held(300, first);
    let second = history.take((5, 100), 2, 2);
    history.held(200, second);
    history.breaks(Exclusion, 1);
}

#[test]
fn readers_share_and_a_writer_does_not() {
    let mut history = History::of(Workload::Rwlock);
    let one = history.lock((0, 10), 1, shared("a"), 1);
    let two = history.lock((0, 20), 2, shared("a"), 2);
    history.release((100, 101), one);
    history.release((120, 121), two);
    history.keeps(Exclusion);
    let writer = history.lock((0, 90), 3, alone("a"), 3);
    history.held(95, writer);
    history.breaks(Exclusion, 1);
}

#[test]
fn other_locks_are_other_locks() {
    let mut history = History::of(Workload::Mutex);
    for (worker, lock) in [(1, "a"), (2, "b")] {
        let hold = history.lock((0, 10), worker, alone(lock), 1);
        history.held(500, hold);
    }
    history.keeps(Exclusion);
}

#[test]
fn a_reentry_keeps_exclusion_tokens_and_its_token() {
    let mut history = History::of(Workload::Reentrant);
    let outer = history.lock((0, 10), 1, owned("a", "x"), 7);
    let inner = history.lock((20, 30), 1, owned("a", "x"), 7);
    history.held(40, inner);
    history.release((50, 55), inner);
    history.release((60, 65), outer);
    for promise in [Exclusion, Tokens, Reentry] {
        history.keeps(promise);
    }
}

#[test]
fn a_reentry_with_another_token_breaks_it() {
    let mut history = History::of(Workload::Reentrant);
    let outer = history.lock((0, 10), 1, owned("a", "x"), 7);
    history.lock((20, 30), 1, owned("a", "x"), 8);
    history.release((60, 65), outer);
    history.breaks(Reentry, 1);
}

#[test]
fn a_hold_that_may_have_been_lost_says_nothing_of_a_reentry() {
    let mut history = History::of(Workload::Reentrant);
    let outer = history.lock((0, 10), 1, owned("a", "x"), 7);
    history.held(25, outer);
    history.lock((20, 30), 1, owned("a", "x"), 8);
    history.leaves(Reentry);
}

#[test]
fn other_owners_do_not_reenter() {
    let mut history = History::of(Workload::Reentrant);
    let outer = history.lock((0, 10), 1, owned("a", "x"), 7);
    let inner = history.lock((20, 30), 2, owned("a", "y"), 7);
    history.held(40, inner);
    history.release((60, 65), outer);
    history.breaks(Exclusion, 1);
    history.breaks(Tokens, 1);
    history.leaves(Reentry);
}

#[test]
fn tokens_of_grants_at_one_time_may_have_either_order() {
    let mut history = History::of(Workload::Mutex);
    let later = history.take((0, 30), 1, 2);
    let earlier = history.take((10, 20), 2, 1);
    history.release((21, 22), earlier);
    history.release((31, 32), later);
    history.take((32, 40), 3, 3);
    assert_eq!(history.keeps(Tokens).figure, "3 grants, 0 out of order");
}

#[test]
fn a_lower_token_later_breaks_tokens() {
    let mut history = History::of(Workload::Mutex);
    history.take((0, 30), 1, 2);
    history.take((31, 40), 2, 1);
    history.breaks(Tokens, 1);
}

#[test]
fn a_token_twice_breaks_tokens() {
    let mut history = History::of(Workload::Mutex);
    history.take((0, 30), 1, 2);
    history.take((10, 40), 2, 2);
    history.breaks(Tokens, 1);
}

#[test]
fn the_same_owner_after_giving_it_back_needs_a_new_token() {
    let mut history = History::of(Workload::Reentrant);
    let first = history.lock((0, 10), 1, owned("a", "x"), 7);
    history.release((20, 30), first);
    history.lock((31, 40), 1, owned("a", "x"), 7);
    history.breaks(Tokens, 1);
}

/// A call with an unknown outcome may hold the lock to the end; a fault alone excuses nothing.
#[test]
fn an_owner_may_reenter_a_claim_whose_outcome_it_does_not_know() {
    let reentered = |fault: bool, unknown: bool| {
        let mut history = History::of(Workload::Reentrant);
        if fault {
            history.fault((0, 5), 1, leasehold_verify::history::FaultKind::Cut, &[]);
        }
        if unknown {
            let earlier = history.begin(0, 1, owned("a", "x"));
            history.end(5, earlier, crate::check::build::unknown());
        }
        let first = history.lock((6, 10), 1, owned("a", "x"), 7);
        history.release((20, 30), first);
        history.lock((31, 40), 1, owned("a", "x"), 7);
        history
    };
    reentered(false, true).keeps(Tokens);
    reentered(true, false).breaks(Tokens, 1);
}

#[test]
fn a_reader_that_reenters_keeps_a_token_below_others() {
    let mut history = History::of(Workload::Rwlock);
    let call = || leasehold_verify::history::Call::Lock {
        lock: "a".to_owned(),
        mode: leasehold_verify::history::Mode::Shared,
        owner: Some("x".to_owned()),
        waits: true,
    };
    let outer = history.lock((0, 10), 1, call(), 5);
    history.lock((11, 20), 2, shared("a"), 6);
    history.lock((21, 30), 1, call(), 5);
    history.release((60, 65), outer);
    history.keeps(Tokens);
}

#[test]
fn an_engine_that_does_not_promise_tokens_is_only_counted() {
    let mut head = header(Workload::Mutex);
    head.fencing = false;
    let mut history = History::with(head);
    let first = history.take((0, 30), 1, 2);
    history.release((30, 31), first);
    history.take((31, 40), 2, 2);
    let finding = history.only_counts(Tokens);
    assert_eq!(finding.figure, "not promised under these faults; 2 grants, 1 out of order");
    assert!(history.check().holds());
}

#[test]
fn permits_up_to_the_limit() {
    let mut history = History::of(Workload::Semaphore);
    let one = history.lock((0, 10), 1, permits(2, 3), 1);
    let two = history.lock((0, 12), 2, permits(1, 3), 2);
    history.release((50, 51), one);
    history.release((60, 61), two);
    let three = history.lock((0, 50), 3, permits(2, 3), 3);
    history.held(90, three);
    assert_eq!(history.keeps(Permits).figure, "3 grants of permits, at most 3 of 3 out at once");
}

#[test]
fn one_permit_too_many() {
    let mut history = History::of(Workload::Semaphore);
    let one = history.lock((0, 10), 1, permits(2, 3), 1);
    history.release((50, 51), one);
    let two = history.lock((0, 49), 2, permits(2, 3), 2);
    history.held(70, two);
    let verdict = history.breaks(Permits, 1);
    assert_eq!(verdict.violations[0].title, "4 of 3 permits of \"a\" were out");
}

/// Worker 1 holds from 10, worker 2 from 100; worker 1 learns of it at 300.
fn two_at_once(exclusion: bool) -> History {
    let mut head = header(Workload::Fenced);
    head.exclusion = exclusion;
    let mut history = History::with(head);
    let first = history.take((0, 10), 1, 1);
    let second = history.take((20, 100), 2, 2);
    history.held(200, first);
    history.lost(300, first, 1200);
    history.write((210, 220), second, Some(2), 7, Outcome::Accepted);
    history
}

#[test]
fn where_leases_may_end_early_two_at_once_are_only_counted_and_fencing_is_still_judged() {
    two_at_once(true).breaks(Exclusion, 1);
    two_at_once(true).breaks(Loss, 1);
    let history = two_at_once(false);
    let figure = "not promised under these faults; 2 holds of 1 lock, 1 at once with another";
    assert_eq!(history.only_counts(Exclusion).figure, figure);
    history.keeps(Loss);
    history.keeps(Tokens);
    let mut history = two_at_once(false);
    let first = history.take((400, 410), 3, 3);
    history.write((420, 430), first, Some(1), 8, Outcome::Accepted);
    history.breaks(Fencing, 1);
}

#[test]
fn who_waited_has_a_higher_token_than_whoever_was_granted_before_it() {
    // Worker 2 requests before worker 1 is granted, and gets the lock by a hand-off from it.
    let handed = |tokens: (u64, u64), valid: bool| {
        let mut history = History::of(Workload::Mutex);
        let second = history.begin(1, 2, alone("a"));
        let first = history.take((0, 10), 1, tokens.0);
        history.held(200, first);
        history.release((300, 310), first);
        let deadline = if valid { 400 + TTL } else { 350 };
        history.end(400, second, Outcome::Granted { token: tokens.1, deadline: deadline * MS });
        history
    };
    handed((5, 9), true).keeps(Tokens);
    handed((9, 5), true).breaks(Tokens, 1);
    // Its lease was over when it learned of the grant: it may have come first.
    handed((9, 5), false).keeps(Tokens);
    // Readers hold together, in any order; a writer does not.
    for (mode, wrong) in [(shared("a"), false), (alone("a"), true)] {
        let mut history = History::of(Workload::Rwlock);
        let second = history.begin(1, 2, mode);
        let first = history.lock((0, 10), 1, shared("a"), 9);
        history.release((20, 30), first);
        history.end(40, second, Outcome::Granted { token: 5, deadline: (40 + TTL) * MS });
        if wrong {
            history.breaks(Tokens, 1);
        } else {
            history.keeps(Tokens);
        }
    }
}

#[test]
fn an_owner_that_lost_the_lock_to_somebody_else_does_not_get_its_token_again() {
    let come_again = |between: bool| {
        let mut history = History::of(Workload::Reentrant);
        let first = history.lock((0, 10), 1, owned("a", "x"), 5);
        history.held(20, first);
        history.lost(1010, first, 1010);
        history.give_back((1020, 1030), first, Outcome::WasLost { reason: "expired".to_owned() });
        if between {
            // It had waited since before.
            let other = history.lock((5, 1100), 2, owned("a", "y"), 6);
            history.held(1110, other);
            history.release((1120, 1130), other);
        }
        history.lock((1200, 1210), 1, owned("a", "x"), 5);
        history
    };
    // It is not known to be over on the server.
    come_again(false).keeps(Tokens);
    // Twice, and after a higher one.
    let verdict = come_again(true).breaks(Tokens, 2);
    assert!(verdict.violations.iter().any(|violation| violation.title.contains("given twice")));
}

#[test]
fn an_owner_whose_lock_was_lost_long_ago_does_not_get_its_token_again() {
    let come_again = |at: u64| {
        let mut history = History::of(Workload::Reentrant);
        let first = history.lock((0, 10), 1, owned("a", "x"), 5);
        history.held(20, first);
        history.lost(1_010, first, 1_010);
        history.lock((at, at + 10), 1, owned("a", "x"), 5);
        history
    };
    // A TTL and a fifth, and a second: by then the servers' record has expired, too.
    come_again(3_210).keeps(Tokens);
    come_again(3_211).breaks(Tokens, 1);
    // A server that was down may keep it for longer.
    let mut history = come_again(3_211);
    history.fault((500, 1_500), 1, FaultKind::Crash, &[]);
    history.keeps(Tokens);
}

#[test]
fn permits_are_out_until_the_last_hold_of_their_owner_ends() {
    let of = |owner: Option<&str>, n| {
        let owner = owner.map(str::to_owned);
        Call::Lock { lock: "a".to_owned(), mode: Mode::Permits { n, limit: 3 }, owner, waits: true }
    };
    let reentered = |outer_first: bool| {
        let mut history = History::of(Workload::Semaphore);
        let outer = history.lock((0, 10), 1, of(Some("x"), 2), 1);
        let inner = history.lock((20, 30), 1, of(Some("x"), 2), 1);
        let (first, second) = if outer_first { (outer, inner) } else { (inner, outer) };
        history.release((40, 41), first);
        history.held(100, second);
        history.release((120, 121), second);
        history
    };
    for outer_first in [true, false] {
        let mut history = reentered(outer_first);
        let other = history.lock((0, 50), 2, of(None, 1), 2);
        history.held(90, other);
        assert_eq!(history.keeps(Permits).figure, "3 grants of permits, at most 3 of 3 out at once");
        let mut history = reentered(outer_first);
        let other = history.lock((0, 50), 2, of(None, 2), 2);
        history.held(90, other);
        history.breaks(Permits, 1);
    }
    // The larger one has ended.
    let mut history = History::of(Workload::Semaphore);
    let outer = history.lock((0, 10), 1, of(Some("x"), 2), 1);
    let inner = history.lock((20, 30), 1, of(Some("x"), 1), 1);
    history.release((40, 41), outer);
    let other = history.lock((0, 50), 2, of(None, 2), 2);
    history.held(90, other);
    history.held(100, inner);
    history.release((120, 121), inner);
    history.keeps(Permits);
}

/// A worker's `Killed` line is written when it is gone. A history that ends before that has only
/// the fault.
#[test]
fn who_was_being_killed_when_the_history_was_cut_short_holds_nothing_any_more() {
    let cut = |whole: bool| {
        let mut history = History::of(Workload::Mutex);
        let first = history.take((0, 10), 1, 1);
        history.held(20, first);
        history.fault((30, 40), 1, FaultKind::Kill, &[1]);
        let second = history.take((35, 50), 2, 2);
        history.held(60, second);
        if whole {
            history.done(70);
        }
        history
    };
    cut(false).keeps(Exclusion);
    cut(true).breaks(Exclusion, 1);
}
