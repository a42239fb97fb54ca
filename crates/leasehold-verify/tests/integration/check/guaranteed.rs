//! Without a guarantee, violations are only counted; exceeded time bounds count or are only
//! reported.

use leasehold_verify::check::{Judge, Time, check, check_as};
use leasehold_verify::history::{Call, FaultKind, Outcome, Workload};
use leasehold_verify::verdict::Promise::{Deadlines, Exclusion, Ticks};
use leasehold_verify::verdict::State;

use crate::check::build::{History, MS, alone, finding, header};

/// Redis at this URL, under this fault.
fn redis(url: &str, workload: Workload, fault: FaultKind) -> History {
    let mut head = header(workload);
    (head.engine, head.url, head.faults) = ("redis".to_owned(), url.to_owned(), vec![fault]);
    History::with(head)
}

/// A tick that started before and after the server lost its data.
fn twice(url: &str, fault: FaultKind, once: bool) -> History {
    let mut history = redis(url, Workload::Ticks, fault);
    history.fault((1_000, 2_000), 1, fault, &[]);
    for (worker, begin, attempt) in [(1, 100, 1), (2, 3_000, if once { 1 } else { 2 })] {
        let call = Call::Tick { job: "j".to_owned(), tick: 60, attempt, token: begin, once };
        let op = history.begin(begin, worker, call);
        history.end(begin + 10, op, Outcome::Done);
    }
    history
}

#[test]
fn ticks_that_run_twice_are_counted_without_strict_and_a_failure_with_it() {
    for fault in [FaultKind::Failover, FaultKind::Wipe] {
        let finding = twice("redis://a", fault, true).only_counts(Ticks);
        assert!(finding.broken == 1 && finding.figure.starts_with("not promised"), "{finding:?}");
        let verdict = twice("redis://a?strict=6000ms", fault, true).breaks(Ticks, 1);
        assert!(verdict.violations[0].title.contains("began again, though at most once"), "{verdict:?}");
    }
    twice("redis://a?replicas=1", FaultKind::Failover, true).breaks(Ticks, 1);
    twice("redis://a?replicas=1", FaultKind::Wipe, true).only_counts(Ticks);
    twice("redis://a", FaultKind::Cut, true).breaks(Ticks, 1);
}

#[test]
fn whoever_asks_for_another_try_may_get_it_when_the_server_forgot() {
    let history = twice("redis://a?strict=6000ms", FaultKind::Failover, false);
    // The fault came within a TTL after the run was done, so the end may not have been recorded.
    history.keeps(Ticks);
}

#[test]
fn two_holders_are_counted_where_a_server_may_forget_without_strict() {
    let two = |url: &str| {
        let mut history = redis(url, Workload::Mutex, FaultKind::Wipe);
        for worker in [1, 2] {
            let hold = history.take((0, 10), worker, u64::from(worker));
            history.held(50, hold);
        }
        history
    };
    two("redis://a").only_counts(Exclusion);
    two("redis://a?strict=1s").breaks(Exclusion, 1);
}

#[test]
fn what_is_about_time_fails_or_is_reported_and_a_call_that_hangs_always_fails() {
    let mut late = History::of(Workload::Mutex);
    let op = late.begin_due(0, 1, Some(100), alone("a"));
    late.end(5_000, op, Outcome::Granted { token: 1, deadline: 6_000 * MS });
    late.done(6_000);
    let strict = check(&late.events);
    assert!(!strict.holds() && strict.late.is_empty());
    let lenient = check_as(&late.events, Judge { time: Time::Report });
    assert!(lenient.holds() && lenient.late.len() == 1, "{lenient:?}");
    let deadlines = finding(&lenient, Deadlines);
    assert_eq!((deadlines.state, deadlines.broken), (State::Kept, 0));
    assert!(deadlines.figure.ends_with("; 1 about time, only reported"), "{deadlines:?}");
    let mut hung = History::of(Workload::Mutex);
    hung.begin_due(0, 1, Some(100), alone("a"));
    hung.done(6_000);
    assert!(!check_as(&hung.events, Judge { time: Time::Report }).holds());
}
